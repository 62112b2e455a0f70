#include "sim/report/measurement.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>

#include "sim/error.hpp"

namespace sim {
namespace {

constexpr std::size_t kResamples = 2000, kHalvings = 1000;
constexpr std::uint64_t kSeed = 20240229;
// Numbers are drawn as remainders: std::uniform_int_distribution may differ between standard libraries. Their bias is
// below 1e-17 here.

double percentile_of(const std::vector<double>& sorted, double percent) {
  const double position = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

/// T. Chan, G. Golub, R. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.
void Measurement::Samples::merge(const Samples& others) {
  const double sum = count + others.count, difference = others.mean_s - mean_s;
  mean_s += difference * others.count / sum;
  squares += others.squares + difference * difference * count * others.count / sum;
  count = sum;
}

void Measurement::add(int round, std::size_t count, double mean_s, double sd_s) {
  check_internal(count > 0 && std::isfinite(mean_s) && mean_s >= 0 && std::isfinite(sd_s) && sd_s >= 0,
                 "{} samples of {} ± {} s in round {}", count, mean_s, sd_s, round);
  const auto n = static_cast<double>(count);
  rounds_[round].merge({n, mean_s, (n - 1) * sd_s * sd_s});
}

Measurement::Samples Measurement::all() const {
  Samples sum;
  for (const auto& [round, samples] : rounds_) sum.merge(samples);
  return sum;
}

std::size_t Measurement::count() const { return static_cast<std::size_t>(all().count); }

std::vector<double> Measurement::round_means() const {
  std::vector<double> means;
  for (const auto& [round, samples] : rounds_) means.push_back(samples.mean_s);
  return means;
}

std::optional<double> Measurement::sample_deviation() const {
  if (count() < 2) return std::nullopt;
  return std::sqrt(all().squares / (all().count - 1));
}

std::optional<double> Measurement::population_deviation() const {
  if (count() < 2) return std::nullopt;
  return std::sqrt(all().squares / all().count);
}

std::optional<Interval> Measurement::interval_95() const {
  const std::vector<double> means = round_means();
  return bootstrap_interval_95(means.size(), [&](std::span<const std::size_t> rounds) {
    double sum = 0;
    for (std::size_t round : rounds) sum += means[round];
    return sum / static_cast<double>(rounds.size());
  });
}

std::optional<Interval> bootstrap_interval_95(std::size_t rounds, const RoundStatistic& statistic) {
  if (rounds < kFewestRounds) return std::nullopt;
  std::mt19937_64 random(kSeed);
  std::vector<std::size_t> drawn(rounds);
  std::vector<double> values(kResamples);
  for (double& value : values) {
    for (std::size_t& round : drawn) round = random() % rounds;
    value = statistic(drawn);
  }
  std::ranges::sort(values);
  std::iota(drawn.begin(), drawn.end(), std::size_t{0});
  const double n = static_cast<double>(rounds), center = statistic(drawn);
  const double stretch = std::sqrt(n / (n - 1)) * student_t(kNormal975, n - 1) / kNormal975;
  return Interval{center - stretch * (center - percentile_of(values, 2.5)),
                  center + stretch * (percentile_of(values, 97.5) - center)};
}

std::optional<double> Measurement::noise_floor() const {
  std::vector<double> values = round_means();
  if (values.size() < kFewestRounds) return std::nullopt;
  const double mean = mean_of(values);
  if (mean == 0) return std::nullopt;
  std::mt19937_64 random(kSeed);
  const std::size_t half = values.size() / 2;
  double sum = 0;
  for (std::size_t halving = 0; halving < kHalvings; ++halving) {
    for (std::size_t i = values.size() - 1; i > 0; --i) std::swap(values[i], values[random() % (i + 1)]);
    const std::span<const double> halves(values);
    sum += std::abs(mean_of(halves.first(half)) - mean_of(halves.subspan(half)));
  }
  return sum / static_cast<double>(kHalvings) / std::abs(mean);
}

}  // namespace sim
