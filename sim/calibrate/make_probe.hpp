// What calibration's programs are written with: lists of instructions that train nothing.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/lower/pass/pass.hpp"
#include "sim/program/program.hpp"

namespace sim {

/// `ranks` in a row.
inline Mesh row_of(std::uint32_t ranks) { return {{{"rank", ranks}}}; }

/// A program that trains nothing: fill(draft, r) writes what the ranks of role r do. `axes`: of a group; 0: none.
template <class Fill>
Program make_probe(std::string what, const Mesh& mesh, std::uint32_t axes,
                   const std::vector<std::vector<std::uint32_t>>& ranks, const Fill& fill) {
  Program program{.model = "none", .strategy = std::move(what), .global_batch = 1, .mesh = mesh};
  if (axes != 0) program.groups.emplace_back("data", axes, program.mesh);
  WorkTable works(program.works);
  NameTable names(program.names);
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    Draft draft{.works = &works, .names = &names};
    draft.role.name = fmt::format("stage{}", r);
    draft.role.ranks = ranks[r];
    fill(draft, r);
    add_frees(draft);
    program.roles.push_back(std::move(draft).finish());
  }
  validate(program);
  return program;
}

/// The ticket of a send or recv of all of `tensor`, from or to the rank `by` further.
std::uint32_t post_message(Draft& draft, InstructionKind kind, std::int32_t by, std::uint32_t tag,
                           std::uint32_t tensor);

/// A tensor that persists, of one value.
std::uint32_t add_constant(Draft& draft, const std::string& name, const TensorSpec& spec, double value);

/// 0, 1, …: of so many ranks or tensors.
std::vector<std::uint32_t> first_numbers(std::uint32_t count);

}  // namespace sim
