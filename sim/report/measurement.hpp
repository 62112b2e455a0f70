// Samples of one quantity in seconds, taken in rounds, and what they say.
//
//   Measurement step;
//   for (double s : {0.101, 0.103}) step.add(/*round=*/0, s);
//   std::optional<Interval> i = step.interval_95();   // nullopt: too few rounds
//   step.noise_floor();                               // 0.01: halves of the rounds differ by 1 %
//
// Conventions. A shared machine drifts from round to round, so the round is the unit of chance: the mean is that of
// the rounds' means, and intervals and the noise floor draw whole rounds. Too few samples or rounds: nullopt, never 0.
// Everything random has a fixed seed: the same samples give the same numbers on every machine.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "sim/cost/statistic.hpp"

namespace sim {

struct Interval {
  double low = 0, high = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

/// Rounds below which neither an interval nor a noise floor is given.
constexpr std::size_t kFewestRounds = 4;

class Measurement {
 public:
  /// `seconds` is finite and not negative; rounds come in any order.
  void add(int round, double seconds) { add(round, 1, seconds, 0); }
  /// `count` samples at once, by their mean and standard deviation (n − 1).
  void add(int round, std::size_t count, double mean_s, double sd_s);

  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] std::size_t rounds() const { return rounds_.size(); }
  /// The deviation of all samples from their mean: Σ(x − x̄)²/(n − 1), and /n (the error bars of PyTorch's tutorial).
  [[nodiscard]] std::optional<double> sample_deviation() const;
  [[nodiscard]] std::optional<double> population_deviation() const;
  /// 95 % bootstrap interval of the mean.
  [[nodiscard]] std::optional<Interval> interval_95() const;
  /// How far apart two halves of the same measurement are: the mean over 1000 random halvings of the rounds of |a − b|
  /// / mean, where a and b are the means of the halves. One halving (odd and even rounds) would be a single draw that
  /// is 0 by luck as often as it is large; the mean over many is 1.6 standard errors of the mean for independent rounds
  /// (√(2/π) · 2σ/√n). Slow drift counts in full: halvings are not kept balanced in time.
  [[nodiscard]] std::optional<double> noise_floor() const;
  /// The rounds' means in the order of their numbers.
  [[nodiscard]] std::vector<double> round_means() const;

 private:
  struct Samples {
    double count = 0, mean_s = 0, squares = 0;  // squares: Σ(x − mean)²
    void merge(const Samples& others);
  };
  [[nodiscard]] Samples all() const;
  std::map<int, Samples> rounds_;
};

/// The median of at least one.
double median_of(std::vector<double> values);
/// Quantiles of the normal distribution.
constexpr double kNormal95 = 1.644853626951473, kNormal975 = 1.959963984540054;

/// A number computed from some rounds, given by index; an index may come more than once.
using RoundStatistic = std::function<double(std::span<const std::size_t> rounds)>;

/// 95 % bootstrap interval of `statistic` over `rounds` rounds: draws rounds with replacement, 2000 times, and takes
/// the 2.5 and 97.5 percentiles. These are too narrow for few rounds (8 rounds: they hold the truth 89 times of 100),
/// so their distances to the statistic of all rounds are stretched by √(n/(n−1)) t₀.₉₇₅,ₙ₋₁ / z₀.₉₇₅, the correction of
/// T. Hesterberg, What Teachers Should Know About the Bootstrap, 2015, arXiv 1411.5279, section 5.3, on the scale of
/// the statistic instead of the percentiles (which end at the smallest and largest round).
std::optional<Interval> bootstrap_interval_95(std::size_t rounds, const RoundStatistic& statistic);

}  // namespace sim
