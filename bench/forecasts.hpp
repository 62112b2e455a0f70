// What commands that forecast without running share.
//
//   for (const sim::Cluster& cluster : clusters_of(options, strategy.ranks()))
//     fmt::print("{}\n", cluster.name);
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/commands.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/report/track_record.hpp"

namespace bench {

/// The clusters to forecast for: the named one, or this machine in each of its worlds.
std::vector<sim::Cluster> clusters_of(const Options& options, std::uint32_t ranks);
/// Of this source tree; PARAGAUGE_TRACK_RECORD in the environment overrides it. Nothing where there is none.
std::optional<sim::TrackRecord> track_record();

}  // namespace bench
