// A rank's rows of each step's batch, put into its input and target before the step.
//
//   const Feed feed(training, dataset, seed, program, rank, executor);
//   feed.begin_list(/*list=*/0, executor);
//   at::Tensor x = inputs_of(dataset, samples, {2, 3, 32, 32}, at::kFloat);    // the samples' values, from −1 to 1
//
// A step's batch is the next global_batch samples in the epoch's order, whatever the strategy: so all strategies train
// on the same. Where the last has fewer left, it goes on with the order's first ones, as PyTorch's DistributedSampler
// does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "backend/rank/execute.hpp"
#include "backend/train/training.hpp"
#include "sim/program/program.hpp"

namespace backend {

/// Of this shape, [samples, …]; as torchvision's ToTensor, and Normalize with mean 0.5 and deviation 0.5, make them.
at::Tensor inputs_of(const Dataset& dataset, std::span<const std::uint32_t> samples, const sim::Shape& shape,
                     at::ScalarType type);
/// Indices of classes, i64[samples], or one-hot, [samples, classes], as the shape says.
at::Tensor targets_of(const Dataset& dataset, std::span<const std::uint32_t> samples, const sim::Shape& shape,
                      at::ScalarType type);

class Feed {
 public:
  /// The training, the dataset and the executor must outlive it.
  Feed(const Training& training, const Dataset& dataset, std::uint64_t seed, const sim::Program& program,
       std::uint32_t rank, const Executor& executor);
  /// Brings the batch of the list's first training step, and has the executor call for those of the others.
  void begin_list(std::uint32_t list, Executor& executor) const;

 private:
  void fill(std::int64_t step) const;

  /// The rank's input or target.
  struct Filled {
    at::Tensor tensor;
    sim::Shape whole;               // of the batch's
    std::vector<sim::Range> piece;  // of it, by dimension; empty: all of it
    bool is_target = false;
  };

  const Training& training_;
  const Dataset& dataset_;
  const std::int64_t global_batch_;
  const std::vector<std::uint32_t> order_;
  std::vector<Filled> filled_;
  const std::int64_t steps_in_list_;   // training steps
  std::vector<std::uint32_t> begins_;  // of the list's instructions, where the second, third, … training step begins
};

}  // namespace backend
