#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "backend/machine/environment.hpp"
#include "backend/machine/inventory.hpp"
#include "backend/machine/launch.hpp"
#include "backend/session.hpp"
#include "bench/commands.hpp"
#include "sim/cluster/found.hpp"
#include "sim/error.hpp"
#include "sim/report/console.hpp"
#include "sim/text/file.hpp"

namespace bench {
namespace {

/// This host and the others of the launch; empty in a process that isn't the launch's first.
std::vector<sim::FoundHost> find_hosts(const Machine& machine) {
  sim::FoundHost own = backend::inventory();
  if (backend::is_first_of_host()) own.core = backend::measure_cores();
  if (!backend::is_rank_process()) return {own};
  const std::unique_ptr<backend::Session> session = backend::open_session({.world = "gloo",
                                                                           .ranks = backend::ranks_of_launch(),
                                                                           .timeout_s = machine.timeout_s,
                                                                           .real_time = false,
                                                                           .alike = {{"version", backend::version()}},
                                                                           .about_host = backend::to_json(own)});
  if (session == nullptr) return {};
  if (session->hosts().empty()) return {own};
  std::vector<sim::FoundHost> hosts;
  for (const nlohmann::json& host : session->hosts()) hosts.push_back(backend::host_from_json(host.at("about")));
  return hosts;
}

}  // namespace

int write_machine(const Options& options) {
  const std::vector<sim::FoundHost> hosts = find_hosts(options.machine);
  if (hosts.empty()) return 0;
  std::string world = options.machine.worlds.front();
  if (world.empty()) world = hosts.front().gpus.empty() ? "gloo" : "nccl";
  const std::filesystem::path path(options.output);
  const sim::FoundCluster found = sim::cluster_of_found(hosts, world, path.stem().string());
  sim::write_text_file(path, found.text);
  for (const std::string& origin : found.origins) fmt::print("{}", sim::paragraph(sim::printable(origin), ' ', 100));
  if (!found.missing.empty())
    throw sim::ConfigError("{} is written, but can't be read yet: {}", options.output,
                           fmt::to_string(fmt::join(found.missing, "; ")));
  fmt::print("{}", sim::paragraph(
                       sim::printable(fmt::format("{} is written: paragauge predict -c {} and plan -c {} take it; what "
                                                  "is a guess may be replaced in it by what you have measured.",
                                                  options.output, options.output, options.output)),
                       ' ', 100));
  return 0;
}

}  // namespace bench
