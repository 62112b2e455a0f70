#include <gtest/gtest.h>

#include "tests/sim/program/exchange.hpp"

namespace sim {
namespace {

using namespace testing;

/// Heat's updates, a step late: the sum of what `b` made in one step is waited for in the next.
const std::string kDelayed = R"(paragauge-program-2
model none
strategy none
mesh rank=2
partition global_batch=2 microbatches=1
group rank rank
work relu.forward f32[4] inplace=0
role all ranks=0,1
tensor x f32[4] input persistent
tensor w f32[4] weight persistent
tensor sum f32[4] communication
tensor a f32[4] activation
prologue
0 compute w0 node=a : x -> a
1 compute w0 node=b : a -> sum ; free a
2 collective t0 kind=all_reduce group=rank node=b : sum -> sum
body steps=1
3 compute w0 node=a : x -> a
4 wait t0 node=b
5 compute w0 node=b : sum -> w ; free sum
6 compute w0 node=b : a -> sum ; free a
7 collective t0 kind=all_reduce group=rank node=b : sum -> sum
epilogue
8 wait t0 node=b
9 compute w0 node=b : sum -> w ; free sum
)";

std::string with_delayed(std::string_view from, std::string_view to) { return message(replaced(kDelayed, from, to)); }

TEST(ValidateSections, StepsMayReachIntoEachOther) {
  EXPECT_EQ(message(kDelayed), "no error");
  EXPECT_EQ(to_text(program_from_text(kDelayed)), kDelayed);
  EXPECT_EQ(
      with_delayed("2 collective t0 kind=all_reduce group=rank node=b : sum -> sum\n", "2 compute w0 : x -> w\n"),
      "program, role 'all' (rank 0), instruction 4 (wait for t0): no send, recv or collective in flight has opened "
      "t0");
  EXPECT_EQ(with_delayed("4 wait t0 node=b\n5 compute w0 node=b : sum -> w ; free sum\n6 compute w0 node=b : a -> sum",
                         "4 compute w0 : x -> w\n5 compute w0 : x -> w\n6 compute w0 node=b : a -> w"),
            "program, role 'all' (rank 0), instruction 7 (all_reduce b): reads 'sum' before the transfer into it was "
            "waited for");
  EXPECT_EQ(
      with_delayed("6 compute w0 node=b : a -> sum ; free a\n7 collective t0 kind=all_reduce group=rank node=b : sum "
                   "-> sum\n",
                   "6 compute w0 node=b : a -> w ; free a\n7 compute w0 : x -> w\n"),
      "program, role 'all' (rank 0), instruction 7 (compute forward): the body finds t0 open and leaves it closed");
  EXPECT_EQ(
      with_delayed("a -> sum ; free a\n7", "a -> sum\n7"),
      "program, role 'all' (rank 0), instruction 7 (all_reduce b): the body leaves 'a', which wasn't there when it "
      "began");
  EXPECT_EQ(with_delayed("epilogue\n8 wait t0 node=b\n9 compute w0 node=b : sum -> w ; free sum\n", ""),
            "program, role 'all' (rank 0), instruction 7 (all_reduce b): instruction 7 (all_reduce b) is never waited "
            "for");
  EXPECT_EQ(with_delayed("a -> sum ; free a\n7", "a -> a ; free sum\n7"),
            "program, role 'all' (rank 0), instruction 6 (compute b forward): frees 'sum' before it was written");
}

TEST(ValidateSections, ComeInOrder) {
  EXPECT_EQ(
      with_delayed("prologue\n", ""),
      "program text, line 16: 'body' where none is expected; sections come as prologue, body, epilogue, before all "
      "instructions");
  EXPECT_EQ(
      with_delayed("body steps=1\n", ""),
      "program text, line 22: 'epilogue' where none is expected; sections come as prologue, body, epilogue, before "
      "all instructions");
  EXPECT_EQ(with_delayed("body steps=1", "body"), "program text, line 17: ends where steps=… is expected");
  EXPECT_EQ(with_delayed("body steps=1", "body steps=0"), "program text, line 17: steps=0 must be from 1 to 1048576");
  EXPECT_EQ(with_delayed("epilogue\n", "epilogue now\n"), "program text, line 23: 'now' after 'epilogue'");
  EXPECT_EQ(message(kDelayed + "role more ranks=2\n"), "program text: role 'more' has no body");
}

}  // namespace
}  // namespace sim
