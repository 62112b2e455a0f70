// Cost model `profiled`: the means of a Profile, for shapes and groups that are in it. For what isn't, `fitted` answers
// from the others, and at last the data sheet; the forecast says so.
// Assumes: an op takes as long in a step as in the calibration pass of its world, which runs ops in model order so
// that the caches are in a step's state.
#include <cmath>
#include <iterator>
#include <memory>
#include <mutex>

#include "sim/cost/cost_model.hpp"
#include "sim/cost/origin.hpp"
#include "sim/cost/profile.hpp"
#include "sim/error.hpp"

namespace sim {

namespace {

class Profiled final : public CostModel {
 public:
  Profiled(const Cluster& cluster, const Profile& profile)
      : cluster_(cluster), profile_(profile), origin_(check_origin(profile, cluster)) {}

  /// Levels that weren't measured (3 busy ranks between 2 and 4) are interpolated.
  [[nodiscard]] ComputeCost compute(const Work& work) const override {
    const Work measured = measured_as(work, cluster_.device);
    std::optional<ComputeCost> cost = known(measured);
    if (!cost) cost = sum_of_parameters(measured);
    if (!cost) {
      cost = others().compute(work);
      cost->knowledge.source = Source::broader;
    }
    cost->issue_s = profile_.issue_s(work_key(measured));
    return *cost;
  }

  [[nodiscard]] TransferCost transfer(const TransferQuestion& question) const override {
    std::optional<TransferCost> cost;
    if (origin_.has_links) cost = transfer_cost(profile_, cluster_, link_key(cluster_.world, question), question.bytes);
    if (cost) return *cost;
    TransferCost of_others = others().transfer(question);
    if (of_others.source == Source::profile) of_others.source = Source::broader;
    return of_others;
  }

  [[nodiscard]] double launch_s(std::uint32_t /*kind*/) const override { return profile_.launch_s(); }

  [[nodiscard]] double gap_s() const override { return profile_.gap_s(); }
  [[nodiscard]] double rank_jitter() const override { return profile_.rank_jitter(cluster_.world); }
  [[nodiscard]] double common_sd() const override { return std::hypot(origin_.sd, profile_.drift_sd()); }
  [[nodiscard]] std::vector<std::string> remarks() const override { return origin_.remarks; }

 private:
  [[nodiscard]] std::optional<ComputeCost> known(const Work& work) const {
    const std::string key = work_key(work);
    const std::map<std::uint32_t, Statistic> levels = profile_.op_levels(cluster_.world, key);
    if (!levels.contains(1)) return std::nullopt;
    ComputeCost cost{.workspace_bytes = static_cast<double>(profile_.workspace(key).value_or(0))};
    for (const auto& [busy, time] : levels) cost.jitter += time.jitter() / static_cast<double>(levels.size());
    for (auto upper = levels.begin(); upper != levels.end(); ++upper) {
      const auto lower = upper == levels.begin() ? upper : std::prev(upper);
      const double gap = upper == lower ? 1 : upper->first - lower->first;
      for (std::uint32_t busy = lower->first + (upper != lower); busy <= upper->first; ++busy)
        cost.busy_s.push_back(std::lerp(lower->second.mean_s, upper->second.mean_s, (busy - lower->first) / gap));
    }
    return cost;
  }
  /// A CPU updates parameters one after the other: where each was measured by itself, that is all of them.
  [[nodiscard]] std::optional<ComputeCost> sum_of_parameters(const Work& work) const {
    if (work.pass != Pass::update || work.op.inputs.size() < 2 || cluster_.device.asynchronous) return std::nullopt;
    std::optional<ComputeCost> sum;
    double variance = 0;  // their jitters are independent
    for (const TensorSpec& parameter : work.op.inputs) {
      Work single = work;
      single.op.inputs = {parameter};
      const std::optional<ComputeCost> cost = known(single);
      if (!cost) return std::nullopt;
      variance += std::pow(cost->jitter * cost->busy_s[0], 2);
      if (!sum) {
        sum = cost;
        continue;
      }
      sum->busy_s.resize(std::min(sum->busy_s.size(), cost->busy_s.size()));
      for (std::size_t busy = 0; busy < sum->busy_s.size(); ++busy) sum->busy_s[busy] += cost->busy_s[busy];
      sum->workspace_bytes = std::max(sum->workspace_bytes, cost->workspace_bytes);
    }
    sum->jitter = std::sqrt(variance) / sum->busy_s[0];
    return sum;
  }
  /// Made when something is missing: that takes longer than a forecast.
  [[nodiscard]] const CostModel& others() const {
    std::call_once(others_made_, [&] { others_ = make_cost_model("fitted", cluster_, &profile_); });
    return *others_;
  }

  Cluster cluster_;
  Profile profile_;
  Origin origin_;
  mutable std::once_flag others_made_;
  mutable std::unique_ptr<CostModel> others_;
};

}  // namespace

CostModelKind profiled_cost_model() {
  return {
      .name = "profiled",
      .equation = "mean of this shape and transfer in the profile; transfers piecewise linear in bytes; else as fitted",
      .knows_from = "the profile",
      .needs_profile = true,
      .make = [](const Cluster& cluster, const Profile* profile) -> std::unique_ptr<CostModel> {
        if (!profile) throw ConfigError("cost model 'profiled' needs a profile; 'paragauge calibrate' writes one");
        return std::make_unique<Profiled>(cluster, *profile);
      }};
}

}  // namespace sim
