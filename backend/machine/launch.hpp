// Who has started this process as one of several ranks: torchrun, srun, mpirun, or spawn_ranks.
//
//   adopt_launcher();                    // first thing in a program: srun's and mpirun's ranks look like torchrun's
//   if (is_rank_process()) fmt::print("{} ranks on each of {} hosts\n", ranks_per_host(), hosts_of_launch());
//
// torchrun's variables say everything: RANK of WORLD_SIZE, LOCAL_RANK of LOCAL_WORLD_SIZE on this host, and where the
// ranks meet, MASTER_ADDR and MASTER_PORT. What another launcher says in its own is translated:
//
//   torchrun's        srun's                                mpirun's (Open MPI)          mpirun's (Hydra: MPICH, Intel)
//   RANK              SLURM_PROCID                          OMPI_COMM_WORLD_RANK         PMI_RANK
//   WORLD_SIZE        SLURM_STEP_NUM_TASKS                  OMPI_COMM_WORLD_SIZE         PMI_SIZE
//   LOCAL_RANK        SLURM_LOCALID                         OMPI_COMM_WORLD_LOCAL_RANK   MPI_LOCALRANKID
//   LOCAL_WORLD_SIZE  SLURM_STEP_TASKS_PER_NODE             OMPI_COMM_WORLD_LOCAL_SIZE   MPI_LOCALNRANKS
//   MASTER_ADDR       the first of SLURM_STEP_NODELIST      of several hosts it must be given (mpirun -x, -genv)
//   MASTER_PORT       29500 + (job + step) modulo 1000      29500, torchrun's own
//
// MASTER_ADDR and MASTER_PORT stay where somebody has set them. SLURM_STEP_… are there only for what srun has started:
// a batch script, which has SLURM_PROCID and SLURM_NTASKS, too, is no rank. A launch of one rank is none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace backend {

using Variables = std::vector<std::pair<std::string, std::string>>;
/// A variable's value; none where it isn't set.
using VariableOf = std::function<std::optional<std::string>(const std::string& name)>;

/// What torchrun would have set and isn't; empty where torchrun's variables are there, or no launcher's of two ranks or
/// more. ConfigError where a launcher's variables don't match, or leave open where the ranks meet.
Variables torchrun_variables(const VariableOf& variable);

/// Of Slurm's list of nodes the first: "gpu[07-09,12],login" → "gpu07". Slurm's `scontrol show hostnames` has them all.
std::string first_node(std::string_view list);
/// Of Slurm's list of tasks per node that of the node with this number: "4(x2),3" → 4, 4, 3. 0: it has none.
std::uint32_t tasks_of_node(std::string_view list, std::uint32_t node);

/// Sets torchrun_variables of this process's environment.
void adopt_launcher();

/// True inside a rank process (RANK and WORLD_SIZE are set).
bool is_rank_process();
/// WORLD_SIZE; 0: it isn't set.
std::uint32_t ranks_of_launch();
/// LOCAL_WORLD_SIZE, where it is set and there are more ranks than that; else 0: all ranks are on one host.
std::uint32_t ranks_per_host();
/// How many of a program's ranks are on this host, as on every one that has some.
std::uint32_t ranks_here(std::uint32_t of_program);
/// How many hosts that makes: at least 1.
std::uint32_t hosts_of_launch();
/// True in the first rank of each host (LOCAL_RANK isn't set, or 0).
bool is_first_of_host();

}  // namespace backend
