#include "sim/cost/profile.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/error.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

const LinkKey kGloo{"gloo", "all_reduce", 2};

Profile sample_profile() {
  Profile profile("cpu_core");
  profile.environment["kernel"] = "6.18";
  profile.add_op("local", "relu.forward f32[8,16] inplace=1", 1, std::vector{2e-6, 3e-6, 4e-6});
  profile.add_op("local", "relu.forward f32[8,16] inplace=1", 2, std::vector{5e-6});
  profile.add_link(kGloo, 4096, std::vector{1e-4, 2e-4});
  profile.add_link(kGloo, 1 << 20, std::vector{1e-3, 1.1e-3}, {3e-5, 1e-5});
  profile.add_link({"gloo", "all_reduce", 2, "0 0, 1 1"}, 4096, std::vector{2e-4}, {3e-5, 0, 7e-5});
  profile.add_link({.world = "gloo", .kind = "all_gather", .own_in_place = true}, 4096, std::vector{9e-5},
                   {.rewriting_s = 2e-5, .core_time = 1.25});
  profile.add_launch(std::vector{1e-6, 1.2e-6});
  profile.add_core_share("gloo", 0.25);
  profile.add_process_bytes("gloo", std::vector{4e8, 3e8});
  profile.add_rank_spread("gloo", {3, 0.02, 1e-4});
  profile.add_rank_spread("gloo", {1, 0.06, 5e-4});
  profile.add_rank_spread("local", {1, 0.5, 8e3});  // steps of microseconds on a machine with other work: seen
  profile.add_interruptions("gloo", {3, 0.0625});
  profile.add_late_transfers("gloo", {2000, 0.125});
  for (const double seconds : {0.0086, 0.0118, 0.0095}) profile.add_round("ops of net", seconds);
  return profile;
}

std::string message_of(const std::string& text) {
  try {
    profile_from_json(text, "p.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("'" + from + "' isn't in the file");
  return text.replace(at, from.size(), to);
}

class TemporaryFile {
 public:
  TemporaryFile()
      : path(std::filesystem::temp_directory_path() / ("profile_test_" + std::to_string(::getpid()) + ".json")) {}
  ~TemporaryFile() { std::filesystem::remove(path); }
  const std::filesystem::path path;
};

TEST(Profile, PostsAreInterpolatedAndMerged) {
  Profile profile("cpu");
  const LinkKey send{"gloo", "send", 2};
  profile.add_link(send, 1000, std::vector{30e-6, 30e-6}, {20e-6, 10e-6});
  profile.add_link(send, 1000, std::vector{30e-6}, {26e-6, 13e-6});
  profile.add_link(send, 3000, std::vector{90e-6}, {82e-6, 9e-6});
  for (const auto& [bytes, post_us, recv_post_us] :
       {std::tuple(10, 22.0, 11.0), {1000, 22, 11}, {2000, 52, 10}, {3000, 82, 9}, {5000, 142, 9}}) {
    const TransferTime time = *profile.transfer(send, bytes);
    EXPECT_NEAR(time.posts.send_overhead_s, 1e-6 * post_us, 1e-12) << bytes;
    EXPECT_NEAR(time.posts.recv_overhead_s, 1e-6 * recv_post_us, 1e-12) << bytes;
  }
}

// Without notes the share of the core stands for what a large message's post takes more than a small one's.
// Of samples that nothing was computed beside, nothing is known; beyond the largest size a ratio doesn't grow.
TEST(Profile, CoreTimeIsOfTransfersBesideCompute) {
  const Cluster cluster = load_cluster("cpu_gloo", 2, 2);
  Profile profile("core");
  profile.add_core_share("gloo", 0.8);
  profile.add_link(kGloo, 1000, std::vector{1e-4, 1e-4}, {.core_time = 1.6});
  profile.add_link(kGloo, 3000, std::vector{3e-4, 3e-4}, {.core_time = 1.2});
  const auto at = [&](std::int64_t bytes) { return transfer_cost(profile, cluster, kGloo, bytes)->beside_compute; };
  profile.add_link(kGloo, 1000, std::vector(10, 1e-4), {});
  EXPECT_DOUBLE_EQ(at(1000), 2);
  EXPECT_DOUBLE_EQ(at(2000), 1.75);
  EXPECT_DOUBLE_EQ(at(9000), 1.5);
  profile = profile_from_json(profile.to_json(), "p.json");
  profile.add_link(kGloo, 1000, std::vector(12, 1e-4), {.core_time = 1.2});
  EXPECT_DOUBLE_EQ(at(500), 1.75) << "as many samples as the file has";
  profile.add_link(kGloo, 3000, std::vector(1000, 3e-4), {.core_time = 0.4});
  EXPECT_DOUBLE_EQ(at(3000), 1) << "never faster than alone";
  profile.add_link({"gloo", "broadcast", 2}, 1000, std::vector{1e-4}, {});
  EXPECT_DOUBLE_EQ(transfer_cost(profile, cluster, {"gloo", "broadcast", 2}, 1000)->beside_compute, 1);
}

TEST(Profile, ASendHasARendezvousIfBothWaysAndTheNoteAreKnown) {
  const Cluster cluster = load_cluster("cpu_gloo", 2, 2);
  Profile profile("cpu");
  const LinkKey send{"gloo", "send", 2};
  profile.add_link(send, 1000, std::vector{30e-6}, {20e-6, 10e-6});
  profile.add_link(send, 3000, std::vector{90e-6}, {80e-6, 12e-6});
  profile.add_link({"gloo", "unexpected_send", 2}, 1000, std::vector{50e-6}, {18e-6, 11e-6});
  profile.add_link({"gloo", "unexpected_send", 2}, 3000, std::vector{110e-6}, {19e-6, 11e-6});
  const TransferCost before = *transfer_cost(profile, cluster, send, 3000);
  EXPECT_DOUBLE_EQ(before.send_overhead_s, 20e-6);
  EXPECT_EQ(before.rendezvous.notification_s, 0);
  profile.add_link({"gloo", "note", 2}, 0, std::vector{16e-6});
  const TransferCost after = *transfer_cost(profile, cluster, send, 3000);
  EXPECT_DOUBLE_EQ(after.latency_s + after.wire_s, 90e-6);
  EXPECT_DOUBLE_EQ(after.send_overhead_s, 80e-6);
  EXPECT_DOUBLE_EQ(after.rendezvous.notification_s, 16e-6);
  EXPECT_DOUBLE_EQ(after.rendezvous.delivery_s, 10e-6);
  EXPECT_DOUBLE_EQ(after.rendezvous.latency_s + after.rendezvous.wire_s, 110e-6);
  EXPECT_DOUBLE_EQ(after.rendezvous.send_overhead_s, 19e-6);
  EXPECT_FALSE(transfer_cost(profile, cluster, {"gloo", "broadcast", 2}, 3000));
}

TEST(Profile, OpsTakeTheInterruptionsOfTheirWorldAndTransfersWhatTheyAreLate) {
  Profile profile("cpu");
  profile.add_op("local", "relu.forward f32[8,16] inplace=1", 1, std::vector{2e-6, 4e-6});
  profile.add_op("gloo", "relu.forward f32[8,16] inplace=1", 1, std::vector{2e-6, 4e-6});
  profile.add_link(kGloo, 4096, std::vector{1e-4});
  profile.add_link(kGloo, 8192, std::vector{3e-4});
  const auto relu_s = [&](const char* world) {
    return profile.op_levels(world, "relu.forward f32[8,16] inplace=1").at(1).mean_s;
  };
  EXPECT_DOUBLE_EQ(relu_s("gloo"), 3e-6);
  profile.add_interruptions("gloo", {1, 0.2});
  profile.add_interruptions("gloo", {1.2, 0});  // 0.2 s of 2 s
  EXPECT_DOUBLE_EQ(relu_s("gloo"), 3.3e-6);
  EXPECT_DOUBLE_EQ(relu_s("local"), 3e-6);
  const TransferTime transfer = *profile.transfer(kGloo, 6144);
  EXPECT_DOUBLE_EQ(transfer.latency_s + transfer.wire_s, 2e-4);
  profile.add_late_transfers("gloo", {300, 0.002});
  profile.add_late_transfers("gloo", {100, 0.006});  // 8 ms of 400
  const Profile same = profile_from_json(profile.to_json(), "p.json");
  EXPECT_DOUBLE_EQ(same.op_levels("gloo", "relu.forward f32[8,16] inplace=1").at(1).mean_s, 3.3e-6);
  const TransferTime late = *same.transfer(kGloo, 6144);
  EXPECT_DOUBLE_EQ(late.latency_s, transfer.latency_s + 2e-5);
  EXPECT_DOUBLE_EQ(late.wire_s, transfer.wire_s);
}

TEST(Profile, RoundTripsThroughItsFile) {
  const TemporaryFile file;
  const Profile profile = sample_profile();
  profile.save(file.path);
  const Profile same = load_profile(file.path);
  EXPECT_EQ(same.to_json(), profile.to_json());
  EXPECT_EQ(same.device, "cpu_core");
  EXPECT_EQ(same.environment, profile.environment);
  EXPECT_EQ(same.core_share("gloo"), 0.25);
  EXPECT_EQ(same.core_share("local"), std::nullopt);
  EXPECT_EQ(same.process_bytes("gloo"), profile.process_bytes("gloo"));
  EXPECT_DOUBLE_EQ(same.rank_jitter("gloo"), std::sqrt(M_PI / 4 * 0.03 * 0.03 - 2e-4));
  EXPECT_EQ(same.rank_jitter("local"), 0);
  const auto expect_near = [](const std::optional<Statistic>& read, const std::optional<Statistic>& written) {
    constexpr double kWritten = 5e-5, kDeviation = 5e-3;  // five digits and three
    EXPECT_EQ(read->count, written->count);
    EXPECT_NEAR(read->mean_s / written->mean_s, 1, kWritten);
    EXPECT_NEAR(read->median_s / written->median_s, 1, kWritten);
    ASSERT_EQ(read->sd_s.has_value(), written->sd_s.has_value());
    EXPECT_NEAR(read->sd_s.value_or(1) / written->sd_s.value_or(1), 1, kDeviation);
    ASSERT_EQ(read->jitter_s.has_value(), written->jitter_s.has_value());
    EXPECT_NEAR(read->jitter_s.value_or(1) / written->jitter_s.value_or(1), 1, kDeviation);
  };
  for (const std::uint32_t busy : {1U, 2U})
    expect_near(same.op_levels("local", "relu.forward f32[8,16] inplace=1").at(busy),
                profile.op_levels("local", "relu.forward f32[8,16] inplace=1").at(busy));
  EXPECT_EQ(same.op_levels("local", "relu.forward f32[8,16] inplace=1").at(2).sd_s, std::nullopt);
  expect_near(same.link(kGloo, 4096), profile.link(kGloo, 4096));
  expect_near(same.launch(), profile.launch());
}

TEST(Profile, GrowsAfterLoading) {
  Profile profile = profile_from_json(sample_profile().to_json(), "p.json");
  profile.add_op("local", "relu.forward f32[8,16] inplace=1", 1, std::vector{7e-6});
  EXPECT_EQ(profile.op_levels("local", "relu.forward f32[8,16] inplace=1").at(1).count, 4);
  EXPECT_DOUBLE_EQ(profile.op_levels("local", "relu.forward f32[8,16] inplace=1").at(1).mean_s, 4e-6);
}

TEST(Profile, AnEmptyProfileIsAFileToo) {
  const Profile same = profile_from_json(Profile("gpu").to_json(), "p.json");
  EXPECT_EQ(same.device, "gpu");
  EXPECT_EQ(same.ops(), 0U);
  EXPECT_FALSE(same.launch());
}

TEST(Profile, LooksUpExactly) {
  const Profile profile = sample_profile();
  EXPECT_DOUBLE_EQ(profile.op_levels("local", "relu.forward f32[8,16] inplace=1").at(1).mean_s, 3e-6);
  EXPECT_EQ(profile.op_levels("local", "relu.forward f32[8,16] inplace=1").size(), 2U);
  EXPECT_TRUE(profile.op_levels("local", "relu.forward").empty());
  EXPECT_TRUE(profile.op_levels("local", "relu.forward f32[8,16]").empty());
  EXPECT_FALSE(profile.transfer({"gloo", "all_reduce", 4}, 4096));
  EXPECT_FALSE(profile.transfer({"local", "all_reduce", 2}, 4096));
}

TEST(Profile, TransferIsPiecewiseLinearOnTheLadder) {
  Profile profile("d");
  const LinkKey send{"gloo", "send", 2};
  profile.add_link(send, 1000, std::vector{10e-6});
  profile.add_link(send, 3000, std::vector{14e-6});
  profile.add_link(send, 5000, std::vector{20e-6});
  const auto total = [&](std::int64_t bytes) {
    const TransferTime time = *profile.transfer(send, bytes);
    return time.latency_s + time.wire_s;
  };
  EXPECT_NEAR(total(0), 10e-6, 1e-15);  // constant below the ladder
  EXPECT_NEAR(total(500), 10e-6, 1e-15);
  EXPECT_NEAR(total(1000), 10e-6, 1e-15);
  EXPECT_NEAR(total(2500), 13e-6, 1e-15);  // 10 + 1500 · 4/2000
  EXPECT_NEAR(total(3000), 14e-6, 1e-15);
  EXPECT_NEAR(total(4000), 17e-6, 1e-15);  // 14 + 1000 · 6/2000
  EXPECT_NEAR(total(9000), 32e-6, 1e-15);  // 20 + 4000 · 6/2000
  // What is more than the smallest message needs the wire.
  EXPECT_NEAR(profile.transfer(send, 4000)->latency_s, 10e-6, 1e-15);
  EXPECT_EQ(profile.transfer(send, 500)->wire_s, 0);
}

TEST(Profile, NoiseOnTheLadderNeverMakesBytesFree) {
  Profile profile("d");
  const LinkKey send{"local", "send", 2};
  profile.add_link(send, 1000, std::vector{10e-6});
  EXPECT_FALSE(profile.transfer(send, 1001));  // one size has no slope
  EXPECT_TRUE(profile.transfer(send, 1000));
  profile.add_link(send, 2000, std::vector{9e-6});
  const TransferTime far = *profile.transfer(send, 1 << 30);
  EXPECT_DOUBLE_EQ(far.latency_s + far.wire_s, 9e-6);
  EXPECT_GE(far.wire_s, 0);
}

TEST(Profile, FitFindsAlphaAndBeta) {
  Profile profile("d");
  const double alpha = 20e-6, beta = 3e9;
  for (std::int64_t bytes = 1024; bytes <= 64 << 20; bytes *= 4)
    profile.add_link(kGloo, bytes, std::vector{alpha + static_cast<double>(bytes) / beta});
  const AlphaBeta fit = *profile.links().at(kGloo).line();
  EXPECT_NEAR(fit.alpha_s, alpha, 1e-6 * alpha);
  EXPECT_NEAR(1 / fit.s_per_byte, beta, 1e-6 * beta);
  EXPECT_LT(fit.residual, 1e-6);
  EXPECT_EQ(fit.sizes, 9U);
  // A size that is off by 10 % shows as residual: at most 10 %/√9, and not nothing.
  profile.add_link(kGloo, 1024 * 256, std::vector{1.2 * (alpha + 1024 * 256 / beta)});
  EXPECT_LE(profile.links().at(kGloo).line()->residual, 0.1 / 3);
  EXPECT_GT(profile.links().at(kGloo).line()->residual, 0.01);
}

TEST(Profile, FitIsWeightedByRelativeError) {
  // Two lines can't both be met: with weights 1/t² the small message counts as much as the large one. Unweighted, alpha
  // would be far off.
  Profile profile("d");
  profile.add_link(kGloo, 1000, std::vector{100e-6});
  profile.add_link(kGloo, 2000, std::vector{100e-6});
  profile.add_link(kGloo, 100'000'000, std::vector{100e-3});
  profile.add_link(kGloo, 200'000'000, std::vector{220e-3});
  EXPECT_NEAR(profile.links().at(kGloo).line()->alpha_s, 100e-6, 2e-6);
}

TEST(Profile, FitIsNeverNegativeAndNeedsTwoSizes) {
  Profile profile("d");
  EXPECT_TRUE(profile.links().empty());
  profile.add_link(kGloo, 1000, std::vector{1e-6});
  EXPECT_FALSE(profile.links().at(kGloo).line());
  profile.add_link(kGloo, 2000, std::vector{5e-6});  // the line through both has α = −3 µs
  EXPECT_EQ(profile.links().at(kGloo).line()->alpha_s, 0);
  EXPECT_GT(profile.links().at(kGloo).line()->s_per_byte, 0);
  Profile falling("d");
  falling.add_link(kGloo, 1000, std::vector{5e-6});
  falling.add_link(kGloo, 2000, std::vector{4e-6});
  EXPECT_EQ(falling.links().at(kGloo).line()->s_per_byte, 0);
  EXPECT_GT(falling.links().at(kGloo).line()->alpha_s, 4e-6);
}

// One more round lies s √(1 + 1/n) from their mean, and with few rounds s itself is uncertain: Student's t.
TEST(Profile, KnowsHowMuchRoundsDiffer) {
  Profile profile("d");
  EXPECT_EQ(profile.drift_sd(), 0);
  EXPECT_EQ(describe_rounds(profile), "One round doesn't tell how much rounds differ: take 3 --rounds or more.");
  profile.add_round("a", 1);
  EXPECT_EQ(profile.drift_sd(), 0);
  profile.add_round("a", std::exp(0.1));
  profile.add_round("a", std::exp(0.2));
  EXPECT_NEAR(profile.drift_sd(), 0.1 * std::sqrt(1 + 1.0 / 3) * 2.920 / kNormal90, 0.03 * 0.1);  // t of a table
  const double one_task = profile.drift_sd();
  for (const double log : {0.0, 0.1, 0.2}) profile.add_round("b", 3 * std::exp(log));  // they drift together
  EXPECT_NEAR(profile.drift_sd(), one_task, 1e-12);
  profile.add_round("c", 5);  // a single one says nothing
  EXPECT_NEAR(profile.drift_sd(), one_task, 1e-12);
  EXPECT_EQ(describe_rounds(sample_profile()),
            fmt::format("3 rounds differ by up to 37 % (ops of net: 8.6 to 11.8 ms): close other programs or take more "
                        "--rounds. For that alone, the intervals of forecasts reach from {:.0f} % below to {:.0f} % "
                        "above.",
                        100 * (1 - std::exp(-kNormal90 * sample_profile().drift_sd())),
                        100 * (std::exp(kNormal90 * sample_profile().drift_sd()) - 1)));
  Profile quiet("d");
  for (const double seconds : {1.0, 1.001}) quiet.add_round("a", seconds);
  EXPECT_TRUE(describe_rounds(quiet).starts_with("2 rounds differ by up to 0 % (a: 1e+03 to 1e+03 ms). For"))
      << describe_rounds(quiet);
}

TEST(Profile, SaysWhatIsWrongWithAFile) {
  const std::string good = sample_profile().to_json();
  EXPECT_EQ(message_of(good), "no error");
  EXPECT_EQ(message_of(replaced(good, "paragauge-profile-3", "paragauge-profile-1")),
            "p.json: format 'paragauge-profile-1' is older than 'paragauge-profile-3'; calibrate again");
  EXPECT_EQ(message_of(replaced(good, "paragauge-profile-3", "paragauge-profile-12")),
            "p.json: format 'paragauge-profile-12' is newer than 'paragauge-profile-3'; it needs a newer paragauge");
  EXPECT_EQ(message_of(replaced(good, "paragauge-profile-3", "paragauge-model-1")),
            "p.json: format 'paragauge-model-1' is not 'paragauge-profile-3'");
  EXPECT_EQ(message_of("[1]"), "p.json: must be a JSON object");
  EXPECT_EQ(message_of("{}"), "p.json: 'format' is missing");
  EXPECT_EQ(message_of(replaced(good, "\"device\": \"cpu_core\"", "\"device\": 5")),
            "p.json: 'device' must be a text, found 5");
  EXPECT_EQ(message_of(replaced(good, "\"environment\": {", "\"environment\": 1, \"more\": {")),
            "p.json: 'environment' must be an object, found 1");
  EXPECT_EQ(message_of(replaced(good, "\"count\":2", "\"count\":\"2\"")),
            "p.json: launch: 'count' must be a whole number, found \"2\"");
  EXPECT_EQ(message_of(replaced(good, "[3,", "[0,")),
            "p.json: ops[0]: times: local: 1: 'count' must be from 1 to 9007199254740992, found 0");
  EXPECT_EQ(message_of(replaced(good, "\"ops\": [", "\"ops\": [{\"work\":\"relu.forward f32[8,16] inplace=1\"},")),
            "p.json: ops[1]: 'relu.forward f32[8,16] inplace=1' is there twice");
  EXPECT_EQ(message_of(replaced(good, "[1,5e-06,", "[1,-5e-06,")),
            "p.json: ops[0]: times: local: 2: 'mean_s' must not be negative, found -5e-06");
  EXPECT_EQ(message_of(replaced(good, "[1,5e-06,5e-06]", "[1,5e-06,5e-06,1e-6]")),
            "p.json: ops[0]: times: local: 2: 'sd_s' must be null for one sample and a number for more; count=1");
  EXPECT_EQ(message_of(replaced(good, "[1,5e-06,5e-06]", "[1,5e-06]")),
            "p.json: ops[0]: times: local: '2' must be [count, mean_s, median_s, sd_s, jitter_s], found 2 values");
  for (const char* busy : {"0", "02", "2x", "1025", ""})
    EXPECT_EQ(
        message_of(replaced(good, "\"2\":[", fmt::format("\"{}\":[", busy))),
        fmt::format("p.json: ops[0]: times: local: a number of busy ranks must be from 1 to 1024, found '{}'", busy));
  EXPECT_EQ(
      message_of(replaced(good, "\"kind\":\"all_reduce\"", "\"kind\":\"allreduce\"")),
      "p.json: links[1]: unknown kind 'allreduce'; known: send, unexpected_send, note, all_reduce, broadcast, reduce, "
      "all_gather, reduce_scatter, all_to_all, scatter, gather");
  EXPECT_EQ(message_of(replaced(good, "\"bytes\":1048576", "\"bytes\":4096")),
            "p.json: links[2]: gloo all_reduce with members=2 bytes=4096 is there twice");
  EXPECT_EQ(message_of(replaced(good, "\"own_in_place\":true", "\"own_in_place\":1")),
            "p.json: links[0]: 'own_in_place' must be true or false, found 1");
  EXPECT_EQ(message_of(replaced(good, "\"members\":2", "\"members\":1")),
            "p.json: links[0]: 'members' must be from 2 to 1048576, found 1");
  EXPECT_EQ(message_of(replaced(good, "\"gloo\":0.25", "\"gloo\":1.5")),
            "p.json: core_share: 'gloo' must be from 0 to 1, found 1.5");
  EXPECT_EQ(message_of(replaced(good, "\"difference\":0.0", "\"difference\":-1, \"x\":0.0")),
            "p.json: rank_spread: gloo: 'difference' must be from 0 to 1000, found -1");
  EXPECT_EQ(message_of(replaced(good, "\"post_s\":3e-05", "\"post_s\":-1")),
            "p.json: links[2]: 'post_s' must not be negative, found -1");
  EXPECT_EQ(message_of(replaced(good, "\"lost_s\":0.0625", "\"lost_s\":3.0")),
            "p.json: interruptions: gloo: 'lost_s' must be at most 0.999 of 'played_s', found 3 of 3");
  EXPECT_EQ(message_of(replaced(good, "\"count\":2000", "\"count\":0")),
            "p.json: late_transfers: gloo: 'count' must be from 1 to 9007199254740992, found 0");
  EXPECT_EQ(message_of(replaced(good, "\"lost_s\":0.125", "\"lost_s\":-1")),
            "p.json: late_transfers: gloo: 'lost_s' must not be negative, found -1");
  EXPECT_EQ(message_of(replaced(good, "[0.0086,", "[0,")),
            "p.json: rounds: 'ops of net' must be from 1e-15 to 1000000000 s, found 0");
  EXPECT_EQ(message_of(replaced(good, "\"work\":", "\"worc\":")), "p.json: ops[0]: 'work' is missing");
  EXPECT_EQ(message_of(replaced(good, "\"core_share\"", "\"extra\": 1, \"core_share\"")),
            "p.json: unknown key 'extra'; known: core_share, device, environment, format, gap, interruptions, "
            "late_transfers, launch, "
            "link_fits, "
            "links, ops, process_bytes, rank_spread, rounds");
}

// Each world and number of busy ranks on a line of its own, and the workspaces apart.
TEST(Profile, Format2IsRead) {
  const std::string ops = R"("ops": [
    {"world": "local", "work": "w", "busy": 1, "count": 3, "mean_s": 2e-6, "sd_s": 1e-6, "median_s": 3e-6, "jitter_s": 5e-7},
    {"world": "local", "work": "w", "busy": 2, "count": 1, "mean_s": 4e-6, "sd_s": null, "median_s": 4e-6, "jitter_s": null}],
    "workspaces": [{"work": "w", "bytes": 12}])";
  const std::string file = R"({"format": "paragauge-profile-2", "device": "cpu", "environment": {}, "links": [],
    "core_share": {}, )" + ops +
                           "}";
  const Profile profile = profile_from_json(file, "p.json");
  const std::map<std::uint32_t, Statistic> expected{
      {1, {.count = 3, .mean_s = 2e-6, .sd_s = 1e-6, .median_s = 3e-6, .jitter_s = 5e-7}},
      {2, {.count = 1, .mean_s = 4e-6, .sd_s = {}, .median_s = 4e-6}}};
  EXPECT_EQ(profile.op_levels("local", "w"), expected);
  EXPECT_EQ(profile.workspace("w"), 12);
  EXPECT_NE(
      profile.to_json().find(R"({"work":"w","workspace_bytes":12,"times":{"local":{"1":[3,2e-06,3e-06,1e-06,5e-07],)"
                             R"("2":[1,4e-06,4e-06]}}})"),
      std::string::npos)
      << profile.to_json();
  EXPECT_EQ(profile_from_json(profile.to_json(), "again").op_levels("local", "w"), expected);
  EXPECT_EQ(message_of(replaced(file, "\"busy\": 2", "\"busy\": 1")),
            "p.json: ops[1]: 'w' with world=local busy=1 is there twice");
  EXPECT_EQ(message_of(replaced(file, "\"jitter_s\": null", "\"jitter_s\": 1e-6")),
            "p.json: ops[1]: 'jitter_s' must be null for one sample; count=1");
}

TEST(Profile, SaysThatAFileIsTruncatedOrMissing) {
  const std::string good = sample_profile().to_json();
  EXPECT_TRUE(message_of(good.substr(0, 300)).ends_with(" (the file is truncated)")) << message_of(good.substr(0, 300));
  for (std::size_t length = 0; length + 2 < good.size(); length += 37)
    EXPECT_NE(message_of(good.substr(0, length)), "no error") << length;
  try {
    load_profile("/nonexistent/p.json");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "/nonexistent/p.json: can't be read: No such file or directory");
  }
}

TEST(Profile, RefusesWhatIsNoSample) {
  Profile profile("d");
  EXPECT_THROW(profile.add_op("local", "x", 0, std::vector{1.0}), InternalError);
  EXPECT_THROW(profile.add_op("local", "x", 1, std::vector{-1.0}), InternalError);
  EXPECT_THROW(profile.add_link({"gloo", "swap", 2}, 1, std::vector{1.0}), InternalError);
}

}  // namespace
}  // namespace sim
