// Roles' own lists without each other: what `calibrate` measures ops and notifications with.
//
//   Program ops = alone(program, {{.role = 1, .ranks = {0}}});  // the second stage's ops, on rank 0, once
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/program.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// Who runs a role's list without the other roles, and how many times in a step.
struct RoleAlone {
  std::uint32_t role = 0;  // of the program
  std::vector<std::uint32_t> ranks{0};
  std::uint32_t repeats = 1;
};

/// A program in which lists run without the other roles: the list of one role, or those of all roles in their order. A
/// rank sends to itself what it would send or share, and receives from itself at once what it would receive: it waits
/// for nobody, but its next op finds the caches as after a transfer. When all lists are done, the roles exchange what
/// they have sent or given in a collective, and receive it in the next step (of a sum their own summand): on the random
/// numbers that a single role receives instead, a max pool's branches are predicted better or worse than in training. In
/// the first step they receive numbers by which no update moves a weight.
/// All microbatches run: the first op of a step finds cold caches, and must weigh as much as it does in the real step.
/// `in_turns`: each list begins when the one before has ended, so that it has the machine to itself and finds the
/// shared caches as the others have left them.
Program alone(const Program& program, const std::vector<RoleAlone>& lists, bool in_turns = false);

/// Roles get something in collectives that another role gives: alone, a role would compute on random numbers.
bool roles_share(const Program& program);

/// Two ranks that run the beginning of a role's list and notify each other meanwhile: each posts small sends and recvs
/// whose other ends are posted only after the list. It shows what handling a notification takes from a core in the
/// middle of these very ops: twice as much of a convolution as of a small linear layer.
Program notification_probe(const Program& program, std::uint32_t role);

/// What a step of the notification probe says: by rank, seconds that its ops lost per notification; less than 0 where
/// noise is more than that.
std::vector<double> notification_times(const Program& probe, const Timeline& timeline);

}  // namespace sim
