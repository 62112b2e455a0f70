// Collective algorithms: how a collective among n members is done, as steps and bytes on the wire.
//
//   const CollectiveAlgorithm& ring = collective_table().at("ring");
//   ring.steps(CollectiveKind::all_reduce, 4);                 // 6
//   ring.wire_bytes(CollectiveKind::all_reduce, 4, s);         // 1.5 s
//   // seconds = steps · α + wire bytes / bandwidth
//
// Conventions. `bytes` is nccl-tests' size s: the whole array, which for all_gather, all_to_all and gather is what a member
// (the root) gets, for reduce_scatter and scatter what a member (the root) gives. A step is a message that the next one
// waits for; wire bytes are those that go through the busiest member's link in its busier direction. With one member
// nothing is sent. An algorithm is asked by kind; one that it has no closed form for is an InternalError.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/program/program.hpp"
#include "sim/table.hpp"

namespace sim {

/// Among n members, two or more.
struct ClosedForm {
  double (*steps)(std::uint32_t n) = nullptr;
  double (*wire_share)(std::uint32_t n) = nullptr;  // wire bytes / s
};

struct CollectiveAlgorithm {
  std::string_view name;
  std::string_view equation;  // one line
  std::string_view assumes;
  std::string_view source;
  std::array<ClosedForm, kCollectiveKinds.size()> forms;  // by CollectiveKind; null: it isn't for that kind

  [[nodiscard]] bool is_for(CollectiveKind kind) const;

  [[nodiscard]] double steps(CollectiveKind kind, std::uint32_t members) const;
  [[nodiscard]] double wire_bytes(CollectiveKind kind, std::uint32_t members, double bytes) const;
};

const Table<CollectiveAlgorithm>& collective_table();

/// What a world uses. ConfigError for an unknown world.
const CollectiveAlgorithm& collective_algorithm(std::string_view world, CollectiveKind kind);

}  // namespace sim
