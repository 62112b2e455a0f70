#include "backend/train/feed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

#include "backend/rank/initial.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

/// Where training steps begin: what first uses the batch comes once in each. Nowhere on a rank that has none of it.
std::vector<std::uint32_t> steps_begin(const sim::Role& role) {
  const auto is_batch = [&](std::uint32_t t) {
    const sim::Initial::Kind kind = role.tensors[role.storages[role.tensors[t].storage].owner].initial.kind;
    return kind == sim::Initial::Kind::model_input || kind == sim::Initial::Kind::model_target;
  };
  std::vector<std::uint32_t> begins;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    if (begins.empty() ? std::ranges::any_of(role.reads(i), is_batch)
                       : std::tie(role.kind[i], role.work[i], role.node[i], role.microbatch[i]) ==
                             std::tie(role.kind[begins[0]], role.work[begins[0]], role.node[begins[0]],
                                      role.microbatch[begins[0]]))
      begins.push_back(i);
  }
  return begins;
}

}  // namespace

at::Tensor inputs_of(const Dataset& dataset, std::span<const std::uint32_t> samples, const sim::Shape& shape,
                     at::ScalarType type) {
  const at::Tensor bytes = at::empty(shape, at::kByte);
  auto* to = bytes.mutable_data_ptr<std::uint8_t>();
  for (const std::uint32_t sample : samples) to = std::ranges::copy(dataset.sample(sample), to).out;
  return bytes.to(type).div_(255).sub_(0.5).div_(0.5);
}

at::Tensor targets_of(const Dataset& dataset, std::span<const std::uint32_t> samples, const sim::Shape& shape,
                      at::ScalarType type) {
  const at::Tensor classes = at::empty({static_cast<std::int64_t>(samples.size())}, at::kLong);
  std::ranges::transform(samples, classes.mutable_data_ptr<std::int64_t>(),
                         [&](std::uint32_t sample) { return dataset.label(sample); });
  if (shape.size() == 1) return classes;
  return at::zeros(shape, type).scatter_(1, classes.unsqueeze(1), 1);
}

Feed::Feed(const Training& training, const Dataset& dataset, std::uint64_t seed, const sim::Program& program,
           std::uint32_t rank, const Executor& executor)
    : training_(training),
      dataset_(dataset),
      global_batch_(program.global_batch),
      order_(order_of_epoch(dataset.size(), seed, training.epoch)),
      steps_in_list_(program.steps_in_list()) {
  const sim::Role& role = program.roles[program.places().at(rank).role];
  for (std::uint32_t t = 0; t < role.tensors.size(); ++t) {
    const sim::Tensor& tensor = role.tensors[t];
    const bool is_target = tensor.initial.kind == sim::Initial::Kind::model_target;
    if (!is_target && tensor.initial.kind != sim::Initial::Kind::model_input) continue;
    filled_.push_back({executor.persistent(t), tensor.whole.empty() ? tensor.spec.shape : tensor.whole,
                       program.piece_of(tensor, rank), is_target});
  }
  if (steps_in_list_ == 1 || filled_.empty()) return;
  begins_ = steps_begin(role);
  sim::check_internal(begins_.size() == static_cast<std::size_t>(steps_in_list_),
                      "{} training steps begin in a list of {}", begins_.size(), steps_in_list_);
  begins_.erase(begins_.begin());
}

void Feed::begin_list(std::uint32_t list, Executor& executor) const {
  const std::int64_t first = list * steps_in_list_;
  fill(first);
  if (!begins_.empty()) executor.fill_between(begins_, [this, first](std::uint32_t step) { fill(first + step); });
}

void Feed::fill(std::int64_t step) const {
  for (const auto& [tensor, whole, piece, is_target] : filled_) {
    const sim::Range rows = piece.empty() ? sim::Range{0, whole[0]} : piece[0];
    const auto first = static_cast<std::size_t>(training_.first_sample + step * global_batch_ + rows.begin);
    std::vector<std::uint32_t> samples;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows.size); ++row)
      samples.push_back(order_[(first + row) % order_.size()]);
    sim::Shape shape = whole;
    shape[0] = rows.size;
    const at::ScalarType type = tensor.scalar_type();
    const at::Tensor values =
        is_target ? targets_of(dataset_, samples, shape, type) : inputs_of(dataset_, samples, shape, type);
    std::vector<sim::Range> of_rows = piece;
    if (!of_rows.empty()) of_rows[0].begin = 0;
    tensor.copy_(narrowed(values, of_rows));
  }
}

}  // namespace backend
