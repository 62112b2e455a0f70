#include "backend/rank/reference.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <optional>

#include "backend/rank/initial.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

Reference play_on_one_device(const sim::Model& model, const Partition& partition) {
  OneDevice device(model, partition, partition.pieces);
  Reference reference;
  for (std::int64_t step = 0; step < partition.steps; ++step) {
    if (partition.broadcast_buffers) device.broadcast_buffers();
    if (model.timing == sim::Timing::tutorial) device.make_data(step);
    reference.losses.push_back(device.backward());
    if (step + 1 == partition.steps) reference.tensors = device.named_gradients();
    device.update();
  }
  reference.tensors.merge(device.named_parameters());
  for (std::size_t piece = 0; piece < partition.pieces.size(); ++piece)
    reference.of_piece.push_back(device.named_buffers(piece));
  return reference;
}

/// DASO as heat/optim/dp_optimizer.py writes it, on plain tensors: a device for each rank. Its names are the reference's.
class DasoRanks {
 public:
  DasoRanks(const sim::Model& model, const Partition& partition)
      : daso_(*partition.daso),
        is_sum_(model.nodes.back().kind->is_sum),
        nodes_(partition.pieces.size() / daso_.local),
        partition_(partition),
        last_batch_(partition.epoch - 1),
        prev_params_(daso_.local) {
    for (const sim::Range& piece : partition.pieces) {
      ranks_.push_back(std::make_unique<OneDevice>(model, partition, std::vector{piece}));
      weights_.push_back(is_sum_ ? 1 : static_cast<double>(piece.size) / static_cast<double>(model.global_batch));
    }
  }

  Reference execute() {
    Reference reference;
    bool require_forward_param_sync = true;  // of DDP
    for (std::int64_t step = 0; step < partition_.steps; ++step) {
      if (partition_.broadcast_buffers && require_forward_param_sync) broadcast_buffers();
      require_forward_param_sync = require_backward_grad_sync_;
      double loss = 0;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) loss += ranks_[rank]->backward() * weights_[rank];
      reference.losses.push_back(loss);
      if (require_backward_grad_sync_) sum_gradients();
      if (step + 1 == partition_.steps)
        for (const auto& rank : ranks_) reference.of_piece.push_back(rank->named_gradients());
      for (const auto& rank : ranks_) rank->update();
      const at::NoGradGuard no_grad;
      after_update();
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      reference.of_piece[rank].merge(ranks_[rank]->named_parameters());
      reference.of_piece[rank].merge(ranks_[rank]->named_buffers(0));
    }
    return reference;
  }

 private:
  [[nodiscard]] OneDevice& at(std::size_t node, std::size_t local) const { return *ranks_[node * daso_.local + local]; }

  void broadcast_buffers() const {
    for (std::size_t node = 0; node < nodes_; ++node)
      for (std::size_t local = 1; local < daso_.local; ++local)
        copy(at(node, 0).buffers(0), at(node, local).buffers(0));
  }

  void sum_gradients() const {
    for (std::size_t node = 0; node < nodes_; ++node)
      for (std::size_t p = 0; p < at(node, 0).parameters().size(); ++p) {
        at::Tensor sum = at(node, 0).parameters()[p].grad().clone();
        for (std::size_t local = 1; local < daso_.local; ++local) sum.add_(at(node, local).parameters()[p].grad());
        if (!is_sum_) sum.div_(static_cast<double>(daso_.local));
        for (std::size_t local = 0; local < daso_.local; ++local) at(node, local).parameters()[p].grad().copy_(sum);
      }
  }

  /// step, after the local optimizer's.
  void after_update() {
    const std::int64_t batch = current_batch_, next_batch = batch + 1;
    const std::int64_t gs = daso_.skips, ls = daso_.local_skips;
    const std::int64_t gmod = gs > 0 ? batch % gs : 0, lmod = ls > 0 ? batch % ls : 0;
    const std::int64_t btw = daso_.wait + batch <= last_batch_ ? daso_.wait : last_batch_ - batch;
    if (batch == last_batch_ || gmod == 0) return global_sync(btw);
    ++current_batch_;
    if (next_batch % gs == 0) {
      require_backward_grad_sync_ = true;
      return;
    }
    if (gmod < btw) {
      if (next_batch == last_batch_) require_backward_grad_sync_ = true;
      return;
    }
    if (gmod == btw) {
      rcv_update_params();
      local_update(send_mod_m1_);
      if (ls > 1) require_backward_grad_sync_ = false;
    }
    if (ls == 1 && next_batch != last_batch_) {
      require_backward_grad_sync_ = true;
      return;
    }
    if (lmod == 0)
      require_backward_grad_sync_ = false;
    else if (next_batch % ls == 0)
      require_backward_grad_sync_ = true;
    if (next_batch == last_batch_) require_backward_grad_sync_ = true;
  }

  void global_sync(std::int64_t btw) {
    send_params(btw);
    if (daso_.wait != 0) {
      rcv_update_params();
      local_update(send_mod_m1_);
    }
    const bool is_last = current_batch_ == last_batch_;
    const std::size_t next = send_mod_ + 2 <= daso_.local ? send_mod_ + 1 : 0;
    if (is_last || daso_.wait == 0) {
      sim::check_internal(prev_params_[send_mod_].size() == 1, "length of previous params > 1!");
      const Sent sent = prev_params_[send_mod_].front();
      prev_params_[send_mod_].pop_front();
      for (std::size_t node = 0; node < nodes_; ++node)
        for (std::size_t p = 0; p < sent.sums.size(); ++p)
          at(node, send_mod_).parameters()[p].copy_(sent.sums[p] / static_cast<double>(nodes_));
      local_update(send_mod_);
      send_mod_m1_.reset();
      send_mod_ = is_last ? 0 : next;
      current_batch_ = is_last ? 0 : current_batch_ + 1;
    } else {
      ++current_batch_;
      send_mod_m1_ = send_mod_;
      send_mod_ = next;
    }
  }

  /// What the nodes' sums will be, taken now.
  void send_params(std::int64_t btw) {
    Sent& sent = prev_params_[send_mod_].emplace_back(Sent{{}, btw});
    for (std::size_t p = 0; p < at(0, 0).parameters().size(); ++p) {
      sent.sums.push_back(at(0, send_mod_).parameters()[p].detach().clone());
      for (std::size_t node = 1; node < nodes_; ++node) sent.sums.back().add_(at(node, send_mod_).parameters()[p]);
    }
  }

  void rcv_update_params() {
    if (!send_mod_m1_ || prev_params_[*send_mod_m1_].empty()) return;
    const Sent sent = prev_params_[*send_mod_m1_].front();
    prev_params_[*send_mod_m1_].pop_front();
    const double numer = sent.batches > 0 ? 2 * static_cast<double>(sent.batches) : 1,
                 denom = static_cast<double>(nodes_) + numer;
    for (std::size_t node = 0; node < nodes_; ++node)
      for (std::size_t p = 0; p < sent.sums.size(); ++p)
        at(node, *send_mod_m1_).parameters()[p].mul_(numer / denom).add_(sent.sums[p] / denom);
  }

  void local_update(std::optional<std::size_t> sending) const {
    if (!sending) return;
    for (std::size_t node = 0; node < nodes_; ++node)
      for (std::size_t local = 0; local < daso_.local; ++local)
        if (local != *sending) copy(at(node, *sending).parameters(), at(node, local).parameters());
  }

  struct Sent {
    std::vector<at::Tensor> sums;
    std::int64_t batches;
  };

  const sim::Daso daso_;
  const bool is_sum_;
  const std::size_t nodes_;
  const Partition partition_;
  std::vector<std::unique_ptr<OneDevice>> ranks_;
  std::vector<double> weights_;  // of their losses
  const std::int64_t last_batch_;
  std::int64_t current_batch_ = 0;
  std::size_t send_mod_ = 0;
  std::optional<std::size_t> send_mod_m1_;
  std::vector<std::deque<Sent>> prev_params_;  // by rank of the node, of all nodes
  bool require_backward_grad_sync_ = true;
};

}  // namespace

Reference execute_reference(const sim::Model& model, const Partition& partition) {
  const at::AutoGradMode grad_mode(true);
  return partition.daso ? DasoRanks(model, partition).execute() : play_on_one_device(model, partition);
}

std::optional<double> distance_from_whole_batch(const sim::Model& model, Partition partition) {
  const bool by_microbatch = sees_all_pieces(model) && partition.microbatches > 1;
  if (!by_microbatch && !depends_on_cut(model.instances(model.global_batch))) return std::nullopt;
  partition.steps = 1;
  partition.daso.reset();
  Partition whole = partition;
  whole.pieces = {{0, model.global_batch}};
  whole.microbatches = 1;
  const Reference of_parts = execute_reference(model, partition), of_whole = execute_reference(model, whole);
  const auto squared = [](const at::Tensor& tensor) { return tensor.square().sum().item<double>(); };
  double distance = 0, norm = 0;
  for (const auto& [name, tensor] : of_whole.tensors) {
    if (!name.starts_with("gradient ")) continue;
    distance += squared(of_parts.tensors.at(name) - tensor);
    norm += squared(tensor);
  }
  return relative_error(std::sqrt(distance), std::sqrt(norm));
}

double relative_error(double difference, double norm) {
  const double relative = difference == 0 ? 0 : difference / norm;
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

}  // namespace backend
