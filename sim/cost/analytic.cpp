// Cost model `analytic`: from data sheets alone. Compute is the roofline of S. Williams, A. Waterman and D. Patterson,
// Roofline: an insightful visual performance model, CACM 52(4), 2009; a transfer is steps × α + wire bytes / β
// (sim/cost/collective). Assumes: arithmetic and memory traffic overlap fully; every op reaches the same share of the peak;
// no contention: an op takes as long beside others as alone.
#include <algorithm>

#include "sim/cost/collective/collective.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/error.hpp"

namespace sim {

namespace {

class Analytic final : public CostModel {
 public:
  explicit Analytic(const Cluster& cluster) : cluster_(cluster) {}

  [[nodiscard]] ComputeCost compute(const Work& work) const override {
    const Device& device = cluster_.device;
    const Demand demand = work.demand();
    const Dtype dtype = work.op.inputs.at(0).dtype;
    const FlopsPerSecond peak = device.peak(dtype) * device.compute_efficiency;
    if (demand.flops > 0 && !(peak > FlopsPerSecond()))
      throw ConfigError(
          "device '{}' has no peak rate for {}, which '{}' needs; allowed: dtypes with a peak in its file", device.name,
          to_string(dtype), work_key(work));
    const Seconds arithmetic = demand.flops > 0 ? flops(demand.flops) / peak : Seconds();
    const Seconds traffic = bytes(demand.bytes) / (device.memory_bandwidth * device.memory_efficiency);
    return {{std::max(arithmetic, traffic).in_seconds()}};
  }

  [[nodiscard]] TransferCost transfer(const TransferQuestion& question) const override {
    const Link& link = question.across_nodes ? cluster_.inter_node : cluster_.link;
    double steps = 1, wire_bytes = static_cast<double>(question.bytes);
    if (question.kind == InstructionKind::collective) {
      const CollectiveAlgorithm& algorithm = collective_algorithm(cluster_.world, question.collective);
      steps = algorithm.steps(question.collective, question.members);
      wire_bytes = algorithm.wire_bytes(question.collective, question.members, wire_bytes);
    }
    return {.latency_s = steps * link.latency.in_seconds(),
            .wire_s = wire_bytes > 0 ? (bytes(wire_bytes) / link.bandwidth).in_seconds() : 0,
            .core_share = link.core_share};
  }

  [[nodiscard]] double launch_s() const override { return cluster_.device.launch.in_seconds(); }

 private:
  Cluster cluster_;
};

}  // namespace

CostModelKind analytic_cost_model() {
  return {.name = "analytic",
          .equation =
              "max(flops / (peak efficiency), bytes / (bandwidth efficiency)); steps latency + wire bytes / bandwidth",
          .needs_profile = false,
          .make = [](const Cluster& cluster, const Profile*) -> std::unique_ptr<CostModel> {
            return std::make_unique<Analytic>(cluster);
          }};
}

}  // namespace sim
