// Plays one role's instruction list on one rank's device.
//
//   Executor executor(program, program.places()[rank], communicator, seed);
//   StepRecord record = executor.new_record();
//   executor.step(record, progress);                   // progress.instruction tells a watcher where it is
//   executor.settle(record);                           // when no other rank needs this core for its step any more
//   record.times.end_of_step_s
//
// Everything that can be known beforehand (kernels, operands, which storages begin and end where) is worked out in the
// constructor; a step only walks through it. Kernels allocate their outputs; the executor allocates what is received
// into and what views are made of, and frees exactly what the Program frees. In the first step it checks that every
// tensor has the dtype, shape, place and size that the Program says. Autograd is off. The caller sets threads,
// priorities and the allocator's owner.
//
// On an accelerator a step can be captured after the first one: later steps are replays, one launch each, with the same
// addresses. Then only the whole step has a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/machine/allocator.hpp"
#include "backend/machine/graph.hpp"
#include "backend/op/op.hpp"
#include "backend/rank/progress.hpp"
#include "backend/world/world.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/timeline.hpp"

namespace backend {

/// What a step leaves behind. Allocated before the step.
struct StepRecord {
  /// The times from the step's start on, once settled; start_s of a transfer is NaN where this rank doesn't know when
  /// its partners posted. Of a replay only the end of the step.
  sim::RankTimeline times;
  std::vector<at::Tensor> losses;  // scalars, one per loss instruction
  double begin_s = 0;              // the step's start, on now_s()
};

/// A tensor or, where `piece` isn't empty, that piece of it (by dimension); or, flat, some of that one's elements.
struct NamedPiece {
  std::string name;
  std::vector<sim::Range> piece;
  at::Tensor tensor;
  sim::Range elements{};       // of the piece, in memory order; size 0: all of them, in their shape
  bool channels_last = false;  // how the piece lies in memory
};
using NamedTensors = std::vector<NamedPiece>;

class Executor {
 public:
  /// Makes the persistent tensors and their first values. The program must outlive the executor.
  Executor(const sim::Program& program, sim::Program::Place place, Communicator& communicator, std::uint64_t seed);

  [[nodiscard]] StepRecord new_record() const;
  /// RunError or InternalError that names rank and instruction.
  void step(StepRecord& record, Progress& progress);
  /// The times of the step that was just played, from its start on.
  void settle(StepRecord& record) const;
  /// The most that the rank's tensors held between two instructions of the first step, as the allocator counts it (on
  /// an accelerator: as the storages that are still there say). sim::peak_memory, and the losses that the record keeps.
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }
  /// The same within instructions, too, and of all steps: with what the ops allocate while they run. 0 where ranks
  /// share an accelerator, whose allocator knows no ranks.
  [[nodiscard]] std::int64_t allocator_peak_bytes() const { return allocator_peak_bytes_; }

  /// Whether, in the next steps, an accelerator is held back so that its host is always ahead of it: then the times
  /// between events are the device's own.
  void let_host_lead(bool leads) { host_leads_ = leads; }
  /// Called after the first step: the next one is captured, and it and all later ones are replays.
  void capture();
  /// Of training steps that are played together each later one begins before one of these instructions, ascending:
  /// there `fill` is called with 1, 2, …, to bring its batch.
  void fill_between(std::vector<std::uint32_t> instructions, std::function<void(std::uint32_t step)> fill) {
    fills_before_ = std::move(instructions);
    fill_ = std::move(fill);
  }
  /// Makes steps keep copies, from now on, of the gradients that updates read. This costs time and memory.
  void keep_gradients() { keep_gradients_ = true; }
  /// What ops draw in the steps that follow is a function of this seed, the step and the part of the batch: ranks that have
  /// parts of the same layers drop the same of what all of them have, unless each has a part of that, too (sp). Threads of
  /// one process draw from one generator: they don't.
  void draw_from(std::uint64_t seed) { draw_seed_ = seed; }
  /// Makes all steps independent of random numbers, to be compared with others: dropout drops nothing.
  void leave_nothing_to_chance() { is_exact_ = true; }
  /// What each instruction's op allocated beside its outputs and gave back, in the first step. 0 as above.
  [[nodiscard]] const std::vector<std::int64_t>& workspace_bytes() const { return workspace_bytes_; }
  /// A persistent tensor, to be read and filled between steps.
  [[nodiscard]] const at::Tensor& persistent(std::uint32_t tensor) const { return tensors_.at(tensor); }
  /// The state after a step: "parameter fc.weight", "buffer bn1.running_mean", and "gradient fc.weight" where kept.
  [[nodiscard]] NamedTensors state() const;

 private:
  using Ids = std::vector<std::uint32_t>;
  /// An instruction with everything looked up.
  struct Action {
    sim::InstructionKind kind = sim::InstructionKind::compute;
    bool is_loss = false;
    std::uint32_t other = 0;  // send, recv: the partner's rank; collective: the group; wait: the instruction waited for
    void (*run)(const sim::Work&, const Operands&) = nullptr;
    const sim::Work* work = nullptr;
    std::span<const std::uint32_t> reads{}, writes{};  // operands: tensors
    Ids allocations{};                                 // tensors that span a storage to be allocated before
    Ids views{};                                       // tensors to be made inside a living storage before
    Ids begins{};                                      // written tensors whose storages begin here
    Ids drops{};                                       // tensors of the storages that end after
  };
  struct Lifetimes;

  void make_persistent(std::uint64_t seed);
  void begin_training_step(std::int64_t step);
  void plan();
  void plan_lifetimes(std::uint32_t i, Lifetimes& lifetimes, Action& action);
  void plan_work(std::uint32_t i, Action& action);
  void play(StepRecord& record, Progress& progress, std::uint32_t& i);
  void replay(StepRecord& record, Progress& progress, std::uint32_t& i);
  void execute(std::uint32_t i, const Action& action, StepRecord& record);
  void compute(std::uint32_t i, const Action& action, StepRecord& record);
  void check_written(const Action& action) const;
  [[nodiscard]] std::int64_t held_bytes() const;
  [[nodiscard]] RankBytes allocated() const;
  void restart_peak() const;
  [[nodiscard]] at::Tensor allocate(std::uint32_t id) const;
  [[nodiscard]] at::Tensor view(std::uint32_t id) const;
  void add_pieces(std::string_view what, std::uint32_t id, const at::Tensor& values, NamedTensors& to) const;

  const sim::Program& program_;
  const sim::Role& role_;
  const sim::Program::Place place_;
  Communicator& communicator_;

  std::vector<Action> actions_;
  std::vector<at::Tensor> tensors_;                                  // by tensor id; undefined while it doesn't live
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;  // by storage id; of an accelerator's first step
  std::vector<at::Tensor> reads_, writes_;                           // of the running kernel
  std::vector<Communicator::Ticket> tickets_;
  std::vector<Completion> completions_;
  std::int64_t peak_bytes_ = 0, allocator_peak_bytes_ = 0;
  std::vector<std::int64_t> workspace_bytes_;  // by instruction
  const std::uint64_t seed_;
  const std::uint32_t batch_piece_, draw_number_;
  const std::int64_t steps_in_list_;   // training steps
  std::int64_t steps_ = 0;             // training steps before this list
  std::vector<std::uint32_t> bodies_;  // unrolled: where each begins, a training step; else empty
  std::vector<std::uint32_t> fills_before_;
  std::function<void(std::uint32_t)> fill_;
  double step_start_s_ = 0;  // on the host's clock
  std::uint64_t data_seed_ = 0, draw_seed_ = 0;
  bool draws_ = false;  // some op
  bool checked_ = false, keep_gradients_ = false, is_exact_ = false, host_leads_ = false;
  NamedTensors gradients_;
  std::unique_ptr<Graph> graph_;    // null: steps aren't captured
  std::vector<at::Tensor> losses_;  // where replays leave them
  bool captured_ = false;
};

}  // namespace backend
