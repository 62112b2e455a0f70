// What there is of this host: cores, memory, GPUs, network cards; and what a core computes.
//
//   sim::FoundHost host = inventory();
//   host.core = measure_cores();                 // a second, on all cores
//   sim::cluster_of_found({host}, "gloo", "box").text
//
// NVIDIA's driver is asked for its GPUs by nvidia-smi (all of them, whatever CUDA_VISIBLE_DEVICES says), Linux for the
// rest. What neither says stays 0.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "sim/cluster/found.hpp"

namespace backend {

/// Without FoundHost::core.
sim::FoundHost inventory();
/// What a core computes while all that this process may use do the same: the best of several tries for about a second.
sim::FoundCore measure_cores();

/// The cards that are up: of `system` ("/sys") those in class/infiniband, and those in class/net that are no virtual ones and
/// none of the former's; of the virtual ones only `meets_over`.
std::vector<sim::FoundNic> network_cards(const std::filesystem::path& system, std::string_view meets_over);
/// The GPUs of nvidia-smi's answers: to --query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max
/// --format=csv,noheader, and to nvlink --status. What isn't a number is not known.
std::vector<sim::FoundGpu> gpus_of(std::string_view table, std::string_view nvlinks);

/// For the way from host to host.
nlohmann::json to_json(const sim::FoundHost& host);
sim::FoundHost host_from_json(const nlohmann::json& json);

}  // namespace backend
