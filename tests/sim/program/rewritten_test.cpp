#include "sim/program/rewritten.hpp"

#include <algorithm>

#include "sim/calibrate/make_probe.hpp"
#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

/// Gathers of tensors in turn, each of which may be written before; a copy moves so many bytes.
struct Gathers {
  static constexpr std::int64_t kElements = 256, kMoved = 2 * 4 * kElements;
  Program program = make_probe("gathers", {{{"rank", 2}}}, 1, {{0, 1}}, [&](Draft& draft, std::uint32_t) {
    const TensorSpec spec{Dtype::f32, {kElements}};
    const std::uint32_t source = add_constant(draft, "source", spec, 1), kept = add_constant(draft, "kept", spec, 1),
                        often = add_constant(draft, "often", spec, 1),
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
    draft.scaled_copy(source, often, 1, kNone);
    gather(often);  // given once more before it is written
    gather(often);  // until the next step: what follows and what comes before
    passing("a");   // freed, and its memory b's at once
    passing("b");   // a's in the next step
  });

  [[nodiscard]] std::vector<std::optional<double>> copies() const {  // that lie in between
    std::vector<std::optional<double>> found;
    const Role& role = program.roles[0];
    const std::vector<std::optional<double>> bytes = bytes_until_rewritten(program, role);
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == InstructionKind::collective)
        found.push_back(bytes[i] ? std::optional(*bytes[i] / kMoved) : std::nullopt);
      else
        EXPECT_FALSE(bytes[i]) << i;
    return found;
  }
};

TEST(Rewritten, SaysAfterHowManyBytes) {
  EXPECT_EQ(Gathers().copies(), (std::vector<std::optional<double>>{std::nullopt, std::nullopt, 2, 0, 1}));
}

/// A shard is gathered for the forward and for the backward, and updated once.
TEST(Rewritten, TellsWhatIsGivenTwice) {
  const auto count = [](const char* strategy, CollectiveKind kind) {
    const Model model = load_model((testing::tests_folder().parent_path() / "bench/unseen/deep.json").string());
    const Program program = lower(model, parse_strategy(strategy, model));
    const Role& role = program.roles[0];
    const std::vector<std::optional<double>> bytes = bytes_until_rewritten(program, role);
    std::pair<int, int> all_and_rewritten;
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == InstructionKind::collective && role.collective[i] == kind) {
        ++all_and_rewritten.first;
        if (bytes[i]) ++all_and_rewritten.second;
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
