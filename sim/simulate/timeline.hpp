// What ran when, on which rank and lane: predicted or measured, in the same form.
//
//   timeline.step_s                                   // the step: latest end over ranks
//   timeline.ranks[r].end_s[i]                        // and posted_s, start_s
//   write_text_file("trace.json", chrome_trace(program, {{"predicted", &predicted}, {"measured", &measured}}));
//
// Times are seconds since the step's start (the barrier). For a compute instruction `start` is when it begins. For a
// transfer `posted` is when this rank posted it, `start` when all parties had (ready), `end` when it was done: waiting
// for a partner isn't mistaken for a slow link. For a wait, start and end are when the issuing thread (GPU: the compute
// lane) began and stopped waiting.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "sim/program/program.hpp"

namespace sim {

struct RankTimeline {
  std::vector<double> posted_s, start_s, end_s;  // one per instruction of the rank's role
  std::vector<double> issued_s;  // when the host of an asynchronous device had issued each; empty for other devices
  double end_of_step_s = 0;
  /// Compute-lane time spent in compute, copy and update instructions; time the rank stood in waits; time issuing; the
  /// rest is `idle_s`.
  double compute_s = 0, exposed_communication_s = 0, bubble_s = 0, host_s = 0;
};

struct Timeline {
  double step_s = 0;                // from one barrier to the next: of an unrolled program several training steps
  std::vector<RankTimeline> ranks;  // of a folded program (fold.hpp): of those that play
};

/// A step and what it consists of: means over the ranks, which add up to step_s.
struct StepTime {
  double step_s = 0;
  double compute_s = 0, exposed_communication_s = 0, bubble_s = 0, host_s = 0;
  friend bool operator==(const StepTime&, const StepTime&) = default;
};
/// What a step's time consists of, once: files, reports and benchmarks iterate this list.
struct StepPart {
  std::string_view name;  // with the unit
  double StepTime::*value;
};
/// The step first, then what adds up to it.
constexpr std::array<StepPart, 5> kStepParts{{{"step_s", &StepTime::step_s},
                                              {"compute_s", &StepTime::compute_s},
                                              {"exposed_communication_s", &StepTime::exposed_communication_s},
                                              {"bubble_s", &StepTime::bubble_s},
                                              {"host_s", &StepTime::host_s}}};
/// Of an unrolled program one training step of those between the first body's end and the last one's: the period, mean
/// over ranks.
StepTime step_time(const Program& program, const Timeline& timeline);
/// The mean of at least one.
StepTime mean(const std::vector<StepTime>& times);

/// Fills the breakdown of every rank from the times. A wait counts as exposed communication from ready on, as bubble
/// before (a partner is late); the tail until the slowest rank ends is bubble too; what remains is host time.
void break_down(const Program& program, Timeline& timeline);

/// InternalError unless: times are finite and ordered, lanes don't overlap, no transfer ends before all have posted,
/// the step covers all.
void check(const Program& program, const Timeline& timeline);

struct NamedTimeline {
  std::string name;
  const Timeline* timeline = nullptr;
};
/// Chrome trace event format (JSON), as Perfetto opens it: a process per timeline and rank, a thread per lane, times in
/// microseconds.
std::string chrome_trace(const Program& program, const std::vector<NamedTimeline>& timelines);

}  // namespace sim
