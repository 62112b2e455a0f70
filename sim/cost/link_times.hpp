// The measured times of one kind of transfer, by size: between the sizes, beyond them, and as a line.
//
//   LinkTimes times;
//   times.add(/*bytes=*/4096, samples_s, {/*send_overhead_s=*/20e-6, /*recv_overhead_s=*/5e-6});
//   times.add(1 << 20, more_samples_s, {});
//   times.at(1 << 16)->latency_s;  times.line()->alpha_s;
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "sim/cost/statistic.hpp"

namespace sim {

/// Host time until the thread that posts a transfer goes on: of a send or collective, and of a recv.
struct PostTimes {
  double send_overhead_s = 0, recv_overhead_s = 0;
};

/// A transfer's time: a part that doesn't depend on the size, and the rest.
struct TransferTime {
  double latency_s = 0, wire_s = 0;
  double jitter = 0;  // relative standard deviation at the nearest measured size above
  PostTimes posts;
};

/// t(s) = α + s/β over the measured sizes. Each size weighs 1/t², so the relative residuals are minimised: the sizes
/// span decades.
struct AlphaBeta {
  double alpha_s = 0, s_per_byte = 0;  // neither negative
  std::size_t sizes = 0;
  double residual = 0;  // √(mean of ((fit − t)/t)²)
};

struct LinkTimes {
  struct Size {
    Statistic time;
    PostTimes posts;  // means
  };
  std::map<std::int64_t, Size> sizes;  // by bytes

  /// `posts`: means over these samples.
  void add(std::int64_t bytes, std::span<const double> samples_s, const PostTimes& posts);
  /// Between the sizes piecewise linear in bytes. Below the smallest: its time, as latency. Above the largest: the last
  /// segment's slope goes on, or that of all sizes together where it is steeper. Unavailable: no sizes, or only one and
  /// `bytes` above it.
  [[nodiscard]] std::optional<TransferTime> at(std::int64_t bytes) const;
  /// Where noise makes a larger transfer faster than a smaller one, both take their mean.
  [[nodiscard]] LinkTimes monotone() const;
  /// Unavailable below two sizes.
  [[nodiscard]] std::optional<AlphaBeta> line() const;
};

}  // namespace sim
