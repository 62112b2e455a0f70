// Programs that measure links: what `calibrate` plays beside the ops.
//
//   Program probe = transfer_probe({.kind = InstructionKind::collective, .bytes = 4 << 20, .members = 2},
//   /*repeats=*/4);
//   // ranks 0…members−1; every posted instruction is one sample
//
// Each repeat first writes what it sends (as a bucket is filled, an activation computed, right before it goes), so that
// the caches are in a step's state. Point-to-point repeats alternate in direction, so that both ends stay in step.
#pragma once

#include "sim/cost_model.hpp"
#include "sim/program.hpp"

namespace sim {

/// `bytes` is rounded up to whole f32 elements.
Program transfer_probe(const TransferQuestion& question, std::uint32_t repeats);

}  // namespace sim
