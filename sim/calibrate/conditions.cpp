#include "sim/calibrate/conditions.hpp"

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/error.hpp"

namespace sim {
namespace {

struct Condition {
  std::string_view name;
  const char* pointer;
};
constexpr std::array<Condition, 8> kConditions{{{"device", "/device"},
                                                {"scheduling", "/scheduling"},
                                                {"network", "/network"},
                                                {"cpu", "/environment/cpu/model"},
                                                {"cores", "/environment/cpu/usable_cores"},
                                                {"gpus", "/environment/gpus"},
                                                {"torch", "/environment/torch"},
                                                {"commit", "/environment/commit"}}};

std::string shown(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

std::string content_id(std::string_view text) {  // FNV-1a, 64 bits
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

void check_same_conditions(const nlohmann::json& then, const nlohmann::json& now, const std::string& file) {
  for (const auto& [name, pointer] : kConditions) {
    const nlohmann::json::json_pointer path(pointer);
    if (!then.contains(path) || !now.contains(path) || then.at(path) == now.at(path)) continue;
    throw ConfigError(
        "{}: measured with {}={}, this run has {}; write to another file, or run under the same conditions", file, name,
        shown(then.at(path)), shown(now.at(path)));
  }
}

}  // namespace sim
