// The timelines of ranks on several hosts on one clock: the reference's, that of rank 0's host.
//
//   put_on_one_clock(timelines, {0, 40e-6});             // rank 1 began 40 us after the moment it should have begun at
//   check_order(program, timelines, result.clocks);      // nothing comes before it was sent
//
// Hosts' clocks are known to within an error (backend/machine/clock.hpp). A transfer that seems done before its last
// party had posted it is done at once: its start is its end (backend/rank/run.cpp). What seems so by more than the
// error is refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/world/world.hpp"
#include "sim/simulate/timeline.hpp"

namespace backend {

ClockReading reading_of(const SharedClock& clock, const Communicator& communicator);

/// `late_s`, by rank: what a rank's zero is after the moment that all should have begun at. From then on zero is the
/// earliest rank's.
void put_on_one_clock(std::vector<sim::RankTimeline>& timelines, const std::vector<double>& late_s);

/// RunError unless everything that a rank on one host has from one on another was posted there before it was done here,
/// as far as the clocks are known.
void check_order(const sim::Program& program, const std::vector<sim::RankTimeline>& timelines,
                 const std::vector<ClockReading>& readings);

}  // namespace backend
