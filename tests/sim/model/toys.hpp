// The small imported models of tests/models, and their Programs.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/lower/lower.hpp"
#include "sim/strategy/strategy.hpp"
#include "sim/text/file.hpp"
#include "tests/sim/testing.hpp"

namespace sim::testing {

/// Written by hand: a tied embedding, a frozen table, an input for each sample beside the tokens.
inline std::string toy_path(const std::string& name = "token_toy") {
  return (tests_folder() / "models" / (name + ".json")).string();
}

inline Program lowered(const std::string& strategy, const std::string& model = toy_path()) {
  const Model loaded = load_model(model);
  return lower(loaded, parse_strategy(strategy, loaded));
}

/// The file of llama_toy whose angles are computed from constants in every step, as those of large models are: rotary.cos
/// is read by queries and keys (cut=layers.0.self_attn.add: on two stages), and so is rotary.sin, which is made of it.
inline std::string llama_with_tables() {
  nlohmann::json file = nlohmann::json::parse(read_text_file(toy_path("llama_toy")));
  nlohmann::json tables = nlohmann::json::array();
  for (const auto& [op, input, replaces] : {std::array{"cos", "c0", "c0"}, std::array{"sin", "rotary.cos", "c1"}}) {
    const std::string name = std::string("rotary.") + op, body = std::string(op) + "/1";
    for (nlohmann::json& node : file["nodes"])
      for (nlohmann::json& read : node["inputs"])
        if (read == replaces) read = name;
    file["bodies"][body] = {{"inputs", {"f32[4,2]"}},
                            {"parameters", nlohmann::json::array()},
                            {"output", "f32[4,2]"},
                            {"saved", nlohmann::json::array()},
                            {"forward", {std::string("o=") + op + "(i0)"}},
                            {"backward", nlohmann::json::array()},
                            {"flops", {{8, 0}, {0, 0}}},
                            {"bytes", {{64, 0}, {0, 0}}},
                            {"kernels", {1, 0}},
                            {"rows", true}};
    tables.push_back(
        {{"name", name}, {"op", "aten"}, {"body", body}, {"inputs", {input}}, {"parameters", nlohmann::json::array()}});
  }
  file["constants"].erase("c1");
  file["nodes"].insert(file["nodes"].begin(), tables.begin(), tables.end());
  return file.dump();
}

}  // namespace sim::testing
