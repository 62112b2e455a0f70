// What a result must say about the machine and the software it was made with.
//
//   context["environment"] = environment();
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace backend {

/// cpu (model, usable cores, caches, MHz, governor), memory, kernel, scheduler settings, library versions, GPUs,
/// commit and date. What the machine doesn't tell is null.
nlohmann::json environment();
/// The share of CPU time that the hypervisor has taken since this process began; or null.
nlohmann::json steal_share();

/// What two hosts must have alike to run together: paragauge's version, a checksum of its sources, LibTorch's version.
std::string version();

}  // namespace backend
