// Copies of what a collective moves, which a rank holds from the post to the end of the wait beside its operands.
//
//   const std::vector<Staging> staging = staging_of(program, program.roles[0], cluster.link().transport);
//   peak_memory(program.roles[0], staging).peak_bytes;
//
// Only world `gloo` makes any (Transport::notify; backend/world/gloo.cpp): `local` copies from the members' memory,
// `nccl` hands NCCL the operands. gloo's reduce works in place on all members, so who isn't the root gives a copy. What
// moves parts goes through its alltoallv (gloo/alltoallv.cc), which takes one piece of memory for all that is sent and
// one for all that is received. Two members exchange one block each, in place. Each of more than two holds
//
//   reduce_scatter  what it gets from each of the n members: n times its part
//   all_gather      of unequal parts: its array, n times
//   any             parts that don't lie one after the other in one storage, on either side
//
// Assumes: what gloo's own threads allocate while they work (the ring's segments of a sum, an all_gather of equal
// parts) belongs to no rank.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"

namespace sim {

/// A piece of memory each.
struct Staging {
  std::int64_t sent_bytes = 0, received_bytes = 0;
  friend bool operator==(const Staging&, const Staging&) = default;

  [[nodiscard]] std::int64_t bytes() const { return sent_bytes + received_bytes; }
};

/// The staging of what each instruction posts. Empty where the transport makes none.
std::vector<Staging> staging_of(const Program& program, const Role& role, Transport transport);

}  // namespace sim
