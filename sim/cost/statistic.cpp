#include "sim/cost/statistic.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <numeric>
#include <vector>

#include "sim/error.hpp"

namespace sim {

double mean_of(std::span<const double> values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void Statistic::add(std::span<const double> samples_s) {
  if (samples_s.empty()) return;
  for (double sample : samples_s) check_internal(std::isfinite(sample) && sample >= 0, "a sample of {} s", sample);
  const double n = static_cast<double>(samples_s.size()), before = static_cast<double>(count), all = n + before;
  const double batch_mean = mean_of(samples_s);
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

double middle_of(std::span<const double> samples_s) {
  std::vector<double> sorted(samples_s.begin(), samples_s.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

Interruptions without_interruptions(std::span<double> samples_s) {
  constexpr double kLeast_s = 20e-6;  // a cold cache makes a work of 1 µs several times slower, too
  constexpr std::size_t kFewest = 5;
  Interruptions found{std::accumulate(samples_s.begin(), samples_s.end(), 0.0), 0};
  if (samples_s.size() < kFewest) return found;
  const double median = middle_of(samples_s);
  for (double& sample : samples_s)
    if (sample > kInterruptedFactor * median && sample > median + kLeast_s) {
      found.lost_s += sample - median;
      sample = median;
    }
  return found;
}

void LinkTimes::add(std::int64_t bytes, std::span<const double> samples_s, const PostTimes& posts) {
  if (samples_s.empty()) return;
  auto& [time, known, beside] = sizes[bytes];
  time.add(samples_s);
  const double share = static_cast<double>(samples_s.size()) / static_cast<double>(time.count);
  known.send_overhead_s += share * (posts.send_overhead_s - known.send_overhead_s);
  known.recv_overhead_s += share * (posts.recv_overhead_s - known.recv_overhead_s);
  known.engaged_s += share * (posts.engaged_s - known.engaged_s);
  known.rewriting_s += share * (posts.rewriting_s - known.rewriting_s);
  if (posts.core_time <= 0) return;  // nothing was computed beside these
  beside += std::ssize(samples_s);
  known.core_time +=
      (posts.core_time - known.core_time) * static_cast<double>(samples_s.size()) / static_cast<double>(beside);
}

std::optional<TransferTime> LinkTimes::at(std::int64_t bytes) const {
  if (sizes.empty()) return std::nullopt;
  const double smallest_s = sizes.begin()->second.time.mean_s;
  auto above = sizes.lower_bound(bytes);
  if (above == sizes.begin()) return TransferTime{smallest_s, 0, above->second.time.jitter(), above->second.posts};
  const bool beyond = above == sizes.end();
  if (beyond && sizes.size() == 1) return std::nullopt;
  if (beyond) --above;
  const auto below = std::prev(above);
  const auto value = [&](double low, double high, double smallest) {
    const double slope = (high - low) / static_cast<double>(above->first - below->first);
    if (!beyond) return low + slope * static_cast<double>(bytes - below->first);
    // Noise at the top must not make larger transfers free.
    const double of_all = (high - smallest) / static_cast<double>(above->first - sizes.begin()->first);
    return high + std::max({slope, of_all, 0.0}) * static_cast<double>(bytes - above->first);
  };
  const Size &low = below->second, &high = above->second;
  const PostTimes& least = sizes.begin()->second.posts;
  const double total_s = value(low.time.mean_s, high.time.mean_s, smallest_s),
               latency_s = std::min(smallest_s, total_s);
  return TransferTime{latency_s,
                      total_s - latency_s,
                      high.time.jitter(),
                      {value(low.posts.send_overhead_s, high.posts.send_overhead_s, least.send_overhead_s),
                       value(low.posts.recv_overhead_s, high.posts.recv_overhead_s, least.recv_overhead_s),
                       value(low.posts.engaged_s, high.posts.engaged_s, least.engaged_s),
                       value(low.posts.rewriting_s, high.posts.rewriting_s, least.rewriting_s),
                       beyond ? high.posts.core_time : value(low.posts.core_time, high.posts.core_time, 0)}};
}

LinkTimes LinkTimes::monotone() const {
  struct Pool {  // of sizes that follow each other
    double mean_s = 0, weight = 0;
    std::size_t sizes = 0;
  };
  std::vector<Pool> pools;  // pool-adjacent-violators
  for (const auto& [bytes, size] : sizes) {
    Pool pool{size.time.mean_s, static_cast<double>(size.time.count), 1};
    for (; !pools.empty() && pools.back().mean_s > pool.mean_s; pools.pop_back()) {
      const double weight = pool.weight + pools.back().weight;
      pool.mean_s = (pool.mean_s * pool.weight + pools.back().mean_s * pools.back().weight) / weight;
      pool.weight = weight;
      pool.sizes += pools.back().sizes;
    }
    pools.push_back(pool);
  }
  LinkTimes result = *this;
  auto row = result.sizes.begin();
  for (const Pool& pool : pools)
    for (std::size_t i = 0; i < pool.sizes; ++i, ++row)
      if (pool.sizes > 1 && row->second.time.mean_s > 0) row->second.time.scale(pool.mean_s / row->second.time.mean_s);
  return result;
}

std::optional<AlphaBeta> LinkTimes::line() const {
  constexpr double kShortest_s = 1e-15;  // its square's reciprocal is a number
  if (sizes.size() < 2) return std::nullopt;
  double w = 0, wx = 0, wt = 0, wxx = 0, wxt = 0;
  for (const auto& [bytes, size] : sizes) {
    if (size.time.mean_s < kShortest_s) return std::nullopt;
    const double x = static_cast<double>(bytes), t = size.time.mean_s, weight = 1 / (t * t);
    w += weight, wx += weight * x, wt += weight * t, wxx += weight * x * x, wxt += weight * x * t;
  }
  AlphaBeta fit{.sizes = sizes.size()};
  fit.s_per_byte = (w * wxt - wx * wt) / (w * wxx - wx * wx);
  fit.alpha_s = (wt - fit.s_per_byte * wx) / w;
  // Neither can be negative; the constrained optimum then lies on the edge.
  if (fit.alpha_s < 0) fit.alpha_s = 0, fit.s_per_byte = wxt / wxx;
  if (fit.s_per_byte < 0) fit.s_per_byte = 0, fit.alpha_s = wt / w;
  // Sizes that hardly differ have no line.
  if (!std::isfinite(fit.alpha_s) || !std::isfinite(fit.s_per_byte)) return std::nullopt;
  double squares = 0;
  for (const auto& [bytes, size] : sizes) {
    const double off = (fit.alpha_s + fit.s_per_byte * static_cast<double>(bytes)) / size.time.mean_s - 1;
    squares += off * off;
  }
  fit.residual = std::sqrt(squares / static_cast<double>(fit.sizes));
  return fit;
}

double student_t(double z, double degrees) {
  if (degrees < 3) {  // where the expansion is too small: exact for one degree and for two
    const double p = std::erf(z / std::numbers::sqrt2);  // of lying within ± z
    return degrees < 2 ? std::tan(std::numbers::pi / 2 * p) : p * std::sqrt(2 / (1 - p * p));
  }
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * degrees * degrees) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * degrees * degrees * degrees);
}

}  // namespace sim
