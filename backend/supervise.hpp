// Ranks as processes: started, watched and ended together.
//
//   if (!is_rank_process()) return spawn_ranks(argv, 2, timeout_s);     // this command line again, once per rank
//
// A rank that dies, fails, stands still or doesn't come ends all others, and the error names it, and not those that
// have waited for it, with what it was doing. No process is left behind, also when this one is killed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/machine/launch.hpp"

namespace backend {

/// Runs `arguments` (argv, the program itself first) once per rank with torchrun's variables set and returns rank 0's
/// exit status. RunError when a rank has failed; ConfigError when what it was told is wrong. With a `network_rate`
/// ("1gbit"), every rank runs in its network namespace, joined by links of that rate: ConfigError unless
/// bench/network.sh has made them.
int spawn_ranks(const std::vector<std::string>& arguments, std::uint32_t ranks, double timeout_s,
                const std::string& network_rate = "");

/// ConfigError unless it can be a timeout: from a millisecond to a week.
void check_timeout(double timeout_s);

/// Whether spawn_ranks has started this process: it says what is wrong.
bool is_watched();
/// Whether somebody else (torchrun, srun, mpirun) has started this process as one of several ranks.
bool is_launched();
/// True in rank 0 where somebody else has started the ranks.
bool is_first_of_its_own();
/// True in the other ranks there: what a command does rank 0 does, and they serve it.
bool only_serves();
/// True in the first rank of each host where somebody else has started the ranks.
bool is_first_where_it_is();

}  // namespace backend
