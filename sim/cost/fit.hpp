// Fits: a duration as a function of shape, from measured shapes of the same class.
//
//   const ShapeFit fit(samples, broader.physics(), Cache::broader);  // conv2d.forward: FLOPs, bytes, shape, seconds
//   const Estimate e = fit.at(demand, shape);                        // e.seconds, e.novelty, e.sd
//
// Two layers. (1) Physics: four constants, found by least squares of the logarithms. Samples of one batch size can't
// tell rate from bandwidth, and few samples tell little of anything: what they leave open, a broader class decides. (2)
// What physics leaves over is a property of the shape (how well the kernel's blocking fits it) and is interpolated in
// log-shape space by simple kriging (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equations
// 2.25 and 2.26, squared exponential kernel): near measured shapes their correction, far from all of them none, and
// never a larger one than was measured. Its variance says how far the answer extrapolates.
#pragma once

#include <Eigen/Cholesky>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/model/op/op.hpp"

namespace sim {

/// Values at points, interpolated; far from all points the mean, 0. Never beyond the smallest
/// and largest of them and 0.
class Kriging {
 public:
  /// `points`: coordinates of equal length; `noise`: standard deviation of each value. At least one point. The length
  /// scale, and how much values of almost equal points differ, are those of a few that predict each value best from the
  /// others.
  Kriging(const std::vector<std::vector<double>>& points, std::span<const double> values,
          std::span<const double> noise);

  struct Answer {
    double value = 0, sd = 0;
    double novelty = 1;  // 0: at a point; 1: far from all
  };
  [[nodiscard]] Answer at(std::span<const double> point) const;

 private:
  [[nodiscard]] double covariance(double distance_squared) const;

  Eigen::MatrixXd points_;  // [point, coordinate]
  double length_ = 1, variance_ = 0, roughness_ = 0, least_ = 0, most_ = 0;
  std::optional<Eigen::LDLT<Eigen::MatrixXd>> solver_;  // of the covariances
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
  double novelty = 1;  // 0: a measured shape; 1: unlike any of them
  double sd = 0;       // standard deviation of ln(true time / seconds), if the assumptions of the fit hold
};

/// t = kernels × launch + flops / rate + bytes / bandwidth; of a work that doesn't fit into the cache, each byte takes longer.
struct Physics {
  double launch_s = 0, s_per_flop = 0, s_per_byte = 0;
  double beyond = 0;  // a byte of a work of more than cache_bytes takes 1 + beyond times as long
  double cache_bytes = 0;

  [[nodiscard]] double seconds(const Demand& demand) const;
};

/// Where cache_bytes is from: the samples, or the broader class.
enum class Cache : std::uint8_t { found, broader };

class ShapeFit {
 public:
  /// Fits at least one sample; seconds are positive. `broader`: what is known of works like these, all constants
  /// positive. Samples with shapes are runs of one kernel. Without shapes they are a broader class, which answers for
  /// kernels that aren't among its samples: their constants differ from the class's.
  ShapeFit(const std::vector<ShapeSample>& samples, const Physics& broader, Cache cache);
  [[nodiscard]] Estimate at(const Demand& demand, std::span<const double> shape) const;
  [[nodiscard]] const Physics& physics() const { return physics_; }

 private:
  Physics physics_;
  Eigen::Matrix4d uncertainty_;    // covariance of the logarithms of the four constants
  std::vector<Kriging> residual_;  // at most one
};

/// How far off a fit is where it hasn't seen the like.
struct LeftOut {
  double error = 0;            // |ln(measured / answer)|
  double sd = 0, novelty = 0;  // of the answer
};
/// Each sample predicted from the other groups' samples (at most eight fits); of one kernel also each of the shorter
/// half from the longer ones, and the other way round. Nothing where no others are left.
std::vector<LeftOut> leave_out(const std::vector<ShapeSample>& samples, std::span<const std::string> groups,
                               const Physics& broader, Cache cache);

}  // namespace sim
