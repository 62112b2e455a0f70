// When a rank writes the memory again that others have read in its collectives.
//
//   const std::vector<std::optional<double>> bytes = bytes_until_rewritten(program, role);
//   bytes[i];      // of collective i: what the rank's ops move until then
#pragma once

#include <optional>
#include <vector>

#include "sim/program/program.hpp"

namespace sim {

/// By instruction, of a collective that the rank gives something in: the bytes that its ops move (Work::demand) from
/// there until it writes that memory again, in the next step at the latest; nothing where it gives it once more before,
/// or never writes it. Memory that was freed is written by the next who needs as many bytes, as of an allocator that
/// keeps blocks by their sizes.
std::vector<std::optional<double>> bytes_until_rewritten(const Program& program, const Role& role);

}  // namespace sim
