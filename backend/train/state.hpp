// What training changes: parameters, buffers and the optimizer's states, by torch's names ("conv1.weight",
// "bn1.running_mean", "conv1.weight.exp_avg"), whole, whatever pieces the ranks have of them.
//
//   const std::vector<StatePiece> pieces = state_pieces(program, rank);
//   set_state(safetensors_from(state, "state"), pieces, rank, executor);     // on every rank, before the first step
//   const std::string mine = packed_state(pieces, executor);                 // after the last
//   state = to_bytes(whole_state(program, packed));                          // where the session is
//
// Ranks may have the same piece with other values (running statistics of their own samples): what a rank has otherwise
// than the first that has it is kept, too, as "rank1.bn1.running_mean". So a rank finds every bit again.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backend/rank/execute.hpp"
#include "backend/train/safetensors.hpp"
#include "sim/model/op/op.hpp"
#include "sim/program/program.hpp"

namespace backend {

/// Some elements of a piece of a whole tensor, and where the rank has them.
struct StatePiece {
  std::string name;
  sim::TensorSpec whole;
  std::vector<sim::Range> piece;  // of it, by dimension; empty: all of it
  sim::Range elements;            // of the piece, in memory order
  std::uint32_t tensor = 0;       // of the rank's role, persistent
  std::int64_t begin = 0;         // there, in memory order
  bool is_overwritten = false;    // in the next step, by another rank's
  bool is_copy = false;           // of what ranks also keep in f32 (ZeRO in half precision): it isn't saved

  [[nodiscard]] sim::Shape shape() const;  // of the piece
};

/// All that a rank has, in a fixed order.
std::vector<StatePiece> state_pieces(const sim::Program& program, std::uint32_t rank);

/// Parameters whose blocks are one dimension in their module ([3,64,64] of [192,64]), and their optimizer's states, take
/// the module's shapes: `parameters`, by name (sim::Model::parameters).
void to_module_shapes(Safetensors& state, const std::map<std::string, sim::ParameterSpec>& parameters);

/// ConfigError where the state lacks a tensor of some rank's, or has it in another shape (a module's are known, too) or
/// type. `where` names it in messages.
void check_state(const Safetensors& state, const sim::Program& program, const std::string& where);

/// Of a state that has passed check_state.
void set_state(const Safetensors& state, std::span<const StatePiece> pieces, std::uint32_t rank,
               const Executor& executor);

/// The pieces' values, one after the other.
std::string packed_state(std::span<const StatePiece> pieces, const Executor& executor);

/// `of_ranks`: what each has packed.
Safetensors whole_state(const sim::Program& program, std::span<const std::string> of_ranks);

}  // namespace backend
