// Programs that measure links and memory: what `calibrate` runs beside the models' ops.
//
//   TransferQuestion question{.kind = InstructionKind::collective, .bytes = 4 << 20, .members = 2};
//   Program probe = transfer_probe(question, /*repeats=*/4, /*bytes_before=*/1 << 24, /*rendezvous=*/false);
//   // for ranks 0…members−1; every posted instruction is one sample
//
// Each repeat computes for a while and then writes what it sends (as a bucket is filled, an activation computed, right
// before it goes), so that caches, threads and sockets are in a step's state: the receiver has been waiting, ranks come
// at different times. Point-to-point repeats alternate in direction, so that both ends stay in step. How much memory a
// step moves between two transfers matters as much: 13 kB go from thread to thread in 2 µs where that is 1 MB, and in
// 20 µs where it is 30 MB, because no cache then holds their target or the code that copies.
#pragma once

#include <optional>
#include <vector>

#include "sim/cost/cost_model.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// Who runs a role's list without the other roles, and how many times in a step.
struct RoleAlone {
  std::uint32_t role = 0;  // of the program
  std::vector<std::uint32_t> ranks{0};
  std::uint32_t repeats = 1;
};

/// 0, 1, …: of so many ranks or tensors.
std::vector<std::uint32_t> first_numbers(std::uint32_t count);

/// Lists of roles without each other: of one role, or of all in their order. What a rank would send or share goes to
/// itself, what it would receive comes from itself, at once: nobody is waited for, but what comes next finds the caches
/// as after a transfer. What all roles have sent they exchange once all are done, to be received in the next step: on
/// random numbers, which one role by itself receives, a max pool's branches are foretold better or worse. Every
/// microbatch, not the first few: the first op of a step finds cold caches, and must count as often as it does in a
/// step. `in_turns`: a list begins when the one before is done, so that each has the machine for itself and finds the
/// caches that cores share as the others leave them.
Program alone(const Program& program, const std::vector<RoleAlone>& lists, bool in_turns = false);

/// The bytes (as of Work::demand) that a rank's ops move between two of its transfers, on average, of the rank where
/// they are most; 0 for a program without transfers.
double bytes_between_transfers(const Program& program);

/// `bytes` is rounded up to whole f32 elements. What is computed before each transfer reads about `bytes_before`, up to
/// 38 MB: more than caches hold. `rendezvous`: of four point-to-point repeats the first two are expected, the others
/// aren't (sim::Rendezvous).
Program transfer_probe(const TransferQuestion& question, std::uint32_t repeats, double bytes_before, bool rendezvous);

/// Collectives with compute beside them: what a running transfer takes from its members' cores. Every repeat posts one,
/// computes a linear layer `computes` times (it fits into a core's own cache, so that it competes for the core only, not
/// for memory), waits, and computes as many again alone.
Program overlap_probe(const TransferQuestion& question, std::uint32_t repeats, std::uint32_t computes);

/// Two ranks that run the beginning of a role's list without the others, and meanwhile post small sends and recvs that the other
/// answers at the end: what handling a notification takes from a core in the middle of these very ops. It takes twice as
/// much of a convolution as of a small linear layer.
Program notification_probe(const Program& program, std::uint32_t role);

/// From a step of the notification probe: by rank, seconds that its ops lost per notification; less than 0 where noise is
/// more than that.
std::vector<double> notification_times(const Program& probe, const Timeline& timeline);

/// Ranks that add and copy from 3·2^5 to 3·2^23 elements, each pair a few times, so that it lies in the cache
/// that holds it, as a gradient does that has just been computed: what a profile's models don't say of other
/// parameters, or of strategies that copy gradients. Then the updates of 3·2^5 to 3·2^21 parameters by the model's
/// optimizer, each once, so that their operands come from memory, as in a step, which has used all other parameters
/// since. And matrix-vector products with a weight that no cache holds: a linear layer's forward and backward of one
/// row. All in the model's dtype.
Program memory_probe(const Model& model, std::uint32_t ranks = 1);

/// From a step of the overlap probe: the share of the cores' time that compute lost while a transfer ran, 0…1. nullopt
/// when the transfers were over before one compute's time.
std::optional<double> core_share(const Program& probe, const Timeline& timeline);

}  // namespace sim
