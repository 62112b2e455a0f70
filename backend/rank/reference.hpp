// What a run must have computed: one device executing the same partition, under autograd.
//
//   Reference reference = execute_reference(model, {program.batch_pieces(), program.microbatches, steps, seed});
//   reference.tensors.at("parameter fc.weight");
//
// Independent of lowering, Programs and our own kernels (one_device.hpp). It knows no strategy, but for DASO, whose ranks
// have parameters of their own: there it is the optimizer of Heat, on a device for each rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/rank/one_device.hpp"

namespace backend {

struct Reference {
  using Tensors = OneDevice::Tensors;
  std::vector<double> losses;     // per step, of the global batch
  Tensors tensors;                // "gradient fc.weight" of the last step, "parameter fc.weight" after it
  std::vector<Tensors> of_piece;  // of which each piece has its own: "buffer bn1.running_mean" after the last step
};

Reference execute_reference(const sim::Model& model, const Partition& partition);

/// How far the parts' gradient in the first step is from that of one device with the whole batch: ‖difference‖₂ of all
/// parameters together over the latter's norm. nullopt where no op sees which samples come with it: there they are
/// equal but for rounding.
std::optional<double> distance_from_whole_batch(const sim::Model& model, Partition partition);

/// A difference over what it is of: 0 where there is none, of nothing, too; infinity where one isn't a number.
double relative_error(double difference, double norm);

}  // namespace backend
