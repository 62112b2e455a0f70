// Cost model `analytic`: from data sheets and published rates alone. Compute is sim/cost/roofline.hpp's; a transfer is
// steps × α + wire bytes / β (sim/cost/collective), inside a node that says how long NCCL takes there what that says
// (sim/cluster/nccl.hpp). Assumes: no contention: an op takes as long beside others as alone.
// A rank of k threads has k cores' peak and their shares of the memory's bandwidth, as far as ATen cuts an op at all:
// what goes through tensors element by element, in pieces of 32,768 at least (GRAIN_SIZE of ATen/TensorIterator.h).
// Assumes: threads begin and end together, at no cost.
#include <algorithm>
#include <optional>

#include "sim/cost/collective/collective.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/cost/roofline.hpp"
#include "sim/error.hpp"

namespace sim {

namespace {

/// How many threads of its rank an op keeps busy.
std::uint32_t threads_at_work(const Work& work) {
  constexpr std::int64_t kGrain = 32768;
  if (work.op.kind->matrix || (work.op.body != nullptr && !work.op.body->products.empty())) return work.threads;
  std::int64_t elements = work.op.leading().elements();
  if (work.pass == Pass::update)
    for (const TensorSpec& parameter : work.op.inputs) elements = std::max(elements, parameter.elements());
  const std::int64_t pieces = (elements + kGrain - 1) / kGrain;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(pieces, 1, work.threads));
}

/// Of a launch, what an addition takes: on an H100's host 10 us, where all ops took 31 on average
/// (bench/results/h100.profile.json).
constexpr double kElementwiseLaunch = 0.33;

/// Made by the host for the device.
bool is_brought(const OpInstance& op) { return op.kind->name == "make_input" || op.kind->name == "make_target"; }

class Analytic final : public CostModel {
 public:
  explicit Analytic(const Cluster& cluster) : cluster_(cluster) {}

  [[nodiscard]] ComputeCost compute(const Work& work) const override {
    // An accelerator's host is some core: no file says which.
    const Device& its_kind = cluster_.kind(work.kind);
    const bool on_host = is_on_host(work, its_kind);
    const Device device = on_host ? load_device("cpu_core") : its_kind.times(threads_at_work(work));
    const std::vector<KernelTime> kernels = kernels_of(work, device);
    if (const std::optional<Arithmetic> needed = lacking(work, device)) {
      const std::string key = work_key(work);  // of an imported op without its body, which is long
      throw ConfigError("device '{}' has no rate for {}, which '{}' needs: {} in its file", device.name,
                        to_string(*needed), key.substr(0, key.find(" body=")), peak_key(*needed));
    }
    double seconds = 0;
    for (const KernelTime& kernel : kernels) seconds += kernel.seconds();
    // An accelerator updates many parameters in one kernel, a CPU one after the other.
    if (work.pass == Pass::update && !device.asynchronous)
      seconds += static_cast<double>(work.op.inputs.size() - 1) * device.launch.in_seconds();
    if (on_host && is_brought(work.op) && cluster_.loop.host_to_device > BytesPerSecond())
      seconds +=
          (bytes(static_cast<double>(work.op.signature().output.bytes())) / cluster_.loop.host_to_device).in_seconds();
    ComputeCost cost{.busy_s = {seconds}, .knowledge = knowledge_of(work, device, seconds)};
    if (work.pass == Pass::update && cluster_.loop.updates_each)
      cost.issue_s = static_cast<double>(work.op.inputs.size()) * work.op.kind->launches_each(work.op) *
                     kElementwiseLaunch * launch_s(work.kind);
    // A body is several calls, each launched by itself.
    if (work.op.body != nullptr && device.asynchronous)
      cost.issue_s = std::max(work.demand().kernels, 1.0) * device.launch.in_seconds();
    return cost;
  }

  [[nodiscard]] TransferCost transfer(const TransferQuestion& question) const override {
    const std::vector<std::uint32_t> spread = question.spread.empty() ? std::vector{question.members} : question.spread;
    const auto all_bytes = static_cast<double>(question.bytes);
    if (question.kind != InstructionKind::collective) {
      std::vector<LevelTraffic> levels(spread.size(), {.port_bytes = all_bytes, .bus_bytes = all_bytes});
      levels.back().steps = 1, levels.back().units = 2;
      return cost_of(levels, /*is_striped=*/false);
    }
    if (spread.size() == 1 && cluster_.link().nccl)
      if (const std::optional<NcclTime> time = by_nccl(question, *cluster_.link().nccl))
        return {.latency_s = time->latency_s, .wire_s = time->bytes_s, .sd = kNcclSd};
    std::optional<TransferCost> best;
    for (const CollectiveAlgorithm* algorithm : collective_algorithms(cluster_.world, question.collective)) {
      const bool is_choice = question.collective == CollectiveKind::all_reduce && !cluster_.all_reduce.empty();
      if (is_choice && algorithm->name != cluster_.all_reduce) continue;
      TransferCost cost =
          cost_of(algorithm->traffic(question.collective, question.members, spread, all_bytes), algorithm->is_striped);
      if (!best || cost.latency_s + cost.wire_s < best->latency_s + best->wire_s) best = std::move(cost);
    }
    return *best;
  }

  [[nodiscard]] double launch_s(std::uint32_t kind) const override { return cluster_.kind(kind).launch.in_seconds(); }

 private:
  // TransferCost::sd. Of 271 published all_reduces of A100, V100, H100 and H200 (tests/golden/nccl_all_reduce.csv: 2 to 8
  // GPUs of a node, 1 MiB to 16 GiB) latency and bandwidth are off by 0.29, root mean square of ln(published / forecast):
  // by 0.12 from 32 MiB on, 0.42 below. Times that were fitted to NCCL's are within 0.1.
  static constexpr double kAcceleratorLinkSd = 0.29, kNcclSd = 0.1;

  /// The least of the algorithms that the cluster leaves; nothing where they aren't for the collective.
  [[nodiscard]] std::optional<NcclTime> by_nccl(const TransferQuestion& question, const NcclTimes& times) const {
    const auto all_bytes = static_cast<double>(question.bytes);
    if (question.collective == CollectiveKind::reduce_scatter || question.collective == CollectiveKind::all_gather)
      return times.ring(question.members, all_bytes, 1);
    if (question.collective != CollectiveKind::all_reduce) return std::nullopt;
    const auto may_be = [this](std::string_view name) {
      return cluster_.all_reduce.empty() || cluster_.all_reduce == name;
    };
    std::optional<NcclTime> least;
    const auto take = [&least](const NcclTime& time) {
      if (!least || time.seconds() < least->seconds()) least = time;
    };
    if (may_be("striped_ring")) take(times.ring(question.members, all_bytes, 2));
    if (may_be("double_tree")) take(times.chain(question.members, all_bytes));
    if (const auto by_switch = times.by_switch(question.members, all_bytes); by_switch && may_be("nvls"))
      take(*by_switch);
    return least;
  }

  /// Bytes of all levels move at the same time, as fast as the level lets them that takes longest.
  [[nodiscard]] TransferCost cost_of(const std::vector<LevelTraffic>& traffic, bool is_striped) const {
    TransferCost cost{.sd = cluster_.device.asynchronous ? kAcceleratorLinkSd : kCoreLinkSd};
    check_internal(traffic.size() <= cluster_.levels.size(), "a transfer over {} levels on cluster '{}' of {}",
                   traffic.size(), cluster_.name, cluster_.levels.size());
    for (std::size_t l = 0; l < traffic.size(); ++l) {
      const Level& level = cluster_.levels[l];
      cost.latency_s += traffic[l].steps * level.link.latency.in_seconds();
      cost.core_share = level.link.core_share;           // of the level that it goes over
      if (!(level.link.bandwidth > BytesPerSecond())) {  // of a single unit: nothing is known of its ports
        cost.use.push_back(0);
        continue;
      }
      const double ports = l == 0 || level.link.shared ? 1 : cluster_.levels[l - 1].ports;
      const double of_member = l == 0 ? 1 : std::max(1.0, ports / cluster_.devices_in_group(l - 1));
      const double used = std::min(ports, is_striped ? traffic[l].members * of_member : traffic[l].flows);
      const double moved = level.link.shared ? traffic[l].bus_bytes : traffic[l].port_bytes;
      const BytesPerSecond among = level.link.among(traffic[l].units);
      cost.use.push_back((bytes(moved / ports) / std::max(level.link.bandwidth, among)).in_seconds());
      cost.wire_s = std::max(cost.wire_s, (bytes(moved / used) / among).in_seconds());
    }
    for (double& use : cost.use) use = cost.wire_s > 0 ? use / cost.wire_s : 0;
    return cost;
  }

  Cluster cluster_;
};

}  // namespace

CostModelKind analytic_cost_model() {
  return {
      .name = "analytic",
      .equation = "max(flops / matmul rate, bytes / (bandwidth efficiency)); steps latency + wire bytes / bandwidth",
      .knows_from = "the data sheet",
      .needs_profile = false,
      .make = [](const Cluster& cluster, const Profile*) -> std::unique_ptr<CostModel> {
        return std::make_unique<Analytic>(cluster);
      }};
}

}  // namespace sim
