// What is kept of measured times once the samples are gone. Each summary can be merged with further samples.
//
//   LinkTimes times;  // of one kind of transfer, by size: between the sizes, beyond them, and as a line
//   times.add(/*bytes=*/4096, samples_s, {/*send_overhead_s=*/20e-6, /*recv_overhead_s=*/5e-6});
//   times.add(1 << 20, more_samples_s, {});
//   times.at(1 << 16)->latency_s;  times.line()->alpha_s;
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

namespace sim {

/// The arithmetic mean; 0 of none.
double mean_of(std::span<const double> values);

/// A summary that further samples can be merged into.
struct Statistic {
  std::int64_t count = 0;
  double mean_s = 0;
  std::optional<double> sd_s;  // of the sample (n − 1); unavailable for a single one
  /// Merged from several batches: the mean of their medians weighted by count, since the samples are gone.
  double median_s = 0;

  /// The deviation of the samples from their own batch's mean: the drift between batches
  /// isn't in it. Unavailable below two.
  std::optional<double> jitter_s = {};

  /// One batch: samples taken within a short time.
  void add(std::span<const double> samples_s);
  /// All times by a factor.
  void scale(double factor);
  /// jitter_s / mean; 0 where either is missing.
  [[nodiscard]] double jitter() const { return jitter_s && mean_s > 0 ? *jitter_s / mean_s : 0; }
  friend bool operator==(const Statistic&, const Statistic&) = default;
};

/// How far apart the compute times of ranks lie that run the same at the same time, in a step.
struct RankSpread {
  std::int64_t count = 0;  // steps; the others are means over them, relative to the ranks' mean
  double difference = 0;   // of two ranks, absolute: what the slower one adds is half of it
  /// What independent hiccups of single ops would give a rank's time.
  double hiccup_variance = 0;
  void add(const RankSpread& more);
  /// The standard deviation of a rank's pace that explains the rest, as of a normal distribution.
  [[nodiscard]] double jitter() const;
  friend bool operator==(const RankSpread&, const RankSpread&) = default;
};

/// Time that the machine took from computing (for the host's other guests, for timers). It hits whatever runs, so it is
/// kept as a rate.
struct Interruptions {
  double played_s = 0, lost_s = 0;  // the former includes the latter
  /// Lost per second of undisturbed work.
  [[nodiscard]] double share() const { return played_s > lost_s ? lost_s / (played_s - lost_s) : 0; }
  void add(const Interruptions& more) { played_s += more.played_s, lost_s += more.lost_s; }
  friend bool operator==(const Interruptions&, const Interruptions&) = default;
};

/// What few transfers took longer by far: who waits for one is woken late now and then, the more so the idler the machine.
/// It happens to a transfer, however short, and to no computing.
struct LateTransfers {
  std::int64_t count = 0;  // transfers, all of them
  double lost_s = 0;
  /// Lost per transfer.
  [[nodiscard]] double mean_s() const { return count > 0 ? lost_s / static_cast<double>(count) : 0; }
  void add(const LateTransfers& more) { count += more.count, lost_s += more.lost_s; }
  friend bool operator==(const LateTransfers&, const LateTransfers&) = default;
};

constexpr double kInterruptedFactor = 5;
/// The upper one of two; `samples_s` isn't empty.
double middle_of(std::span<const double> samples_s);

/// Replaces samples above 5 × the batch's median (and 20 µs over it) by the median, and returns the time removed: one
/// outlier would dominate the mean of a few short samples. What is shorter can't be told from the op's own variation.
Interruptions without_interruptions(std::span<double> samples_s);

/// Host time until the thread that posts a transfer goes on: of a send or collective, and of a recv.
struct PostTimes {
  double send_overhead_s = 0, recv_overhead_s = 0;
  double engaged_s = 0;    // TransferCost::engaged_s; 0 where nobody shares a core
  double rewriting_s = 0;  // TransferCost::rewriting_s; 0 where nobody reads another's memory
  /// Seconds of its members' cores that it takes from compute beside it, per second that it takes alone; 0: not known.
  double core_time = 0;
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

/// The measured times of one kind of transfer.
struct LinkTimes {
  struct Size {
    Statistic time;
    PostTimes posts;          // means
    std::int64_t beside = 0;  // samples that core_time is of
  };
  std::map<std::int64_t, Size> sizes;  // by bytes

  /// `posts`: means over these samples.
  void add(std::int64_t bytes, std::span<const double> samples_s, const PostTimes& posts);
  /// The time of a size: between the measured ones piecewise linear in bytes. Below the smallest: its time, as latency.
  /// Above the largest: the last segment's slope goes on, or that of all sizes together where it is steeper.
  /// Unavailable: no sizes, or only one and `bytes` above it.
  [[nodiscard]] std::optional<TransferTime> at(std::int64_t bytes) const;
  /// Where noise makes a larger transfer faster than a smaller one, both take their mean.
  [[nodiscard]] LinkTimes monotone() const;
  /// Unavailable below two sizes.
  [[nodiscard]] std::optional<AlphaBeta> line() const;
};

/// Student's t with the same probability as the normal quantile `z`: Abramowitz and Stegun 26.7.5. For 97.5 % within
/// 0.3 % from 3 degrees of freedom on.
double student_t(double z, double degrees);

}  // namespace sim
