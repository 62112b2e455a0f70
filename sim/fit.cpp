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

Eigen::Vector4d features(const Demand& demand, double cache_bytes) {
  const bool cached = demand.bytes <= cache_bytes;
  return {1, demand.flops, cached ? demand.bytes : 0, cached ? 0 : demand.bytes};
}

struct Solution {
  Eigen::Vector4d constants = Eigen::Vector4d::Zero();
  double residual = kInfinity;
};

/// Non-negative least squares of rows · constants = 1: the best of all subsets of the four unknowns whose solution has
/// no negative constant (C. Lawson and R. Hanson, Solving Least Squares Problems, 1974, chapter 23; with four unknowns
/// all 15 subsets can be tried).
Solution least_squares(const Eigen::Matrix<double, Eigen::Dynamic, 4>& rows) {
  Solution best;
  for (unsigned subset = 1; subset < 16; ++subset) {
    std::vector<int> columns;
    for (int c = 0; c < 4; ++c)
      if ((subset & (1U << c)) && rows.col(c).cwiseAbs().maxCoeff() > 0) columns.push_back(c);
    if (columns.empty() || static_cast<Eigen::Index>(columns.size()) > rows.rows()) continue;
    Eigen::MatrixXd chosen(rows.rows(), static_cast<Eigen::Index>(columns.size()));
    Eigen::VectorXd scale(chosen.cols());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const auto column = static_cast<Eigen::Index>(c);
      scale[column] = rows.col(columns[c]).norm();  // FLOPs and seconds differ by ten powers of ten
      chosen.col(column) = rows.col(columns[c]) / scale[column];
    }
    const Eigen::VectorXd x = chosen.colPivHouseholderQr().solve(Eigen::VectorXd::Ones(rows.rows()));
    if (x.minCoeff() < 0) continue;
    const double residual = (chosen * x - Eigen::VectorXd::Ones(rows.rows())).squaredNorm();
    if (residual >= best.residual * (1 - 1e-9)) continue;
    best.residual = residual;
    best.constants.setZero();
    for (std::size_t c = 0; c < columns.size(); ++c)
      best.constants[columns[c]] = x[static_cast<Eigen::Index>(c)] / scale[static_cast<Eigen::Index>(c)];
  }
  return best;
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

ShapeFit::ShapeFit(const std::vector<ShapeSample>& samples) {
  check_internal(!samples.empty(), "a fit of nothing");
  Solution best;
  for (const double cache_bytes : {0.0, 262144.0, 1048576.0, 4194304.0, 16777216.0}) {
    Eigen::Matrix<double, Eigen::Dynamic, 4> rows(static_cast<Eigen::Index>(samples.size()), 4);
    for (std::size_t i = 0; i < samples.size(); ++i)
      rows.row(static_cast<Eigen::Index>(i)) = features(samples[i].demand, cache_bytes) / samples[i].seconds;
    const Solution solution = least_squares(rows);
    if (solution.residual >= best.residual) continue;
    best = solution;
    cache_bytes_ = cache_bytes;
  }
  constants_ = best.constants;
  std::vector<std::vector<double>> shapes;
  std::vector<double> residuals, noise;
  for (const ShapeSample& sample : samples) {
    shapes.push_back(sample.shape);
    residuals.push_back(std::log(sample.seconds / physics(sample.demand)));
    noise.push_back(sample.relative_noise);
    spread_ += residuals.back() * residuals.back() / static_cast<double>(samples.size());
  }
  spread_ = std::sqrt(spread_);
  if (!shapes[0].empty()) residual_.emplace_back(shapes, residuals, noise);
}

double ShapeFit::physics(const Demand& demand) const {
  constexpr double kLeast_s = 1e-9;  // a work without any demand that the fit knows
  return std::max(features(demand, cache_bytes_).dot(constants_), kLeast_s);
}

Estimate ShapeFit::at(const Demand& demand, std::span<const double> shape) const {
  if (residual_.empty()) return {physics(demand), spread_, 1};
  const Kriging::Answer residual = residual_[0].at(shape);
  return {physics(demand) * std::exp(residual.value), residual.sd, residual.novelty};
}

}  // namespace sim
