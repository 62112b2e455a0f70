#include "sim/cost/link_times.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace sim {

void LinkTimes::add(std::int64_t bytes, std::span<const double> samples_s, const PostTimes& posts) {
  if (samples_s.empty()) return;
  auto& [time, known] = sizes[bytes];
  time.add(samples_s);
  const double share = static_cast<double>(samples_s.size()) / static_cast<double>(time.count);
  known.post_s += share * (posts.post_s - known.post_s);
  known.recv_post_s += share * (posts.recv_post_s - known.recv_post_s);
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
  const double of_segment =
      static_cast<double>(bytes - below->first) / static_cast<double>(above->first - below->first);
  const auto value = [&](double low, double high) {
    // Noise at the top must not make larger transfers free.
    return beyond ? high + (of_segment - 1) * std::max(high - low, 0.0) : std::lerp(low, high, of_segment);
  };
  const Size &low = below->second, &high = above->second;
  const double total_s = value(low.time.mean_s, high.time.mean_s), latency_s = std::min(smallest_s, total_s);
  return TransferTime{
      latency_s,
      total_s - latency_s,
      high.time.jitter(),
      {value(low.posts.post_s, high.posts.post_s), value(low.posts.recv_post_s, high.posts.recv_post_s)}};
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

}  // namespace sim
