#include "sim/program/transfers.hpp"

#include <set>

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

/// Whoever posts a transfer, by id: (rank, instruction).
std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> posters(const Program& program,
                                                                          const TransferMatching& matching) {
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> found(matching.participants.size());
  const std::vector<Program::Place> places = program.places();
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    const Role& role = program.roles[places[rank].role];
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_posted(role.kind[i])) found.at(matching.transfer(places[rank], rank, role, i)).emplace_back(rank, i);
  }
  return found;
}

// Ranks 0, 1 send; 2, 3 receive. The second list of the group has one collective more than the first.
TEST(TransferMatching, MatchesByPairTagAndList) {
  const Program program = program_from_text(R"(paragauge-program-2
mesh pair=2 rank=2
group data rank
role left ranks=0,1
tensor x f32[4] input persistent
0 collective t0 kind=all_reduce group=data : x -> x
1 send t1 to=pair+1 tag=7 : x
2 send t2 to=pair+1 tag=5 : x
role right ranks=2,3
tensor x f32[4] input persistent
tensor y f32[4] input persistent
0 recv t0 from=pair-1 tag=5 : -> x
1 recv t1 from=pair-1 tag=7 : -> y
2 collective t2 kind=all_reduce group=data : x -> x
3 collective t3 kind=all_reduce group=data : y -> y
)");
  const TransferMatching matching(program);
  using Posts = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  const auto found = posters(program, matching);
  EXPECT_EQ(std::set<Posts>(found.begin(), found.end()), (std::set<Posts>{{{0, 1}, {2, 1}},
                                                                          {{1, 1}, {3, 1}},
                                                                          {{0, 2}, {2, 0}},
                                                                          {{1, 2}, {3, 0}},
                                                                          {{0, 0}, {1, 0}},
                                                                          {{2, 2}, {3, 2}},
                                                                          {{2, 3}, {3, 3}}}));
  EXPECT_EQ(matching.participants, std::vector<std::uint32_t>(7, 2));
  EXPECT_EQ(matching.list_of, (std::vector<std::vector<std::uint32_t>>{{0, 0, 1, 1}}));
  // A channel per pair of ranks, another per member list.
  EXPECT_EQ(matching.channels, 4U);
  const auto channel = [&](std::uint32_t rank, std::uint32_t i) {
    const Program::Place place = program.places()[rank];
    return matching.channel[matching.transfer(place, rank, program.roles[place.role], i)];
  };
  EXPECT_EQ(channel(0, 1), channel(0, 2));
  EXPECT_EQ(channel(2, 2), channel(2, 3));
  EXPECT_EQ((std::set{channel(0, 1), channel(1, 1), channel(0, 0), channel(2, 2)}).size(), 4U);
}

TEST(TransferMatching, EveryTransferOfAStepIsPostedByAllParticipants) {
  const Model model = testing::small_model("toy_mlp");
  for (const char* strategy :
       {"pipeline,pp=3,microbatches=4", "ddp_blocking,dp=4", "mesh,dp=2,pp=2,microbatches=2,overlap=1"}) {
    const Program program = lower(model, parse_strategy(strategy, model));
    const TransferMatching matching(program);
    const auto found = posters(program, matching);
    ASSERT_GT(found.size(), 0U) << strategy;
    for (std::size_t id = 0; id < found.size(); ++id)
      EXPECT_EQ(found[id].size(), matching.participants[id]) << strategy;
  }
}

}  // namespace
}  // namespace sim
