// How long the kernels of a work take on a device by its data sheet: the roofline, arithmetic beside memory traffic.
// S. Williams, A. Waterman and D. Patterson, Roofline: an insightful visual performance model, CACM 52(4), 2009.
//
//   for (const KernelTime& kernel : kernels_of(work, device)) s += kernel.seconds();
//
// Assumes: arithmetic and memory traffic of a kernel overlap fully, those of a GPU's imported op with a product not at all;
// on a CPU core the channels of contiguous tensors are reordered before and after a convolution in groups;
// a product reaches the device's matmul rate whatever its shape, but for tensor cores on rows that begin on 2 or 4 bytes,
// a convolution on a GPU that share of it which DeepBench's convolutions of its class have reached.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "sim/cluster/device.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/program/program.hpp"

namespace sim {

struct KernelTime {
  double arithmetic_s = 0, traffic_s = 0;
  double reorder_s = 0;  // memory traffic before and after it; of a GPU's body with a product all of its traffic
  /// The seconds on a device that computes and reads memory so much faster.
  [[nodiscard]] double seconds(double flops = 1, double memory_bandwidth = 1) const {
    return std::max(arithmetic_s / flops, traffic_s / memory_bandwidth) + reorder_s / memory_bandwidth;
  }
};

/// An arithmetic that a work needs and the device has no rate for; nothing: it has all.
std::optional<Arithmetic> lacking(const Work& work, const Device& device);

/// Forward and update are one kernel, and so are a backward on a CPU core and the pass of a body, whose products and other
/// FLOPs take one after the other what they take; on a GPU the gradients of a matrix op's input and of its weight are a
/// kernel each. None where the device lacks the arithmetic.
std::vector<KernelTime> kernels_of(const Work& work, const Device& device);

/// All of them: their parts, each added up.
KernelTime kernels_together(const Work& work, const Device& device);

/// Lengths of the rows because of which tensor cores are slow: none unless the work multiplies in half precision on a GPU.
std::set<std::int64_t> slow_rows(const Work& work, const Device& device);

/// How well it is known what kernels_of says, which takes `seconds` in all.
Knowledge knowledge_of(const Work& work, const Device& device, double seconds);

}  // namespace sim
