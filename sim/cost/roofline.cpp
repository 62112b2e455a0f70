#include "sim/cost/roofline.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace sim {
namespace {

enum class Product : std::uint8_t { forward, input_gradient, weight_gradient };

/// What convolutions reach, in shares of matmul_rate, by Product.
using Shares = std::array<double, 3>;
struct ClassShares {
  Shares winograd;  // 3×3, stride 1
  Shares other;
};

// Medians of DeepBench's convolutions (github.com/baidu-research/DeepBench, results/train) of 2 GFLOP and more and 16
// channels and more that arithmetic bounds. In f32: V100, P100 and T4, 51 of 3×3 with stride 1 (Winograd's algorithm
// saves multiplications: more than the matmul rate) and 36 others. On tensor cores (f16): T4, 17 and 11.
constexpr ClassShares kSimt{{1.51, 1.55, 1.79}, {0.82, 0.60, 0.68}},
    kTensorCores{{0.70, 0.67, 0.64}, {0.34, 0.32, 0.34}};

// ATen's max_pool2d_with_indices_backward looks, for each element, through all windows that it may have won. On an H100 it
// moved 0.63 to 0.67 TB/s of 2.68 that copies reach, in five shapes of 2×2 (`bench/gpu.sh`, phase models: the networks that
// `fitted` learns from).
constexpr double kShareOfMaxPoolBackward = 0.245;

// oneDNN's kernels for convolutions in groups want the channels in blocks: tensors are brought into that order and back, each
// by reading and writing all of them. With that, 12 GB/s would let 3×3 depthwise ones of stride 1 and 2 reach 9 and 3.6
// GFLOP/s; on a Sapphire Rapids they reached 8.9 to 10.1 and 3.0 to 3.8 on maps of 16×16 and more.
constexpr double kReordersOnCores = 2;

// What is left of the matmul rate where rows of half precision begin on 2 or 4 bytes, not on 16, in which tensor cores'
// kernels load (NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to Use Tensor Cores"; NanoGPT pads
// GPT-2's 50,257 tokens to 50,304 for that; nothing is known of 8 bytes): on an H200 the products of GPT-2's classifier,
// whose rows begin on 2 bytes, reached 99 TFLOP/s forward and 151 backward, of BERT's 30,522 tokens, on 4 bytes, 260,
// without their other traffic (bench/results/h200_*).
constexpr double kShareOfRowsOn2Bytes = 0.155, kShareOfRowsOn4Bytes = 0.33;

bool is_convolution(const OpInstance& op) { return op.kind->name == "conv2d"; }

bool is_in_groups(const OpInstance& op) { return is_convolution(op) && op.integer("groups") > 1; }

bool is_simt(Arithmetic arithmetic) { return arithmetic == Arithmetic::f32 || arithmetic == Arithmetic::f64; }

/// Lengths of the rows that a matrix product may read and write, as far as they aren't multiples of 4.
std::set<std::int64_t> uneven_rows(const OpInstance& op) {
  std::set<std::int64_t> lengths;
  const auto add = [&](const TensorSpec& tensor) {
    if (is_float(tensor.dtype) && tensor.shape.size() > 1 && tensor.shape.back() > 1 && tensor.shape.back() % 4 != 0)
      lengths.insert(tensor.shape.back());
  };
  const Signature signature = op.signature();
  for (const TensorSpec& input : op.inputs) add(input);
  for (const ParameterSpec& parameter : signature.parameters) add(parameter.spec);
  add(signature.output);
  return lengths;
}

double share_of_rows(const OpInstance& op, Dtype dtype) {
  if (!is_half(dtype)) return 1;
  const std::set<std::int64_t> lengths = uneven_rows(op);
  if (lengths.empty()) return 1;
  const bool on_2_bytes = std::ranges::any_of(lengths, [](std::int64_t length) { return length % 2 != 0; });
  return on_2_bytes ? kShareOfRowsOn2Bytes : kShareOfRowsOn4Bytes;
}

double share_of(const OpInstance& op, Arithmetic arithmetic, Product product) {
  if (!is_convolution(op)) return share_of_rows(op, op.multiplied());
  constexpr std::int64_t kFewChannels = 16;
  // cuDNN's Winograd takes no double.
  const bool winograd = arithmetic != Arithmetic::f64 && op.integer("kernel_size") == 3 && op.integer("stride") == 1 &&
                        op.integer("dilation") == 1 && op.integer("groups") == 1 &&
                        op.inputs[0].shape[1] >= kFewChannels;
  const ClassShares& shares = is_simt(arithmetic) ? kSimt : kTensorCores;
  return (winograd ? shares.winograd : shares.other)[static_cast<std::size_t>(product)];
}

/// cuDNN's tensor-core kernels want the channels of a pixel side by side; other tensors are brought into that order and
/// back (NVIDIA, Convolutional Layers User's Guide, "Tensor Layouts In Memory: NCHW vs NHWC").
double reordered_bytes(const OpInstance& op) {
  if (!is_convolution(op) || op.inputs[0].channels_last) return 0;
  const TensorSpec& x = op.inputs[0];
  const Signature s = op.signature();
  return 2 * static_cast<double>((x.elements() + s.output.elements()) * size_of(op.multiplied()));
}

KernelTime kernel(double flops, double bytes, FlopsPerSecond rate, const Device& device) {
  return {.arithmetic_s = flops > 0 ? (sim::flops(flops) / rate).in_seconds() : 0,
          .traffic_s = (sim::bytes(bytes) / (device.memory_bandwidth * device.memory_efficiency)).in_seconds()};
}

/// The faster of the ways that cuDNN has for a convolution.
KernelTime on_gpu(const OpInstance& op, const Demand& demand, Arithmetic arithmetic, Product product,
                  const Device& device) {
  const auto in = [&](Arithmetic way) {
    const bool reaches_all = device.one_share || (device.has_even_rows && !is_convolution(op));
    const double share = reaches_all ? 1 : share_of(op, way, product);
    return kernel(demand.flops, demand.bytes, device.matmul_rate(way) * share, device);
  };
  KernelTime best = in(arithmetic);
  if (is_simt(arithmetic) || device.one_share) return best;
  best.reorder_s = kernel(0, reordered_bytes(op), {}, device).traffic_s;
  if (!is_convolution(op)) return best;
  const KernelTime as_it_lies = in(Arithmetic::f32);
  return as_it_lies.seconds() < best.seconds() ? as_it_lies : best;
}

/// What a product of f32 is multiplied in, or one of another dtype.
Arithmetic product_arithmetic(Dtype dtype, ProductKind kind, Precision precision, const Device& device) {
  if (dtype != Dtype::f32) return arithmetic_of(dtype);
  const bool tf32 = kind == ProductKind::convolution ? precision != Precision::ieee
                                                     : kind == ProductKind::matmul && precision == Precision::tf32;
  return tf32 && device.has(Arithmetic::tf32) ? Arithmetic::tf32 : Arithmetic::f32;
}

/// Of an op without a body.
Arithmetic op_arithmetic(const OpInstance& op, const Device& device) {
  if (!op.kind->matrix) return arithmetic_of(at_least_f32(op.leading().dtype));
  return product_arithmetic(op.multiplied(), is_convolution(op) ? ProductKind::convolution : ProductKind::matmul,
                            op.precision, device);
}

/// FLOPs of a work by what they are multiplied or otherwise computed in, and the share that they reach of its rate.
struct FlopsIn {
  double flops = 0;
  Arithmetic arithmetic = Arithmetic::f32;
  double share = 1;
};
std::vector<FlopsIn> flops_of(const Work& work, const Device& device) {
  const OpInstance& op = work.op;
  const double all = work.demand().flops;
  const bool has_rows = device.asynchronous && !device.one_share && !device.has_even_rows;
  if (op.body == nullptr)
    return {{all, op_arithmetic(op, device),
             has_rows && op.kind->matrix && !is_convolution(op) ? share_of_rows(op, op.multiplied()) : 1}};
  std::vector<FlopsIn> parts;
  double other = all;
  for (const Body::Multiplied& product : op.body->products) {
    const double flops = product.flops[work.pass == Pass::forward ? 0 : 1].at(op.extent());
    parts.push_back({flops, product_arithmetic(product.dtype, product.kind, op.precision, device),
                     has_rows && product.kind == ProductKind::matmul ? share_of_rows(op, product.dtype) : 1});
    other -= flops;
  }
  const Dtype own = op.leading().dtype;
  parts.push_back({std::max(other, 0.0), arithmetic_of(own == Dtype::f64 ? own : Dtype::f32)});
  return parts;
}

}  // namespace

std::optional<Arithmetic> lacking(const Work& work, const Device& device) {
  for (const auto& [flops, arithmetic, share] : flops_of(work, device))
    if (flops > 0 && !device.has(arithmetic)) return arithmetic;
  return std::nullopt;
}

KernelTime kernels_together(const Work& work, const Device& device) {
  KernelTime sum;
  for (const KernelTime& kernel : kernels_of(work, device)) {
    sum.arithmetic_s += kernel.arithmetic_s;
    sum.traffic_s += kernel.traffic_s;
    sum.reorder_s += kernel.reorder_s;
  }
  return sum;
}

std::set<std::int64_t> slow_rows(const Work& work, const Device& device) {
  const bool is_slow = std::ranges::any_of(flops_of(work, device), [](const FlopsIn& part) { return part.share < 1; });
  return is_slow ? uneven_rows(work.op) : std::set<std::int64_t>();
}

std::vector<KernelTime> kernels_of(const Work& work, const Device& device) {
  if (lacking(work, device)) return {};
  const Demand demand = work.demand();
  if (work.op.body != nullptr) {
    KernelTime all = kernel(0, demand.bytes, {}, device);
    for (const auto& [flops, arithmetic, share] : flops_of(work, device))
      all.arithmetic_s += kernel(flops, 0, device.matmul_rate(arithmetic) * share, device).arithmetic_s;
    // On a GPU its casts, copies and sums are kernels of their own, in which nothing multiplies; what its products move
    // meanwhile is little beside.
    if (device.asynchronous && !work.op.body->products.empty()) std::swap(all.traffic_s, all.reorder_s);
    return {all};
  }
  const Arithmetic arithmetic = op_arithmetic(work.op, device);
  if (!device.asynchronous || !work.op.kind->matrix) {
    const bool searches = device.asynchronous && work.op.kind->name == "max_pool" && work.pass == Pass::backward;
    KernelTime time = kernel(demand.flops, demand.bytes / (searches ? kShareOfMaxPoolBackward : 1),
                             device.matmul_rate(arithmetic), device);
    if (!device.asynchronous && is_in_groups(work.op) && !work.op.inputs[0].channels_last)
      time.reorder_s = kernel(0, kReordersOnCores * demand.bytes, {}, device).traffic_s;
    return {time};
  }
  if (work.pass == Pass::forward) return {on_gpu(work.op, demand, arithmetic, Product::forward, device)};
  std::vector<KernelTime> kernels;
  const auto add = [&](std::uint32_t bit, Product product) {
    if ((work.grads & bit) != 0)
      kernels.push_back(on_gpu(work.op, work.op.demand(Pass::backward, bit), arithmetic, product, device));
  };
  add(1U, Product::input_gradient);
  add(kParameterGrads, Product::weight_gradient);
  return kernels;
}

Knowledge knowledge_of(const Work& work, const Device& device, double seconds) {
  const auto known = [](double sd, const char* kind) { return Knowledge{.sd = sd, .kind = kind}; };
  // Two MobileNets' were off by this (root mean square, almost all of them too fast): bench/results/NOTEBOOK.md.
  if (!device.asynchronous && is_in_groups(work.op)) return known(1.3, "convolutions in groups");
  // Half of bench/accuracy.sh's steps are within 21 to 46 % on four machines' cores (bench/results/NOTEBOOK.md), 33 % in
  // between. One data sheet stands for all cores.
  if (!device.asynchronous) return known(0.49, "CPU");
  // The host is what is waited for: 10 to 60 us per operator (Device::launch).
  if (seconds < device.launch.in_seconds()) return known(0.5, "launches");
  // ATen's batch norm has a block per channel: on an H100 it took 1.0 to 4.2 times (backward) and 1.5 to 10 times (forward)
  // what its bytes say, cuDNN's takes less; pools of other windows than the above 1.0 to 1.6 times.
  if (work.op.kind->name == "batch_norm" || work.op.kind->name.starts_with("norm_")) return known(0.6, "batch norms");
  if (work.op.kind->name.ends_with("_pool")) return known(0.4, "pools");
  // The shares above are one GPU's; NanoGPT's author got from padding on an A100 what 0.15 to 0.24 would give.
  if (std::ranges::any_of(flops_of(work, device), [](const FlopsIn& part) { return part.share < 1; }))
    return known(0.5, "half precision on rows that begin on 2 or 4 bytes");
  // Several kernels in one: as little is known of them as of the products that most are made of.
  if (work.op.body != nullptr) return known(0.4, "imported ops");
  // Memory-bound: in PipeDream's profiles nine of ten ReLUs are within 45 % of what the other networks' say
  // (github.com/msr-fiddle/pipedream).
  if (!work.op.kind->matrix) return known(0.2, "memory-bound ops");
  // DeepBench's products beside their device's best, in f32 on V100 and P100: half are within 30 %.
  if (!is_convolution(work.op)) return known(0.4, "matrix products");
  // DeepBench's convolutions beside the medians above; none of them is in groups.
  if (is_in_groups(work.op)) return known(0.8, "convolutions in groups");
  const bool is_1x1 = work.op.integer("kernel_size") == 1;
  if (work.pass == Pass::forward) return known(0.3, is_1x1 ? "1x1 convolutions, forward" : "convolutions, forward");
  return known(0.45, is_1x1 ? "1x1 convolutions, backward" : "convolutions, backward");
}

}  // namespace sim
