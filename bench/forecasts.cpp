#include "bench/forecasts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "sim/cluster/allowance.hpp"
#include "sim/cluster/world.hpp"
#include "sim/cost/origin.hpp"
#include "sim/error.hpp"
#include "sim/model/op/body.hpp"
#include "sim/report/console.hpp"
#include "sim/text/file.hpp"
#include "sim/text/spec.hpp"

namespace bench {

namespace {

/// Hosts like this one, each with ranks on all its cores. Nobody says what is between them but a profile.
sim::Cluster several_hosts(const std::string& world, const Options& options, std::uint32_t ranks, std::uint32_t cores) {
  if (!sim::world_kind(world).processes)
    throw sim::ConfigError("--hosts {}: ranks of world '{}' are of one process, on one host", options.hosts, world);
  const sim::Cluster host = sim::machine_cluster(world, options.machine.device, "", cores, cores);
  sim::Link between = host.link();
  between.shared = false;
  sim::Cluster all = sim::with_hosts(host, options.hosts, ranks, between, options.machine.network);
  all.remarks.push_back(fmt::format(
      "{} hosts like this one: what a profile doesn't say of the network between them is taken to be as within "
      "one (`paragauge machine` writes a file that says more)",
      options.hosts));
  return all;
}

/// Of imported recurrent layers, which are played step by step.
std::string remark_on_recurrence(const sim::Model& model) {
  constexpr std::array<std::string_view, 4> kRecurrent{"lstm", "gru", "rnn_tanh", "rnn_relu"};
  std::set<std::string_view> kinds;
  double kernels = 0;
  for (const sim::Node& node : model.nodes) {
    if (node.body == nullptr) continue;
    const std::string_view kind = std::string_view(node.body->name).substr(0, node.body->name.find('/'));
    if (std::ranges::find(kRecurrent, kind) == kRecurrent.end()) continue;
    kinds.insert(kind);
    kernels += node.body->kernels[0] + node.body->kernels[1];
  }
  if (kinds.empty()) return "";
  return fmt::format(
      "{}: forecast, and played here, step by step, {:.0f} kernels for a microbatch; PyTorch on a GPU leaves it "
      "to a few of cuDNN's, and takes less than this says.",
      fmt::join(kinds, ", "), kernels);
}

}  // namespace

std::vector<sim::Cluster> clusters_of(const Options& options, std::uint32_t ranks) {
  if (!options.cluster.empty())
    return {sim::load_cluster(options.cluster, ranks, options.devices, options.plan_devices)};
  sim::check_network(options.machine.network, options.machine.worlds);
  const std::uint32_t cores = options.devices != 0 ? options.devices : sim::usable_cores();
  std::vector<sim::Cluster> clusters;
  for (const std::string& world : options.machine.worlds)
    if (options.hosts == 1)
      clusters.push_back(sim::machine_cluster(world, options.machine.device, options.machine.network, ranks, cores));
    else
      clusters.push_back(several_hosts(world, options, ranks, cores));
  return clusters;
}

// A rank's place doesn't depend on how many there are.
sim::Cluster Priced::of(const sim::Program& program) const {
  sim::Cluster own = cluster;
  const std::uint32_t ranks = program.ranks();
  sim::check_internal(ranks <= own.place.size(), "{} ranks on a cluster loaded for {}", ranks, own.place.size());
  own.place.resize(ranks);
  return sim::with_threads(own, program.threads, program.strategy);
}

std::vector<Priced> priced_clusters(const Options& options, std::uint32_t most_ranks) {
  std::shared_ptr<const sim::Profile> profile;
  if (!options.profile.empty()) profile = std::make_shared<const sim::Profile>(sim::load_profile(options.profile));
  std::vector<Priced> list;
  for (sim::Cluster& cluster : clusters_of(options, most_ranks)) {
    if (profile) cluster = sim::with_measured_accelerator(cluster, *profile);
    cluster.one_launch = options.machine.graph;
    Priced& priced = list.emplace_back();
    for (const std::string& name : options.cost_models)
      priced.cost_models[name] = sim::make_cost_model(name, cluster, profile.get());
    priced.profile = profile;
    if (options.memory_GiB > 0) {
      for (const std::uint32_t kind : cluster.kinds_in_use())
        cluster.kind(kind).memory_capacity = sim::bytes(options.memory_GiB * 1073741824);
      if (cluster.host) cluster.host->memory = {};  // each device has memory of its own
    }
    priced.cluster = std::move(cluster);
  }
  return list;
}

std::string where_is(const sim::Cluster& cluster, const Options& options) {
  return options.cluster.empty() ? cluster.world : cluster.name;
}

std::string remarks_of(const std::vector<Priced>& clusters, const std::vector<const sim::Model*>& models) {
  std::vector<std::string> remarks;
  for (const Priced& priced : clusters) {
    if (priced.cluster.device.asynchronous)
      for (const sim::Model* model : models) remarks.push_back(remark_on_recurrence(*model));
    for (const std::string& remark : priced.cluster.remarks) remarks.push_back(remark + ".");
    for (const auto& [name, cost_model] : priced.cost_models)
      for (const std::string& remark : cost_model->remarks()) remarks.push_back(remark);
  }
  return sim::remarks_text(remarks);
}

std::optional<sim::TrackRecord> track_record() {
  const char* given = std::getenv("PARAGAUGE_TRACK_RECORD");
  std::filesystem::path file = given != nullptr ? given : PARAGAUGE_RESULTS_DIR "/track_record.json";
  // Installed beside the catalog.
  if (const auto installed = sim::catalog_directory().parent_path() / "track_record.json";
      given == nullptr && std::filesystem::exists(installed))
    file = installed;
  if (!std::filesystem::exists(file)) return std::nullopt;
  return sim::load_track_record(file);
}

}  // namespace bench
