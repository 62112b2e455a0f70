#include "sim/calibrate/speed_model.hpp"

#include <Eigen/Cholesky>
#include <algorithm>
#include <array>
#include <cmath>

#include "sim/calibrate/samples.hpp"
#include "sim/calibrate/tasks.hpp"
#include "sim/cost/roofline.hpp"
#include "sim/cost/statistic.hpp"

namespace sim {

std::optional<SpeedModel::Class> SpeedModel::class_of(const CalibrationTask& task) {
  switch (task.kind) {
    case CalibrationTask::Kind::ops:
      return task.busy_devices() == 1 ? Class::one_at_a_time : Class::at_once;
    case CalibrationTask::Kind::transfers:
      return Class::transfers;
    default:
      return std::nullopt;
  }
}

double SpeedModel::memory_s(const MachineSpeed& speed, Class kind) {
  return kind == Class::one_at_a_time ? speed.memory_alone_s : speed.memory_together_s;
}

SpeedModel::Shares SpeedModel::shares_of(const Work& work, const Device& device) {
  const KernelTime kernels = kernels_together(work, device);
  const double traffic_s = kernels.traffic_s + kernels.reorder_s, sum_s = traffic_s + kernels.arithmetic_s;
  Shares shares{.core_to_core = work.threads > 1 ? 1.0 : 0.0};  // threads share what they read and write
  if (sum_s > 0) shares.traffic = traffic_s / sum_s, shares.arithmetic = kernels.arithmetic_s / sum_s;
  return shares;
}

Eigen::Vector3d SpeedModel::excess_of(Class kind, const Shares& shares, const MachineSpeed& speed,
                                      const MachineSpeed& reference) {
  return {shares.traffic * excess(memory_s(speed, kind), memory_s(reference, kind)),
          shares.arithmetic * excess(speed.compute_s, reference.compute_s),
          shares.core_to_core * excess(speed.core_to_core_s, reference.core_to_core_s)};
}

void SpeedModel::add(const CalibrationTask& task, const CalibrationSamples& samples) {
  const std::optional<Class> kind = class_of(task);
  if (!kind || !samples.speed) return;
  Visit visit{.speed = *samples.speed};
  if (*kind == Class::transfers) {
    if (samples.link.transfers.empty()) return;
    visit.seconds = mean_of(samples.link.transfers);
    visit.rewriting_s = rewriting_s(samples.link);
  } else {
    const std::optional<double> seconds = seconds_of(task, samples);
    if (!seconds) return;
    visit.seconds = *seconds;
    visit.shares = {0, 0, 0};
    double sum_s = 0;
    for (const Work& work : task.program.works) {
      const auto found = samples.works.find(work_key(work));
      if (found == samples.works.end()) continue;
      const Shares shares = shares_of(work, task.cluster.device);
      const double seconds_of_work = mean_of(found->second);
      visit.shares.traffic += shares.traffic * seconds_of_work;
      visit.shares.arithmetic += shares.arithmetic * seconds_of_work;
      visit.shares.core_to_core += shares.core_to_core * seconds_of_work;
      sum_s += seconds_of_work;
    }
    visit.shares.traffic /= sum_s;
    visit.shares.arithmetic /= sum_s;
    visit.shares.core_to_core /= sum_s;
  }
  visits_[static_cast<std::size_t>(*kind)][task.id].push_back(visit);
}

void SpeedModel::fit() {
  for (std::size_t c = 0; c < kClasses; ++c) {
    if (visits_[c].empty()) continue;
    std::vector<MachineSpeed> speeds;
    for (const auto& [id, visits] : visits_[c])
      for (const Visit& visit : visits) speeds.push_back(visit.speed);
    reference_[c] = mean(speeds);
    slopes_[c] = slopes_of(static_cast<Class>(c));
  }
  for (const auto& [task, visits] : visits_[static_cast<std::size_t>(Class::transfers)])
    rewriting_slopes_[task] = slope_of_rewriting(visits);
}

/// Least squares about each task's own means, with slopes that are expected to be 0 ± 1.
SpeedModel::Slopes SpeedModel::slopes_of(Class kind) const {
  struct Point {
    Eigen::Vector3d slower;
    double time;
    double traffic, change;  // what the visit reads, and how much the memory's speed changed beside it
  };
  std::vector<Point> points;
  for (const auto& [id, visits] : visits_[static_cast<std::size_t>(kind)]) {
    std::vector<MachineSpeed> speeds;
    double mean_s = 0;
    for (const Visit& visit : visits) {
      speeds.push_back(visit.speed);
      mean_s += visit.seconds / static_cast<double>(visits.size());
    }
    const MachineSpeed own = mean(speeds);
    for (const Visit& visit : visits)
      points.push_back({excess_of(kind, visit.shares, visit.speed, own), visit.seconds / mean_s - 1,
                        visit.shares.traffic, visit.speed.change});
  }
  const auto variance_left = [&](const Slopes& slopes) {
    double sum = 0;
    for (const Point& p : points) {
      const double left = p.time - slopes.dot(p.slower);
      sum += left * left;
    }
    return std::max(sum / static_cast<double>(points.size()), 1e-6);  // the clock's own
  };
  Slopes slopes = Slopes::Zero();
  for (int step = 0; step < 3; ++step) {  // what is left decides how much the expectation counts
    const double variance = variance_left(slopes);
    Eigen::Matrix3d left = variance * Eigen::Matrix3d::Identity();
    Eigen::Vector3d right = Eigen::Vector3d::Zero();
    for (const Point& p : points) {
      // Anywhere between the probes before and after, the variance of which is change²/12.
      const double unsure = slopes[0] * p.traffic * p.change;
      const double weight = variance / (variance + unsure * unsure / 12);
      left += weight * p.slower * p.slower.transpose();
      right += weight * p.time * p.slower;
    }
    slopes = left.ldlt().solve(right);
  }
  return slopes;
}

double SpeedModel::slope_of_rewriting(const std::vector<Visit>& visits) {
  constexpr double kUnsure_s = 5e-9;  // of a probe
  std::vector<double> trips_s, rewritings_s;
  for (const Visit& visit : visits)
    if (visit.speed.core_to_core_s > 0) {
      trips_s.push_back(visit.speed.core_to_core_s);
      rewritings_s.push_back(visit.rewriting_s);
    }
  if (trips_s.empty()) return 0;
  const double mean_trip_s = mean_of(trips_s), mean_rewriting_s = mean_of(rewritings_s);
  double product = 0, square = kUnsure_s * kUnsure_s;
  for (std::size_t v = 0; v < trips_s.size(); ++v) {
    product += (trips_s[v] - mean_trip_s) * (rewritings_s[v] - mean_rewriting_s);
    square += std::pow(trips_s[v] - mean_trip_s, 2);
  }
  return product / square;
}

double SpeedModel::factor(Class kind, const Shares& shares, const MachineSpeed& speed) const {
  constexpr double kLeast = 0.3;  // an interrupted probe mustn't turn times negative
  const auto c = static_cast<std::size_t>(kind);
  return std::max(kLeast, 1 + slopes_[c].dot(excess_of(kind, shares, speed, reference_[c])));
}

CalibrationSamples SpeedModel::moved(const CalibrationSamples& samples, const CalibrationTask& task,
                                     const std::optional<MachineSpeed>& to) const {
  CalibrationSamples result = samples;
  const std::optional<Class> kind = class_of(task);
  if (!kind || !samples.speed) return result;
  const auto scale = [&](std::vector<double>& times, const Shares& shares) {
    const double by = (to ? factor(*kind, shares, *to) : 1) / factor(*kind, shares, *samples.speed);
    for (double& seconds : times) seconds *= by;
  };
  if (*kind == Class::transfers) {
    for (LinkSamples* link : {&result.link, &result.unexpected})
      for (std::vector<double>* times :
           {&link->transfers, &link->send_overheads, &link->recv_overheads, &link->engaged})
        scale(*times, {});
    const double from_s = samples.speed->core_to_core_s,
                 to_s = (to ? *to : reference_[static_cast<std::size_t>(*kind)]).core_to_core_s;
    if (const auto slope = rewriting_slopes_.find(task.id);
        slope != rewriting_slopes_.end() && from_s > 0 && to_s > 0) {
      const double longer_s = slope->second * (to_s - from_s);
      for (std::vector<double>& of_rank : result.link.rewritings)
        for (double& seconds : of_rank) seconds += longer_s;
    }
    return result;
  }
  for (const Work& work : task.program.works)
    if (const auto found = result.works.find(work_key(work)); found != result.works.end())
      scale(found->second, shares_of(work, task.cluster.device));
  return result;
}

}  // namespace sim
