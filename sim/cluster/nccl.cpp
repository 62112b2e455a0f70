#include "sim/cluster/nccl.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "sim/error.hpp"

namespace sim {
namespace {

constexpr double kScatter = 0.05;

double rings_among(const std::map<std::uint32_t, std::uint32_t>& rings, std::uint32_t members) {
  const auto found = rings.find(members);
  return found == rings.end() ? 1 : found->second;
}

}  // namespace

NcclTime NcclTimes::best(double hops, double local_bytes, double wire_bytes) const {
  const double once_s =
      (local ? (bytes(local_bytes) / *local).in_seconds() : 0) + (bytes(wire_bytes) / per_ring).in_seconds();
  std::optional<NcclTime> least;
  for (std::size_t p = 0; p < hop.size(); ++p) {
    if (!hop[p]) continue;
    const NcclTime time{.latency_s = base.in_seconds() + hops * hop[p]->in_seconds(),
                        .bytes_s = kNcclProtocols[p].bytes_on_wire * once_s};
    if (!least || time.seconds() < least->seconds()) least = time;
  }
  check_internal(least.has_value(), "NCCL without a protocol");
  return *least;
}

NcclTime NcclTimes::ring(std::uint32_t members, double bytes, double rounds) const {
  const double n = members;
  return best(rounds * (n - 1), rounds / 2 * bytes, rounds * (n - 1) / n * bytes / rings_among(rings, members));
}

NcclTime NcclTimes::chain(std::uint32_t members, double bytes) const {
  return best(2.0 * (members - 1), bytes, 2 * bytes / rings_among(rings, members));
}

std::optional<NcclTime> NcclTimes::by_switch(std::uint32_t members, double all_bytes) const {
  if (!nvls) return std::nullopt;
  const double n = members;
  return NcclTime{.latency_s = nvls->base.in_seconds(),
                  .bytes_s = (bytes((n + 1) / n * all_bytes) / nvls->bandwidth).in_seconds()};
}

double error_of(const NcclTimes& times, const std::vector<NcclMeasurement>& measured) {
  double sum = 0;
  for (const NcclMeasurement& m : measured)
    sum += std::abs(std::log(times.ring(m.members, m.bytes, 2).seconds() / m.seconds));
  return sum / static_cast<double>(measured.size());
}

namespace {

/// The least |a x - b| with no x below 0. C. Lawson and R. Hanson, Solving Least Squares Problems, 1974, chapter 23.
Eigen::VectorXd non_negative_least_squares(const Eigen::MatrixXd& a, const Eigen::VectorXd& b) {
  const Eigen::Index unknowns = a.cols();
  Eigen::VectorXd x = Eigen::VectorXd::Zero(unknowns);
  std::vector<Eigen::Index> free;
  const auto solve = [&] {
    Eigen::MatrixXd columns(a.rows(), static_cast<Eigen::Index>(free.size()));
    for (std::size_t k = 0; k < free.size(); ++k) columns.col(static_cast<Eigen::Index>(k)) = a.col(free[k]);
    return Eigen::VectorXd(columns.colPivHouseholderQr().solve(b));
  };
  constexpr double kTolerance = 1e-10;
  for (Eigen::Index round = 0; round < 3 * unknowns; ++round) {
    const Eigen::VectorXd slope = a.transpose() * (b - a * x);
    Eigen::Index steepest = -1;
    for (Eigen::Index j = 0; j < unknowns; ++j)
      if (std::ranges::count(free, j) == 0 && slope[j] > kTolerance * b.norm() * a.col(j).norm() &&
          (steepest < 0 || slope[j] > slope[steepest]))
        steepest = j;
    if (steepest < 0) break;
    free.push_back(steepest);
    for (Eigen::VectorXd s = solve();; s = solve()) {
      double step = 1;
      for (std::size_t k = 0; k < free.size(); ++k)
        if (const double of_k = s[static_cast<Eigen::Index>(k)]; of_k <= 0)
          step = std::min(step, x[free[k]] / (x[free[k]] - of_k));
      for (std::size_t k = 0; k < free.size(); ++k) x[free[k]] += step * (s[static_cast<Eigen::Index>(k)] - x[free[k]]);
      if (step == 1) break;
      std::erase_if(free, [&](Eigen::Index j) { return x[j] <= kTolerance * x.maxCoeff(); });
      for (Eigen::Index j = 0; j < unknowns; ++j)
        if (std::ranges::count(free, j) == 0) x[j] = 0;
      if (free.empty()) break;
    }
  }
  return x;
}

/// With the protocols given: base, hop by protocol, seconds per local byte, per byte of a ring.
class NcclFit {
 public:
  NcclFit(const std::vector<NcclMeasurement>& measured, const std::map<std::uint32_t, std::uint32_t>& rings,
          std::vector<std::size_t> protocols)
      : measured_(measured), rings_(rings), protocols_(std::move(protocols)) {
    several_ =
        std::ranges::any_of(measured, [&](const NcclMeasurement& m) { return m.members != measured.front().members; });
    for (const NcclMeasurement& m : measured) sizes_.push_back(m.bytes);
    std::ranges::sort(sizes_);
    const auto twice = std::ranges::unique(sizes_);
    sizes_.erase(twice.begin(), twice.end());
  }

  NcclTimes run() {
    std::vector<double> cuts(protocols_.size() - 1, 0);
    try_cuts(cuts, 0);
    NcclTimes times{.base = seconds(best_[0]), .hop = {}, .local = {}, .per_ring = {}, .rings = rings_, .nvls = {}};
    for (std::size_t k = 0; k < protocols_.size(); ++k) times.hop[protocols_[k]] = seconds(best_[index(1 + k)]);
    const double per_local = best_[best_.size() - 2], per_ring = best_[best_.size() - 1];
    if (per_local > 0) times.local = BytesPerSecond::from_base(1 / per_local);
    // Where sizes are too small to tell.
    constexpr double kFastest = 1e-15;
    times.per_ring = BytesPerSecond::from_base(1 / std::max(per_ring, kFastest));
    return times;
  }

 private:
  static Eigen::Index index(std::size_t k) { return static_cast<Eigen::Index>(k); }

  /// What a measurement's time is made of, by protocol number k.
  [[nodiscard]] Eigen::RowVectorXd parts(const NcclMeasurement& m, std::size_t k) const {
    const double n = m.members, wire = kNcclProtocols[protocols_[k]].bytes_on_wire;
    Eigen::RowVectorXd row = Eigen::RowVectorXd::Zero(index(protocols_.size() + 3));
    row[0] = 1;
    row[index(1 + k)] = 2 * (n - 1);
    if (several_) row[row.size() - 2] = wire * m.bytes;
    row[row.size() - 1] = wire * 2 * (n - 1) / n * m.bytes / rings_among(rings_, m.members);
    return row;
  }

  /// Every way to give sizes to protocols in order, up to cuts[at] each.
  void try_cuts(std::vector<double>& cuts, std::size_t at) {
    if (at == cuts.size()) {
      improve(cuts);
      return;
    }
    for (const double size : sizes_) {
      if (at > 0 && size < cuts[at - 1]) continue;
      cuts[at] = size;
      try_cuts(cuts, at + 1);
    }
  }

  /// Least squares with each measurement by one protocol, weighted so that they are the robust errors; then each by the
  /// protocol that is faster for it, again.
  void improve(const std::vector<double>& cuts) {
    constexpr int kRounds = 12;
    const std::size_t count = measured_.size();
    std::vector<std::size_t> by(count);
    for (std::size_t i = 0; i < count; ++i)
      by[i] =
          static_cast<std::size_t>(std::ranges::count_if(cuts, [&](double cut) { return measured_[i].bytes > cut; }));
    Eigen::VectorXd weights = Eigen::VectorXd::Ones(index(count));
    for (int round = 0; round < kRounds; ++round) {
      Eigen::MatrixXd a(index(count), index(protocols_.size() + 3));
      for (std::size_t i = 0; i < count; ++i)
        a.row(index(i)) = parts(measured_[i], by[i]) * (weights[index(i)] / measured_[i].seconds);
      Eigen::VectorXd scale = a.colwise().maxCoeff();
      for (double& s : scale) s = s > 0 ? s : 1;
      const Eigen::VectorXd x =
          non_negative_least_squares(a * scale.cwiseInverse().asDiagonal(), weights).cwiseQuotient(scale);
      double error = 0;
      std::vector<std::size_t> faster(count);
      for (std::size_t i = 0; i < count; ++i) {
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t k = 0; k < protocols_.size(); ++k)
          if (const double s = parts(measured_[i], k).dot(x); s < least) least = s, faster[i] = k;
        const double off = std::log(std::max(least, 1e-12) / measured_[i].seconds) / kScatter;
        error += std::sqrt(1 + off * off);
        weights[index(i)] = std::pow(1 + off * off, -0.25);
      }
      if (error < error_) error_ = error, best_ = x;
      by = faster;
    }
  }

  const std::vector<NcclMeasurement>& measured_;
  const std::map<std::uint32_t, std::uint32_t>& rings_;
  std::vector<std::size_t> protocols_;  // of kNcclProtocols
  std::vector<double> sizes_;
  bool several_ = false;  // numbers of members
  double error_ = std::numeric_limits<double>::infinity();
  Eigen::VectorXd best_;
};

}  // namespace

NcclTimes fit_nccl(const std::vector<NcclMeasurement>& measured, const std::map<std::uint32_t, std::uint32_t>& rings) {
  constexpr std::size_t kLeast = 3;
  if (measured.size() < kLeast)
    throw ConfigError("{} measured all_reduce{}: a fit needs {} or more", measured.size(),
                      measured.size() == 1 ? "" : "s", kLeast);
  for (const NcclMeasurement& m : measured)
    if (m.members < 2 || !(m.bytes > 0) || !(m.seconds > 0))
      throw ConfigError(
          "an all_reduce of {} bytes among {} in {} us: two members or more, and more than 0 of the others", m.bytes,
          m.members, m.seconds * 1e6);
  std::set<double> sizes;
  for (const NcclMeasurement& m : measured) sizes.insert(m.bytes);
  constexpr std::size_t kMostSizes = 64;  // the time of a fit grows with their square
  if (sizes.size() > kMostSizes)
    throw ConfigError("all_reduces of {} sizes: a fit takes {} at most", sizes.size(), kMostSizes);
  constexpr double kSmall = 1 << 20;
  const bool has_small = std::ranges::any_of(measured, [](const NcclMeasurement& m) { return m.bytes < kSmall; });
  return NcclFit(measured, rings, has_small ? std::vector<std::size_t>{0, 1, 2} : std::vector<std::size_t>{1, 2}).run();
}

}  // namespace sim
