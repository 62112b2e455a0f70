#include "sim/strategy/daso.hpp"

#include <algorithm>
#include <deque>
#include <optional>

#include "sim/error.hpp"

namespace sim {
namespace {

/// The state that the reference keeps between steps; its names are in the comments.
class Optimizer {
 public:
  Optimizer(const Daso& daso, std::int64_t steps) : daso_(daso), last_(steps - 1), sent_(daso.local) {}

  std::vector<DasoStep> play() {
    std::vector<DasoStep> steps;
    for (std::int64_t batch = 0; batch <= last_; ++batch) {
      DasoStep& step = steps.emplace_back(DasoStep{.sums_gradients = sums_, .syncs = {}});
      after(batch, step.syncs);
    }
    for (const std::deque<std::int64_t>& sent : sent_) check_internal(sent.empty(), "DASO: something is under way");
    return steps;
  }

 private:
  void after(std::int64_t batch, std::vector<NodeSync>& syncs) {
    const std::int64_t next = batch + 1, skips = daso_.skips, in_cycle = skips > 0 ? batch % skips : 0,
                       local_skips = std::max<std::int64_t>(1, daso_.local_skips);
    const std::int64_t wait = daso_.wait + batch <= last_ ? daso_.wait : last_ - batch;
    if (batch == last_ || in_cycle == 0) return synchronize(batch, wait, syncs);
    if (next % skips == 0) {
      sums_ = true;
      return;
    }
    if (in_cycle < wait) {
      sums_ |= next == last_;
      return;
    }
    if (in_cycle == wait) {
      receive(syncs);
      sums_ &= local_skips == 1;
    }
    if (local_skips == 1 || next == last_)
      sums_ = true;
    else if (batch % local_skips == 0)
      sums_ = false;
    else
      sums_ |= next % local_skips == 0;
  }

  /// _global_sync.
  void synchronize(std::int64_t batch, std::int64_t wait, std::vector<NodeSync>& syncs) {
    syncs.push_back({NodeSync::Kind::send, sender_});
    sent_[sender_].push_back(wait);
    if (daso_.wait > 0) receive(syncs);
    if (batch == last_ || daso_.wait == 0) {
      check_internal(sent_[sender_].size() == 1, "DASO: rank {} has sent twice", sender_);
      sent_[sender_].clear();
      syncs.push_back({NodeSync::Kind::mean, sender_});
      syncs.push_back({NodeSync::Kind::broadcast, sender_});
      previous_.reset();
    } else {
      previous_ = sender_;
    }
    sender_ = (sender_ + 1) % daso_.local;
  }

  /// _gs_rcv_update_params, and _local_update: also where there is nothing to receive any more.
  void receive(std::vector<NodeSync>& syncs) {
    if (!previous_) return;
    std::deque<std::int64_t>& sent = sent_[*previous_];
    if (!sent.empty()) {
      syncs.push_back({NodeSync::Kind::blend, *previous_, sent.front()});
      sent.pop_front();
    }
    syncs.push_back({NodeSync::Kind::broadcast, *previous_});
  }

  const Daso& daso_;
  const std::int64_t last_;                     // last_batch
  bool sums_ = true;                            // require_backward_grad_sync
  std::uint32_t sender_ = 0;                    // _send_mod
  std::optional<std::uint32_t> previous_;       // _send_mod_m1
  std::vector<std::deque<std::int64_t>> sent_;  // _prev_params: of each rank of the node, with how long it is to wait
};

}  // namespace

std::int64_t steps_of_body(const Daso& daso) { return std::max<std::int64_t>(1, daso.skips) * daso.local; }

DasoEpoch epoch_of(const Daso& daso) {
  const std::int64_t body = steps_of_body(daso);
  // Near its end an epoch waits less: what is other than in a body before is left to the end.
  for (std::int64_t end = 1; end <= std::max<std::int64_t>(1, daso.skips); ++end) {
    const std::vector<DasoStep> steps = Optimizer(daso, 1 + 2 * body + end).play();
    const auto second = steps.begin() + 1 + body;
    if (!std::equal(steps.begin() + 1, second, second)) continue;
    return {steps[0], {steps.begin() + 1, second}, {second + body, steps.end()}};
  }
  throw InternalError("DASO: skips={} wait={} local_skips={} has no period", daso.skips, daso.wait, daso.local_skips);
}

}  // namespace sim
