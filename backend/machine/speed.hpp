// How fast the machine is at this moment: fixed pieces of work, timed. What else runs on a host changes the
// one and not the other: neighbours share its memory and its last cache, and leave a core that computes in its own
// caches alone. A virtual machine's host moves its cores, for seconds, between such that share their last cache and
// such that don't: then data takes three to five times as long from one to the other.
//
//   compute_probe_s();          // 1.5 ms of multiplications in the first cache
//   memory_probe_s(1, 2);       // 3.7 ms: reads 32 MiB, the second of two ranks of a process
//   core_to_core_probe_s(1);    // 0.1 to 0.3 ms: a cache line goes to the second core and back, 256 times
//
// They run on the calling thread, with its core and its priority, in 16 parts: one that is interrupted isn't counted.
#pragma once

#include <cstdint>

namespace backend {

/// Seconds of 16 million multiplications and additions of floats in 8 KiB.
double compute_probe_s();

/// Seconds that it takes to read 32 MiB once. Threads of a process read the same bytes, from another place on
/// each: `part` of `parts`, counted from 0.
double memory_probe_s(std::uint32_t part, std::uint32_t parts);

/// Seconds of a cache line's way to another core and back (core-to-core latency, twice). A thread is started there for it,
/// with the caller's priority. 0: it didn't get that core in 10 ms.
double core_to_core_probe_s(std::uint32_t other_core);

/// What the probes hold in this process: 0 until the first one has read memory.
std::int64_t probe_bytes();

}  // namespace backend
