// What a result must say about the machine and the software it was made with.
//
//   context["environment"] = environment();
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace backend {

/// cpu (model, usable cores, caches, MHz, governor), memory, kernel, scheduler settings, library versions, GPUs,
/// commit, date, and the share of CPU time that the hypervisor took since the first call.
/// What the machine doesn't tell is null.
nlohmann::json environment();

/// What two hosts must have alike to run together: paragauge's version, a checksum of its sources, LibTorch's version.
std::string version();

}  // namespace backend
