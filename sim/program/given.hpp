// What a rank gives in collectives: how long ago it was written, and when it will be again.
//
//   const std::vector<std::optional<GivenMemory>> given = given_by(program, role);
//   given[i]->until_written;      // of collective i: what the rank's ops move until then, bytes
#pragma once

#include <optional>
#include <vector>

#include "sim/program/program.hpp"

namespace sim {

/// Bytes are those that the rank's ops move (Work::demand).
struct GivenMemory {
  /// Since it was written, on average over its bytes: in this step, or in the one before. Not counted are the ops that
  /// wrote it. Nothing of constants.
  std::optional<double> since_written;
  /// Until it is written again, in the next step at the latest; nothing where it is given once more before, or never
  /// written. Memory that was freed is written by the next who needs as many bytes, as of an allocator that keeps blocks
  /// by their sizes.
  std::optional<double> until_written;
  std::uint32_t writer = kNone;  // the instruction that writes it then; kNone: none
};

/// By instruction; nothing where a rank gives nothing. Of several operands it is the last one's.
std::vector<std::optional<GivenMemory>> given_by(const Program& program, const Role& role);

}  // namespace sim
