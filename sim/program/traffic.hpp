// What moves between ranks, whatever algorithm moves it.
//
//   const Traffic traffic = traffic_of(program);
//   fmt::print("{} bytes in {} transfers", traffic.sent_bytes, traffic.transfers);    // of the rank that sends most
#pragma once

#include "sim/program/program.hpp"

namespace sim {

struct Traffic {
  /// What a rank sends. Of a collective the least that all algorithms must move, shared out over its n members: an
  /// all_reduce of B bytes 2(n−1)/n·B each, an all_gather, reduce_scatter, all_to_all, broadcast or reduce (n−1)/n·B, a
  /// scatter or gather (n−1)/n²·B (Chan et al., Collective communication: theory, practice, and experience, 2007,
  /// table 1).
  double sent_bytes = 0;
  std::uint32_t transfers = 0;  // sends and collectives that it begins
};
Traffic traffic_of(const Program& program, const Role& role);
/// Of the role that sends most, in a training step: where a list has several, their mean.
Traffic traffic_of(const Program& program);

}  // namespace sim
