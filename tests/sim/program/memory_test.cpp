#include "sim/program/memory.hpp"

#include <numeric>

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::for_each_program;
using testing::small_model;

std::int64_t at_peak(const Memory& memory, TensorClass tensor_class) {
  return memory.at_peak[static_cast<std::size_t>(tensor_class)];
}

/// Bytes of a model's parameters, buffers, optimizer states, and of `rows` samples with their targets.
struct Persistent {
  std::int64_t weights = 0, buffers = 0, optimizer = 0, input = 0;

  Persistent(const Model& model, std::int64_t rows) {
    std::int64_t tensors = 0;
    for (const OpInstance& op : model.instances(2)) {
      const Signature s = op.signature();
      for (const ParameterSpec& parameter : s.parameters) weights += parameter.spec.bytes(), ++tensors;
      for (const BufferSpec& buffer : s.buffers) buffers += buffer.spec.bytes();
    }
    if (model.optimizer.kind->name == "adam")
      optimizer = 2 * weights + 4 * tensors;  // two moments; a step counter (f32) per parameter
    else if (model.optimizer.number("momentum") > 0)
      optimizer = weights;
    const std::int64_t target = model.nodes.back().kind->name == "cross_entropy" ? 8 : 4 * model.classes;
    input = rows * (4 * elements(model.input) + target);
  }
  [[nodiscard]] std::int64_t sum() const { return weights + buffers + optimizer + input; }
};

// Linear(10,10) → ReLU → Linear(10,5) → MSE on B rows, step by step.
TEST(Memory, PeakOfTheToyByHand) {
  for (const std::int64_t b : {1, 4, 20, 1000}) {
    const Model model = load_model(fmt::format("toy_mlp,global_batch={}", b));
    const Memory memory = peak_memory(lower(model, parse_strategy("single", model)).roles[0]);
    const std::int64_t weights = 4 * (10 * 10 + 10 + 5 * 10 + 5), input = 4 * b * (10 + 5);
    // Live activations and gradients at every instruction:
    const std::int64_t wide = 4 * b * 10, narrow = 4 * b * 5, net2 = 4 * (5 * 10 + 5), net1 = 4 * (10 * 10 + 10);
    const std::vector<std::int64_t> live{
        wide,                         // net1: its output
        wide + wide,                  // relu: its input and output
        wide + narrow,                // net2: relu's output is kept for its backward
        wide + narrow + 4,            // loss
        wide + narrow + narrow,       // loss backward: the prediction and its gradient
        wide + narrow + wide + net2,  // net2 backward: relu's output, grad_output, grad_input
        wide + wide + wide + net2,    // relu backward: output, grad_output, grad_input
        wide + net2 + net1,           // net1 backward: grad_output; the input has no gradient
        net2 + net1};                 // updates
    const auto peak = std::ranges::max_element(live);
    EXPECT_EQ(memory.persistent_bytes, weights + input);
    EXPECT_EQ(memory.peak_bytes, weights + input + *peak) << "B=" << b;
    EXPECT_EQ(memory.peak_instruction, static_cast<std::uint32_t>(peak - live.begin())) << "B=" << b;
    EXPECT_EQ(at_peak(memory, TensorClass::weight), weights);
    EXPECT_EQ(at_peak(memory, TensorClass::input), input);
  }
}

// torch.autocast: what the layers make and keep is half as wide, and a copy of each weight is kept until its backward, unless
// that needs none, as the first layer's.
TEST(Memory, PeakOfTheToyWithAutocastByHand) {
  for (const std::int64_t b : {1, 1000}) {
    const Model model = load_model(fmt::format("toy_mlp,global_batch={},precision=bf16", b));
    const Memory memory = peak_memory(lower(model, parse_strategy("single", model)).roles[0]);
    const std::int64_t weights = 4 * (10 * 10 + 10 + 5 * 10 + 5), input = 4 * b * (10 + 5);
    const std::int64_t wide = 2 * b * 10, narrow = 2 * b * 5, net2 = 4 * (5 * 10 + 5), net1 = 4 * (10 * 10 + 10);
    const std::int64_t cast1 = 2 * b * 10, cast2 = 2 * 5 * 10;                            // net1's input; net2's weight
    const std::int64_t prediction = 4 * b * 5;                                            // the loss's, in f32
    const std::vector<std::int64_t> live{cast1 + 2 * 10 * 10 + wide,                      // net1, and its weight
                                         cast1 + wide + wide,                             // relu
                                         cast1 + wide + cast2 + narrow,                   // net2
                                         cast1 + wide + cast2 + narrow + prediction + 4,  // loss
                                         cast1 + wide + cast2 + prediction + narrow,      // loss backward
                                         cast1 + wide + cast2 + narrow + wide + net2,     // net2 backward
                                         cast1 + wide + wide + wide + net2,               // relu backward
                                         cast1 + wide + net2 + net1,                      // net1 backward
                                         net2 + net1};                                    // updates
    EXPECT_EQ(memory.persistent_bytes, weights + input);
    EXPECT_EQ(memory.peak_bytes, weights + input + *std::ranges::max_element(live)) << "B=" << b;
  }
}

TEST(Memory, BreakdownOfTheToyByHand) {
  const Model model = load_model("toy_mlp,global_batch=1000,optimizer=sgd:momentum=0.9");
  const Memory memory = peak_memory(lower(model, parse_strategy("single", model)).roles[0]);
  const std::int64_t parameters = 4 * (10 * 10 + 10 + 5 * 10 + 5);
  EXPECT_EQ(at_peak(memory, TensorClass::weight), parameters);
  EXPECT_EQ(at_peak(memory, TensorClass::optimizer), parameters);
  EXPECT_EQ(at_peak(memory, TensorClass::activation), 3 * 4 * 1000 * 10);  // relu backward
  EXPECT_EQ(at_peak(memory, TensorClass::gradient), 4 * (5 * 10 + 5));
  EXPECT_EQ(at_peak(memory, TensorClass::input), 4 * 1000 * 15);
  EXPECT_EQ(at_peak(memory, TensorClass::buffer), 0);
  EXPECT_EQ(at_peak(memory, TensorClass::communication), 0);
}

TEST(Memory, DdpHoldsEverythingPerReplicaAndBuckets) {
  for (const std::string& name : testing::written_models())
    for (const char* optimizer : {"", ",optimizer=adam", ",optimizer=sgd:momentum=0.5", ",optimizer=sgd"})
      for (const std::int64_t dp : {2, 4}) {
        const Model model = load_model(small_model(name).text() + optimizer);
        SCOPED_TRACE(fmt::format("{}{} dp={}", name, optimizer, dp));
        const Persistent expected(model, model.global_batch / dp);
        const Program program = lower(model, parse_strategy(fmt::format("ddp_blocking,dp={}", dp), model));
        ASSERT_EQ(program.roles.size(), 1U);
        EXPECT_EQ(peak_memory(program.roles[0]).persistent_bytes,
                  expected.sum() + expected.weights);  // buckets are as large as all gradients
      }
}

TEST(MemoryGrid, StagesShareWhatOneDeviceHolds) {
  for_each_program([](const Model& model, const Strategy& strategy, const Program& program) {
    if (strategy.dp * strategy.tp > 1 || !strategy.levels.empty()) return;
    std::int64_t sum = 0;
    for (const Role& role : program.roles) sum += peak_memory(role).persistent_bytes;
    EXPECT_EQ(sum, Persistent(model, model.global_batch).sum());
  });
}

TEST(MemoryGrid, BreakdownSumsToThePeak) {
  for_each_program([](const Model&, const Strategy& strategy, const Program& program) {
    for (const Role& role : program.roles) {
      const Memory memory = peak_memory(role);
      SCOPED_TRACE(role.name);
      EXPECT_EQ(std::accumulate(memory.at_peak.begin(), memory.at_peak.end(), std::int64_t{0}), memory.peak_bytes);
      EXPECT_GE(memory.peak_bytes, memory.persistent_bytes);
      EXPECT_LT(memory.peak_instruction, role.size());
      for (std::int64_t bytes : memory.at_peak) EXPECT_GE(bytes, 0);
      // All parameter gradients are alive between the last backward and the first update, unless ranks keep parts of them.
      if (strategy.zero > 0) continue;
      std::int64_t gradients = 0;
      for (const Storage& storage : role.storages)
        if (storage.tensor_class == TensorClass::weight) gradients += storage.bytes;
      EXPECT_GE(memory.peak_bytes, memory.persistent_bytes + gradients);
    }
  });
}

// GPipe keeps the activations of all microbatches; the whole batch at once keeps as much.
TEST(Memory, GpipeKeepsAllMicrobatches) {
  const Model model = load_model("convnet,global_batch=64");
  const auto peak = [&](const std::string& text) {
    return peak_memory(lower(model, parse_strategy(text, model)).roles[0])
        .at_peak[static_cast<std::size_t>(TensorClass::activation)];
  };
  // What each microbatch leaves behind after its forward, in sum the batch's; what is only alive for a moment shrinks.
  EXPECT_LT(peak("single,schedule=gpipe,microbatches=8"), peak("single"));
  std::int64_t kept = 0;
  for (const char* node : {"relu1", "pool1", "relu2", "pool2"}) {
    const auto n = static_cast<std::size_t>(model.node_index(node));
    const Signature s = model.instances(64)[n].signature();
    kept += s.output.bytes();
    for (const SavedSpec& saved : s.saved) kept += saved.spec.bytes();
  }
  EXPECT_GE(peak("single,schedule=gpipe,microbatches=8"), kept);
}

// Accumulated without a pipeline: the activations of one microbatch at a time, whatever the batch.
TEST(Memory, AccumulationKeepsOneMicrobatch) {
  const auto activations = [](std::int64_t samples, const std::string& text) {
    const Model model = load_model(fmt::format("resnet18,image=32,global_batch={}", samples));
    return at_peak(peak_memory(lower(model, parse_strategy(text, model)).roles[0]), TensorClass::activation);
  };
  // From the second one on all gradients are there, so the peak is elsewhere.
  const std::int64_t of_two = activations(16, "single,microbatches=2");
  EXPECT_LT(of_two, 2 * activations(8, "single"));
  EXPECT_GT(activations(64, "single,schedule=gpipe,microbatches=8"), 2 * of_two);
  EXPECT_EQ(activations(64, "single,microbatches=8"), of_two);
  EXPECT_EQ(activations(128, "single,split_size=8"), of_two);
  EXPECT_EQ(activations(128, "ddp,dp=2,microbatches=8"), of_two);
  EXPECT_EQ(activations(128, "ddp_blocking,dp=2,microbatches=8"), of_two);
  EXPECT_EQ(activations(128, "dp=2,microbatches=8"), of_two);
}

// A stage keeps at most p − s microbatches, however many there are, and no gradient it has sent.
TEST(Memory, OneForwardOneBackwardKeepsFewMicrobatches) {
  const auto activations = [](const char* schedule, std::int64_t microbatches, std::size_t stage) {
    const Model model = load_model(fmt::format("convnet,global_batch={}", 4 * microbatches));
    return peak_memory(
               lower(model,
                     parse_strategy(fmt::format("pipeline,pp=2,cut=pool2,schedule={},split_size=4", schedule), model))
                   .roles[stage])
        .at_peak[static_cast<std::size_t>(TensorClass::activation)];
  };
  for (std::size_t stage : {0U, 1U}) {
    EXPECT_EQ(activations("1f1b", 4, stage), activations("1f1b", 16, stage));
    EXPECT_LT(activations("1f1b", 16, stage), activations("gpipe", 16, stage));
    EXPECT_LT(activations("gpipe", 4, stage), activations("gpipe", 16, stage));
  }
}

TEST(Memory, WorkspaceCountsWhileItsOpRuns) {
  const Role role = program_from_text(
                        "paragauge-program-2\nwork relu.forward f32[4] inplace=0\nwork relu.forward f32[8] inplace=0\n"
                        "role one ranks=0\ntensor x f32[100] input persistent\ntensor a f32[25] activation\n"
                        "tensor b f32[50] activation\n0 compute w0 : x -> a\n1 compute w1 : a -> b ; free a b\n")
                        .roles[0];
  EXPECT_EQ(peak_with_workspace(role, std::vector{0.0, 0.0}), static_cast<double>(peak_memory(role).peak_bytes));
  EXPECT_EQ(peak_with_workspace(role, std::vector{0.0, 30.0}), 400 + 100 + 200 + 30);
  EXPECT_EQ(peak_with_workspace(role, std::vector{500.0, 30.0}), 400 + 100 + 500);  // the first op's is larger
}

TEST(MemoryGrid, UsesAddUpToThePeak) {
  for_each_program([](const Model&, const Strategy&, const Program& program) {
    std::vector<double> workspace(program.works.size());
    for (std::size_t w = 0; w < workspace.size(); ++w) workspace[w] = static_cast<double>(w % 3 * 1000);
    for (const Role& role : program.roles) {
      SCOPED_TRACE(role.name);
      const auto sum = [](const MemoryUses& uses) {
        return std::accumulate(uses.begin(), uses.end(), std::int64_t{0});
      };
      EXPECT_EQ(sum(uses_at_peak(role)), peak_memory(role).peak_bytes);
      EXPECT_EQ(static_cast<double>(sum(uses_at_peak(role, workspace))), peak_with_workspace(role, workspace));
      const Memory memory = peak_memory(role);
      const MemoryUses uses = uses_at_peak(role);
      const auto use = [&](MemoryUse one) { return uses[static_cast<std::size_t>(one)]; };
      EXPECT_EQ(use(MemoryUse::parameters),
                at_peak(memory, TensorClass::weight) + at_peak(memory, TensorClass::buffer));
      EXPECT_EQ(use(MemoryUse::activations),
                at_peak(memory, TensorClass::activation) + at_peak(memory, TensorClass::input));
      EXPECT_EQ(use(MemoryUse::gradients), at_peak(memory, TensorClass::gradient));
      EXPECT_EQ(use(MemoryUse::optimizer_states), at_peak(memory, TensorClass::optimizer));
      EXPECT_EQ(use(MemoryUse::communication_buffers), at_peak(memory, TensorClass::communication));
      EXPECT_EQ(use(MemoryUse::workspace), 0);
    }
  });
}

// Two ranks of 400 and 800 bytes, the latter with a workspace: on a device each, on one, and as cores of one host.
TEST(Memory, RanksOfOneMemoryAddUp) {
  const Program program = program_from_text(
      "paragauge-program-2\nwork relu.forward f32[4] inplace=0\n"
      "role one ranks=0\ntensor x f32[100] weight persistent\n0 compute w0 : x -> x\n"
      "role two ranks=1\ntensor x f32[200] activation persistent\n0 compute w0 : x -> x\n");
  Cluster cluster = testing::plain_cluster(2);
  cluster.device.memory_capacity = bytes(1000);
  MemoryFit fit = fit_memory(program, cluster, std::vector{50.0});
  MemoryUses uses{};
  uses[static_cast<std::size_t>(MemoryUse::activations)] = 800;
  uses[static_cast<std::size_t>(MemoryUse::workspace)] = 50;
  EXPECT_EQ(fit.needed, uses);
  EXPECT_EQ(fit.capacity_bytes, 1000);
  EXPECT_EQ(fit.devices, 2U);
  cluster.host = Host{"A CPU", bytes(1200)};
  fit = fit_memory(program, cluster);
  uses[static_cast<std::size_t>(MemoryUse::workspace)] = 0;
  uses[static_cast<std::size_t>(MemoryUse::parameters)] = 400;
  EXPECT_EQ(fit.needed, uses);
  EXPECT_EQ(fit.capacity_bytes, 1200);
  EXPECT_EQ(fit.devices, 2U);
  EXPECT_EQ(cluster.device_name(), "A CPU");
  cluster.host.reset();
  cluster.place[1] = cluster.place[0];
  fit = fit_memory(program, cluster);
  EXPECT_EQ(fit.needed_bytes(), 1200);
  EXPECT_EQ(fit.capacity_bytes, 1000);
  EXPECT_EQ(fit.devices, 1U);
  EXPECT_EQ(cluster.device_name(), "core");
  // A rank of two threads has two cores and their shares of the memory.
  Program of_two_threads = program;
  of_two_threads.set_threads(2);
  cluster.place[1].device = 2;
  fit = fit_memory(of_two_threads, cluster);
  EXPECT_EQ(fit.needed_bytes(), 800);
  EXPECT_EQ(fit.capacity_bytes, 2000);
  EXPECT_EQ(fit.devices, 4U);
}

// Where devices have memories of several sizes, the one that least is left of decides, not the one that needs most.
TEST(Memory, LeastLeftOfSeveralKindsDecides) {
  const Program program = program_from_text(
      "paragauge-program-2\nwork relu.forward f32[4] inplace=0\n"
      "role one ranks=0\ntensor x f32[100] weight persistent\n0 compute w0 : x -> x\n"
      "role two ranks=1\ntensor x f32[200] activation persistent\n0 compute w0 : x -> x\n");
  Cluster cluster = testing::plain_cluster(2);
  cluster.other_kinds = {cluster.device};
  cluster.kinds = {1, 0};  // 400 bytes on the smaller, 800 on the larger
  cluster.device.memory_capacity = bytes(1500);
  cluster.other_kinds[0].memory_capacity = bytes(450);
  const MemoryFit fit = fit_memory(program, cluster);
  EXPECT_EQ(fit.needed_bytes(), 400);
  EXPECT_EQ(fit.capacity_bytes, 450);
  EXPECT_EQ(fit.capacity_bytes - fit.fused_bytes, 50);
  ASSERT_EQ(fit.each.size(), 2U);
  EXPECT_EQ(fit.each[0].capacity_bytes, 450);
  EXPECT_EQ(fit.each[1].capacity_bytes, 1500);
  cluster.other_kinds[0].memory_capacity = bytes(399);
  EXPECT_EQ(fit_memory(program, cluster).capacity_bytes, 399);
}

std::int64_t use_of(const MemoryUses& uses, MemoryUse use) { return uses[static_cast<std::size_t>(use)]; }

/// The fullest device of a DGX A100, without what its processes hold beside tensors and temporaries.
std::int64_t of_pytorch(const std::string& model_text, const std::string& strategy = "single") {
  const Model model = load_model(model_text);
  const Program program = lower(model, parse_strategy(strategy, model));
  MemoryUses uses = fit_memory(program, load_cluster("dgx_a100", program.ranks())).needed;
  for (const MemoryUse use : {MemoryUse::device_context, MemoryUse::communicators})
    uses[static_cast<std::size_t>(use)] = 0;
  return sum_of(uses);
}

/// Linears without biases: so many parameters, and nothing else that counts.
std::string linears(const testing::TemporaryFolder& folder, std::int64_t width, int layers, std::int64_t batch) {
  std::string nodes;
  for (int i = 0; i < layers; ++i)
    nodes += fmt::format(R"({}{{"name": "fc{}", "op": "linear", "out_features": {}, "bias": false}})",
                         i > 0 ? ", " : "", i, width);
  return folder.file(
      "linears.json",
      fmt::format(R"({{"format": "paragauge-model-1", "name": "linears", "input": [{0}], "target": {{"classes": {0}}},
                      "global_batch": {1}, "optimizer": {{"kind": "adam"}}, "loss": "sum_loss", "nodes": [{2}]}})",
                  width, batch, nodes));
}

// torch 2.11 on the meta device with foreach=True, PyTorch's default on GPUs (torch.distributed._tools.mem_tracker): of these
// 1167.91 MiB of parameters Adam takes 5839.68 MiB, SGD with momentum and weight decay 4671.77.
TEST(Memory, OptimizersHoldTheirForeachIntermediatesOnGpus) {
  constexpr double kMiB = 1048576;
  const testing::TemporaryFolder folder;
  std::string nodes;
  for (int i = 0; i < 18; ++i) nodes += fmt::format(R"({{"name": "fc{}", "op": "linear", "out_features": 4096}}, )", i);
  const std::string file = folder.file(
      "m.json", R"({"format": "paragauge-model-1", "name": "m", "input": [4096], "target": {"classes": 1000},
                    "global_batch": 8, "optimizer": {"kind": "adam"}, "loss": "cross_entropy", "nodes": [)" +
                    nodes + R"({"name": "head", "op": "linear", "out_features": 1000}]})");
  const auto mebibytes_of = [&](const std::string& optimizer) {
    return static_cast<double>(of_pytorch(file + ",optimizer=" + optimizer)) / kMiB;
  };
  EXPECT_NEAR(mebibytes_of("adam"), 5839.68, 0.01);
  EXPECT_NEAR(mebibytes_of("adam:weight_decay=0.01"), 5839.68, 0.01);
  EXPECT_NEAR(mebibytes_of("sgd:lr=0.1:momentum=0.9:weight_decay=0.0001"), 4671.77, 0.01);
  EXPECT_NEAR(mebibytes_of("sgd:lr=0.1:momentum=0.9"), 4671.77 - 1167.91,
              0.13);  // 0.12 of activations, in the backward
  EXPECT_NEAR(mebibytes_of("sgd:lr=0.1:weight_decay=0.0001"), 4671.77 - 1167.91, 0.01);
  // Our own executor's updates are fused, and so is what is forecast for a CPU.
  const Model model = load_model(file);
  const Program program = lower(model, parse_strategy("single", model));
  const MemoryFit fit = fit_memory(program, load_cluster("dgx_a100", 1));
  EXPECT_EQ(fit.executor_bytes, peak_memory(program.roles[0]).peak_bytes);
  EXPECT_EQ(fit.fused_bytes, fit.executor_bytes + use_of(fit.needed, MemoryUse::device_context));
  EXPECT_EQ(fit_memory(program, load_cluster("cpu_local", 1, 1)).needed_bytes(),
            peak_memory(program.roles[0]).peak_bytes);
}

// Where the activations are the peak, the update's copies aren't.
TEST(Memory, TemporariesCountWhileParametersAreUpdated) {
  const testing::TemporaryFolder folder;
  const Model model = load_model(linears(folder, 64, 3, 4096));
  const Role role = lower(model, parse_strategy("single", model)).roles[0];
  const std::int64_t parameters = 3 * 64 * 64 * 4;
  EXPECT_EQ(use_of(uses_at_peak(role, {}, {}, parameters), MemoryUse::optimizer_temporaries), 0);
  EXPECT_EQ(use_of(uses_at_peak(role, {}, {}, 1 << 30), MemoryUse::optimizer_temporaries), 1 << 30);
  EXPECT_EQ(use_of(uses_at_peak(role, {}, {}, 1 << 30), MemoryUse::gradients), parameters);  // all are alive
}

TEST(Memory, EveryProcessHoldsAContextAndItsCommunicators) {
  const Model model = load_model("toy_mlp,global_batch=16");
  const auto needed = [&](const std::string& strategy, Cluster cluster) {
    cluster.device.context = bytes(1000);
    cluster.communicator = bytes(10);
    return fit_memory(lower(model, parse_strategy(strategy, model)), cluster).needed;
  };
  const auto contexts = [&](const MemoryUses& uses) { return use_of(uses, MemoryUse::device_context); };
  const auto communicators = [&](const MemoryUses& uses) { return use_of(uses, MemoryUse::communicators); };
  EXPECT_EQ(contexts(needed("single", load_cluster("dgx_a100", 1))), 1000);
  EXPECT_EQ(communicators(needed("single", load_cluster("dgx_a100", 1))), 0);
  EXPECT_EQ(contexts(needed("ddp,dp=8", load_cluster("dgx_a100", 8))), 1000);
  EXPECT_EQ(communicators(needed("ddp,dp=8", load_cluster("dgx_a100", 8))), 10);
  // The middle stage of three has two neighbours, and each a group of its replicas.
  const Model deeper = load_model("convnet,global_batch=16");
  const Program program = lower(deeper, parse_strategy("dp=2,pp=3,cut=pool1+flatten", deeper));
  std::vector<std::size_t> counts;
  for (const Role& role : program.roles) counts.push_back(communicators_of(program, role));
  EXPECT_EQ(counts, (std::vector<std::size_t>{2, 3, 2}));
  // One process drives all GPUs: one context on each, however many ranks, and no NCCL.
  const MemoryUses threads = needed("ddp,dp=8", load_cluster("h200_local", 8));
  EXPECT_EQ(contexts(threads), 1000);
  EXPECT_EQ(communicators(threads), 0);
}

// 2 channels per 20 GB/s of the link, at most 32, with two neighbours and 12 MiB for each.
TEST(Memory, NcclsBuffersGrowWithTheLink) {
  Cluster cluster = load_cluster("dgx_a100", 2);
  for (const auto& [rate_GBps, channels] :
       {std::pair{1.0, 2}, {12.0, 2}, {39.0, 2}, {40.0, 4}, {230.0, 22}, {450.0, 32}}) {
    cluster.levels[0].link.bandwidth = gigabytes_per_second(rate_GBps);
    EXPECT_EQ(communicator_memory(cluster), mebibytes(24.0 * channels)) << rate_GBps;
  }
  cluster.communicator = mebibytes(688);
  EXPECT_EQ(communicator_memory(cluster), mebibytes(688));
}

// nn.DataParallel, Adam, five linears of 5000: the first device has the parameters, two states and two lists of gradients: its
// own replica's, and the sums (torch/nn/parallel/_functions.py, ReduceAddCoalesced). The others' copies go as the backward goes
// on: at its beginning they have all of them but the first layer's, which its backward doesn't need, one gradient, and seven
// activations; at its end all gradients and a flat chunk.
TEST(Memory, DataParallelsFirstDeviceHoldsTwoListsOfGradients) {
  const testing::TemporaryFolder folder;
  constexpr std::int64_t kLayer = 5000 * 5000 * 4, kSamples = 1000 * 5000 * 4;
  const Model model = load_model(linears(folder, 5000, 5, 1000));
  const Program program = lower(model, parse_strategy("data_parallel,dp=4", model));
  const std::int64_t root = peak_memory(program.roles.at(0)).peak_bytes,
                     other = peak_memory(program.roles.at(1)).peak_bytes;
  EXPECT_EQ(root, 25 * kLayer + 2 * kSamples + 5 * 4);  // with the batch, its targets, Adam's step counters
  EXPECT_EQ(other, std::max(5 * kLayer + 7 * kSamples / 4, 6 * kLayer));
  const MemoryFit fit = fit_memory(program, load_cluster("dgx_a100", 4));
  ASSERT_EQ(fit.each.size(), 2U);
  EXPECT_EQ(fit.each[0].ranks, (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(fit.each[1].ranks, (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_EQ(fit.each[1].devices, 3U);
  EXPECT_EQ(fit.needed, fit.each[0].uses);
  EXPECT_EQ(fit.each[1].executor_bytes, other);
  EXPECT_EQ(use_of(fit.each[1].uses, MemoryUse::optimizer_temporaries), 0);  // it updates nothing
}

TEST(Memory, ThisMachinesRanksShareItsMemory) {
  const Cluster cluster = load_cluster("cpu_gloo", 2, 2);
  ASSERT_TRUE(cluster.host);
  EXPECT_EQ(cluster.host->memory.base(), this_host().memory.base());
  EXPECT_GT(cluster.host->memory.in_GiB(), 0.1);
  EXPECT_FALSE(load_cluster("dgx_a100", 2).host);
}

TEST(Memory, FreedBlocksAreReusedForTheirVerySize) {
  // 100 KB each: the second takes the first's block; a workspace of another size stays beside it.
  const auto role = [](int b) {
    return program_from_text(
               fmt::format(
                   "paragauge-program-2\nwork relu.forward f32[4] inplace=0\nrole one ranks=0\n"
                   "tensor x f32[100] input persistent\ntensor a f32[25000] activation\n"
                   "tensor b f32[{}] activation\n0 compute w0 : x -> a ; free a\n1 compute w0 : x -> b ; free b\n",
                   b))
        .roles[0];
  };
  EXPECT_EQ(memory_with_reuse(role(25000), std::vector{0.0}), 400 + 100000);
  EXPECT_EQ(memory_with_reuse(role(25001), std::vector{0.0}), 400 + 100000 + 100004);
  EXPECT_EQ(memory_with_reuse(role(25000), std::vector{90000.0}), 400 + 100000 + 90000);
  EXPECT_EQ(memory_with_reuse(role(25000), std::vector{100000.0}), 400 + 100000 + 100000);
  // Small ones go back to the C library: only the most that lived at once counts.
  EXPECT_EQ(memory_with_reuse(role(25), std::vector{10.0}), 400 + 100 + 10 + 100000);
}

TEST(Memory, ViewsAndInPlaceOpsCostNothing) {
  const auto program = [](const std::string& lines) {
    return program_from_text(
        "paragauge-program-2\nwork relu.forward f32[4] inplace=0\nrole one ranks=0\n"
        "tensor x f32[100] input persistent\ntensor a f32[25] activation\n"
        "tensor b f32[50] gradient\nview a.part f32[5] a +20\n" +
        lines);
  };
  const Memory memory = peak_memory(program("0 compute w0 : x -> a\n1 compute w0 : a.part -> a.part ; free a\n"
                                            "2 compute w0 : x -> b ; free b\n")
                                        .roles[0]);
  EXPECT_EQ(memory.persistent_bytes, 400);
  EXPECT_EQ(memory.peak_bytes, 400 + 200);
  EXPECT_EQ(memory.peak_instruction, 2U);
  // The first of equal peaks.
  EXPECT_EQ(
      peak_memory(program("0 compute w0 : x -> b\n1 compute w0 : x -> b\n2 compute w0 : b -> b ; free b\n").roles[0])
          .peak_instruction,
      0U);
  const Memory later =
      peak_memory(program("0 compute w0 : x -> a\n1 compute w0 : a -> b\n2 compute w0 : b -> b ; free a b\n").roles[0]);
  EXPECT_EQ(later.peak_instruction, 1U);
  // Freed after the instruction that lists it: b and a together.
  EXPECT_EQ(peak_memory(program("0 compute w0 : x -> a\n1 compute w0 : a -> b ; free a b\n").roles[0]).peak_bytes,
            400 + 100 + 200);
}

}  // namespace
}  // namespace sim
