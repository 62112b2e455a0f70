#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <utility>

#include "sim/simulate/step.hpp"

namespace sim {

/// A number in (0, 1].
double DrawnSteps::uniform() { return (static_cast<double>(bits_() >> 11U) + 1) * 0x1p-53; }

/// G. E. P. Box and M. E. Muller, A note on the generation of random normal deviates, 1958.
double DrawnSteps::normal() {
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

/// A gamma variable of mean 1. G. Marsaglia and W. W. Tsang, A simple method for generating gamma variables, ACM
/// Transactions on Mathematical Software 26(3), 2000.
double DrawnSteps::gamma(double shape) {
  if (shape < 1) return gamma(shape + 1) * (shape + 1) / shape * std::pow(uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(), root = 1 + c * x, v = root * root * root;
    if (v <= 0) continue;
    const double u = uniform();
    const bool surely = u < 1 - 0.0331 * x * x * x * x;  // their squeeze, which saves two logarithms
    if (surely || std::log(u) < x * x / 2 + d - d * v + d * std::log(v)) return d * v / shape;
  }
}

namespace {

/// The highest power's coefficient first.
double polynomial(std::initializer_list<double> coefficients, double x) {
  double sum = 0;
  for (const double coefficient : coefficients) sum = sum * x + coefficient;
  return sum;
}

/// P. J. Acklam, An algorithm for computing the inverse normal cumulative distribution function, 2003: within 1.2e-9 of
/// it, relatively. For a probability of at most a half that a variable is larger.
double normal_exceeded_with(double probability) {
  constexpr double kTail = 0.02425;
  if (probability < kTail) {
    const double q = std::sqrt(-2 * std::log(probability));
    return -polynomial({-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838, -2.549732539343734,
                        4.374664141464968, 2.938163982698783},
                       q) /
           polynomial({7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996, 3.754408661907416, 1}, q);
  }
  const double q = 0.5 - probability, r = q * q;
  return q *
         polynomial({-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02, 1.383577518672690e+02,
                     -3.066479806614716e+01, 2.506628277459239},
                    r) /
         polynomial({-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                     -1.328068155288572e+01, 1},
                    r);
}

/// Of one rank's compute since it was together with the others of a collective.
struct SinceTogether {
  double mean_s = 0;                // of all of them
  double variance = 0, pace_s = 0;  // by hiccups; standard deviation by their paces
  double late_s = 0;                // this rank, by its draws
  double slowest_s = 0;             // at the latest post: of all of them
  std::optional<double> largest;    // of the others, in standard deviations

  [[nodiscard]] double sd() const { return std::sqrt(variance + pace_s * pace_s); }
};

}  // namespace

DrawnSteps::Largest::Largest(std::uint32_t of_count) : count(of_count), mean(0), sd(0) {
  constexpr int kPoints = 64;
  double squares = 0;
  for (int k = 0; k < kPoints; ++k) {
    const double z = quantile((k + 0.5) / kPoints);
    mean += z / kPoints, squares += z * z / kPoints;
  }
  sd = std::sqrt(squares - mean * mean);
}

double DrawnSteps::Largest::quantile(double probability) const {
  const double log_below = std::log(probability) / count, above = -std::expm1(log_below);  // of each
  if (above > 0.5) return -normal_exceeded_with(std::exp(log_below));
  return normal_exceeded_with(std::max(above, std::numeric_limits<double>::min()));
}

/// The mean and standard deviation of the others' sums make a gamma distribution, whose quantiles are about those of a
/// cube (E. B. Wilson and M. M. Hilferty, 1931). For others than the members of a collective, those who have waited for
/// it are as late as its slowest; what that is on average they all are.
void DrawnSteps::wait_for_slowest(std::uint32_t rank, Factors& step) {
  const Role& role = placed_.role(rank);
  const auto end = static_cast<std::uint32_t>(alike_.size() - 1);  // of the last entry
  std::vector<SinceTogether> since(alike_.size());
  const auto largest_of = [&](std::uint32_t count) -> const Largest& {
    return largest_.try_emplace(count, count).first->second;
  };
  const auto late_s = [&](std::uint32_t group) {
    SinceTogether& now = since[group];
    if (!(now.mean_s > 0)) return 0.0;
    if (!now.largest) now.largest = largest_of(alike_[group][rank] - 1).quantile(uniform());
    const double spread = now.sd() / now.mean_s;
    const double root = std::max(0.0, 1 - spread * spread / 9 + *now.largest * spread / 3);
    now.slowest_s = std::max(now.late_s, now.mean_s * (root * root * root - 1));
    return now.slowest_s - now.late_s;
  };
  const auto come_together = [&](std::uint32_t group) {
    const SinceTogether were = std::exchange(since[group], {});
    const Largest& largest = largest_of(alike_[group][rank]);
    for (std::uint32_t other = 0; other <= end && were.mean_s > 0; ++other) {
      SinceTogether& of_other = since[other];
      if (other == group || alike_[other][rank] < 2) continue;
      const double share = std::min(1.0, of_other.mean_s / were.mean_s);
      of_other.variance = std::max(0.0, of_other.variance - share * (1 - largest.sd * largest.sd) * were.variance);
      of_other.pace_s = std::max(0.0, of_other.pace_s - share * (1 - largest.sd) * were.pace_s);
      of_other.late_s += share * (were.slowest_s - largest.mean * were.sd() - were.late_s);
    }
    if (alike_[group][rank] == alike_[end][rank]) since[end] = {};
  };
  std::uint32_t last = kNone;  // instruction that computed
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    const std::uint32_t posted = role.kind[i] == InstructionKind::wait ? role.awaits[i] : i;
    if (role.kind[posted] == InstructionKind::collective && alike_[role.peer[posted]][rank] > 1) {
      if (posted == i)
        step.late_s[rank][i] = static_cast<float>(late_s(role.peer[i]));
      else
        come_together(role.peer[posted]);
    } else if (is_computed(role.kind[i])) {
      const double mean_s = costs_.work_s[role.work[i] * costs_.busy_levels];
      if (!(mean_s > 0)) continue;
      const double own_s = costs_.jitter.empty() ? 0 : costs_.jitter[role.work[i]] * mean_s;
      last = i;
      for (SinceTogether& of_group : since) {
        of_group.mean_s += mean_s;
        of_group.variance += own_s * own_s;
        of_group.pace_s += costs_.rank_jitter * mean_s;
        of_group.late_s += (static_cast<double>(step.compute[rank][i]) - 1) * mean_s;
      }
    }
  }
  // Steps that reach into each other have no such end.
  if (last != kNone && placed_.program.bodies() == 1)
    step.compute[rank][last] += static_cast<float>(late_s(end) / costs_.work_s[role.work[last] * costs_.busy_levels]);
}

DrawnSteps::DrawnSteps(const PlacedProgram& placed, const Costs& costs) : placed_(placed), costs_(costs) {
  constexpr std::size_t kMostFactors = std::size_t{32} << 20;
  std::size_t factors = placed.matching.participants.size();
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) factors += placed.role(rank).size();
  const bool jitters = costs.rank_jitter > 0 ||
                       std::ranges::any_of(costs.jitter, [](double jitter) { return jitter > 0; }) ||
                       std::ranges::any_of(costs.transfers, [](const TransferCost& cost) { return cost.jitter > 0; });
  varies_ = placed.program.ranks() > 1 && jitters && kBatch * factors <= kMostFactors;
  if (!varies_) return;
  if (placed.program.classes) count_alike();
  batch_.resize(kBatch);
  for (Factors& step : batch_) {
    for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) step.compute.emplace_back(placed.role(rank).size());
    step.transfer.resize(placed.matching.participants.size());
    if (placed.program.classes)
      for (const std::vector<float>& of_rank : step.compute) step.late_s.emplace_back(of_rank.size());
  }
}

void DrawnSteps::count_alike() {
  const Program& program = placed_.program;
  for (std::uint32_t g = 0; g < program.groups.size(); ++g) {
    std::vector<std::uint32_t>& of_group = alike_.emplace_back(placed_.ranks(), 0);
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank)
      for (const std::uint32_t member : program.groups[g].members[placed_.matching.list_of[g][rank]])
        of_group[rank] += program.player_of(member) == rank ? 1 : 0;
  }
  alike_.push_back(program.classes->size);
}

/// One factor per step. n gamma draws over their mean are n times a Dirichlet distribution, whose parts of shape a have
/// the variance (n - 1) / (n a + 1): the shape that makes it the jitter's square.
template <class FactorOf>
void DrawnSteps::draw(double jitter, FactorOf factor_of) {
  constexpr double kSteps = kBatch, kLeastShape = 1e-3;
  if (!(jitter > 0)) return;
  const double shape = std::max(((kSteps - 1) / (jitter * jitter) - 1) / kSteps, kLeastShape);
  double factors[kBatch], sum = 0;
  for (double& factor : factors) sum += factor = gamma(shape);
  for (std::size_t s = 0; s < kBatch; ++s)
    factor_of(s) *= sum > 0 ? static_cast<float>(factors[s] * kSteps / sum) : 1.0F;
}

const std::vector<Factors>& DrawnSteps::next() {
  for (Factors& step : batch_) {
    for (std::vector<float>& of_rank : step.compute) std::ranges::fill(of_rank, 1.0F);
    std::ranges::fill(step.transfer, 1.0F);
    for (std::vector<float>& of_rank : step.late_s) std::ranges::fill(of_rank, 0.0F);
  }
  for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) {
    const Role& role = placed_.role(rank);
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.work[i] != kNone && !costs_.jitter.empty())
        draw(costs_.jitter[role.work[i]], [&](std::size_t s) -> float& { return batch_[s].compute[rank][i]; });
      const bool collective = role.kind[i] == InstructionKind::collective;
      // Once per transfer.
      if (collective ? placed_.members(rank, i).front() != rank : role.kind[i] != InstructionKind::send) continue;
      const std::uint32_t id = placed_.transfer(rank, i);
      draw(costs_.transfers[costs_.transfer_of[id]].jitter,
           [&](std::size_t s) -> float& { return batch_[s].transfer[id]; });
    }
  }
  for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) {
    std::array<float, kBatch> pace;
    pace.fill(1.0F);
    draw(costs_.rank_jitter, [&](std::size_t s) -> float& { return pace[s]; });
    for (std::size_t s = 0; s < kBatch; ++s)
      for (float& factor : batch_[s].compute[rank]) factor *= pace[s];
    if (placed_.program.ranks_of(rank) > 1)
      for (std::size_t s = 0; s < kBatch; ++s) wait_for_slowest(rank, batch_[s]);
  }
  return batch_;
}

}  // namespace sim
