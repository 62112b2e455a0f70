#include "backend/world/hosts.hpp"

#include <gtest/gtest.h>

#include "sim/error.hpp"

namespace backend {
namespace {

/// Ranks on hosts of these names, each of which has one clock.
std::vector<Greeting> on(const std::vector<std::string>& hosts) {
  std::vector<Greeting> greetings;
  for (const std::string& host : hosts) greetings.push_back({host, "boot of " + host, {{"version", "1"}}});
  return greetings;
}

std::string refusal(const std::vector<Greeting>& greetings) {
  try {
    const Hosts hosts(greetings);
    return "none";
  } catch (const sim::ConfigError& error) {
    return error.what();
  }
}

TEST(Hosts, AreTheirRanks) {
  const Hosts hosts(on({"a", "a", "b", "b", "c", "c"}));
  EXPECT_TRUE(hosts.several());
  ASSERT_EQ(hosts.list().size(), 3U);
  EXPECT_EQ(hosts.list()[1].ranks, (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(hosts.host_of(4), 2U);
  EXPECT_EQ(hosts.place_of(5), 1U);
  EXPECT_EQ(hosts.first_of(5), 4U);
  EXPECT_EQ(hosts.named(3), "rank 3 on b");
}

TEST(Hosts, OneClockIsOneHost) {
  std::vector<Greeting> greetings = on({"a", "b"});
  greetings[1].clock = greetings[0].clock;  // two containers on a machine
  const Hosts hosts(greetings);
  EXPECT_FALSE(hosts.several());
  EXPECT_EQ(hosts.place_of(1), 1U);
  EXPECT_EQ(hosts.named(1), "rank 1");
}

TEST(Hosts, RanksLieHostByHostAsManyOnEach) {
  EXPECT_EQ(refusal(on({"a", "b", "a", "b"})),
            "ranks 0 and 2 are on a, and the ranks between them aren't; ranks must lie host by host (srun "
            "--distribution=block, mpirun --map-by slot)");
  EXPECT_EQ(refusal(on({"a", "a", "b"})), "a has 2 ranks and b has 1; all hosts must have as many");
}

TEST(Hosts, NameWhoHasWhatOtherwise) {
  std::vector<Greeting> greetings = on({"a", "a", "b", "b"});
  greetings[2].alike = {{"version", "2"}};
  EXPECT_EQ(refusal(greetings),
            "rank 2 on b has another version (2) than rank 0 on a (1); all ranks must have the same");
  greetings = on({"a", "b"});
  greetings[1].alike["file 'p.json'"] = "77";
  EXPECT_EQ(refusal(greetings),
            "rank 1 on b has another file 'p.json' (77) than rank 0 on a (none); all ranks must have the same");
  greetings[1].alike.clear();
  EXPECT_EQ(refusal(greetings),
            "rank 1 on b has another version (none) than rank 0 on a (1); all ranks must have the same");
}

TEST(Hosts, NameWhoStaysAway) {
  std::vector<Greeting> greetings = on({"a", "b"});
  greetings[1].alike.clear();  // it hasn't come so far
  greetings[1].stays_away = true;
  greetings[1].status = sim::kConfigErrorStatus;
  greetings[1].why = "no such device";
  EXPECT_EQ(refusal(greetings), "rank 1 on b: no such device");
}

}  // namespace
}  // namespace backend
