// Faults planted in valid programs: validate must see each of them and say where.
#include <gtest/gtest.h>

#include "sim/lower/lower.hpp"
#include "sim/program/program.hpp"
#include "tests/sim/program/exchange.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using namespace testing;

TEST(Validate, AcceptsTheExchange) { EXPECT_EQ(message(kExchange), "no error"); }

// ---- Ranks and groups. ----

TEST(Validate, RanksAreThereOnce) {
  EXPECT_EQ(with("ranks=1", "ranks=0"), "program: rank 0 of role 'right' must be one of 0…1, and only once");
  EXPECT_EQ(with("ranks=1", "ranks=2"), "program: rank 2 of role 'right' must be one of 0…1, and only once");
  EXPECT_EQ(with("ranks=1", "ranks=1,1"), "program: 3 ranks on a mesh of 2");
  EXPECT_EQ(with("mesh rank=2", "mesh rank=3"), "program: 2 ranks on a mesh of 3");
  EXPECT_EQ(message("paragauge-program-2\n"), "program: no ranks");
}

TEST(Validate, PiecesAreWhatTheMeshSays) {
  const std::string x = "tensor x f32[4] input persistent";
  EXPECT_EQ(with(x, x + " of=[8] on=S0"), "no error");
  EXPECT_EQ(with(x, x + " of=[6] on=S0"), "program: 'x' of rank 0 is f32[4], which isn't its piece of [6]");
  EXPECT_EQ(with(x, x + " of=[4] on=S0+"), "program: 'x' is S0+; only parameters of units are cut by rows");
  EXPECT_EQ(with(x, x + " of=[4,2] on=S1"), "program: 'x' of rank 0 is f32[4], which isn't its piece of [4,2]");
  EXPECT_EQ(with(x, x + " of=[7] on=S0"), "rank=2 must divide 7");
  EXPECT_EQ(with("mesh rank=2", "mesh rank=2/to_last", x, x + " of=[7] on=S0"),
            "program: 'x' of rank 0 is f32[4], which isn't its piece of [7]");
  EXPECT_EQ(with("global_batch=1 ", "global_batch=1 rows=S0 "), "rank=2 must divide 1");
}

TEST(Validate, CollectivesNeedTheirGroup) {
  EXPECT_EQ(with("8 collective t3 kind=broadcast group=data root=0 : x -> x",
                 "8 collective t3 kind=broadcast group=data root=0 : -> x"),
            "program: rank 0 instruction 8 (broadcast): the root gives nothing");
  EXPECT_EQ(with("7 collective t3 kind=broadcast group=data root=0 : x -> x",
                 "7 collective t3 kind=broadcast group=data root=0 : -> x"),
            "no error")
      << "who gets it need not read it";
  EXPECT_EQ(with("broadcast group=data root=0", "broadcast group=data root=2"),
            "program: rank 0 instruction 8 (broadcast): root 2 of 2 members");
}

// ---- Transfers. ----

TEST(Validate, SendsMeetReceives) {
  EXPECT_EQ(with("1 send t1 to=rank-1 tag=0", "1 send t1 to=rank-1 tag=1"),
            "program: deadlock: rank 0 instruction 4 (wait for recv n from right) never ends; rank 1 instruction 3 "
            "(wait for send n to left)");
  // Nobody receives, and with nobody waiting for it: the end still has to notice.
  EXPECT_EQ(with("2 wait t0\n3 wait t1", "2 wait t1\n3 wait t0"), "no error");
  EXPECT_EQ(with("0 recv t0 from=rank-1 tag=0 node=n : -> a\n1 send t1", "0 compute w0 : x -> a\n1 send t0",
                 "2 wait t0\n3 wait t1", "2 compute w0 : a -> a\n3 wait t0"),
            "program: deadlock: rank 0 instruction 3 (wait for send n to right) never ends; rank 1 instruction 6 (wait "
            "for all_reduce)");
  EXPECT_EQ(
      with("from=rank+1 tag=0", "from=rank+0 tag=0"),
      "program: deadlock: rank 0 instruction 4 (wait for recv n from rank+0) never ends; rank 1 instruction 3 (wait "
      "for send n to left)");
}

TEST(Validate, PairsAreUnique) {
  EXPECT_EQ(with("2 recv t1 from=rank+1 tag=0 node=n : -> b\n3 wait t0\n4 wait t1\n5 compute w0 : b -> x ; free a b",
                 "2 send t1 to=rank+1 tag=0 node=n : a\n3 wait t0\n4 wait t1\n5 compute w0 : a -> x ; free a"),
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

// The partner is so many ranks further, around the axis' end: a ring needs one role.
TEST(Validate, ARoleMayPassOnInARing) {
  const std::string ring = R"(paragauge-program-2
mesh dp=2 cp=3
partition microbatches=1
role all ranks=0,1,2,3,4,5
tensor x f32[4] input persistent
tensor y f32[4] input persistent
0 send t0 to=cp+1 tag=0 : x
1 recv t1 from=cp-1 tag=0 : -> y
2 wait t0
3 wait t1
)";
  EXPECT_EQ(message(ring), "no error");
  EXPECT_EQ(message(replaced(ring, "from=cp-1", "from=cp+2")), "no error") << "the same";
  EXPECT_EQ(message(replaced(ring, "from=cp-1", "from=cp+1")).substr(0, 67),
            "program: deadlock: rank 0 instruction 2 (wait for send to cp+1) nev");
  Program program = program_from_text(ring);
  program.roles[0].by[0] = 3;
  EXPECT_EQ(message_of([&] { validate(program); }),
            "program, role 'all', instruction 0 (send to cp+3): +3 along an axis of 3");
}

TEST(Validate, CollectivesComeInOneOrder) {
  const std::string reversed =
      replaced(replaced(kExchange, "5 collective t2 kind=all_reduce group=data : g -> g\n6 wait t2\n",
                        "5 collective t2 kind=broadcast group=data root=0 : x -> x\n6 wait t2\n"),
               "7 collective t3 kind=broadcast group=data root=0 : x -> x\n8 wait t3\n",
               "7 collective t3 kind=all_reduce group=data : g -> g\n8 wait t3\n");
  EXPECT_EQ(
      message(reversed),
      "program: collectives of group 'data' come in different order: rank 0 instruction 6 (all_reduce) meets rank "
      "1 instruction 5 (broadcast)");
  EXPECT_EQ(
      with("8 collective t3 kind=broadcast group=data root=0", "8 collective t3 kind=broadcast group=data root=1"),
      "program: rank 1 instruction 7 (broadcast) has root 0, its partner rank 0 instruction 8 (broadcast) has root "
      "1");
  // One collective too few.
  EXPECT_EQ(with("7 collective t3 kind=broadcast group=data root=0 : x -> x\n8 wait t3\n", ""),
            "program: deadlock: rank 0 instruction 9 (wait for broadcast) never ends");
}

/// Two ranks, two buffers of one size, a collective each; `right` is what rank 1 does.
std::string buckets(const std::string& right) {
  const std::string tensors = "tensor a f32[4] communication persistent\ntensor b f32[4] communication persistent\n";
  return "paragauge-program-2\npartition microbatches=2\nmesh rank=2\ngroup data rank\nrole left ranks=0\n" + tensors +
         "0 collective t0 kind=all_reduce group=data node=bucket0 : a -> a\n1 wait t0\n"
         "2 collective t1 kind=all_reduce group=data node=bucket1 : b -> b\n3 wait t1\nrole right ranks=1\n" +
         tensors + right;
}

// Swapped on one rank, buckets of one size would be summed with each other.
TEST(Validate, MembersReduceTheSameTensor) {
  const std::string right =
      "0 collective t0 kind=all_reduce group=data node=bucket0 : a -> a\n1 wait t0\n"
      "2 collective t1 kind=all_reduce group=data node=bucket1 : b -> b\n3 wait t1\n";
  const std::string swapped =
      replaced(replaced(replaced(right, "bucket0", "bucket9"), "bucket1", "bucket0"), "bucket9", "bucket1");
  EXPECT_EQ(message(buckets(right)), "no error");
  EXPECT_EQ(message(buckets(swapped)),
            "program: collectives of group 'data' come in different order: rank 1 instruction 0 (all_reduce bucket1) "
            "meets rank 0 instruction 0 (all_reduce bucket0)");
  EXPECT_EQ(message(buckets(replaced(right, "node=bucket1 ", ""))),
            "program: collectives of group 'data' come in different order: rank 0 instruction 2 (all_reduce bucket1) "
            "meets rank 1 instruction 2 (all_reduce)");
  EXPECT_EQ(message(buckets(replaced(right, "node=bucket1", "node=bucket1 mb=1"))),
            "program: collectives of group 'data' come in different order: rank 0 instruction 2 (all_reduce bucket1) "
            "meets rank 1 instruction 2 (all_reduce bucket1 mb=1)");
  // As many bytes, but not the same numbers.
  EXPECT_EQ(
      message(replaced(buckets(right), "tensor b f32[4]", "tensor b f64[2]")),
      "program: rank 0 instruction 2 (all_reduce bucket1) moves f64, its partner rank 1 instruction 2 (all_reduce "
      "bucket1) moves f32");
}

TEST(Validate, AllMembersReduceAlike) {
  const auto replaced_in = [](const std::string& first, const std::string& second) {
    return message(
        replaced(replaced(kExchange, "6 collective t2 kind=all_reduce", "6 collective t2 kind=all_reduce" + first),
                 "5 collective t2 kind=all_reduce", "5 collective t2 kind=all_reduce" + second));
  };
  EXPECT_EQ(replaced_in(" reduction=mean", " reduction=mean"), "no error");
  EXPECT_EQ(replaced_in(" reduction=sum", ""), "no error");
  EXPECT_EQ(
      replaced_in(" reduction=mean", ""),
      "program: rank 0 instruction 6 (all_reduce) makes a mean, its partner rank 1 instruction 5 (all_reduce) a sum");
}

TEST(Validate, BothEndsNameTheSameTensor) {
  EXPECT_EQ(with("0 recv t0 from=rank-1 tag=0 node=n", "0 recv t0 from=rank-1 tag=0 node=m"),
            "program: rank 1 instruction 0 (recv m from left) and rank 0 instruction 1 (send n to right) are one "
            "transfer, but name different tensors");
  EXPECT_EQ(with("0 recv t0 from=rank-1 tag=0 node=n", "0 recv t0 from=rank-1 tag=0 node=n mb=2", "microbatches=1",
                 "microbatches=3"),
            "program: rank 1 instruction 0 (recv n from left mb=2) and rank 0 instruction 1 (send n to right) are one "
            "transfer, but name different tensors");
}

TEST(Validate, ATransferMovesOneTensor) {
  EXPECT_EQ(with("6 collective t2 kind=all_reduce group=data : g -> g",
                 "6 collective t2 kind=all_reduce group=data : x -> g"),
            "program, role 'left' (rank 0), instruction 6 (all_reduce): reads 'x' and writes 'g', but works in place");
  Program program = program_from_text(kExchange);
  Instruction send;
  send.kind = InstructionKind::send;
  send.peer = 0;
  send.by = 1;
  program.roles[0].add(send);
  EXPECT_EQ(message_of([&] { validate(program); }),
            "program, role 'left' (rank 0), instruction 10 (send to right): must move one tensor");
}

// A send blocks until it is received: programs that only work with buffered sends are refused.
TEST(Validate, SwappedWaitsDeadlock) {
  const std::string head = replaced(kExchange.substr(0, kExchange.find("role left")), "group data rank\n", "");
  const auto role = [](const std::string& name, int rank, const std::string& peer, bool sends_first) {
    const std::string send = "send t{} to=" + peer + " tag=0 : x", recv = "recv t{} from=" + peer + " tag=0 : -> y";
    return fmt::format(
        "role {} ranks={}\ntensor x f32[4] input persistent\ntensor y f32[4] input persistent\n0 {}\n1 wait t0\n2 "
        "{}\n3 wait t1\n",
        name, rank, replaced(sends_first ? send : recv, "t{}", "t0"), replaced(sends_first ? recv : send, "t{}", "t1"));
  };
  EXPECT_EQ(message(head + role("left", 0, "rank+1", true) + role("right", 1, "rank-1", false)), "no error");
  EXPECT_EQ(message(head + role("left", 0, "rank+1", true) + role("right", 1, "rank-1", true)),
            "program: deadlock: rank 0 instruction 1 (wait for send to right) never ends; rank 1 instruction 1 (wait "
            "for send to left)");
  EXPECT_EQ(message(head + role("left", 0, "rank+1", false) + role("right", 1, "rank-1", false)),
            "program: deadlock: rank 0 instruction 1 (wait for recv from right) never ends; rank 1 instruction 1 (wait "
            "for recv from left)");
}

// ---- Lifetimes. ----

TEST(Validate, ReadsWhatIsThere) {
  EXPECT_EQ(with("0 compute w0 node=n : x -> a", "0 compute w0 node=n : a -> a"),
            "program, role 'left' (rank 0), instruction 0 (compute n forward): reads 'a' before it was written");
  EXPECT_EQ(with("3 wait t0\n4 wait t1\n5 compute w0 : b -> x ; free a b",
                 "3 wait t0 : ; free a\n4 wait t1\n5 compute w0 : a -> x ; free b"),
            "program, role 'left' (rank 0), instruction 5 (compute forward): reads 'a' after it was freed");
  EXPECT_EQ(with("3 wait t0\n4 wait t1\n5 compute w0 : b -> x ; free a b",
                 "3 wait t0\n4 compute w0 : b -> x\n5 wait t1 : ; free a b"),
            "program, role 'left' (rank 0), instruction 4 (compute forward): reads 'b' before the transfer into it was "
            "waited for");
}

TEST(Validate, WritesWhatIsFree) {
  EXPECT_EQ(with("3 wait t0\n4 wait t1\n5 compute w0 : b -> x ; free a b",
                 "3 compute w0 : x -> a\n4 wait t0\n5 wait t1 : ; free a b"),
            "program, role 'left' (rank 0), instruction 3 (compute forward): writes 'a' while a transfer uses it");
  EXPECT_EQ(with("3 wait t0\n4 wait t1\n5 compute w0 : b -> x ; free a b",
                 "3 wait t0\n4 compute w0 : x -> b\n5 wait t1 : ; free a b"),
            "program, role 'left' (rank 0), instruction 4 (compute forward): writes 'b' while a transfer uses it");
  EXPECT_EQ(with("2 recv t1 from=rank+1 tag=0 node=n : -> b", "2 recv t1 from=rank+1 tag=0 node=n : -> a"),
            "program, role 'left' (rank 0), instruction 2 (recv n from right): writes 'a' while a transfer uses it");
  EXPECT_EQ(with("5 compute w0 : b -> x ; free a b", "5 compute w0 : b -> x ; free a b", "9 wait t3",
                 "9 wait t3\n10 compute w0 : x -> a"),
            "program, role 'left' (rank 0), instruction 10 (compute forward): writes 'a' after it was freed");
  // Reading what is being sent is fine.
  EXPECT_EQ(with("3 wait t0\n4 wait t1\n5 compute w0 : b -> x ; free a b",
                 "3 compute w0 : a -> x\n4 wait t1\n5 wait t0 : ; free a b"),
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
      with("3 wait t0", "3 wait t1 : ; free a", "4 wait t1", "4 wait t0"),
      "program, role 'left' (rank 0), instruction 3 (wait for recv n from right): frees 'a' while a transfer uses "
      "it");
  EXPECT_EQ(with("0 compute w0 node=n : x -> a", "0 compute w0 node=n : x -> a ; free b"),
            "program, role 'left' (rank 0), instruction 0 (compute n forward): frees 'b' before it was written");
}

TEST(Validate, ViewsShareTheirStorage) {
  const std::string views = R"(paragauge-program-2
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

// What was written is known by its bytes: views that overlap don't add up to the whole, those side by side do.
TEST(Validate, EveryByteThatIsReadWasWritten) {
  const std::string views = R"(paragauge-program-2
work relu.forward f32[2] inplace=0
work relu.forward f32[4] inplace=0
role only ranks=0
tensor x f32[4] input persistent
view x.low f32[2] x +0
tensor a f32[4] activation
view a.low f32[2] a +0
view a.high f32[2] a +8
view a.middle f32[2] a +4
0 compute w0 : x.low -> a.low
1 compute w0 : x.low -> a.high
2 compute w0 : a.middle -> x.low
3 compute w1 : a -> x ; free a
)";
  EXPECT_EQ(message(views), "no error");
  EXPECT_EQ(message(replaced(views, "1 compute w0 : x.low -> a.high", "1 compute w0 : x.low -> a.middle")),
            "program, role 'only' (rank 0), instruction 3 (compute forward): reads 'a' before it was written");
  EXPECT_EQ(message(replaced(views, "1 compute w0 : x.low -> a.high", "1 compute w0 : x.low -> x.low")),
            "program, role 'only' (rank 0), instruction 2 (compute forward): reads 'a.middle' before it was written");
}

// Parts of one buffer may be on their way at the same time; what a transfer uses is known by its bytes, too.
TEST(Validate, TransfersUseTheirBytesOnly) {
  const std::string chunks = R"(paragauge-program-2
work relu.forward f32[2] inplace=0
mesh rank=2
group data rank
role both ranks=0,1
tensor x f32[2] input persistent
tensor buffer f32[8] communication persistent
view low f32[2] buffer +0
view middle f32[2] buffer +4
view high f32[2] buffer +8
view rest f32[2] buffer +16
0 collective t0 kind=all_reduce group=data node=low : low -> low
1 collective t1 kind=all_reduce group=data node=high : high -> high
2 compute w0 : rest -> rest
3 wait t1
4 compute w0 : high -> high
5 wait t0
)";
  EXPECT_EQ(message(chunks), "no error");
  const auto with_chunk = [&](std::string_view from, std::string_view to) {
    return message(replaced(chunks, from, to));
  };
  EXPECT_EQ(
      with_chunk("1 collective t1 kind=all_reduce group=data node=high : high -> high",
                 "1 collective t1 kind=all_reduce group=data node=high : middle -> middle"),
      "program, role 'both' (rank 0), instruction 1 (all_reduce high): reads 'middle' before the transfer into it "
      "was waited for");
  EXPECT_EQ(with_chunk("2 compute w0 : rest -> rest", "2 compute w0 : x -> middle"),
            "program, role 'both' (rank 0), instruction 2 (compute forward): writes 'middle' while a transfer uses it");
  EXPECT_EQ(with_chunk("4 compute w0 : high -> high", "4 compute w0 : high -> low"),
            "program, role 'both' (rank 0), instruction 4 (compute forward): writes 'low' while a transfer uses it");
}

// Every member gives what the others expect of it, in one tensor or in several.
TEST(Validate, CollectivesMoveWhatIsExpected) {
  const std::string exchange = R"(paragauge-program-2
mesh rank=2
group data rank
role left ranks=0
tensor x f32[6] input persistent
tensor a f32[2] communication persistent
tensor b f32[4] communication persistent
view x0 f32[2] x +0
view x1 f32[4] x +8
0 collective t0 kind=all_to_all group=data : x0 x1 -> a b
1 wait t0
role right ranks=1
tensor y0 f32[4] input persistent
tensor y1 f32[3] input persistent
tensor c f32[4] communication persistent
tensor d f32[3] communication persistent
0 collective t0 kind=all_to_all group=data : y0 y1 -> c d
1 wait t0
)";
  const auto with_exchange = [&](std::string_view from, std::string_view to) {
    return message(replaced(exchange, from, to));
  };
  EXPECT_EQ(message(exchange), "no error");
  EXPECT_EQ(with_exchange("tensor y0 f32[4]", "tensor y0 f32[5]"),
            "program: rank 1 instruction 0 (all_to_all) gives 20 bytes to rank 0 instruction 0 (all_to_all), which "
            "expects 16");
  EXPECT_EQ(with_exchange(": y0 y1 -> c d", ": y1 -> c d"),
            "program: rank 1 instruction 0 (all_to_all) reads tensors: 1; allowed: 2, one for each member, or 1 that 2 "
            "divides");
  EXPECT_EQ(with_exchange(": x0 x1 -> a b", ": x0 x1 -> x b"),
            "program, role 'left' (rank 0), instruction 0 (all_to_all): reads 'x0' and writes 'x', which overlap");
  EXPECT_EQ(with_exchange(": x0 x1 -> a b", ": x0 x1 -> x0 b"),
            "program, role 'left' (rank 0), instruction 0 (all_to_all): reads 'x0' and writes 'x0', which overlap");

  const std::string scatter = R"(paragauge-program-2
mesh rank=2
group data rank
role root ranks=0
tensor x f32[8] input persistent
tensor a f32[4] communication persistent
0 collective t0 kind=scatter group=data root=0 : x -> a
1 wait t0
role other ranks=1
tensor a f32[4] communication persistent
tensor b f32[4] input persistent
0 collective t0 kind=scatter group=data root=0 : -> a
1 wait t0
)";
  EXPECT_EQ(message(scatter), "no error");
  EXPECT_EQ(message(replaced(scatter, ": -> a", ": b -> a")),
            "program: rank 1 instruction 0 (scatter) reads tensors: 1; allowed: none");
  EXPECT_EQ(
      message(replaced(scatter, "tensor x f32[8]", "tensor x f32[10]")),
      "program: rank 0 instruction 0 (scatter) gives 20 bytes to rank 0 instruction 0 (scatter), which expects 16");
}

// An update while its weight is on its way, a batch norm while its statistics are: the race of updates that are delayed.
TEST(Validate, SeesWhatChangesInPlace) {
  const std::string update = R"(paragauge-program-2
work sgd.update f32[4] momentum=0.5
mesh rank=2
group data rank
role both ranks=0,1
tensor w f32[4] weight persistent
tensor g f32[4] gradient persistent
tensor v f32[4] optimizer persistent
0 collective t0 kind=all_reduce group=data : g -> g
1 wait t0
2 update w0 : w g v -> w v
)";
  EXPECT_EQ(message(update), "no error");
  EXPECT_EQ(message(replaced(replaced(update, ": g -> g\n1 wait t0\n2", ": w -> w\n1"), "w g v -> w v\n",
                             "w g v -> w v\n2 wait t0\n")),
            "program, role 'both' (rank 0), instruction 1 (update): reads 'w' before the transfer into it was waited "
            "for");
  EXPECT_EQ(message(replaced(update, "w g v -> w v", "w g v -> w")),
            "program, role 'both' (rank 0), instruction 2 (update): changes 'v' in place, so it must write it, too");
  EXPECT_EQ(message(replaced(update, "w g v -> w v", "w g v")),
            "program, role 'both' (rank 0), instruction 2 (update): changes 'w' in place, so it must write it, too");

  // What is only being sent may be read, but not changed.
  const std::string pair = R"(paragauge-program-2
mesh rank=2
work batch_norm.forward f32[4,2,1,1]
role left ranks=0
tensor x f32[4,2,1,1] input persistent
tensor p f32[2] weight persistent
tensor q f32[2] weight persistent
tensor mean f32[2] buffer persistent
tensor var f32[2] buffer persistent
tensor count i64[] buffer persistent
tensor y f32[4,2,1,1] input persistent
0 send t0 to=rank+1 tag=0 : mean
1 compute w0 : x p p mean var count -> y p p mean var count
2 wait t0
role right ranks=1
tensor mean f32[2] buffer persistent
0 recv t0 from=rank-1 tag=0 : -> mean
1 wait t0
)";
  EXPECT_EQ(message(pair),
            "program, role 'left' (rank 0), instruction 1 (compute forward): writes 'mean' while a transfer uses it");
  EXPECT_EQ(message(replaced(pair, "mean var count -> y p p mean var count", "mean var count -> y p p")),
            "program, role 'left' (rank 0), instruction 1 (compute forward): changes 'mean' in place, so it must write "
            "it, too");
  EXPECT_EQ(message(replaced(pair, "0 send t0 to=rank+1 tag=0 : mean", "0 send t0 to=rank+1 tag=0 : q")), "no error");
}

// ---- Units, and parts by coordinate ----

const std::string kGather = R"(paragauge-program-2
mesh dp=3
group dp dp
work fill.forward f32[2]
role all ranks=0,1,2
unit unit0
part a f32[2,2] uniform=0,1
part b f32[1] constant=0
tensor unit0.all f32[6] weight persistent unit=unit0
view unit0.own f32[2] unit0.all +0 along=dp
0 copy w0 : -> unit0.own
1 collective t0 kind=all_gather group=dp : unit0.own -> unit0.all
2 wait t0
)";

TEST(Validate, EachGathersItsOwnPartInPlace) {
  EXPECT_EQ(message(kGather), "no error");
  EXPECT_EQ(message(replaced(kGather, "+0 along=dp", "+8")),
            "program, role 'all' (rank 0), instruction 1 (all_gather): reads 'unit0.own' and writes 'unit0.all', which "
            "overlap");
  EXPECT_NE(message(replaced(kGather, "+0 along=dp", "+0")), "no error") << "rank 0's place only";
  EXPECT_EQ(message(replaced(kGather, "+0 along=dp", "+4 along=dp")),
            "program: 3 parts of 'unit0.own' along dp reach beyond its storage");
  EXPECT_EQ(message(replaced(kGather, "1 collective t0 kind=all_gather group=dp : unit0.own -> unit0.all",
                             "1 collective t0 kind=broadcast group=dp root=0 : unit0.own -> unit0.own")),
            "no error");
}

TEST(Validate, UnitsHoldTheirParameters) {
  EXPECT_EQ(message(replaced(kGather, "part b f32[1]", "part b f32[3]")),
            "program: 'unit0.all' of rank 0 is [6], but its unit 'unit0' has 7 elements");
  EXPECT_EQ(message(replaced(kGather, "part b f32[1]", "part b f64[1]")),
            "program: 'b' of unit 'unit0' is f64, but 'unit0.all' is f32");
  EXPECT_EQ(message(replaced(kGather, "part b f32[1]", "part b f32[9] on=S0")),
            "program: 'unit0.all' of rank 0 is [6], but its unit 'unit0' has 7 elements");
  EXPECT_EQ(message(replaced(kGather, "part b f32[1]", "part b f32[6] on=S0")), "no error");
  EXPECT_EQ(message(replaced(kGather, "part b f32[1]", "part b f32[1] on=@0")),
            "program: rank 1 has nothing of 'b' of its unit");
  EXPECT_EQ(message(replaced(kGather, "unit=unit0", "unit=unit1")), "program text, line 9: unknown unit 'unit1'");
  EXPECT_EQ(message(replaced(kGather, "along=dp", "along=tp")),
            "program text, line 10: expected along= and an axis, found 'along=tp'");
}

// ---- Real programs: remove any one line of a list, and it's no longer valid. ----

TEST(Validate, EveryTransferAndWaitOfAStepIsNeeded) {
  for (const char* strategy : {"pipeline,pp=2,cut=r1,microbatches=2", "ddp_blocking,dp=2",
                               "mesh,dp=2,pp=2,microbatches=2", "zero1,dp=2", "zero3,dp=2"}) {
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
        shorter.units = role.units;
        for (std::uint32_t i = 0; i < role.size(); ++i) {
          if (i == removed) continue;
          Instruction instruction = role.at(i);
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
