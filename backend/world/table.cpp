#include <array>

#include "backend/world/world.hpp"

namespace backend {

const sim::Table<WorldMaker>& world_table() {
  static constexpr std::array kMakers{WorldMaker{"local", make_local_world}, WorldMaker{"gloo", make_gloo_world}};
  static constexpr sim::Table<WorldMaker> kTable("world", kMakers);
  return kTable;
}

}  // namespace backend
