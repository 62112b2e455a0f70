// How long NCCL's collectives take among the GPUs of a node, by algorithm and protocol, and the fit of that to times by
// size and number of GPUs, as nccl-tests prints them.
//
//   const NcclTimes times = fit_nccl({{2, 1e6, 44e-6}, {2, 1e8, 610e-6}, {4, 1e6, 51e-6}});   // two or more of each
//   times.ring(8, 1e9, 2).seconds();                                                          // 1 GB among eight
//
// A ring of n GPUs, around which each n-th of s bytes goes `rounds` times (all_reduce: 2; reduce_scatter, all_gather: 1):
//
//   t = base + rounds (n-1) hop + f rounds (s / (2 local) + (n-1)/n s / (rings(n) ring)),  the least of the protocols'
//
// with a hop of its own and f bytes on the wire for one of data: LL 2 (of 8 bytes 4 are a flag), LL128 128/120 (of 128
// bytes 8), Simple 1 (NCCL src/include/device.h; the latencies' order: src/graph/tuning.cc). `local` is what a GPU does
// with all of the array beside sending it, `rings` how many of the same links lie between n GPUs (the cube mesh of a
// DGX-1 has 1 to 6). A chain (NCCL's tree inside a node) carries all of s over each link, up and down. By the switch
// (NVLS, NVLink SHARP) each GPU gives s and gets its n-th summed, then gives that and gets s: (n+1)/n s in each
// direction, in no hops (NCCL src/device/all_reduce.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/units.hpp"

namespace sim {

struct NcclProtocol {
  std::string_view name;
  double bytes_on_wire = 1;  // for one of data
};
inline constexpr std::array<NcclProtocol, 3> kNcclProtocols{{{"ll", 2}, {"ll128", 128.0 / 120}, {"simple", 1}}};

/// Alone on its links.
struct NcclTime {
  double latency_s = 0, bytes_s = 0;
  [[nodiscard]] double seconds() const { return latency_s + bytes_s; }
};

/// GPUs of one node; two members or more.
struct NcclTimes {
  Seconds base;
  std::array<std::optional<Seconds>, kNcclProtocols.size()> hop;  // by protocol; empty: it isn't used
  std::optional<BytesPerSecond> local;                            // empty: it costs nothing
  BytesPerSecond per_ring;
  std::map<std::uint32_t, std::uint32_t> rings = {};  // by number of members, where it isn't 1
  struct Nvls {
    Seconds base;
    BytesPerSecond bandwidth;
  };
  std::optional<Nvls> nvls;  // empty: there is none

  [[nodiscard]] NcclTime ring(std::uint32_t members, double bytes, double rounds) const;
  /// An all_reduce's.
  [[nodiscard]] NcclTime chain(std::uint32_t members, double bytes) const;
  [[nodiscard]] std::optional<NcclTime> by_switch(std::uint32_t members, double bytes) const;

 private:
  [[nodiscard]] NcclTime best(double hops, double local_bytes, double wire_bytes) const;
};

/// An all_reduce by a ring.
struct NcclMeasurement {
  std::uint32_t members = 2;
  double bytes = 0;    // of the array
  double seconds = 0;  // more than 0
};

/// The mean of |ln(fit / measured)|, by rings.
double error_of(const NcclTimes& times, const std::vector<NcclMeasurement>& measured);

/// The least sum of robust errors, sqrt(1 + (ln(fit / measured) / 0.05)^2): neighbouring sizes scatter by some 5 %. LL is
/// among the protocols where something of less than 1 MiB was measured. Measurements of one number of members can't tell
/// base from hops, nor local from rings: what they have of both is the base's, and the rings'. ConfigError without three
/// measurements, for more than 64 sizes, for fewer than two members, and for times or sizes of 0.
NcclTimes fit_nccl(const std::vector<NcclMeasurement>& measured,
                   const std::map<std::uint32_t, std::uint32_t>& rings = {});

}  // namespace sim
