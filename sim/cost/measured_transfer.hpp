// What a profile says of a transfer, as the simulator wants it: for the cost models that answer from profiles.
//
//   std::optional<TransferCost> cost = transfer_cost(profile, cluster, link_key(cluster.world, question), question.bytes);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/cost/profile.hpp"

namespace sim {

/// Under which name a profile has what answers the question.
LinkKey link_key(const std::string& world, const TransferQuestion& question);

/// With the world's own share of the cores and its notifications; unavailable as in Profile::transfer.
std::optional<TransferCost> transfer_cost(const Profile& profile, const Cluster& cluster, const LinkKey& link,
                                          std::int64_t bytes);

}  // namespace sim
