// DASO (https://arxiv.org/abs/2104.05588): every rank of a node sums gradients with the node's other ranks, but nodes go
// their own ways, and from time to time one rank of each averages its parameters with those of the other nodes. When, as
// heat/optim/dp_optimizer.py has it (class DASO, step).
//
//   const DasoEpoch epoch = epoch_of({.local = 2, .skips = 4, .wait = 1, .local_skips = 1});
//   epoch.first.syncs;      // rank 0 sends
//   epoch.body[0].syncs;    // rank 0 receives, and blends; to the node's other rank
//   epoch.body[3].syncs;    // rank 1 sends; the body is 8 training steps long
#pragma once

#include <cstdint>
#include <vector>

namespace sim {

struct Daso {
  std::uint32_t local = 2;  // ranks of a node
  std::int64_t skips = 4;   // steps from one sending to the next; 0: after each step, and at once (warm-up, cool-down)
  std::int64_t wait = 1;    // steps from sending to receiving
  std::int64_t local_skips = 1;  // steps from one sum of gradients in the node to the next, after receiving

  friend bool operator==(const Daso&, const Daso&) = default;
};

/// What follows a training step's update, on one rank of each node, or from it to the node's others.
struct NodeSync {
  enum class Kind : std::uint8_t {
    send,      // its parameters, to be summed over the nodes
    blend,     // what was sent is summed now: p = keep · p + take · sum
    mean,      // the same without its own: p = sum / nodes
    broadcast  // in the node
  } kind = Kind::send;
  std::uint32_t rank = 0;   // of the node
  std::int64_t waited = 0;  // blend: steps that it was to take when it was sent

  friend bool operator==(const NodeSync&, const NodeSync&) = default;
};

struct DasoStep {
  bool sums_gradients = true;  // in the node
  std::vector<NodeSync> syncs;

  friend bool operator==(const DasoStep&, const DasoStep&) = default;
};

/// An epoch of any number of bodies. After its last step all ranks have the same parameters.
struct DasoEpoch {
  DasoStep first;
  std::vector<DasoStep> body;  // until each of the node's ranks has sent once
  std::vector<DasoStep> end;   // the last one synchronizes in full
};
DasoEpoch epoch_of(const Daso& daso);

/// Its steps after the first: until each of the node's ranks has sent once.
std::int64_t steps_of_body(const Daso& daso);

}  // namespace sim
