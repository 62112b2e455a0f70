// Programs that measure links and memory: what `calibrate` runs beside the models' ops.
//
//   TransferQuestion question{.kind = InstructionKind::collective, .bytes = 4 << 20, .members = 2};
//   Program probe = transfer_probe(question, /*repeats=*/4, between_transfers(program), /*rendezvous=*/false);
//   // for ranks 0…members−1; every posted instruction is one sample
//
// Each repeat computes for a while and then writes what it sends (as a bucket is filled, an activation computed, right
// before it goes), so that caches, threads and sockets are in a step's state: the receiver has been waiting, ranks come
// at different times. Point-to-point repeats alternate in direction, so that both ends stay in step. How much memory a
// step moves between two transfers matters as much: 13 kB go from thread to thread in 2 µs where that is 1 MB, and in
// 20 µs where it is 30 MB, because no cache then holds their target or the code that copies. So does what other code
// has been played meanwhile: that of the transport, and what the core knows of its branches, must come again. And a
// step's buffers are the same each time: what a collective gives has been written a while ago, what it gets comes into
// memory that was used shortly before, as weights or room that activations have left.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/cost/cost_model.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// What a step computes between two transfers, as far as a probe imitates it.
struct BetweenTransfers {
  /// The bytes (as of Work::demand) that a rank's ops move, on average, of the rank where they are most; 0 for a program
  /// without transfers.
  double bytes = 0;
  std::vector<std::string_view> kinds = {};  // of layers, by the op table's names, of all ranks
  /// Of a collective's kind the medians, by bytes. What ops move since what a rank gives was written: a gradient that is
  /// summed at once is still in a cache, a large bucket's first ones, or weights, were written long ago (given.hpp).
  double bytes_since_written = 0;
  /// Where others read it where it lies (TransferEngine::receiver): what ops move until it is written again by who waits
  /// for that (waits_to_rewrite); else nothing.
  std::optional<double> bytes_until_rewritten = {};
  std::optional<OpInstance> updated_by = {};  // where that is an optimizer: it, without inputs
  /// Whether ranks compute between a post and its wait, on cores that the transport needs, too.
  bool computes_beside = false;
};
/// A program's: the bytes, and which of the layers that probes have (convolutions, batch norms, ReLU, pools, softmax) it
/// has; of an imported model all, since its bodies are of many kernels.
BetweenTransfers between_transfers(const Program& program);
/// The same with what is said of a collective's kind, on a job's cluster.
BetweenTransfers between_collectives(const Program& program, const Cluster& cluster, CollectiveKind kind);

/// `bytes` of the question are rounded up to whole f32 elements. What is computed before each transfer reads about what
/// the step's ops move, up to 38 MB, which is more than caches hold; then small layers of the step's kinds are played.
/// A collective's operands are given in turn, as many as it takes for each to have been written, and to be written again,
/// as many bytes before and after as in the step, up to 24; where others read them, another is written beside each that
/// nobody else reads (rewriting_times). If `computes_beside`, more repeats follow whose transfer is waited for when the
/// next has been posted, and before which the first member is late (core_time). All repeats then also compute layers that
/// a core's own cache holds: there the transport's threads are most in the way.
/// `rendezvous`: of four point-to-point repeats the first two are expected, the others aren't (sim::Rendezvous).
Program transfer_probe(const TransferQuestion& question, std::uint32_t repeats, const BetweenTransfers& between,
                       bool rendezvous);

/// A probe of members in a row, by other ranks: the first of the mesh and those that differ from it on these axes only,
/// in their order; a message goes along the mesh's first axis. The others have nothing to do.
Program on_ranks(Program probe, const Mesh& mesh, std::uint32_t axes);

/// Collectives with compute beside them: what a running transfer takes from its members' cores. Every repeat posts one,
/// computes a linear layer `computes` times (it fits into a core's own cache, so that it competes for the core only,
/// not for memory), waits, and computes as many again alone.
Program overlap_probe(const TransferQuestion& question, std::uint32_t repeats, std::uint32_t computes);

/// What a profile's own models don't say of other models, or of strategies that copy gradients. Additions and copies of
/// 3·2^5 to 3·2^23 elements, each a few times, so that the operands lie in the cache that can hold them, as a gradient
/// does that has just been computed. Updates of 3·2^5 to 3·2^21 parameters by the model's optimizer, each once, so that
/// the operands come from memory, as in a step. And a linear layer of one row, forward and backward, whose weight no
/// cache holds. All in the model's dtype, on `ranks` ranks at once.
Program memory_probe(const Model& model, std::uint32_t ranks = 1);

/// What a step of a probe with `bytes_until_rewritten` says, by rank, for each of its collectives that reads something:
/// seconds that writing it took longer than writing as much that no other rank has read. The others' caches hold it
/// since, and must be told, line by line. Noise may make it negative. Nothing of other probes.
std::vector<std::vector<double>> rewriting_times(const Program& probe, const Timeline& timeline);

/// What a step of a probe that `computes_beside` says: PostTimes::core_time. What a repeat of its second part takes longer
/// than what is computed in it, by what a transfer of the first part takes, mean over the ranks. nullopt for other
/// probes.
std::optional<double> core_time(const Program& probe, const Timeline& timeline);

/// Whether a collective's wait follows its post at once.
bool is_waited_for_at_once(const Role& role, std::uint32_t instruction);

/// What a step of the overlap probe says: the share of the cores' time that compute lost while a transfer ran, 0…1.
/// nullopt when the transfers were over before one compute's time.
std::optional<double> core_share(const Program& probe, const Timeline& timeline);

}  // namespace sim
