#include "sim/program/staging.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/program/memory.hpp"

namespace sim {
namespace {

/// Members that post one collective, wait and then are done: `moves` is what it reads and writes. There are arrays of
/// 60 numbers (x, y: 240 bytes), parts of x and y that lie together (x0, x1, x2: 80, 120 and 40 bytes), and p, q, r of
/// those sizes in storages of their own.
Program one_collective(std::uint32_t members, std::string_view kind, std::string_view moves) {
  std::string ranks = "0";
  for (std::uint32_t r = 1; r < members; ++r) ranks += fmt::format(",{}", r);
  std::string text = fmt::format(
      "paragauge-program-2\nmesh data={}\npartition global_batch=1 microbatches=1\ngroup data data\nrole all "
      "ranks={}\n",
      members, ranks);
  for (const char array : {'x', 'y'})
    text += fmt::format("tensor {0} f32[60] input persistent\n", array) +
            fmt::format("view {0}0 f32[20] {0} +0\nview {0}1 f32[30] {0} +80\nview {0}2 f32[10] {0} +200\n", array);
  text += "tensor p f32[20] input persistent\ntensor q f32[30] input persistent\ntensor r f32[10] input persistent\n";
  return program_from_text(
      text +
      fmt::format("0 collective t0 kind={} group=data{} : {}\n1 wait t0\n", kind,
                  kind == "reduce" || kind == "broadcast" || kind == "scatter" || kind == "gather" ? " root=0" : "",
                  moves));
}

Staging staged(std::uint32_t members, std::string_view kind, std::string_view moves) {
  const Program program = one_collective(members, kind, moves);
  const Role& role = program.roles[0];
  EXPECT_TRUE(staging_of(program, role, Transport::none).empty());
  const std::vector<Staging> staging = staging_of(program, role, Transport::notify);
  EXPECT_EQ(staging[1], Staging{});
  // It counts once, as communication, while it's there.
  const Memory without = peak_memory(role), with = peak_memory(role, staging);
  EXPECT_EQ(with.peak_bytes, without.peak_bytes + staging[0].bytes());
  EXPECT_EQ(with.persistent_bytes, without.persistent_bytes);
  EXPECT_EQ(with.at_peak[static_cast<std::size_t>(TensorClass::communication)], staging[0].bytes());
  EXPECT_EQ(peak_with_workspace(role, {}, staging), static_cast<double>(with.peak_bytes));
  EXPECT_EQ(uses_at_peak(role, {}, staging)[static_cast<std::size_t>(MemoryUse::communication_buffers)],
            staging[0].bytes());
  EXPECT_EQ(memory_with_reuse(role, {}, staging), static_cast<double>(with.peak_bytes));
  return staging[0];
}

constexpr Staging kNothing{};

TEST(Staging, AloneAndInPlaceThereIsNone) {
  for (const std::uint32_t members : {1U, 2U, 3U})
    for (const char* kind : {"all_reduce", "broadcast"}) EXPECT_EQ(staged(members, kind, "x -> x"), kNothing);
  EXPECT_EQ(staged(1, "reduce_scatter", "x -> y"), kNothing);
  EXPECT_EQ(staged(1, "reduce", "x ->"), kNothing);
}

TEST(Staging, WhoIsntTheRootOfAReduceGivesACopy) {
  for (const std::uint32_t members : {2U, 3U}) {
    EXPECT_EQ(staged(members, "reduce", "x -> x"), kNothing);
    EXPECT_EQ(staged(members, "reduce", "x ->"), (Staging{240, 0}));
  }
}

TEST(Staging, TwoMembersExchangeInPlace) {
  for (const char* all_gather : {"p -> x", "p -> p q", "p -> y0 y1"})
    EXPECT_EQ(staged(2, "all_gather", all_gather), kNothing);
  for (const char* reduce_scatter : {"x -> q", "p q -> r", "x0 x1 -> p"})
    EXPECT_EQ(staged(2, "reduce_scatter", reduce_scatter), kNothing);
  for (const char* all_to_all : {"x -> y", "p q -> x0 x1", "x0 x1 -> p q"})
    EXPECT_EQ(staged(2, "all_to_all", all_to_all), kNothing);
  for (const char* scatter : {"x -> p", "x0 x1 -> p", "p q -> y0", "-> p"})
    EXPECT_EQ(staged(2, "scatter", scatter), kNothing);
  for (const char* gather : {"p -> x", "p -> x0 x1", "r -> p q", "p ->"})
    EXPECT_EQ(staged(2, "gather", gather), kNothing);
}

TEST(Staging, OfThreeSumsAreReceivedApart) {
  EXPECT_EQ(staged(3, "reduce_scatter", "x -> p"), (Staging{0, 3 * 80}));
  EXPECT_EQ(staged(3, "reduce_scatter", "x0 x1 x2 -> q"), (Staging{0, 3 * 120}));
  EXPECT_EQ(staged(3, "reduce_scatter", "p q r -> x2"), (Staging{240, 3 * 40}));
}

TEST(Staging, OfThreeAnUnequalPartIsSentAsOftenAsItGoes) {
  EXPECT_EQ(staged(3, "all_gather", "p -> x"), kNothing);
  EXPECT_EQ(staged(3, "all_gather", "p -> x0 x1 x2"), (Staging{3 * 80, 0}));
  EXPECT_EQ(staged(3, "all_gather", "x1 -> p q r"), (Staging{3 * 120, 240}));
}

TEST(Staging, PartsThatLieTogetherMoveInPlace) {
  EXPECT_EQ(staged(3, "all_to_all", "x -> y"), kNothing);
  EXPECT_EQ(staged(3, "all_to_all", "x0 x1 x2 -> y0 y1 y2"), kNothing);
  EXPECT_EQ(staged(3, "all_to_all", "p q r -> y0 y1 y2"), (Staging{240, 0}));
  EXPECT_EQ(staged(3, "all_to_all", "x0 x1 x2 -> p q r"), (Staging{0, 240}));
  EXPECT_EQ(staged(3, "all_to_all", "x1 x0 x2 -> y"), (Staging{240, 0})) << "in another order";
  EXPECT_EQ(staged(3, "all_to_all", "x0 x2 p -> y"), (Staging{200, 0})) << "a gap";
  EXPECT_EQ(staged(3, "scatter", "x0 x1 x2 -> p"), kNothing);
  EXPECT_EQ(staged(3, "scatter", "p q r -> x0"), (Staging{240, 0}));
  EXPECT_EQ(staged(3, "scatter", "-> p"), kNothing);
  EXPECT_EQ(staged(3, "gather", "p -> x0 x1 x2"), kNothing);
  EXPECT_EQ(staged(3, "gather", "x0 -> p q r"), (Staging{0, 240}));
  EXPECT_EQ(staged(3, "gather", "p ->"), kNothing);
}

// From the post to the wait: what is allocated meanwhile comes on top, what comes later doesn't.
TEST(Staging, EndsWithItsWait) {
  const auto peak = [](const std::string& meanwhile, const std::string& later) {
    const Program program = program_from_text(
        "paragauge-program-2\nmesh data=2\npartition global_batch=1 microbatches=1\ngroup data data\n"
        "work relu.forward f32[4] inplace=0\nrole all ranks=0,1\ntensor x f32[100] input persistent\n"
        "tensor a f32[10] activation\ntensor b f32[25] activation\n"
        "0 collective t0 kind=reduce group=data root=0 : x ->\n1 compute w0 : x -> " +
        meanwhile + "\n2 wait t0\n3 compute w0 : x -> " + later + "\n");
    return peak_memory(program.roles[0], staging_of(program, program.roles[0], Transport::notify)).peak_bytes;
  };
  EXPECT_EQ(peak("a ; free a", "b ; free b"), 400 + 400 + 40);
  EXPECT_EQ(peak("b ; free b", "a ; free a"), 400 + 400 + 100);
}

}  // namespace
}  // namespace sim
