// What commands that forecast without running share.
//
//   for (const Priced& priced : priced_clusters(options, /*most_ranks=*/8))
//     fmt::print("{}: {} cost models\n", priced.cluster.name, priced.cost_models.size());
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/commands.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/cost/profile.hpp"
#include "sim/report/track_record.hpp"

namespace bench {

/// The clusters to forecast for: the named one, or this machine in each of its worlds.
std::vector<sim::Cluster> clusters_of(const Options& options, std::uint32_t ranks);

/// A cluster with the cost models for it: read and made once for all strategies.
struct Priced {
  sim::Cluster cluster;                                                // with places for the most ranks
  std::map<std::string, std::unique_ptr<sim::CostModel>> cost_models;  // by name
  std::shared_ptr<const sim::Profile> profile;                         // that they were made from, or none

  /// The cluster as the program's ranks use it. ConfigError where it has no cores for their threads.
  [[nodiscard]] sim::Cluster of(const sim::Program& program) const;
};
/// The clusters to forecast for, by the options' cost models, profile and memory of a device. ConfigError where
/// the profile is of another device.
std::vector<Priced> priced_clusters(const Options& options, std::uint32_t most_ranks);
/// How a row of a table says where: the world's name, or that of the cluster that was asked for.
std::string where_is(const sim::Cluster& cluster, const Options& options);
/// What was taken for granted of the clusters and the models on them, and where the costs come from: a paragraph each, or
/// nothing.
std::string remarks_of(const std::vector<Priced>& clusters, const std::vector<const sim::Model*>& models);

/// The track record of this source tree; PARAGAUGE_TRACK_RECORD in the environment overrides
/// it. Nothing where there is none.
std::optional<sim::TrackRecord> track_record();

}  // namespace bench
