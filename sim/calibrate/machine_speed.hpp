// How fast the machine is just now, as probes beside what is measured tell (backend/machine/speed.hpp).
//
//   MachineSpeed speed = between(before, after);  // of a visit, from the probes before and after it
//   describe_speeds(of_rounds);                   // "reading memory was 18 % slower in round 5 than in round 1"
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

namespace sim {

/// Seconds of the same probes, mean of before and after.
struct MachineSpeed {
  double compute_s = 0;
  double memory_alone_s = 0, memory_together_s = 0;  // read by one rank, by all of the program at once (one: the same)
  double change = 0;                                 // |after − before| / mean of reading memory: the larger one
  friend bool operator==(const MachineSpeed&, const MachineSpeed&) = default;
};

/// From the probes before and after.
MachineSpeed between(const MachineSpeed& before, const MachineSpeed& after);
/// Of at least one.
MachineSpeed mean(std::span<const MachineSpeed> speeds);

/// How much longer than in `reference`; 0 where that isn't known.
double excess(double seconds, double reference);

/// "reading memory was 18 % slower in round 5 than in round 1, computing was 9 % slower in round 2 than in round
/// 4"; of all speeds of a round their mean, by rounds as people count them, from 1. Nothing where all are alike.
std::string describe_speeds(const std::map<int, std::vector<MachineSpeed>>& of_rounds);

}  // namespace sim
