// What is kept of measured times once the samples are gone. Each summary can be merged with further samples.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace sim {

/// A summary that further samples can be merged into.
struct Statistic {
  std::int64_t count = 0;
  double mean_s = 0;
  std::optional<double> sd_s;  // of the sample (n − 1); unavailable for a single one
  /// Merged from several batches: the mean of their medians weighted by count, since the samples are gone.
  double median_s = 0;

  /// Of the samples about their own batch's mean: the drift between batches isn't in it. Unavailable below two.
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

/// What took the machine away from instructions (the host's other guests, timers), whichever they were: a matter of how
/// long one runs, not of what.
struct Interruptions {
  double played_s = 0, lost_s = 0;  // the former includes the latter
  /// Lost per second of undisturbed work.
  [[nodiscard]] double share() const { return played_s > lost_s ? lost_s / (played_s - lost_s) : 0; }
  void add(const Interruptions& more) { played_s += more.played_s, lost_s += more.lost_s; }
  friend bool operator==(const Interruptions&, const Interruptions&) = default;
};

/// Replaces samples above 5 × the batch's median (and 20 µs over it) by the median, and returns the time removed: one
/// outlier would dominate the mean of a few short samples. What is shorter can't be told from the op's own variation.
Interruptions without_interruptions(std::span<double> samples_s);

}  // namespace sim
