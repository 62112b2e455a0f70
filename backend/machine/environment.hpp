// What a result must say about the machine and the software it was made with.
//
//   const Environment environment;                 // notes the time and the stolen time so far
//   …                                              // measure
//   result.context["environment"] = environment.describe();   // steal since then included
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace backend {

class Environment {
 public:
  Environment();
  /// host, cpu (model, cores, caches, MHz, governor), memory, kernel, scheduler settings, library versions, GPU,
  /// commit, date, and the share of CPU time that the hypervisor took since construction. What the machine doesn't tell
  /// is null.
  [[nodiscard]] nlohmann::json describe() const;

 private:
  std::uint64_t steal_ticks_ = 0, total_ticks_ = 0;
};

}  // namespace backend
