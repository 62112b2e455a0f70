#include <gtest/gtest.h>

#include "tests/sim/program/exchange.hpp"

namespace sim {
namespace {

using namespace testing;

TEST(ValidateTickets, AreOpenedAndClosedInTurn) {
  EXPECT_EQ(with("3 wait t0", "3 wait t2"),
            "program, role 'left' (rank 0), instruction 3 (wait for t2): no send, recv or collective in flight has "
            "opened t2");
  EXPECT_EQ(with("3 wait t0", "3 wait t9"),
            "program, role 'left' (rank 0), instruction 3 (wait for t9): no send, recv or collective in flight has "
            "opened t9");
  EXPECT_EQ(with("4 wait t1", "4 wait t0"),
            "program, role 'left' (rank 0), instruction 4 (wait for send n to right): no send, recv or collective in "
            "flight has opened t0");
  EXPECT_EQ(
      with("2 recv t1", "2 recv t0"),
      "program, role 'left' (rank 0), instruction 2 (recv n from right): opens t0, which instruction 1 has opened "
      "already");
  EXPECT_EQ(with("6 collective t2", "6 collective t0", "7 wait t2", "7 wait t0"), "no error") << "a closed one is free";
  EXPECT_EQ(with("6 collective t2", "6 collective t7"),
            "program text, line 19: opens t7; allowed: up to t6, the number of the instruction");
  EXPECT_EQ(with("8 wait t3\n", ""),
            "program, role 'right' (rank 1), instruction 7 (broadcast): instruction 7 (broadcast) is never waited for");
}

}  // namespace
}  // namespace sim
