#include "sim/cost/fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/error.hpp"

namespace sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Even a well-known shape isn't known better than this.
constexpr double kLeastNoise = 0.01;
/// Standard deviations of logarithms: of what physics leaves over, and of a class's constants around the broader one's.
constexpr double kMisfit = 0.3, kClassSpread = 1;
/// Seconds by which a work differs by what was played before it (are its operands, its code, its pages in the caches?):
/// nothing for long works, everything for short ones, which so say little.
constexpr double kContext_s = 1e-5;

Eigen::Vector4d logs_of(const Physics& physics) {
  return Eigen::Vector4d(physics.launch_s, physics.s_per_flop, physics.s_per_byte, physics.beyond).array().log();
}
Physics physics_of(const Eigen::Vector4d& logs, double cache_bytes) {
  const Eigen::Vector4d constants = logs.array().exp();
  return {constants[0], constants[1], constants[2], constants[3], cache_bytes};
}

struct Solution {
  Physics physics;
  double squares = 0;
};

/// The constants whose logarithms are the likeliest: minimise |ln(t / measured) / misfit|² + |(logs − broader) /
/// kClassSpread|², by Levenberg's and Marquardt's steps. Logarithms, so that no constant is negative, half and twice
/// the time weigh the same, and a sample moves the constants by their shares in its time.
Solution likeliest(const std::vector<ShapeSample>& samples, const Physics& broader, double cache_bytes) {
  const auto count = static_cast<Eigen::Index>(samples.size());
  const Eigen::Vector4d expected = logs_of(broader);
  struct Point {
    Eigen::VectorXd residuals;                       // weighted
    Eigen::Matrix<double, Eigen::Dynamic, 4> slope;  // of the residuals over the logarithms
    double squares = 0;
  };
  const auto point_at = [&](const Eigen::Vector4d& logs) {
    const Physics physics = physics_of(logs, cache_bytes);
    Point point{Eigen::VectorXd(count), Eigen::MatrixXd(count, 4), ((logs - expected) / kClassSpread).squaredNorm()};
    for (Eigen::Index i = 0; i < count; ++i) {
      const auto& [demand, shape, seconds, noise] = samples[static_cast<std::size_t>(i)];
      const double t = physics.seconds(demand), weight = 1 / std::hypot(kMisfit, kContext_s / seconds, noise);
      const double cached = demand.bytes * physics.s_per_byte;
      const double beyond = demand.bytes > cache_bytes ? cached * physics.beyond : 0;
      point.residuals[i] = weight * std::log(t / seconds);
      point.slope.row(i) =
          weight / t * Eigen::RowVector4d(physics.launch_s, demand.flops * physics.s_per_flop, cached + beyond, beyond);
    }
    point.squares += point.residuals.squaredNorm();
    return point;
  };
  Eigen::Vector4d logs = expected;
  Point point = point_at(logs);
  double damping = 1e-3;
  for (int step = 0; step < 100 && damping < 1e9; ++step) {
    const Eigen::Vector4d downhill =
        -point.slope.transpose() * point.residuals - (logs - expected) / (kClassSpread * kClassSpread);
    Eigen::Matrix4d curvature = point.slope.transpose() * point.slope;
    curvature.diagonal().array() += 1 / (kClassSpread * kClassSpread) + damping;
    const Eigen::Vector4d next_logs = logs + curvature.ldlt().solve(downhill);
    Point next = point_at(next_logs);
    if (!(next.squares < point.squares)) {
      damping *= 10;
      continue;
    }
    const bool done = point.squares - next.squares < 1e-12 * next.squares;
    logs = next_logs;
    point = std::move(next);
    damping = std::max(damping / 10, 1e-9);
    if (done) break;
  }
  return {physics_of(logs, cache_bytes), point.squares};
}

}  // namespace

Kriging::Kriging(const std::vector<std::vector<double>>& points, std::span<const double> values,
                 std::span<const double> noise) {
  check_internal(!points.empty() && points.size() == values.size() && values.size() == noise.size(),
                 "{} points, {} values, {} noises", points.size(), values.size(), noise.size());
  const auto n = static_cast<Eigen::Index>(points.size());
  points_.resize(n, static_cast<Eigen::Index>(points[0].size()));
  Eigen::VectorXd known(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    check_internal(points[at].size() == points[0].size(), "points of {} and {} coordinates", points[at].size(),
                   points[0].size());
    for (Eigen::Index c = 0; c < points_.cols(); ++c) points_(i, c) = points[at][static_cast<std::size_t>(c)];
    known[i] = values[at];
  }
  variance_ = std::max(known.squaredNorm() / static_cast<double>(n), kLeastNoise * kLeastNoise);
  // A factor of 2, of 4, of 16 in one coordinate changes what is known of the value by half.
  double best = kInfinity;
  for (const double length : {0.6, 1.2, 2.4}) {
    Eigen::MatrixXd covariance(n, n);
    for (Eigen::Index i = 0; i < n; ++i)
      for (Eigen::Index j = 0; j < n; ++j)
        covariance(i, j) =
            variance_ * std::exp(-(points_.row(i) - points_.row(j)).squaredNorm() / (2 * length * length));
    for (Eigen::Index i = 0; i < n; ++i) {
      const double sd = std::max(noise[static_cast<std::size_t>(i)], kLeastNoise);
      covariance(i, i) += sd * sd;
    }
    const Eigen::LDLT<Eigen::MatrixXd> solver(covariance);
    const Eigen::VectorXd weights = solver.solve(known);
    // Each value from the others, without solving n times: Rasmussen and Williams, equation 5.12.
    const Eigen::MatrixXd inverse = solver.solve(Eigen::MatrixXd::Identity(n, n));
    double squares = 0;
    for (Eigen::Index i = 0; i < n; ++i) squares += std::pow(weights[i] / inverse(i, i), 2);
    if (squares >= best) continue;
    best = squares;
    length_ = length;
    solver_ = solver;
    weights_ = weights;
  }
}

Eigen::VectorXd Kriging::covariances(std::span<const double> point) const {
  const Eigen::Map<const Eigen::RowVectorXd> at(point.data(), static_cast<Eigen::Index>(point.size()));
  Eigen::VectorXd result(points_.rows());
  for (Eigen::Index i = 0; i < points_.rows(); ++i)
    result[i] = variance_ * std::exp(-(points_.row(i) - at).squaredNorm() / (2 * length_ * length_));
  return result;
}

Kriging::Answer Kriging::at(std::span<const double> point) const {
  check_internal(static_cast<Eigen::Index>(point.size()) == points_.cols(), "a point of {} coordinates, not {}",
                 point.size(), points_.cols());
  const Eigen::VectorXd near = covariances(point);
  const double explained = near.dot(solver_.solve(near));
  const double left = std::max(variance_ - explained, 0.0);
  return {near.dot(weights_), std::sqrt(left), left / variance_};
}

double Physics::seconds(const Demand& demand) const {
  const double byte_s = s_per_byte * (demand.bytes > cache_bytes ? 1 + beyond : 1);
  return launch_s + demand.flops * s_per_flop + demand.bytes * byte_s;
}

ShapeFit::ShapeFit(const std::vector<ShapeSample>& samples, const Physics& broader, Cache cache) {
  check_internal(!samples.empty(), "a fit of nothing");
  check_internal(std::min({broader.launch_s, broader.s_per_flop, broader.s_per_byte, broader.beyond}) > 0,
                 "a broader class without cost");
  Solution best = likeliest(samples, broader, cache == Cache::found ? 0 : broader.cache_bytes);
  if (cache == Cache::found)
    for (const double cache_bytes : {262144.0, 1048576.0, 4194304.0, 16777216.0}) {
      const auto lies_beyond = [&](const ShapeSample& sample) { return sample.demand.bytes > cache_bytes; };
      // Too few samples beyond: then what a byte takes there would be the broader class's word alone.
      if (5 * std::ranges::count_if(samples, lies_beyond) < std::ssize(samples)) break;
      const Solution solution = likeliest(samples, broader, cache_bytes);
      if (solution.squares < best.squares) best = solution;
    }
  physics_ = best.physics;
  std::vector<std::vector<double>> shapes;
  std::vector<double> residuals, noise;
  for (const ShapeSample& sample : samples) {
    shapes.push_back(sample.shape);
    residuals.push_back(std::log(sample.seconds / physics_.seconds(sample.demand)));
    noise.push_back(sample.relative_noise);
  }
  if (!shapes[0].empty()) residual_.emplace_back(shapes, residuals, noise);
}

Estimate ShapeFit::at(const Demand& demand, std::span<const double> shape) const {
  if (residual_.empty()) return {physics_.seconds(demand), 1};
  const Kriging::Answer residual = residual_[0].at(shape);
  return {physics_.seconds(demand) * std::exp(residual.value), residual.novelty};
}

}  // namespace sim
