// What a step's instructions ask for: a program's costs, times the random factors of one step where there are some.
//
//   const StepCosts costs(placed, mean, factors);        // factors may be null: every op and transfer at its mean
//   costs.compute_s(rank, i);
#pragma once

#include <algorithm>

#include "sim/cost/cost_model.hpp"
#include "sim/simulate/jitter.hpp"
#include "sim/simulate/placed_program.hpp"
#include "sim/simulate/transport.hpp"

namespace sim {

class StepCosts {
 public:
  StepCosts(const PlacedProgram& placed, const Costs& mean, const Factors* factors)
      : placed_(placed), mean_(mean), factors_(factors) {}

  [[nodiscard]] const Costs& mean() const { return mean_; }

  /// Alone on the device.
  [[nodiscard]] double compute_s(std::uint32_t rank, std::uint32_t i) const {
    const double mean_s = mean_.work_s[placed_.role(rank).work[i] * mean_.busy_levels];
    return factors_ != nullptr ? mean_s * static_cast<double>(factors_->compute[rank][i]) : mean_s;
  }
  /// Of the transfer that instruction `i` of `rank` posts.
  [[nodiscard]] const TransferCost& transfer(std::uint32_t rank, std::uint32_t i) const {
    return mean_.transfers[mean_.transfer_of[placed_.transfer(rank, i)]];
  }
  /// Of its latency and wire time in this step.
  [[nodiscard]] double transfer_factor(std::uint32_t rank, std::uint32_t i) const {
    return factors_ != nullptr ? static_cast<double>(factors_->transfer[placed_.transfer(rank, i)]) : 1;
  }
  [[nodiscard]] Message message(std::uint32_t rank, std::uint32_t i, bool sender_posted_first) const {
    Message message = ask(placed_.link(rank, i).transport, transfer(rank, i), sender_posted_first);
    message.latency_s *= transfer_factor(rank, i);
    message.wire_s *= transfer_factor(rank, i);
    return message;
    return message;
  }
  /// Host time of an instruction of a synchronous device: a launch, or what posting the instruction before it takes, if
  /// that is more.
  [[nodiscard]] double host_s(std::uint32_t rank, std::uint32_t i, bool sender_posted_first) const {
    if (i == 0 || !is_posted(placed_.role(rank).kind[i - 1])) return mean_.launch_s;
    const Message before = ask(placed_.link(rank, i - 1).transport, transfer(rank, i - 1), sender_posted_first);
    return std::max(mean_.launch_s, placed_.role(rank).kind[i - 1] == InstructionKind::recv ? before.recv_overhead_s
                                                                                            : before.send_overhead_s);
  }

 private:
  const PlacedProgram& placed_;
  const Costs& mean_;
  const Factors* factors_;
};

}  // namespace sim
