#include "sim/fit.hpp"

#include <array>
#include <cmath>
#include <limits>

#include "sim/error.hpp"

namespace sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Even a well-known shape isn't known better than this.
constexpr double kLeastNoise = 0.01;
/// Standard deviations of logarithms: of what physics leaves over, and of a class's constants around the broader one's.
constexpr double kMisfit = 0.3, kClassSpread = 1;

Eigen::Vector4d features(const Demand& demand, double cache_bytes) {
  return {1, demand.flops, demand.bytes, demand.bytes > cache_bytes ? demand.bytes : 0};
}

struct Solution {
  Eigen::Vector4d logs;  // of the constants
  double squares = kInfinity;
};

/// The constants whose logarithms are the likeliest: minimise |ln(t / measured) / kMisfit|² + |(logs − broader) /
/// kClassSpread|², by Levenberg's and Marquardt's steps. Logarithms, so that no constant is negative, half and twice
/// the time weigh the same, and a sample moves the constants by their shares in its time.
Solution likeliest(const std::vector<ShapeSample>& samples, const Eigen::Vector4d& broader, double cache_bytes) {
  const auto count = static_cast<Eigen::Index>(samples.size());
  Eigen::Matrix<double, Eigen::Dynamic, 4> rows(count, 4);
  for (Eigen::Index i = 0; i < count; ++i) {
    const ShapeSample& sample = samples[static_cast<std::size_t>(i)];
    rows.row(i) = features(sample.demand, cache_bytes) / sample.seconds;
  }
  const auto squares_at = [&](const Eigen::Vector4d& logs) {
    const Eigen::VectorXd ratios = rows * logs.array().exp().matrix();
    return (ratios.array().log() / kMisfit).square().sum() + ((logs - broader) / kClassSpread).squaredNorm();
  };
  Solution solution{broader, squares_at(broader)};
  double damping = 1e-3;
  for (int step = 0; step < 100 && damping < 1e9; ++step) {
    const Eigen::Vector4d constants = solution.logs.array().exp();
    const Eigen::VectorXd ratios = rows * constants;
    // Row i: the share of each cost in sample i's time.
    const Eigen::MatrixXd shares = ratios.cwiseInverse().asDiagonal() * rows * constants.asDiagonal();
    const Eigen::Vector4d downhill = -(shares.transpose() * ratios.array().log().matrix()) / (kMisfit * kMisfit) -
                                     (solution.logs - broader) / (kClassSpread * kClassSpread);
    Eigen::Matrix4d curvature = shares.transpose() * shares / (kMisfit * kMisfit);
    curvature.diagonal().array() += 1 / (kClassSpread * kClassSpread) + damping;
    const Eigen::Vector4d logs = solution.logs + curvature.ldlt().solve(downhill);
    const double squares = squares_at(logs);
    if (!(squares < solution.squares)) {
      damping *= 10;
      continue;
    }
    const bool done = solution.squares - squares < 1e-12 * squares;
    solution = {logs, squares};
    damping = std::max(damping / 10, 1e-9);
    if (done) break;
  }
  return solution;
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
  return features(demand, cache_bytes).dot(Eigen::Vector4d(launch_s, s_per_flop, s_per_byte, more_s_per_byte));
}

ShapeFit::ShapeFit(const std::vector<ShapeSample>& samples, const Physics& broader) {
  check_internal(!samples.empty(), "a fit of nothing");
  const Eigen::Vector4d expected(broader.launch_s, broader.s_per_flop, broader.s_per_byte, broader.more_s_per_byte);
  check_internal(expected.minCoeff() > 0, "the broader class has a constant of {}", expected.minCoeff());
  Solution best;
  for (const double cache_bytes : {0.0, 262144.0, 1048576.0, 4194304.0, 16777216.0}) {
    const Solution solution = likeliest(samples, expected.array().log(), cache_bytes);
    if (solution.squares >= best.squares) continue;
    best = solution;
    const Eigen::Vector4d constants = solution.logs.array().exp();
    physics_ = {constants[0], constants[1], constants[2], constants[3], cache_bytes};
  }
  std::vector<std::vector<double>> shapes;
  std::vector<double> residuals, noise;
  for (const ShapeSample& sample : samples) {
    shapes.push_back(sample.shape);
    residuals.push_back(std::log(sample.seconds / physics_.seconds(sample.demand)));
    noise.push_back(sample.relative_noise);
    spread_ += residuals.back() * residuals.back() / static_cast<double>(samples.size());
  }
  spread_ = std::sqrt(spread_);
  if (!shapes[0].empty()) residual_.emplace_back(shapes, residuals, noise);
}

Estimate ShapeFit::at(const Demand& demand, std::span<const double> shape) const {
  if (residual_.empty()) return {physics_.seconds(demand), spread_, 1};
  const Kriging::Answer residual = residual_[0].at(shape);
  return {physics_.seconds(demand) * std::exp(residual.value), residual.sd, residual.novelty};
}

}  // namespace sim
