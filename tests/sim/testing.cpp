#include "tests/sim/testing.hpp"

namespace sim::testing {
namespace {

std::vector<std::string> models_of(bool imported) {
  std::vector<std::string> names = catalog_names("models");
  std::erase_if(names, [&](const std::string& name) { return load_model(name).is_imported() != imported; });
  return names;
}

}  // namespace

std::filesystem::path tests_folder() { return PARAGAUGE_TESTS_DIR; }

std::vector<std::string> written_models() {
  static const std::vector<std::string> names = models_of(false);
  return names;
}

std::vector<std::string> imported_models() {
  static const std::vector<std::string> names = models_of(true);
  return names;
}

}  // namespace sim::testing
