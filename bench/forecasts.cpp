#include "bench/forecasts.hpp"

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "sim/cluster/world.hpp"

namespace bench {

std::vector<sim::Cluster> clusters_of(const Options& options, std::uint32_t ranks) {
  if (!options.cluster.empty()) return {sim::load_cluster(options.cluster, ranks, options.devices)};
  sim::check_network(options.machine.network, options.machine.worlds);
  const std::uint32_t cores = options.devices != 0 ? options.devices : std::thread::hardware_concurrency();
  std::vector<sim::Cluster> clusters;
  for (const std::string& world : options.machine.worlds)
    clusters.push_back(sim::machine_cluster(world, options.machine.device, options.machine.network, ranks, cores));
  return clusters;
}

std::optional<sim::TrackRecord> track_record() {
  const char* given = std::getenv("PARAGAUGE_TRACK_RECORD");
  const std::filesystem::path file = given != nullptr
                                         ? std::filesystem::path(given)
                                         : std::filesystem::path(PARAGAUGE_RESULTS_DIR) / "track_record.json";
  if (!std::filesystem::exists(file)) return std::nullopt;
  return sim::load_track_record(file);
}

}  // namespace bench
