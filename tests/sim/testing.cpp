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

const std::vector<Lowered>& grid() {
  static const std::vector<Lowered> all = [] {
    const std::set<std::string> longer{"resnet34", "resnet101", "resnet152", "vgg13", "vgg16", "vgg19"};
    std::vector<Lowered> lowered;
    for (const std::string& name : written_models()) {
      if (longer.contains(name)) continue;
      const Model model = small_model(name);
      for (const std::string& text : strategy_texts(model)) {
        const Strategy strategy = parse_strategy(text, model);
        lowered.push_back({model, strategy, lower(model, strategy)});
      }
    }
    return lowered;
  }();
  return all;
}

}  // namespace sim::testing
