// Faults planted in valid programs: validate must see each of them and say where.
#include <gtest/gtest.h>

#include "sim/lower/lower.hpp"
#include "sim/program/program.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::replaced;

/// Two ranks that exchange a tensor each way, then reduce one.
const std::string kExchange = R"(paragauge-program-1
model none
strategy none
partition global_batch=1 replicas=1 microbatches=1
group data 0,1
work relu.forward f32[4] inplace=0
role left ranks=0
tensor x f32[4] input persistent
tensor g f32[4] communication persistent
tensor a f32[4] activation
tensor b f32[4] activation
0 compute w0 node=n : x -> a
1 send to=right tag=0 node=n : a
2 recv from=right tag=0 node=n : -> b
3 wait on=1
4 wait on=2
5 compute w0 : b -> x ; free a b
6 collective kind=all_reduce group=data : g -> g
7 wait on=6
8 collective kind=broadcast group=data root=0 : x -> x
9 wait on=8
role right ranks=1
tensor x f32[4] input persistent
tensor g f32[4] communication persistent
tensor a f32[4] activation
0 recv from=left tag=0 node=n : -> a
1 send to=left tag=0 node=n : x
2 wait on=0
3 wait on=1
4 compute w0 : a -> x ; free a
5 collective kind=all_reduce group=data : g -> g
6 wait on=5
7 collective kind=broadcast group=data root=0 : x -> x
8 wait on=7
)";

std::string message(const std::string& text) {
  return message_of([&] { validate(program_from_text(text)); });
}
/// The exchange with one thing changed.
std::string with(std::string_view from, std::string_view to) { return message(replaced(kExchange, from, to)); }
std::string with(std::string_view from, std::string_view to, std::string_view from2, std::string_view to2) {
  return message(replaced(replaced(kExchange, from, to), from2, to2));
}

TEST(Validate, AcceptsTheExchange) { EXPECT_EQ(message(kExchange), "no error"); }

// ---- Ranks and groups. ----

TEST(Validate, RanksAreThereOnce) {
  EXPECT_EQ(with("ranks=1", "ranks=0"), "program: rank 0 of role 'right' must be one of 0…1, and only once");
  EXPECT_EQ(with("ranks=1", "ranks=2"), "program: rank 2 of role 'right' must be one of 0…1, and only once");
  EXPECT_EQ(with("ranks=1", "ranks=1,1"), "program: rank 1 of role 'right' must be one of 0…2, and only once");
  EXPECT_EQ(with("data 0,1", "data 0,0"), "program: rank 0 of group 'data' must be one of 0…1, and only once");
  EXPECT_EQ(with("data 0,1", "data 0,1 1"), "program: rank 1 of group 'data' must be one of 0…1, and only once");
  EXPECT_EQ(with("data 0,1", "data 0,2"), "program: rank 2 of group 'data' must be one of 0…1, and only once");
  EXPECT_EQ(message("paragauge-program-1\n"), "program: no ranks");
  Program program = program_from_text(kExchange);
  program.groups[0].members.emplace_back();
  EXPECT_EQ(message_of([&] { validate(program); }), "program: group 'data' has an empty member list");
}

TEST(Validate, CollectivesNeedTheirGroup) {
  EXPECT_EQ(with("data 0,1", "data 0"), "program: rank 1 instruction 5 (all_reduce): the rank isn't in group 'data'");
  EXPECT_EQ(with("broadcast group=data root=0", "broadcast group=data root=2"),
            "program: rank 0 instruction 8 (broadcast): root 2 of 2 members");
}

// ---- Transfers. ----

TEST(Validate, SendsMeetReceives) {
  EXPECT_EQ(with("1 send to=left tag=0", "1 send to=left tag=1"),
            "program: deadlock: rank 0 instruction 4 (wait for recv n from right) never ends; rank 1 instruction 3 "
            "(wait for send n to left)");
  // Nobody receives, and with nobody waiting for it: the end still has to notice.
  EXPECT_EQ(with("2 wait on=0\n3 wait on=1", "2 wait on=1\n3 wait on=0"), "no error");
  EXPECT_EQ(with("0 recv from=left tag=0 node=n : -> a\n1 send", "0 compute w0 : x -> a\n1 send", "2 wait on=0",
                 "2 compute w0 : a -> a"),
            "program: deadlock: rank 0 instruction 3 (wait for send n to right) never ends; rank 1 instruction 6 (wait "
            "for all_reduce)");
  EXPECT_EQ(
      with("from=right tag=0", "from=left tag=0"),
      "program: deadlock: rank 0 instruction 4 (wait for recv n from left) never ends; rank 1 instruction 3 (wait "
      "for send n to left)");
}

TEST(Validate, PairsAreUnique) {
  EXPECT_EQ(with("1 send to=right tag=0 node=n : a\n2 recv from=right tag=0 node=n : -> b\n3 wait on=1\n4 wait on=2\n5 "
                 "compute w0 : b -> x ; free a b",
                 "1 send to=right tag=0 node=n : a\n2 send to=right tag=0 node=n : a\n3 wait on=1\n4 wait on=2\n5 "
                 "compute w0 : a -> x ; free a"),
            "program: rank 0 instruction 2 (send n to right) repeats tag 0 of the same pair");
}

TEST(Validate, BothEndsMoveTheSameBytes) {
  EXPECT_EQ(with("tensor a f32[4] activation\n0 recv", "tensor a f32[5] activation\n0 recv"),
            "program: rank 1 instruction 0 (recv n from left) moves 20 bytes, its partner rank 0 instruction 1 (send n "
            "to right) moves 16");
  EXPECT_EQ(with("tensor g f32[4] communication persistent\ntensor a f32[4] activation\n0 recv",
                 "tensor g f32[2] communication persistent\ntensor a f32[4] activation\n0 recv"),
            "program: rank 0 instruction 6 (all_reduce) moves 16 bytes, its partner rank 1 instruction 5 (all_reduce) "
            "moves 8");
}

TEST(Validate, PeersHaveAsManyReplicas) {
  EXPECT_EQ(with("role left ranks=0", "role left ranks=0,2", "data 0,1", "data 0,1,2"),
            "program: rank 2 instruction 1 (send n to right) has no partner: role 'right' has 1 ranks");
}

TEST(Validate, CollectivesComeInOneOrder) {
  const std::string reversed =
      replaced(replaced(kExchange, "5 collective kind=all_reduce group=data : g -> g\n6 wait on=5\n",
                        "5 collective kind=broadcast group=data root=0 : x -> x\n6 wait on=5\n"),
               "7 collective kind=broadcast group=data root=0 : x -> x\n8 wait on=7\n",
               "7 collective kind=all_reduce group=data : g -> g\n8 wait on=7\n");
  EXPECT_EQ(
      message(reversed),
      "program: collectives of group 'data' come in different order: rank 0 instruction 6 (all_reduce) meets rank "
      "1 instruction 5 (broadcast)");
  // The root is part of what must agree.
  EXPECT_EQ(with("8 collective kind=broadcast group=data root=0", "8 collective kind=broadcast group=data root=1"),
            "program: collectives of group 'data' come in different order: rank 1 instruction 7 (broadcast) meets rank "
            "0 instruction 8 (broadcast)");
  // One collective too few.
  EXPECT_EQ(with("7 collective kind=broadcast group=data root=0 : x -> x\n8 wait on=7\n", ""),
            "program: deadlock: rank 0 instruction 9 (wait for broadcast) never ends");
}

// A send blocks until it is received: programs that only work with buffered sends are refused.
TEST(Validate, SwappedWaitsDeadlock) {
  const std::string head = replaced(kExchange.substr(0, kExchange.find("role left")), "group data 0,1\n", "");
  const auto role = [](const std::string& name, int rank, const std::string& peer, bool sends_first) {
    const std::string send = "send to=" + peer + " tag=0 : x", recv = "recv from=" + peer + " tag=0 : -> y";
    return fmt::format(
        "role {} ranks={}\ntensor x f32[4] input persistent\ntensor y f32[4] input persistent\n0 {}\n1 wait on=0\n2 "
        "{}\n3 wait on=2\n",
        name, rank, sends_first ? send : recv, sends_first ? recv : send);
  };
  EXPECT_EQ(message(head + role("left", 0, "right", true) + role("right", 1, "left", false)), "no error");
  EXPECT_EQ(message(head + role("left", 0, "right", true) + role("right", 1, "left", true)),
            "program: deadlock: rank 0 instruction 1 (wait for send to right) never ends; rank 1 instruction 1 (wait "
            "for send to left)");
  EXPECT_EQ(message(head + role("left", 0, "right", false) + role("right", 1, "left", false)),
            "program: deadlock: rank 0 instruction 1 (wait for recv from right) never ends; rank 1 instruction 1 (wait "
            "for recv from left)");
}

TEST(Validate, WaitsNameAnEarlierPost) {
  EXPECT_EQ(with("3 wait on=1", "3 wait on=0"),
            "program, role 'left' (rank 0), instruction 3: waits for 0, which is no earlier send, recv or collective");
  EXPECT_EQ(with("3 wait on=1", "3 wait on=3"),
            "program, role 'left' (rank 0), instruction 3: waits for 3, which is no earlier send, recv or collective");
  EXPECT_EQ(with("3 wait on=1", "3 wait on=6"),
            "program, role 'left' (rank 0), instruction 3: waits for 6, which is no earlier send, recv or collective");
  EXPECT_EQ(
      with("4 wait on=2", "4 wait on=1"),
      "program, role 'left' (rank 0), instruction 4 (wait for send n to right): instruction 1 has been waited for "
      "already");
  EXPECT_EQ(with("8 wait on=7\n", ""),
            "program, role 'right' (rank 1), instruction 7 (broadcast): instruction 7 (broadcast) is never waited for");
}

// ---- Lifetimes. ----

TEST(Validate, ReadsWhatIsThere) {
  EXPECT_EQ(with("0 compute w0 node=n : x -> a", "0 compute w0 node=n : a -> a"),
            "program, role 'left' (rank 0), instruction 0 (compute n forward): reads 'a' before it was written");
  EXPECT_EQ(with("3 wait on=1\n4 wait on=2\n5 compute w0 : b -> x ; free a b",
                 "3 wait on=1 : ; free a\n4 wait on=2\n5 compute w0 : a -> x ; free b"),
            "program, role 'left' (rank 0), instruction 5 (compute forward): reads 'a' after it was freed");
  EXPECT_EQ(with("3 wait on=1\n4 wait on=2\n5 compute w0 : b -> x ; free a b",
                 "3 wait on=1\n4 compute w0 : b -> x\n5 wait on=2 : ; free a b"),
            "program, role 'left' (rank 0), instruction 4 (compute forward): reads 'b' before the transfer into it was "
            "waited for");
}

TEST(Validate, WritesWhatIsFree) {
  EXPECT_EQ(with("3 wait on=1\n4 wait on=2\n5 compute w0 : b -> x ; free a b",
                 "3 compute w0 : x -> a\n4 wait on=1\n5 wait on=2 : ; free a b"),
            "program, role 'left' (rank 0), instruction 3 (compute forward): writes 'a' while a transfer uses it");
  EXPECT_EQ(with("3 wait on=1\n4 wait on=2\n5 compute w0 : b -> x ; free a b",
                 "3 wait on=1\n4 compute w0 : x -> b\n5 wait on=2 : ; free a b"),
            "program, role 'left' (rank 0), instruction 4 (compute forward): writes 'b' while a transfer uses it");
  EXPECT_EQ(with("2 recv from=right tag=0 node=n : -> b", "2 recv from=right tag=0 node=n : -> a"),
            "program, role 'left' (rank 0), instruction 2 (recv n from right): writes 'a' while a transfer uses it");
  EXPECT_EQ(with("5 compute w0 : b -> x ; free a b", "5 compute w0 : b -> x ; free a b", "9 wait on=8",
                 "9 wait on=8\n10 compute w0 : x -> a"),
            "program, role 'left' (rank 0), instruction 10 (compute forward): writes 'a' after it was freed");
  // Reading what is being sent is fine.
  EXPECT_EQ(with("3 wait on=1\n4 wait on=2\n5 compute w0 : b -> x ; free a b",
                 "3 compute w0 : a -> x\n4 wait on=2\n5 wait on=1 : ; free a b"),
            "no error");
}

TEST(Validate, FreesOnce) {
  EXPECT_EQ(with("; free a b", "; free a b b"),
            "program, role 'left' (rank 0), instruction 5 (compute forward): frees 'b' a second time");
  EXPECT_EQ(with("; free a b", "; free b"),
            "program, role 'left' (rank 0), instruction 9 (wait for broadcast): 'a' is never freed");
  EXPECT_EQ(with("; free a b", "; free a b x"),
            "program, role 'left' (rank 0), instruction 5 (compute forward): frees 'x', which is persistent");
  EXPECT_EQ(
      with("3 wait on=1", "3 wait on=2 : ; free a", "4 wait on=2", "4 wait on=1"),
      "program, role 'left' (rank 0), instruction 3 (wait for recv n from right): frees 'a' while a transfer uses "
      "it");
  EXPECT_EQ(with("0 compute w0 node=n : x -> a", "0 compute w0 node=n : x -> a ; free b"),
            "program, role 'left' (rank 0), instruction 0 (compute n forward): frees 'b' before it was written");
}

TEST(Validate, ViewsShareTheirStorage) {
  const std::string views = R"(paragauge-program-1
work relu.forward f32[2] inplace=0
work relu.forward f32[4] inplace=0
role only ranks=0
tensor x f32[4] input persistent
view x.low f32[2] x +0
tensor a f32[4] activation
view a.low f32[2] a +0
view a.high f32[2] a +8
0 compute w0 : x.low -> a.low
1 compute w0 : x.low -> a.high
2 compute w1 : a -> x ; free a
)";
  EXPECT_EQ(message(views), "no error");
  EXPECT_EQ(message(replaced(views, "1 compute w0 : x.low -> a.high", "1 compute w0 : x.low -> x.low")),
            "program, role 'only' (rank 0), instruction 2 (compute forward): reads 'a' before it was written");
  EXPECT_EQ(message(replaced(views, "1 compute w0 : x.low -> a.high", "1 compute w0 : x.low -> a.low")),
            "program, role 'only' (rank 0), instruction 2 (compute forward): reads 'a' before it was written");
  EXPECT_EQ(message(replaced(views, "1 compute w0 : x.low -> a.high", "1 compute w0 : a.high -> a.high")),
            "program, role 'only' (rank 0), instruction 1 (compute forward): reads 'a.high' before it was written");
}

// ---- Real programs: remove any one line of a list, and it's no longer valid. ----

TEST(Validate, EveryTransferAndWaitOfAStepIsNeeded) {
  for (const char* strategy : {"pipeline,pp=2,cut=r1,microbatches=2", "ddp,dp=2", "mesh,dp=2,pp=2,microbatches=2"}) {
    const Model model = testing::small_model("toy_mlp");
    const Program program = lower(model, parse_strategy(strategy, model));
    for (std::uint32_t r = 0; r < program.roles.size(); ++r)
      for (std::uint32_t removed = 0; removed < program.roles[r].size(); ++removed) {
        const InstructionKind kind = program.roles[r].kind[removed];
        // These change values in place, or nobody reads them.
        const std::uint32_t work = program.roles[r].work[removed];
        const bool loss = work != kNone && program.works[work].op.kind->role == OpRole::loss;
        if (kind == InstructionKind::update || kind == InstructionKind::copy || loss) continue;
        Program edited = program;
        Role& role = edited.roles[r];
        Role shorter;
        shorter.name = role.name;
        shorter.ranks = role.ranks;
        shorter.tensors = role.tensors;
        shorter.storages = role.storages;
        for (std::uint32_t i = 0; i < role.size(); ++i) {
          if (i == removed) continue;
          Instruction instruction = role.at(i);
          if (instruction.awaits != kNone && instruction.awaits > removed) --instruction.awaits;
          shorter.add(instruction);
        }
        role = shorter;
        EXPECT_NE(message_of([&] { validate(edited); }), "no error")
            << strategy << ", " << program.roles[r].name << " without " << removed << " ("
            << program.label(program.roles[r], removed) << ")";
      }
  }
}

}  // namespace
}  // namespace sim
