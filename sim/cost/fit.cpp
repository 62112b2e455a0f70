#include "sim/cost/fit.hpp"

#include <Eigen/LU>
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "sim/error.hpp"

namespace sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Standard deviations of logarithms: of what physics leaves over, and of a class's constants around the broader one's
/// (launches differ most).
constexpr double kMisfit = 0.3;
const Eigen::Vector4d kClassSpread(2, 1, 1, 1);
/// Absolute noise of one timing, from whatever the previous op left in the caches. Dominates short ops, so they get
/// little weight.
constexpr double kContext_s = 2e-6;
constexpr double kLeastBeyond = 1e-3;

Eigen::Vector4d logs_of(const Physics& physics) {
  return Eigen::Vector4d(physics.launch_s, physics.s_per_flop, physics.s_per_byte, physics.beyond).array().log();
}
Physics physics_of(const Eigen::Vector4d& logs, double cache_bytes) {
  const Eigen::Vector4d constants = logs.array().exp();
  return {constants[0], constants[1], constants[2], constants[3], cache_bytes};
}

/// How the time divides among the constants: the slope of its logarithm over theirs.
Eigen::RowVector4d shares(const Physics& physics, const Demand& demand) {
  const double cached = demand.bytes * physics.s_per_byte;
  const double beyond = demand.bytes > physics.cache_bytes ? cached * physics.beyond : 0;
  return Eigen::RowVector4d(demand.kernels * physics.launch_s, demand.flops * physics.s_per_flop, cached + beyond,
                            beyond) /
         physics.seconds(demand);
}

double noise_of(const ShapeSample& sample) { return std::hypot(sample.relative_noise, kContext_s / sample.seconds); }

struct Solution {
  Physics physics;
  double squares = 0;
  Eigen::Matrix4d uncertainty;
};

/// The constants whose logarithms are the likeliest: minimise |ln(t / measured) / misfit|² + |(logs − broader) /
/// kClassSpread|², by Levenberg's and Marquardt's steps. Logarithms, so that no constant is negative, half and twice
/// the time weigh the same, and a sample moves the constants by their shares in its time. One kernel's launch takes no
/// longer than its shortest run.
Solution likeliest(const std::vector<ShapeSample>& samples, const Physics& broader, double cache_bytes) {
  const auto count = static_cast<Eigen::Index>(samples.size());
  double longest_launch_s = kInfinity;
  for (const ShapeSample& sample : samples)
    if (!sample.shape.empty()) longest_launch_s = std::min(longest_launch_s, sample.seconds / sample.demand.kernels);
  const Eigen::Vector4d highest(std::log(longest_launch_s), kInfinity, kInfinity, kInfinity);
  const Eigen::Vector4d lowest(-kInfinity, -kInfinity, -kInfinity, std::log(kLeastBeyond));
  const auto bounded = [&](const Eigen::Vector4d& logs) -> Eigen::Vector4d {
    return logs.cwiseMin(highest).cwiseMax(lowest);
  };
  const Eigen::Vector4d expected = bounded(logs_of(broader));
  struct Point {
    Eigen::VectorXd residuals;                       // weighted
    Eigen::Matrix<double, Eigen::Dynamic, 4> slope;  // of the residuals over the logarithms
    double squares = 0;
  };
  const auto point_at = [&](const Eigen::Vector4d& logs) {
    const Physics physics = physics_of(logs, cache_bytes);
    Point point{Eigen::VectorXd(count), Eigen::MatrixXd(count, 4),
                (logs - expected).cwiseQuotient(kClassSpread).squaredNorm()};
    for (Eigen::Index i = 0; i < count; ++i) {
      const ShapeSample& sample = samples[static_cast<std::size_t>(i)];
      const double weight = 1 / std::hypot(kMisfit, noise_of(sample));
      point.residuals[i] = weight * std::log(physics.seconds(sample.demand) / sample.seconds);
      point.slope.row(i) = weight * shares(physics, sample.demand);
    }
    point.squares += point.residuals.squaredNorm();
    return point;
  };
  const auto curvature_at = [&](const Point& point) {
    Eigen::Matrix4d curvature = point.slope.transpose() * point.slope;
    curvature.diagonal() += kClassSpread.cwiseAbs2().cwiseInverse();
    return curvature;
  };
  Eigen::Vector4d logs = expected;
  Point point = point_at(logs);
  double damping = 1e-3;
  for (int step = 0; step < 100 && damping < 1e9; ++step) {
    const Eigen::Vector4d downhill =
        -point.slope.transpose() * point.residuals - (logs - expected).cwiseQuotient(kClassSpread.cwiseAbs2());
    Eigen::Matrix4d curvature = curvature_at(point);
    curvature.diagonal().array() += damping;
    const Eigen::Vector4d next_logs = bounded(logs + curvature.ldlt().solve(downhill));
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
  return {physics_of(logs, cache_bytes), point.squares, curvature_at(point).inverse()};
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
  least_ = std::min(known.minCoeff(), 0.0);
  most_ = std::max(known.maxCoeff(), 0.0);
  double weights = 0, squares = 0;
  for (Eigen::Index i = 0; i < n; ++i) {
    const double weight = 1 / (kMisfit * kMisfit + std::pow(noise[static_cast<std::size_t>(i)], 2));
    weights += weight;
    squares += weight * known[i] * known[i];
  }
  variance_ = std::max(squares / weights, kMisfit * kMisfit);
  Eigen::MatrixXd distances(n, n);  // squared
  for (Eigen::Index i = 0; i < n; ++i) distances.col(i) = (points_.rowwise() - points_.row(i)).rowwise().squaredNorm();
  double best = kInfinity;
  // A factor of 2, of 4, of 16 in one coordinate changes what is known of the value by half. Even a well-known shape
  // isn't known better than the smallest roughness.
  for (const double length : {0.6, 1.2, 2.4})
    for (const double roughness : {0.02, 0.06, 0.18}) {
      Kriging tried = *this;
      tried.length_ = length;
      tried.roughness_ = roughness;
      Eigen::MatrixXd covariances = distances.unaryExpr([&](double d) { return tried.covariance(d); });
      for (Eigen::Index i = 0; i < n; ++i)
        covariances(i, i) += std::pow(noise[static_cast<std::size_t>(i)], 2) + roughness * roughness;
      tried.solver_.emplace(covariances);
      tried.weights_ = tried.solver_->solve(known);
      // How likely each value is by the others, without solving n times: Rasmussen
      // and Williams, equations 5.10 to 5.12.
      const Eigen::VectorXd precision = tried.solver_->solve(Eigen::MatrixXd::Identity(n, n)).diagonal();
      const double surprise = (tried.weights_.array().square() / precision.array() - precision.array().log()).sum();
      if (surprise >= best) continue;
      best = surprise;
      *this = std::move(tried);
    }
}

double Kriging::covariance(double distance_squared) const {
  return variance_ * std::exp(-distance_squared / (2 * length_ * length_));
}

Kriging::Answer Kriging::at(std::span<const double> point) const {
  check_internal(static_cast<Eigen::Index>(point.size()) == points_.cols(), "a point of {} coordinates, not {}",
                 point.size(), points_.cols());
  const Eigen::Map<const Eigen::RowVectorXd> here(point.data(), static_cast<Eigen::Index>(point.size()));
  const Eigen::VectorXd distances = (points_.rowwise() - here).rowwise().squaredNorm();
  const Eigen::VectorXd near = distances.unaryExpr([&](double d) { return covariance(d); });
  const double left = std::max(variance_ - near.dot(solver_->solve(near)), 0.0);
  return {std::clamp(near.dot(weights_), least_, most_), std::sqrt(left + roughness_ * roughness_), left / variance_};
}

double Physics::seconds(const Demand& demand) const {
  const double byte_s = s_per_byte * (demand.bytes > cache_bytes ? 1 + beyond : 1);
  return demand.kernels * launch_s + demand.flops * s_per_flop + demand.bytes * byte_s;
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
  uncertainty_ = best.uncertainty;
  std::vector<std::vector<double>> shapes;
  std::vector<double> residuals, noise;
  for (const ShapeSample& sample : samples) {
    shapes.push_back(sample.shape);
    residuals.push_back(std::log(sample.seconds / physics_.seconds(sample.demand)));
    noise.push_back(noise_of(sample));
  }
  if (!shapes[0].empty()) residual_.emplace_back(shapes, residuals, noise);
}

Estimate ShapeFit::at(const Demand& demand, std::span<const double> shape) const {
  const Eigen::RowVector4d slope = shares(physics_, demand);
  const double known = slope * uncertainty_ * slope.transpose();
  Estimate estimate{physics_.seconds(demand), 1, 0};
  double of_shape = kMisfit, of_kernel = slope.transpose().cwiseProduct(kClassSpread).norm();
  if (!residual_.empty()) {
    const Kriging::Answer residual = residual_[0].at(shape);
    estimate.seconds *= std::exp(residual.value);
    estimate.novelty = residual.novelty;
    of_shape = residual.sd;
    of_kernel = 0;
  }
  const double of_context = std::log1p(kContext_s / estimate.seconds);
  estimate.sd = std::sqrt(known + of_shape * of_shape + of_kernel * of_kernel + of_context * of_context);
  return estimate;
}

std::vector<LeftOut> leave_out(const std::vector<ShapeSample>& samples, std::span<const std::string> groups,
                               const Physics& broader, Cache cache) {
  std::vector<LeftOut> results;
  const auto predict = [&](const auto& is_left_out) {
    std::vector<ShapeSample> others;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (!is_left_out(i)) others.push_back(samples[i]);
    if (others.empty() || others.size() == samples.size()) return;
    const ShapeFit fit(others, broader, cache);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!is_left_out(i)) continue;
      const Estimate estimate = fit.at(samples[i].demand, samples[i].shape);
      results.push_back({std::abs(std::log(samples[i].seconds / estimate.seconds)), estimate.sd, estimate.novelty});
    }
  };
  constexpr std::size_t kMostParts = 8;
  std::map<std::string_view, std::size_t> parts;
  for (const std::string& group : groups) parts.try_emplace(group, parts.size() % kMostParts);
  for (std::size_t part = 0; part < std::min(parts.size(), kMostParts); ++part)
    predict([&](std::size_t i) { return parts.at(groups[i]) == part; });
  if (samples.empty() || samples[0].shape.empty()) return results;
  std::vector<double> times;
  for (const ShapeSample& sample : samples) times.push_back(sample.seconds);
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  const double middle_s = times[times.size() / 2];
  predict([&](std::size_t i) { return samples[i].seconds < middle_s; });
  predict([&](std::size_t i) { return samples[i].seconds >= middle_s; });
  return results;
}

}  // namespace sim
