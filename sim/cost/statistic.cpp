#include "sim/cost/statistic.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "sim/error.hpp"

namespace sim {

void Statistic::add(std::span<const double> samples_s) {
  if (samples_s.empty()) return;
  for (double sample : samples_s) check_internal(std::isfinite(sample) && sample >= 0, "a sample of {} s", sample);
  const double n = static_cast<double>(samples_s.size()), before = static_cast<double>(count), all = n + before;
  const double batch_mean = std::accumulate(samples_s.begin(), samples_s.end(), 0.0) / n;
  double squares = sd_s ? *sd_s * *sd_s * (before - 1) : 0, within = 0;
  for (double sample : samples_s) within += (sample - batch_mean) * (sample - batch_mean);
  squares += within;
  if (n > 1) {
    const double weight = jitter_s ? before - 1 : 0;
    jitter_s = std::sqrt(((jitter_s ? *jitter_s * *jitter_s : 0) * weight + within) / (weight + n - 1));
  }
  // Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances (1979),
  // equation 2.1b.
  squares += (batch_mean - mean_s) * (batch_mean - mean_s) * before * n / all;

  std::vector<double> sorted(samples_s.begin(), samples_s.end());
  std::ranges::sort(sorted);
  const double batch_median = std::midpoint(sorted[(sorted.size() - 1) / 2], sorted[sorted.size() / 2]);
  median_s = (median_s * before + batch_median * n) / all;
  mean_s = (mean_s * before + batch_mean * n) / all;
  count += static_cast<std::int64_t>(samples_s.size());
  if (count > 1) sd_s = std::sqrt(squares / (all - 1));
}

void Statistic::scale(double factor) {
  mean_s *= factor, median_s *= factor;
  if (sd_s) *sd_s *= factor;
  if (jitter_s) *jitter_s *= factor;
}

void RankSpread::add(const RankSpread& more) {
  if (more.count == 0) return;
  count += more.count;
  const double share = static_cast<double>(more.count) / static_cast<double>(count);
  difference += share * (more.difference - difference);
  hiccup_variance += share * (more.hiccup_variance - hiccup_variance);
}

double RankSpread::jitter() const {
  // Two normal times of deviation σ differ by 2σ/√π on average.
  return std::sqrt(std::max(0.0, std::numbers::pi / 4 * difference * difference - hiccup_variance));
}

Interruptions without_interruptions(std::span<double> samples_s) {
  constexpr double kFactor = 5, kLeast_s = 20e-6;  // a cold cache makes a work of 1 µs several times slower, too
  constexpr std::size_t kFewest = 5;
  Interruptions found{std::accumulate(samples_s.begin(), samples_s.end(), 0.0), 0};
  if (samples_s.size() < kFewest) return found;
  std::vector<double> sorted(samples_s.begin(), samples_s.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  const double median = *middle;
  for (double& sample : samples_s)
    if (sample > kFactor * median && sample > median + kLeast_s) {
      found.lost_s += sample - median;
      sample = median;
    }
  return found;
}

}  // namespace sim
