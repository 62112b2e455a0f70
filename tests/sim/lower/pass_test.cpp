#include "sim/lower/pass/pass.hpp"

#include <nlohmann/json.hpp>

#include "sim/lower/lower.hpp"
#include "tests/sim/model/toys.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using Json = nlohmann::json;
using testing::lines_of;

// ---- Before and after, in text form. ----

const std::string kHead =
    "paragauge-program-2\nmodel none\nstrategy none\npartition global_batch=1 microbatches=1\n"
    "mesh rank=2\ngroup data rank\nwork relu.forward f32[4] inplace=0\n";

/// A role's text as a draft, edited by a pass, and back.
struct Edit {
  Program program;
  WorkTable works;
  NameTable names;
  Draft draft;

  explicit Edit(const std::string& role_text)
      : program(program_from_text(kHead + role_text)), works(program.works), names(program.names) {
    const Role role = std::move(program.roles.at(0));
    program.roles.clear();
    draft.works = &works;
    draft.names = &names;
    draft.role.name = role.name;
    draft.role.ranks = role.ranks;
    draft.role.tensors = role.tensors;
    draft.role.storages = role.storages;
    for (std::uint32_t i = 0; i < role.size(); ++i) draft.list.push_back(role.at(i));
    draft.tickets = role.tickets();
  }

  [[nodiscard]] std::uint32_t tensor(const std::string& name) const {
    for (std::uint32_t t = 0; t < draft.role.tensors.size(); ++t)
      if (draft.role.tensors[t].name == name) return t;
    throw std::logic_error("no tensor " + name);
  }
  void add_parameter(const std::string& name) {
    draft.arrival.insert(draft.arrival.begin(), static_cast<std::uint32_t>(draft.parameters.size()));
    draft.parameters.push_back({.name = name,
                                .spec = draft.role.tensors[tensor(name)].spec,
                                .sum_axes = 1,
                                .weight = tensor(name),
                                .gradient = tensor("grad." + name)});
  }
  /// The role's lines; the works that the pass added come first.
  std::string text() {
    program.roles.push_back(std::move(draft).finish());
    const std::string text = to_text(program);
    return text.substr(text.find("work relu") + std::string("work relu.forward f32[4] inplace=0\n").size());
  }
};

/// Two replicas.
const Layout kReplicas{.mesh = {{{"rank", 2}}},
                       .rows = {shard(0)},
                       .parameters = {.first_bucket_MiB = 1, .bucket_MiB = 25, .is_mean = true}};
std::uint32_t the_group(std::uint32_t /*axes*/) { return 0; }

TEST(Pass, WhatIsKeptLivesOn) {
  Edit edit(
      "role stage0 ranks=0\ntensor x f32[4] input persistent\ntensor a f32[4] activation\n"
      "tensor b f32[4] activation\n0 compute w0 : x -> a\n1 compute w0 : a -> b\n2 compute w0 : b -> x\n");
  edit.draft.kept = {{edit.tensor("a"), 2}, {edit.tensor("b"), 0}};  // never shorter
  add_frees(edit.draft);
  const std::string text = edit.text();
  EXPECT_NE(text.find("1 compute w0 : a -> b\n2 compute w0 : b -> x ; free a b\n"), std::string::npos) << text;
}

TEST(Pass, FreesAfterTheLastUse) {
  Edit edit(R"(role stage0 ranks=0
tensor x f32[4] input persistent
tensor a f32[4] activation
tensor b f32[4] activation
view b.half f32[2] b +8
tensor unused f32[4] activation
0 compute w0 : x -> a
1 compute w0 : a -> b
2 send t0 to=rank+0 tag=0 : b.half
3 compute w0 : a -> x
4 wait t0
5 compute w0 : x -> x
)");
  add_frees(edit.draft);
  EXPECT_EQ(edit.text(), R"(role stage0 ranks=0
tensor x f32[4] input persistent
tensor a f32[4] activation
tensor b f32[4] activation
view b.half f32[2] b +8
tensor unused f32[4] activation
0 compute w0 : x -> a
1 compute w0 : a -> b
2 send t0 to=rank+0 tag=0 : b.half
3 compute w0 : a -> x ; free a
4 wait t0 : ; free b
5 compute w0 : x -> x
)");
}

const std::string kParameters = R"(role stage0 ranks=0,1
tensor p f32[2,2] weight persistent
tensor q f32[3] weight persistent
tensor x f32[4] input persistent
tensor grad.p f32[2,2] gradient
tensor grad.q f32[3] gradient
)";

TEST(Pass, BucketsAreFilledReducedAndCopiedBack) {
  Edit edit(kParameters + "0 compute w0 : x -> grad.p grad.q\n");
  edit.add_parameter("p");
  edit.add_parameter("q");  // arrives first
  add_gradient_sums(edit.draft, kReplicas, /*mean=*/true, the_group);
  EXPECT_EQ(edit.text(), R"(work scaled_copy.forward f32[3]
work scaled_copy.forward f32[4]
)" + kParameters + R"(tensor bucket0 f32[7] communication persistent constant=0
view bucket0.0 f32[3] bucket0 +0
view bucket0.1 f32[4] bucket0 +12
0 compute w0 : x -> grad.p grad.q
1 copy w1 node=bucket0 scale=0.5 : grad.q -> bucket0.0
2 copy w2 node=bucket0 scale=0.5 : grad.p -> bucket0.1
3 collective t0 kind=all_reduce group=data node=bucket0 : bucket0 -> bucket0
4 wait t0 node=bucket0
5 copy w1 node=bucket0 : bucket0.0 -> grad.q
6 copy w2 node=bucket0 : bucket0.1 -> grad.p
)");
}

TEST(Pass, OverlappedBucketsGoAsSoonAsTheyAreComplete) {
  const std::string backward =
      "0 compute w0 : x -> grad.q\n"
      "1 compute w0 : x -> grad.p\n"
      "2 compute w0 : grad.p x -> grad.p\n"  // a second microbatch's part
      "3 compute w0 : x -> x\n";
  Edit edit(kParameters + backward);
  edit.add_parameter("p");
  edit.add_parameter("q");  // arrives first
  Layout layout = kReplicas;
  layout.parameters.overlap = true;
  layout.parameters.first_bucket_MiB = layout.parameters.bucket_MiB = 0;
  add_gradient_sums(edit.draft, layout, /*mean=*/true, the_group);
  const std::string text = edit.text();
  EXPECT_EQ(text.substr(text.find("0 compute")), R"(0 compute w0 : x -> grad.q
1 copy w1 node=bucket0 scale=0.5 : grad.q -> bucket0.0
2 collective t0 kind=all_reduce group=data node=bucket0 : bucket0 -> bucket0
3 compute w0 : x -> grad.p
4 compute w0 : grad.p x -> grad.p
5 copy w2 node=bucket1 scale=0.5 : grad.p -> bucket1.0
6 collective t1 kind=all_reduce group=data node=bucket1 : bucket1 -> bucket1
7 compute w0 : x -> x
8 wait t0 node=bucket0
9 copy w1 node=bucket0 : bucket0.0 -> grad.q
10 wait t1 node=bucket1
11 copy w2 node=bucket1 : bucket1.0 -> grad.p
)");
}

// t0's bytes are written by the transfer: whoever touches them waits, not who touches the other half. t1 only reads b here
// (the rank isn't the root), so that reading it is allowed, and writing it isn't. Nobody touches what t2 writes. t3 has its
// wait.
TEST(Pass, WaitsComeBeforeWhatTouchesTheBytes) {
  const std::string tensors = R"(role stage0 ranks=1
tensor a f32[8] input persistent
view a.0 f32[4] a +0
view a.1 f32[4] a +16
tensor b f32[4] input persistent
tensor c f32[4] activation
tensor d f32[4] activation
)";
  Edit edit(tensors + R"(0 collective t0 kind=all_reduce group=data node=x mb=1 : a.0 -> a.0
1 collective t1 kind=reduce group=data root=0 node=y : b
2 collective t2 kind=all_reduce group=data node=z : d -> d
3 collective t3 kind=all_reduce group=data node=x : c -> c
4 wait t3
5 compute w0 : a.1 -> c
6 compute w0 : b -> c
7 compute w0 : a.0 -> c
8 compute w0 : c -> b
)");
  edit.draft.kept = {{edit.tensor("c"), 7}};
  add_waits(edit.draft);
  EXPECT_EQ(edit.draft.kept[0].second, 8U) << "the same instruction";
  EXPECT_EQ(edit.text(), tensors + R"(0 collective t0 kind=all_reduce group=data node=x mb=1 : a.0 -> a.0
1 collective t1 kind=reduce group=data root=0 node=y : b
2 collective t2 kind=all_reduce group=data node=z : d -> d
3 collective t3 kind=all_reduce group=data node=x : c -> c
4 wait t3
5 compute w0 : a.1 -> c
6 compute w0 : b -> c
7 wait t0 node=x mb=1
8 compute w0 : a.0 -> c
9 wait t1 node=y
10 compute w0 : c -> b
11 wait t2 node=z
)");
}

TEST(Pass, BuffersAreBroadcastPerDtype) {
  const std::string role = R"(role stage0 ranks=0,1
tensor mean f32[3] buffer persistent
tensor count i64[] buffer persistent
tensor var f32[3] buffer persistent
tensor x f32[4] input persistent
)";
  Edit edit(role + "0 compute w0 node=bn : x -> x\n");
  edit.draft.buffers = {edit.tensor("mean"), edit.tensor("count"), edit.tensor("var")};
  add_buffer_broadcast(edit.draft, 0);
  add_waits(edit.draft);
  EXPECT_EQ(edit.text(), R"(work cat.forward f32[6]
work scaled_copy.forward f32[3]
work cat.forward i64[1]
work scaled_copy.forward i64[1]
)" + role + R"(tensor buffers.f32 f32[6] communication
view buffers.f32.0 f32[3] buffers.f32 +0
view buffers.f32.1 f32[3] buffers.f32 +12
tensor buffers.i64 i64[1] communication
view buffers.i64.0 i64[1] buffers.i64 +0
0 copy w1 node=buffers.f32 : mean var -> buffers.f32
1 collective t0 kind=broadcast group=data root=0 node=buffers.f32 : buffers.f32 -> buffers.f32
2 wait t0 node=buffers.f32
3 copy w2 node=buffers.f32 : buffers.f32.0 -> mean
4 copy w2 node=buffers.f32 : buffers.f32.1 -> var
5 copy w3 node=buffers.i64 : count -> buffers.i64
6 collective t1 kind=broadcast group=data root=0 node=buffers.i64 : buffers.i64 -> buffers.i64
7 wait t1 node=buffers.i64
8 copy w4 node=buffers.i64 : buffers.i64.0 -> count
9 compute w0 node=bn : x -> x
)");
}

// Tickets are numbered as the list opens them, whoever asked for them first.
TEST(Pass, TicketsFollowTheList) {
  Edit edit(R"(role stage0 ranks=0,1
tensor mean f32[3] buffer persistent
tensor x f32[4] input persistent
0 collective t0 kind=all_reduce group=data node=x : x -> x
1 wait t0
)");
  edit.draft.buffers = {edit.tensor("mean")};
  add_buffer_broadcast(edit.draft, 0);
  add_waits(edit.draft);
  const std::string text = edit.text();
  EXPECT_EQ(text.substr(text.find("1 collective")),
            R"(1 collective t0 kind=broadcast group=data root=0 node=buffers.f32 : buffers.f32 -> buffers.f32
2 wait t0 node=buffers.f32
3 copy w2 node=buffers.f32 : buffers.f32.0 -> mean
4 collective t1 kind=all_reduce group=data node=x : x -> x
5 wait t1
)");
}

TEST(Pass, AnUpdateIsOfAllParametersInTheModelsOrder) {
  Edit edit(kParameters + "0 compute w0 : x -> grad.p grad.q\n");
  edit.add_parameter("p");
  edit.add_parameter("q");
  const Model model = load_model("toy_mlp,optimizer=sgd:lr=0.5:momentum=0.9");
  add_updates(edit.draft, model);
  EXPECT_EQ(edit.text(), R"(work sgd.update f32[4] f32[3] lr=0.5 momentum=0.9 weight_decay=0
)" + kParameters + R"(tensor p.momentum_buffer f32[2,2] optimizer persistent constant=0
tensor q.momentum_buffer f32[3] optimizer persistent constant=0
0 compute w0 : x -> grad.p grad.q
1 update w1 : p q grad.p grad.q p.momentum_buffer q.momentum_buffer -> p q p.momentum_buffer q.momentum_buffer
)");
}

TEST(Pass, AFlatTensorHasOneDtype) {
  Edit edit(R"(role stage0 ranks=0
tensor count i64[] buffer persistent
tensor mean f32[3] buffer persistent
)");
  EXPECT_THROW(edit.draft.add_flat("both", {{Dtype::f32, {3}}, {Dtype::i64, {}}}), InternalError);
  const Draft::Flat flat = edit.draft.add_flat("means", {{Dtype::f32, {3}}, {Dtype::f32, {3}}});
  EXPECT_EQ(edit.draft.role.tensors[flat.slices[1]].offset_bytes, 12);
}

// Stages that are under construction at the same time name things once.
TEST(Pass, DraftsShareTheirNames) {
  Edit edit(kParameters);
  Draft other;
  other.works = edit.draft.works;
  other.names = edit.draft.names;
  const std::uint32_t first = edit.draft.names->add("bucket0");
  const std::uint32_t second = other.names->add("bucket1");
  EXPECT_EQ(other.names->add("bucket0"), first);
  EXPECT_EQ(edit.draft.names->add("bucket1"), second);
  EXPECT_EQ(std::ranges::count(edit.program.names, "bucket0"), 1);
}

// ---- DDP's buckets. ----

TEST(Buckets, CloseWithTheTensorThatReachesTheCap) {
  using Buckets = std::vector<std::vector<std::uint32_t>>;
  EXPECT_EQ(bucket_assignment({}, 10, 20), Buckets{});
  EXPECT_EQ(bucket_assignment({1, 2, 3}, 10, 20), (Buckets{{0, 1, 2}}));
  EXPECT_EQ(bucket_assignment({10, 20, 1}, 10, 20), (Buckets{{0}, {1}, {2}}));  // reached exactly
  EXPECT_EQ(bucket_assignment({9, 20, 1}, 10, 20), (Buckets{{0, 1}, {2}}));     // beyond the cap
  EXPECT_EQ(bucket_assignment({100, 9, 9, 9, 9}, 10, 20), (Buckets{{0}, {1, 2, 3}, {4}}));
  EXPECT_EQ(bucket_assignment({1, 1, 1}, 0, 0), (Buckets{{0}, {1}, {2}}));
}

// Whatever axes they are summed over: a bucket that is sent late holds up those behind it.
TEST(Buckets, AreSentInTheOrderInWhichTheyAreFull) {
  Draft draft;
  for (const auto& [name, axes] : {std::pair("a", 1U), {"b", 3U}, {"c", 1U}, {"d", 3U}}) {
    DraftParameter& parameter = draft.parameters.emplace_back();
    parameter.name = name, parameter.spec = {Dtype::f32, {4}}, parameter.sum_axes = axes;
  }
  const auto order = [&](double cap_MiB, bool at_root) {
    std::vector<std::vector<std::uint32_t>> found;
    for (const ParameterBucket& bucket : parameter_buckets(
             draft, {0, 1, 2, 3}, {.at_root = at_root, .first_bucket_MiB = cap_MiB, .bucket_MiB = cap_MiB},
             &DraftParameter::sum_axes)) {
      EXPECT_EQ(bucket.index, found.size());
      found.push_back(bucket.parameters);
    }
    return found;
  };
  using Order = std::vector<std::vector<std::uint32_t>>;
  EXPECT_EQ(order(0, false), (Order{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(order(1, false), (Order{{0, 2}, {1, 3}}));
  EXPECT_EQ(order(0, true), (Order{{0}, {2}, {1}, {3}}));
}

// The last stage's head is the first to have its gradient, but for what the first stage adds to it in the end.
TEST(Buckets, TiedGradientsHoldUpNobody) {
  const Model model = load_model(testing::toy_path("token_toy"));
  const Program program = lower(
      model, parse_strategy("mesh,pp=2,dp=2,microbatches=2,schedule=1f1b,first_bucket_MiB=0,bucket_MiB=0", model));
  const Role& role = program.roles.back();
  std::size_t tied = 0, sums_before = 0;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    for (const std::uint32_t tensor : role.writes(i))
      if (role.kind[i] == InstructionKind::recv && role.tensors[tensor].name.find(".from.stage") != std::string::npos)
        ++tied;
    if (role.kind[i] == InstructionKind::collective && tied == 0) ++sums_before;
  }
  EXPECT_EQ(tied, 1U);
  EXPECT_GT(sums_before, 0U);
}

TEST(Buckets, ChunksCloseBeforeTheTensorThatExceedsTheCap) {
  using Chunks = std::vector<std::vector<std::uint32_t>>;
  EXPECT_EQ(chunk_assignment({}, 10), Chunks{});
  EXPECT_EQ(chunk_assignment({4, 6, 1}, 10), (Chunks{{0, 1}, {2}}));  // exactly full
  EXPECT_EQ(chunk_assignment({100, 1, 100, 1}, 10), (Chunks{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(chunk_assignment({1, 1, 1}, 0), (Chunks{{0}, {1}, {2}}));
}

/// The all-reduces of rank 0 in order: bytes and the parameters they hold.
Json all_reduces(const Program& program) {
  const Role& role = program.roles.at(0);
  Json list = Json::array();
  std::map<std::uint32_t, Json> held;  // storage → parameters copied into it since
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    if (role.kind[i] == InstructionKind::copy && role.tensors[role.reads(i)[0]].name.starts_with("grad."))
      held[role.tensors[role.writes(i)[0]].storage].push_back(role.tensors[role.reads(i)[0]].name.substr(5));
    if (role.kind[i] == InstructionKind::collective && role.collective[i] == CollectiveKind::all_reduce)
      list.push_back({{"bytes", program.transfer_bytes(role, i)},
                      {"parameters", held.at(role.tensors[role.reads(i)[0]].storage)}});
  }
  return list;
}

// What DDP 2.11 makes and in which order it reduces them (tests/golden/ddp_buckets.py).
TEST(Buckets, AreDdps) {
  const Json golden = Json::parse(testing::golden_text("ddp_buckets.json"));
  EXPECT_EQ(golden.size(), 5U);
  for (const auto& [name, buckets] : golden.items()) {
    const Model model = testing::small_model(name);
    EXPECT_EQ(all_reduces(lower(model, parse_strategy("ddp_blocking,dp=2", model))), buckets) << name;
    EXPECT_EQ(all_reduces(lower(model, parse_strategy("ddp,dp=2", model))), buckets) << name;
    // Microbatches accumulate first and change nothing.
    EXPECT_EQ(all_reduces(lower(model, parse_strategy("dp=2,microbatches=2", model))), buckets) << name;
  }
}

}  // namespace
}  // namespace sim
