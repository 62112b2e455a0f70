// How fast the machine is just now, as probes beside what is measured tell (backend/machine/speed.hpp).
//
//   MachineSpeed speed = between(before, after);  // of a visit, from the probes before and after it
//   describe_speeds(of_rounds);                   // "reading memory was 18 % slower in round 5 than in round 1"
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sim {

/// Seconds of the same probes, mean of before and after.
struct MachineSpeed {
  double compute_s = 0;
  double memory_alone_s = 0, memory_together_s = 0;  // read by one rank, by all of the program at once (one: the same)
  double change = 0;                                 // |after − before| / mean of reading memory: the larger one
  double core_to_core_s = 0;  // of a cache line to another core of the program's and back; 0: not known
  friend bool operator==(const MachineSpeed&, const MachineSpeed&) = default;
};

/// From the probes before and after.
MachineSpeed between(const MachineSpeed& before, const MachineSpeed& after);
/// Of at least one.
MachineSpeed mean(std::span<const MachineSpeed> speeds);

/// The sum of a probe's equal parts without_interruptions: a rank that isn't given its core for 30 ms says nothing of how
/// fast memory is.
double uninterrupted_s(std::span<const double> parts_s);

/// How much longer than in `reference`; 0 where that isn't known.
double excess(double seconds, double reference);

/// The machine's speed at a time, which is called "in round 5", "beside" a strategy.
using NamedSpeed = std::pair<std::string, MachineSpeed>;
/// "reading memory was 18 % slower in round 5 than in round 1, computing was 9 % slower in round 2 than in round 4", where
/// that is as much as `worth_saying`; and that cores were twice as far apart, or more; else nothing.
std::string describe_speeds(std::span<const NamedSpeed> speeds, double worth_saying);
/// The same of rounds, as people count them, from 1: of all speeds of a round their mean.
std::string describe_speeds(const std::map<int, std::vector<MachineSpeed>>& of_rounds);

}  // namespace sim
