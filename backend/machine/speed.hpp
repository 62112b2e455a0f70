// How fast the machine is at this moment: two fixed pieces of work, timed. What else runs on a host changes the
// one and not the other: neighbours share its memory and its last cache, and leave a core that computes in its own
// caches alone.
//
//   compute_probe_s();          // 1.5 ms of multiplications in the first cache
//   memory_probe_s(1, 2);       // 3.7 ms: reads 32 MiB, the second of two ranks of a process
//
// Both run on the calling thread, with its core and its priority, in 16 parts: one that is interrupted isn't counted.
#pragma once

#include <cstdint>

namespace backend {

/// Seconds of 16 million multiplications and additions of floats in 8 KiB.
double compute_probe_s();

/// Seconds that it takes to read 32 MiB once. Threads of a process read the same bytes, from another place on
/// each: `part` of `parts`, counted from 0.
double memory_probe_s(std::uint32_t part, std::uint32_t parts);

/// What the probes hold in this process: 0 until the first one has read memory.
std::int64_t probe_bytes();

}  // namespace backend
