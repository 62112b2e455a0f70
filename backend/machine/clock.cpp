#include "backend/machine/clock.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "sim/error.hpp"

namespace backend {

ClockOffset offset_of(std::span<const RoundTrip> round_trips) {
  sim::check_internal(!round_trips.empty(), "a clock's offset from no round trip");
  const auto took = [](const RoundTrip& trip) { return trip.back_s - trip.sent_s; };
  const RoundTrip& shortest = *std::ranges::min_element(round_trips, {}, took);
  if (!(took(shortest) >= 0) || !std::isfinite(shortest.there_s))
    throw sim::RunError("this host's clock went back by {:g} s while a message was on its way", -took(shortest));
  const double middle_s = shortest.sent_s + took(shortest) / 2;
  return {.at_s = middle_s, .offset_s = shortest.there_s - middle_s, .error_s = took(shortest) / 2};
}

void HostClock::add(const ClockOffset& offset) {
  constexpr double kMostDrift = 500e-6;  // of either clock, as NTP allows (RFC 5905: 500 ppm) and Linux slews
  if (!offsets_.empty()) {
    const ClockOffset& last = offsets_.back();
    const double seconds = offset.at_s - last.at_s;
    const double gained_s = std::abs(offset.offset_s - last.offset_s);
    const double possible_s = 2 * kMostDrift * seconds + offset.error_s + last.error_s;
    if (!(seconds >= 0) || gained_s > possible_s)
      throw sim::RunError(
          "this host's clock and rank 0's host's have moved apart by {:.3g} ms within {:.3g} s; clocks that nobody "
          "sets "
          "do so by {:.3g} ms at most",
          1e3 * gained_s, seconds, 1e3 * possible_s);
  }
  offsets_.push_back(offset);
}

double HostClock::offset_at(double here_s) const {
  if (offsets_.empty()) return 0;
  const auto after = std::ranges::upper_bound(offsets_, here_s, {}, &ClockOffset::at_s);
  if (after == offsets_.begin()) return after->offset_s;
  const ClockOffset& before = *std::prev(after);
  if (after == offsets_.end() || after->at_s <= before.at_s) return before.offset_s;
  return std::lerp(before.offset_s, after->offset_s, (here_s - before.at_s) / (after->at_s - before.at_s));
}

double HostClock::here(double reference_s) const {
  return offsets_.empty() ? reference_s : reference_s - offsets_.back().offset_s;
}

double HostClock::drift() const {
  if (offsets_.size() < 2) return 0;
  const double seconds = offsets_.back().at_s - offsets_.front().at_s;
  return seconds > 0 ? (offsets_.back().offset_s - offsets_.front().offset_s) / seconds : 0;
}

double HostClock::error_s() const {
  double error_s = 0;
  for (const ClockOffset& offset : offsets_) error_s = std::max(error_s, offset.error_s);
  return error_s;
}

}  // namespace backend
