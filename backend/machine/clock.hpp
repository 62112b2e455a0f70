// One clock for several hosts: how far this host's clock is from the reference's (rank 0's host), from messages that
// go there and come back.
//
//   HostClock clock;
//   clock.add(offset_of(round_trips));                  // at the start of a run, now and then, and at its end
//   clock.on_reference(now_s())                         // within clock.error_s()
//
// An answer carries the moment at which the reference had the message. That lies between the sending and the answer's
// coming, whichever way took longer: so of a round trip that takes d seconds, the middle is off by d/2 at most
// (F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989), and the shortest says most (as
// NTP's clock filter has it, RFC 5905 section 10). Two clocks run at constant rates between two such readings.
#pragma once

#include <span>
#include <vector>

namespace backend {

/// Seconds on now_s(): of this host, but `there_s` of the reference.
struct RoundTrip {
  double sent_s = 0, there_s = 0, back_s = 0;
};

/// What the reference's clock is ahead, at a moment of this host's.
struct ClockOffset {
  double at_s = 0, offset_s = 0;
  double error_s = 0;  // the offset is off by this at most
};

/// By the shortest of at least one. RunError where an answer is older than its question.
ClockOffset offset_of(std::span<const RoundTrip> round_trips);

class HostClock {
 public:
  /// Later than those before. RunError where the clocks' rates differ by more than clocks do: one was set, or its host
  /// suspended.
  void add(const ClockOffset& offset);
  /// None: this host's clock is the reference.
  [[nodiscard]] const std::vector<ClockOffset>& offsets() const { return offsets_; }

  /// What the reference's clock is ahead at this moment: on the line between the offsets around it; before the first
  /// and after the last, theirs.
  [[nodiscard]] double offset_at(double here_s) const;
  [[nodiscard]] double on_reference(double here_s) const { return here_s + offset_at(here_s); }
  /// What the newest offset makes of a moment of the reference's: for a moment to come.
  [[nodiscard]] double here(double reference_s) const;
  /// Seconds that the reference's clock gains in a second of this one, from the first offset to the last.
  [[nodiscard]] double drift() const;
  /// `on_reference` is off by this at most between the first offset and the last: the largest of theirs.
  [[nodiscard]] double error_s() const;

 private:
  std::vector<ClockOffset> offsets_;
};

}  // namespace backend
