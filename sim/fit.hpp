// Fits: a duration as a function of shape, from measured shapes of the same class.
//
//   const ShapeFit fit(samples);                          // conv2d.forward, say: FLOPs, bytes, shape, seconds
//   const Estimate e = fit.at(demand, shape);             // e.seconds, e.relative_sd, e.novelty
//
// Two layers. (1) Physics: t = launch + flops / rate + bytes / bandwidth, with one bandwidth for works that fit into
// the cache and one for those that don't; the four constants aren't negative, and minimise the relative residuals. (2)
// What physics leaves over is a property of the shape (how well the kernel's blocking fits it) and is interpolated in
// log-shape space by simple kriging (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equations
// 2.25 and 2.26, squared exponential kernel): near measured shapes their correction, far from all of them none. Its
// variance says how far the answer extrapolates.
#pragma once

#include <Eigen/Dense>
#include <span>
#include <vector>

#include "sim/op/op.hpp"

namespace sim {

/// Values at points, interpolated; far from all points the mean, 0.
class Kriging {
 public:
  /// `points`: coordinates of equal length; `noise`: standard deviation of each value. At least one point. The length
  /// scale is the one of a few that predicts each value best from the others.
  Kriging(const std::vector<std::vector<double>>& points, std::span<const double> values,
          std::span<const double> noise);

  struct Answer {
    double value = 0, sd = 0;
    double novelty = 1;  // 0: at a point; 1: far from all
  };
  [[nodiscard]] Answer at(std::span<const double> point) const;

 private:
  [[nodiscard]] Eigen::VectorXd covariances(std::span<const double> point) const;

  Eigen::MatrixXd points_;  // [point, coordinate]
  double length_ = 1, variance_ = 0;
  Eigen::LDLT<Eigen::MatrixXd> solver_;
  Eigen::VectorXd weights_;
};

struct ShapeSample {
  Demand demand;
  std::vector<double> shape;  // natural logarithms, as many in all samples of a fit; none: physics alone
  double seconds = 0;
  double relative_noise = 0;  // standard error of `seconds` / seconds
};

struct Estimate {
  double seconds = 0;
  double relative_sd = 0;
  double novelty = 1;  // 0: a measured shape; 1: unlike any of them
};

class ShapeFit {
 public:
  /// At least one sample; seconds are positive.
  explicit ShapeFit(const std::vector<ShapeSample>& samples);
  [[nodiscard]] Estimate at(const Demand& demand, std::span<const double> shape) const;

  // The physics, for reports. Infinite speeds: the samples don't show this cost.
  [[nodiscard]] double launch_s() const { return constants_[0]; }
  [[nodiscard]] double flops_per_s() const { return 1 / constants_[1]; }
  [[nodiscard]] double cached_bytes_per_s() const { return 1 / constants_[2]; }
  [[nodiscard]] double memory_bytes_per_s() const { return 1 / constants_[3]; }
  [[nodiscard]] double cache_bytes() const { return cache_bytes_; }

 private:
  [[nodiscard]] double physics(const Demand& demand) const;

  Eigen::Vector4d constants_ = Eigen::Vector4d::Zero();  // s, s/FLOP, s/byte in cache, s/byte beyond
  double cache_bytes_ = 0;
  double spread_ = 0;              // root mean square of the residuals' logarithms
  std::vector<Kriging> residual_;  // at most one
};

}  // namespace sim
