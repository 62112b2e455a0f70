#include "backend/world/world.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cmath>
#include <functional>
#include <thread>

#include "backend/machine/scheduling.hpp"
#include "backend/session.hpp"
#include "backend/supervise.hpp"
#include "sim/error.hpp"
#include "tests/backend/world/ranks.hpp"

namespace backend {
namespace {

using sim::CollectiveKind;

/// Everybody sends to the next rank and receives from the one before, with the sends waited for first.
void pass_around(Communicator& rank) {
  const std::uint32_t n = rank.size(), next = (rank.rank() + 1) % n, before = (rank.rank() + n - 1) % n;
  rank.prepare({}, rank.size());
  for (int step = 0; step < 20; ++step) {
    const at::Tensor sent = at::arange(1000, at::kFloat) + (100.0 * rank.rank() + step);
    const at::Tensor small = at::full({}, 7.0 * rank.rank() + step, at::kDouble);
    const at::Tensor received = at::full({1000}, -1, at::kFloat), received_small = at::full({}, -1, at::kDouble);
    const double begin = rank.begin_step();
    const auto s0 = rank.post_send(sent, next, 0), s1 = rank.post_send(small, next, 1);
    const auto r1 = rank.post_recv(received_small, before, 1), r0 = rank.post_recv(received, before, 0);
    Completion done;
    for (const auto ticket : {s0, s1, r0, r1}) {
      rank.wait(ticket, done);
      EXPECT_GT(done.end_s, begin);
      EXPECT_LE(done.end_s, now_s());
      EXPECT_LE(done.start_s, done.end_s);
    }
    rank.end_step();
    EXPECT_TRUE(received.equal(at::arange(1000, at::kFloat) + (100.0 * before + step)));
    EXPECT_EQ(received_small.item<double>(), 7.0 * before + step);
  }
}

/// Messages to itself, one of them larger than a socket's buffers.
void send_to_itself(Communicator& rank) {
  rank.prepare({}, rank.size());
  for (const std::int64_t size : {1, 1000, 3'000'000}) {
    const at::Tensor sent = at::arange(size, at::kFloat) + rank.rank(), received = at::full({size}, -1, at::kFloat);
    rank.begin_step();
    const auto in = rank.post_recv(received, rank.rank(), 0), out = rank.post_send(sent, rank.rank(), 0);
    Completion done;
    rank.wait(in, done);
    rank.wait(out, done);
    rank.end_step();
    EXPECT_TRUE(received.equal(sent)) << size;
  }
}

/// Sum over ranks of (rank + 1)·i = i·n(n+1)/2; sizes that n doesn't divide, several posted before the first is waited
/// for.
void sum_up(Communicator& rank) {
  const double n = rank.size();
  rank.prepare(everyone(rank.size()), rank.size());
  for (int step = 0; step < 5; ++step) {
    std::vector<at::Tensor> tensors;
    for (const std::int64_t size : {1, 2, 5, 4097, 100003})
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong})
        tensors.push_back((at::arange(size, at::kDouble) * (rank.rank() + 1.0)).to(dtype));
    rank.begin_step();
    std::vector<Communicator::Ticket> tickets;
    for (const at::Tensor& tensor : tensors)
      tickets.push_back(rank.post_collective(CollectiveKind::all_reduce, tensor, 0, 0));
    Completion done;
    for (const auto ticket : tickets) rank.wait(ticket, done);
    rank.end_step();
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor expected = at::arange(tensor.numel(), at::kDouble) * (n * (n + 1) / 2);
      EXPECT_TRUE(tensor.allclose(expected.to(tensor.scalar_type()), 1e-6, 0))
          << tensor.scalar_type() << tensor.numel();
    }
  }
}

/// Every root in turn.
void spread(Communicator& rank) {
  rank.prepare(everyone(rank.size()), rank.size());
  for (std::uint32_t root = 0; root < rank.size(); ++root) {
    const at::Tensor tensor = at::full({777}, 10.0 * rank.rank(), at::kDouble);
    rank.begin_step();
    Completion done;
    rank.wait(rank.post_collective(CollectiveKind::broadcast, tensor, 0, root), done);
    rank.end_step();
    EXPECT_TRUE(tensor.equal(at::full({777}, 10.0 * root, at::kDouble)));
  }
}

/// Programs of the first rank, the first two and of all in turn: ranks that a program doesn't need don't take part in
/// its steps. `meet`: all wait for each other, as a session's ranks do between programs.
void some_run(Communicator& rank, const std::function<void()>& meet) {
  for (const std::uint32_t running : {2U, rank.size(), 1U, 2U, rank.size()}) {
    meet();
    if (rank.rank() >= running) continue;
    rank.prepare(everyone(running), running);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor tensor = at::full({3}, 1, at::kDouble);
      rank.begin_step();
      Completion done;
      rank.wait(rank.post_collective(CollectiveKind::all_reduce, tensor, 0, 0), done);
      rank.end_step();
      EXPECT_TRUE(tensor.equal(at::full({3}, running, at::kDouble)));
    }
  }
}

/// Two groups at the same time, of which one has a member list per parity.
void split(Communicator& rank) {
  std::vector<sim::Group> groups = everyone(rank.size());
  groups.emplace_back("parity", 0b01, sim::Mesh{{{"half", 2}, {"parity", 2}}});
  rank.prepare(groups, rank.size());
  const at::Tensor all = at::full({3}, rank.rank(), at::kDouble), parity = at::full({3}, rank.rank(), at::kDouble);
  rank.begin_step();
  const auto a = rank.post_collective(CollectiveKind::all_reduce, all, 0, 0);
  const auto b = rank.post_collective(CollectiveKind::all_reduce, parity, 1, 0);
  Completion done;
  rank.wait(b, done);
  rank.wait(a, done);
  rank.end_step();
  EXPECT_TRUE(all.equal(at::full({3}, 6.0, at::kDouble)));
  EXPECT_TRUE(parity.equal(at::full({3}, rank.rank() % 2 == 0 ? 2.0 : 4.0, at::kDouble)));
}

class LocalRanks : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalRanks, testing::Values(1, 2, 3, 4));

TEST_P(LocalRanks, SendToItself) { expect_no_errors(execute_local(GetParam(), 20, send_to_itself)); }
TEST_P(LocalRanks, PassAround) { expect_no_errors(execute_local(GetParam(), 20, pass_around)); }
TEST_P(LocalRanks, SumUp) { expect_no_errors(execute_local(GetParam(), 20, sum_up)); }
TEST_P(LocalRanks, DoCollectives) { expect_no_errors(execute_local(GetParam(), 20, do_collectives)); }
TEST_P(LocalRanks, Spread) { expect_no_errors(execute_local(GetParam(), 20, spread)); }

/// Rounding depends on the order of the summands; all members must have the same bits.
TEST_P(LocalRanks, AllReduceGivesAllTheSameBits) {
  std::vector<at::Tensor> sums(GetParam());
  expect_no_errors(execute_local(GetParam(), 20, [&](Communicator& rank) {
    rank.prepare(everyone(rank.size()), rank.size());
    at::Tensor& sum = sums[rank.rank()] = at::arange(10007, at::kFloat).mul_(0.1 * (rank.rank() + 1)).sin_();
    rank.begin_step();
    Completion done;
    rank.wait(rank.post_collective(CollectiveKind::all_reduce, sum, 0, 0), done);
  }));
  for (const at::Tensor& sum : sums) EXPECT_TRUE(sum.equal(sums[0]));
}

TEST(LocalRanksInGroups, SomeRun) {
  std::barrier all(4);
  expect_no_errors(execute_local(4, 20, [&](Communicator& rank) { some_run(rank, [&] { all.arrive_and_wait(); }); }));
}
TEST(LocalRanksInGroups, Split) { expect_no_errors(execute_local(4, 20, split)); }

/// A transfer is ready when the later one has posted: 30 ms after the start, however early the other one waits.
TEST(LocalRanksTimes, ReadyIsWhenTheLastHasPosted) {
  for (const std::uint32_t late : {0U, 1U}) {
    expect_no_errors(execute_local(2, 20, [&](Communicator& rank) {
      rank.prepare({}, rank.size());
      const at::Tensor tensor = at::full({1000}, 1, at::kFloat);
      const double begin = rank.begin_step();
      EXPECT_GE(now_s(), begin);
      if (rank.rank() == late) sleep_until(begin + 0.03, false);
      Completion done;
      rank.wait(rank.rank() == 0 ? rank.post_send(tensor, 1, 0) : rank.post_recv(tensor, 0, 0), done);
      EXPECT_GE(done.start_s - begin, 0.03);
      EXPECT_GE(done.end_s, done.start_s);
    }));
  }
}

TEST(LocalRanksTimes, ATimeoutNamesThePartner) {
  const auto errors_of = [](const RankBody& execute_rank0) {
    return execute_local(2, 0.2, [&](Communicator& rank) {
      rank.prepare(everyone(2), rank.size());
      rank.begin_step();
      if (rank.rank() == 0)
        execute_rank0(rank);
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
    })[0];
  };
  const at::Tensor tensor = at::full({5}, 1, at::kFloat);
  Completion done;
  EXPECT_EQ(errors_of([&](Communicator& rank) { rank.wait(rank.post_recv(tensor, 1, 3), done); }),
            "rank 1 hasn't sent tag 3 to rank 0 within 0.2 s");
  EXPECT_EQ(errors_of([&](Communicator& rank) { rank.wait(rank.post_send(tensor, 1, 4), done); }),
            "rank 1 hasn't received tag 4 of rank 0 within 0.2 s");
  EXPECT_EQ(errors_of([&](Communicator& rank) {
              rank.wait(rank.post_collective(CollectiveKind::all_reduce, tensor, 0, 0), done);
            }),
            "rank 1 hasn't joined the all_reduce within 0.2 s");
  EXPECT_EQ(errors_of([&](Communicator& rank) { rank.begin_step(); }),
            "rank 1 hasn't come to the start of the step within 0.2 s");
}

TEST(LocalRanksErrors, OneRanksFailureReleasesTheOthers) {
  const auto errors = execute_local(3, 60, [](Communicator& rank) {
    rank.prepare({}, rank.size());
    rank.begin_step();
    if (rank.rank() == 1) throw sim::RunError("no more memory");
    rank.begin_step();
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"another rank has failed", "no more memory", "another rank has failed"}));
}

/// A kind that this world doesn't know must not be executed as another.
TEST(LocalRanksErrors, AnUnknownCollectiveIsOurError) {
  const World world = world_table().at("local").make({.ranks = 1, .timeout_s = 20});
  Communicator& rank = *world.ranks[0];
  rank.prepare(everyone(1), rank.size());
  rank.begin_step();
  const at::Tensor tensor = at::full({8}, 1.0);
  EXPECT_THROW(rank.post_collective(static_cast<CollectiveKind>(sim::kCollectiveKinds.size()), tensor, 0, 0),
               sim::InternalError);
}

TEST(WorldTable, UnknownNameListsTheKnown) {
  try {
    FAIL() << world_table().at("mpi").name;
  } catch (const sim::ConfigError& error) {
    EXPECT_STREQ(error.what(), "unknown world 'mpi'; known: local, gloo, nccl");
  }
}

// ---- gloo: this program again, once per rank

/// Runs the test `name` of this suite, which is disabled otherwise, in `ranks` processes.
int spawn(const std::string& name, std::uint32_t ranks, double timeout_s = 60) {
  return spawn_ranks({"/proc/self/exe", "--gtest_filter=" + name, "--gtest_also_run_disabled_tests", "--gtest_brief=1"},
                     ranks, timeout_s);
}

void execute_gloo(const RankBody& execute) {
  ASSERT_TRUE(is_rank_process());
  const World world = world_table().at("gloo").make(
      {.ranks = static_cast<std::uint32_t>(std::stoi(std::getenv("WORLD_SIZE"))), .timeout_s = 20});
  ASSERT_EQ(world.ranks.size(), 1U);
  at::set_num_threads(1);
  const RealTime urgent(kComputePriority);
  execute(*world.ranks[0]);
  const std::uint32_t rank = world.ranks[0]->rank(), size = world.ranks[0]->size();
  EXPECT_EQ(world.control->broadcast(rank == 0 ? "from rank 0" : "ignored"), "from rank 0");
  EXPECT_EQ(world.control->broadcast(""), "");
  EXPECT_EQ(world.control->broadcast(std::string(3, '\0')), std::string(3, '\0'));
  std::vector<std::string> expected;
  if (rank == 0)
    for (std::uint32_t r = 0; r < size; ++r) expected.push_back(std::string(r, 'x'));
  EXPECT_EQ(world.control->gather(std::string(rank, 'x')), expected);
}

/// Rounding depends on the order of the summands: it is the members'.
void sum_parts_in_order(Communicator& rank) {
  const std::uint32_t n = rank.size();
  rank.prepare(everyone(n), n);
  const std::int64_t part = 1009;
  const auto given = [&](std::uint32_t member) {
    return at::arange(n * part, at::kFloat).mul_(0.1 * (member + 1)).sin_();
  };
  const at::Tensor mine = given(rank.rank()), sum = at::full({part}, -1, at::kFloat);
  at::Tensor expected = given(0);
  for (std::uint32_t member = 1; member < n; ++member) expected += given(member);
  rank.begin_step();
  Completion done;
  rank.wait(rank.post_collective({.kind = CollectiveKind::reduce_scatter}, {&mine, 1}, {&sum, 1}), done);
  rank.end_step();
  EXPECT_TRUE(sum.equal(expected.narrow(0, rank.rank() * part, part)));
}

TEST(GlooRanks, DISABLED_EverythingWithTwo) {
  execute_gloo([](Communicator& rank) {
    pass_around(rank);
    send_to_itself(rank);
    sum_up(rank);
    spread(rank);
    do_collectives(rank);
    sum_parts_in_order(rank);
  });
}
TEST(GlooRanks, EverythingWithTwo) { EXPECT_EQ(spawn("GlooRanks.DISABLED_EverythingWithTwo", 2), 0); }

TEST(GlooRanks, DISABLED_CollectivesWithThree) {
  execute_gloo([](Communicator& rank) {
    do_collectives(rank);
    sum_parts_in_order(rank);
  });
}
TEST(GlooRanks, CollectivesWithThree) { EXPECT_EQ(spawn("GlooRanks.DISABLED_CollectivesWithThree", 3), 0); }

TEST(GlooRanks, DISABLED_EverythingWithFour) {
  execute_gloo([](Communicator& rank) {
    pass_around(rank);
    sum_up(rank);
    spread(rank);
    do_collectives(rank);
    split(rank);
    some_run(rank, [] {});
  });
}
TEST(GlooRanks, EverythingWithFour) { EXPECT_EQ(spawn("GlooRanks.DISABLED_EverythingWithFour", 4), 0); }

TEST(GlooRanks, DISABLED_ReceiveNothing) {
  const World world = world_table().at("gloo").make({.ranks = 2, .timeout_s = 0.5});
  Communicator& rank = *world.ranks[0];
  rank.prepare({}, rank.size());
  rank.begin_step();
  if (rank.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return;
  }
  const at::Tensor tensor = at::full({5}, 1, at::kFloat);
  Completion done;
  try {
    rank.wait(rank.post_recv(tensor, 1, 3), done);
    FAIL();
  } catch (const sim::RunError& error) {
    EXPECT_STREQ(error.what(),
                 "the receive from rank 1 (tag 3) failed: Timed out waiting 500ms for recv operation to complete");
  }
}
TEST(GlooRanksTimes, ATimeoutNamesThePartner) { EXPECT_EQ(spawn("GlooRanks.DISABLED_ReceiveNothing", 2), 0); }

}  // namespace
}  // namespace backend
