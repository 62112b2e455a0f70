// Cost model `fitted`: from a Profile of other shapes, models and sizes (sim/fit.hpp has the equations).
// Works are fitted class by class: op kind, pass, dtype, rank of the input and which gradients are wanted; a class that
// the profile lacks gets the physics of all works together. Several busy ranks: the slow-down is interpolated like the
// residual. Transfers: piecewise linear in bytes; among other numbers of ranks than measured, the algorithm's steps and
// bytes on the wire.
// Assumes: an op's efficiency is a smooth function of its shape; the profile was made on the device to be predicted.
#include <algorithm>
#include <cmath>
#include <map>

#include "sim/collective/collective.hpp"
#include "sim/cost_model.hpp"
#include "sim/error.hpp"
#include "sim/fit.hpp"
#include "sim/profile.hpp"

namespace sim {

CostModelKind fitted_cost_model();

namespace {

std::string class_of(const Work& work) {
  const TensorSpec& x = work.op.inputs.at(0);
  std::string name =
      fmt::format("{}.{} {} rank {}", work.op.kind->name, to_string(work.pass), to_string(x.dtype), x.shape.size());
  if (work.pass == Pass::backward) name += fmt::format(" grads {:x}", work.grads);
  return name;
}

/// The first input's dimensions and the attributes, as natural logarithms.
std::vector<double> shape_of(const Work& work) {
  std::vector<double> shape;
  for (std::int64_t dimension : work.op.inputs[0].shape)
    shape.push_back(std::log(static_cast<double>(std::max<std::int64_t>(dimension, 1))));
  for (const auto& [name, value] : work.op.attributes) shape.push_back(std::log1p(std::max(value, 0.0)));
  return shape;
}

struct Class {
  ShapeFit alone;
  double workspace = 0;  // bytes per byte moved, mean
  double jitter = 0;     // mean
  std::map<std::uint32_t, std::pair<double, Kriging>> slower =
      {};  // by busy ranks: mean ln(t / alone), and what is left
};

class Fitted final : public CostModel {
 public:
  Fitted(const Cluster& cluster, const Profile& profile) : cluster_(cluster), profile_(profile) {
    std::map<std::string, std::vector<ShapeSample>> samples;
    std::vector<ShapeSample> all;
    std::map<std::string, double> workspaces, jitters;
    std::map<std::string, std::map<std::uint32_t, Slower>> slower;
    for (const std::string& key : profile.works()) {
      const std::map<std::uint32_t, Statistic> levels = profile.op_levels(cluster.world, key);
      const auto alone = levels.find(1);
      if (alone == levels.end() || !(alone->second.mean_s > 0)) continue;
      const Work work = work_from_key(key);
      const std::string name = class_of(work);
      samples[name].push_back({work.demand(), shape_of(work), alone->second.mean_s, noise_of(alone->second)});
      if (work.demand().bytes > 0)
        workspaces[name] += static_cast<double>(profile.workspace(key).value_or(0)) / work.demand().bytes;
      jitters[name] += alone->second.jitter();
      all.push_back({work.demand(), {}, alone->second.mean_s, noise_of(alone->second)});
      for (const auto& [busy, time] : levels) {
        if (busy == 1 || !(time.mean_s > 0)) continue;
        busy_levels_ = std::max(busy_levels_, busy);
        Slower& class_slower = slower[name][busy];
        class_slower.shapes.push_back(shape_of(work));
        class_slower.logs.push_back(std::log(time.mean_s / alone->second.mean_s));
        class_slower.noise.push_back(std::hypot(noise_of(time), noise_of(alone->second)));
      }
    }
    if (all.empty())
      throw ConfigError("the profile of device '{}' has no ops; calibrate some model first", profile.device);
    any_.emplace_back(all);
    for (const auto& [name, list] : samples) {
      const auto count = static_cast<double>(list.size());
      Class& entry = classes_.try_emplace(name, Class{ShapeFit(list), workspaces[name] / count, jitters[name] / count})
                         .first->second;
      for (auto& [busy, s] : slower[name]) {
        double mean = 0;
        for (double log : s.logs) mean += log / static_cast<double>(s.logs.size());
        for (double& log : s.logs) log -= mean;
        entry.slower.try_emplace(busy, mean, Kriging(s.shapes, s.logs, s.noise));
      }
    }
  }

  [[nodiscard]] std::string_view name() const override { return "fitted"; }

  [[nodiscard]] ComputeCost compute(const Work& work) const override {
    const auto found = classes_.find(class_of(work));
    if (found == classes_.end()) {
      const Estimate estimate = any_[0].at(work.demand(), {});
      return {.busy_s = {estimate.seconds}, .novelty = 1};
    }
    const std::vector<double> shape = shape_of(work);
    const Estimate alone = found->second.alone.at(work.demand(), shape);
    ComputeCost cost{.busy_s = {alone.seconds},
                     .workspace_bytes = found->second.workspace * work.demand().bytes,
                     .jitter = found->second.jitter,
                     .novelty = alone.novelty};
    for (std::uint32_t busy = 2; busy <= busy_levels_; ++busy) {
      const auto level = found->second.slower.find(busy);
      // A level that wasn't measured is as slow as the one below.
      cost.busy_s.push_back(level == found->second.slower.end()
                                ? cost.busy_s.back()
                                : alone.seconds * std::exp(level->second.first + level->second.second.at(shape).value));
    }
    return cost;
  }

  [[nodiscard]] TransferCost transfer(const TransferQuestion& question) const override {
    const bool collective = question.kind == InstructionKind::collective;
    const std::string kind(collective ? to_string(question.collective) : to_string(InstructionKind::send));
    if (question.across_nodes)
      throw ConfigError("a profile holds the links inside a node; '{}' between nodes needs the cost model 'analytic'",
                        kind);
    LinkKey nearest{cluster_.world, kind, 0};
    for (const LinkKey& link : profile_.links())
      if (link.world == cluster_.world && link.kind == kind &&
          (nearest.members == 0 || distance(link, question) < distance(nearest, question)))
        nearest = link;
    double more_steps = 1, more_bytes = 1;
    if (collective && nearest.members > 1 && nearest.members != question.members) {
      const CollectiveAlgorithm& algorithm = collective_algorithm(cluster_.world, question.collective);
      more_steps = algorithm.steps(question.collective, question.members) /
                   algorithm.steps(question.collective, nearest.members);
      more_bytes = algorithm.wire_bytes(question.collective, question.members, 1) /
                   algorithm.wire_bytes(question.collective, nearest.members, 1);
    }
    const std::optional<TransferTime> time =
        nearest.members > 0 ? profile_.transfer(nearest, question.bytes) : std::nullopt;
    if (!time)
      throw ConfigError(
          "the profile of device '{}' has no {} of world '{}' at two sizes or more; 'paragauge calibrate' "
          "for a strategy that uses it adds it",
          profile_.device, kind, cluster_.world);
    return {.latency_s = time->latency_s * more_steps,
            .wire_s = time->wire_s * more_bytes,
            .core_share = profile_.core_share_of(cluster_),
            .jitter = time->jitter,
            .engine = cluster_.link.engine};
  }

  [[nodiscard]] double launch_s() const override {
    if (const std::optional<Statistic> launch = profile_.launch()) return launch->mean_s;
    throw ConfigError("the profile of device '{}' has no launch time; calibrate some model first", profile_.device);
  }

  [[nodiscard]] double rank_jitter() const override { return profile_.rank_jitter(cluster_.world); }

 private:
  struct Slower {
    std::vector<std::vector<double>> shapes;
    std::vector<double> logs, noise;
  };
  [[nodiscard]] static double noise_of(const Statistic& time) {
    return time.sd_s ? *time.sd_s / std::sqrt(static_cast<double>(time.count)) / time.mean_s : 0.1;
  }
  [[nodiscard]] static std::uint32_t distance(const LinkKey& link, const TransferQuestion& question) {
    return link.members > question.members ? link.members - question.members : question.members - link.members;
  }

  Cluster cluster_;
  Profile profile_;
  std::uint32_t busy_levels_ = 1;
  std::map<std::string, Class> classes_;
  std::vector<ShapeFit> any_;  // one
};

}  // namespace

CostModelKind fitted_cost_model() {
  return {
      .name = "fitted",
      .equation = "per op kind and pass: launch + flops / rate + bytes / bandwidth, residual interpolated over shapes",
      .needs_profile = true,
      .for_other_shapes = true,
      .make = [](const Cluster& cluster, const Profile* profile) -> std::unique_ptr<CostModel> {
        if (!profile) throw ConfigError("cost model 'fitted' needs a profile; 'paragauge calibrate' writes one");
        return std::make_unique<Fitted>(cluster, *profile);
      }};
}

}  // namespace sim
