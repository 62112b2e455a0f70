#include "sim/program/given.hpp"

#include "sim/calibrate/make_probe.hpp"
#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using Copies = std::vector<std::optional<double>>;  // that lie in between, of each gather

/// Gathers of tensors in turn, each of which may be written before; every copy moves as many bytes.
struct Gathers {
  static constexpr std::int64_t kElements = 256, kMoved = 2 * 4 * kElements;
  Program program = make_probe("gathers", {{{"rank", 2}}}, 1, {{0, 1}}, [&](Draft& draft, std::uint32_t) {
    const TensorSpec spec{Dtype::f32, {kElements}};
    const std::uint32_t source = add_constant(draft, "source", spec, 1), kept = add_constant(draft, "kept", spec, 1),
                        often = add_constant(draft, "often", spec, 1), late = add_constant(draft, "late", spec, 1),
                        all = add_constant(draft, "all", {Dtype::f32, {2 * kElements}}, 0);
    const auto gather = [&](std::uint32_t tensor) {
      draft.wait(draft.post_collective(CollectiveKind::all_gather, 0, 0, {tensor}, {all}, kNone), kNone);
    };
    const auto passing = [&](const char* name) {
      const std::uint32_t tensor = draft.role.add_tensor(name, spec, TensorClass::communication);
      draft.scaled_copy(source, tensor, 1, kNone);
      gather(tensor);
    };
    gather(kept);  // never written
    gather(late);  // written at the end of the step before
    draft.scaled_copy(source, often, 1, kNone);
    gather(often);  // given once more before it is written
    gather(often);  // until the next step: what follows and what comes before
    passing("a");   // freed, and its memory b's at once
    passing("b");   // a's in the next step
    draft.scaled_copy(source, late, 1, kNone);
  });

  static std::optional<double> copies(const std::optional<double>& bytes) {
    return bytes ? std::optional(*bytes / kMoved) : std::nullopt;
  }
};

TEST(Given, SaysWhenItWasWrittenAndWhenItIsAgain) {
  const Gathers gathers;
  Copies since, until;
  std::vector<std::string> by;
  const Role& role = gathers.program.roles[0];
  const std::vector<std::optional<GivenMemory>> given = given_by(gathers.program, role);
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    EXPECT_EQ(given[i].has_value(), role.kind[i] == InstructionKind::collective) << i;
    if (!given[i]) continue;
    since.push_back(Gathers::copies(given[i]->since_written));
    until.push_back(Gathers::copies(given[i]->until_written));
    by.push_back(given[i]->writer == kNone ? "" : role.tensors[role.writes(given[i]->writer)[0]].name);
  }
  EXPECT_EQ(since, (Copies{std::nullopt, 0, 0, 0, 0, 0}));
  EXPECT_EQ(until, (Copies{std::nullopt, 3, std::nullopt, 3, 0, 2}));
  EXPECT_EQ(by, (std::vector<std::string>{"", "late", "", "often", "b", "a"}));
}

/// A bucket of two pieces: the first was written before the second, which doesn't count, and both before what follows.
TEST(Given, OfSeveralPiecesTheMean) {
  const TensorSpec spec{Dtype::f32, {64}};
  const Program program = make_probe("bucket", {{{"rank", 2}}}, 1, {{0, 1}}, [&](Draft& draft, std::uint32_t) {
    const std::uint32_t source = add_constant(draft, "source", spec, 1), other = add_constant(draft, "other", spec, 1);
    const Draft::Flat bucket = draft.add_flat("bucket", {spec, spec}, true);
    draft.scaled_copy(source, bucket.slices[0], 1, kNone);
    draft.scaled_copy(source, other, 1, kNone);
    draft.scaled_copy(source, bucket.slices[1], 1, kNone);
    for (int k = 0; k < 3; ++k) draft.scaled_copy(source, other, 1, kNone);
    draft.wait(draft.post_collective(CollectiveKind::all_reduce, 0, bucket.tensor, kNone), kNone);
  });
  const Role& role = program.roles[0];
  const double copy = 2 * 4 * 64;
  for (const auto& given : given_by(program, role))
    if (given) {
      EXPECT_DOUBLE_EQ(*given->since_written, 3.5 * copy);
      EXPECT_DOUBLE_EQ(*given->until_written, 0);
    }
}

/// A shard is gathered for the forward and for the backward, and updated once.
TEST(Given, TellsWhatIsGivenTwice) {
  const auto count = [](const char* strategy, CollectiveKind kind) {
    const Model model = load_model((testing::tests_folder().parent_path() / "bench/unseen/deep.json").string());
    const Program program = lower(model, parse_strategy(strategy, model));
    const Role& role = program.roles[0];
    const std::vector<std::optional<GivenMemory>> given = given_by(program, role);
    std::pair<int, int> all_and_rewritten;
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (given[i] && role.collective[i] == kind) {
        ++all_and_rewritten.first;
        if (given[i]->until_written) ++all_and_rewritten.second;
      }
    return all_and_rewritten;
  };
  using Pair = std::pair<int, int>;
  EXPECT_EQ(count("zero3", CollectiveKind::all_gather), Pair(32, 17)) << "the last layers aren't gathered again";
  EXPECT_EQ(count("fsdp", CollectiveKind::all_gather), Pair(32, 32)) << "each is copied into what is gathered";
  EXPECT_EQ(count("zero1", CollectiveKind::all_gather), Pair(1, 1));
  EXPECT_EQ(count("ddp", CollectiveKind::all_reduce), Pair(2, 2));
}

}  // namespace
}  // namespace sim
