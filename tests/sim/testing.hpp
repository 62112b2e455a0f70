// What the tests of sim share: messages, temporary folders, the grid of strategies and small models.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/strategy/option/option.hpp"
#include "sim/strategy/schedule/schedule.hpp"
#include "sim/strategy/strategy.hpp"
#include "sim/text/spec.hpp"

namespace sim::testing {

/// What the ConfigError that `call` throws says.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// `text` with the first `from` replaced; a test that edits nothing is an error.
inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error(fmt::format("'{}' isn't in the text", from));
  return text.replace(at, from.size(), to);
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "paragauge_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// Writes a file and returns its path.
  [[nodiscard]] std::string file(const std::string& name, std::string_view text) const {
    write_text_file(path_ / name, text);
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// tests/ of the checkout.
std::filesystem::path tests_folder();

inline std::string golden_text(const std::string& name) { return read_text_file(tests_folder() / "golden" / name); }

/// Of the catalog's models those that are written by hand: every strategy plays them; and those that the importer made.
std::vector<std::string> written_models();
std::vector<std::string> imported_models();

/// A model of the catalog that is written by hand, small enough for grids. 8 samples divide by 2 replicas and 4 microbatches.
inline Model small_model(const std::string& name) {
  const Model model = load_model(name);
  const bool large = model.input.size() == 3 && model.input[1] > 64;
  return load_model(name + (large ? ",image=64" : "") + ",global_batch=8");
}

/// Texts that use every strategy that the model can be played by, every one of its keys with every value that is tried,
/// and every cut preset of the model; of each strategy all keys in one text, but those that stay `alone`; and axes together.
inline std::vector<std::string> strategy_texts(const Model& model) {
  const std::set<std::string_view> alone{"schedule", "split_size", "levels"};
  const bool is_chain = !strategy_option_table().at("tp").tried(model, strategy_table().at("mesh")).empty();
  std::vector<std::string> texts;
  for (const StrategyKind& kind : strategy_table()) {
    const std::string name(kind.name);
    if (kind.otherwise("tp", 1) > 1 && !is_chain) continue;
    const std::int32_t chunks = kind.schedule.empty() ? 1 : schedule_table().at(kind.schedule).chunks;
    if (std::ssize(model.nodes) < 2 * chunks) continue;
    texts.emplace_back(kind.example);
    texts.push_back(name);
    std::string all = name;
    for (const StrategyOption& option : strategy_option_table()) {
      if (!kind.takes(option.name)) continue;
      const std::vector<std::string> values = option.tried(model, kind);
      if (kind.is_proposed)  // else another row has the same with each of its keys
        for (const std::string& value : values) texts.push_back(fmt::format("{},{}={}", name, option.name, value));
      if (!values.empty() && !alone.contains(option.name)) all += fmt::format(",{}={}", option.name, values[0]);
    }
    texts.push_back(all);
    if (kind.takes("cut") && chunks == 1)
      for (const auto& [preset, cuts] : model.cuts)
        texts.push_back(fmt::format("{},pp={},cut={}", name, cuts.size() + 1, preset));
  }
  for (int zero = 1; zero <= 3; ++zero) {
    texts.push_back(fmt::format("mesh,dp=2,pp=2,microbatches=2,zero={}", zero));
    texts.push_back(fmt::format("mesh,replicas=2,shard=2,zero={}", zero));
    if (is_chain) texts.push_back(fmt::format("mesh,dp=2,tp=2,zero={}", zero));
  }
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return texts;
}

struct Lowered {
  Model model;
  Strategy strategy;
  Program program;
};
/// Every strategy of every model of the catalog that isn't another one with more of the same. They are lowered once for all
/// tests of a process; suites that look at all of them are run by one (tests/CMakeLists.txt).
const std::vector<Lowered>& grid();

/// Calls `check(model, strategy, program)` for all of them.
template <class Check>
void for_each_program(const Check& check) {
  for (const Lowered& lowered : grid()) {
    SCOPED_TRACE(lowered.program.model + " " + lowered.program.strategy);
    check(lowered.model, lowered.strategy, lowered.program);
  }
}

/// Ranks on a node, each with a device of its own, and links that cost nothing unless a test says so.
inline Cluster plain_cluster(std::uint32_t ranks) {
  Cluster cluster;
  cluster.name = "plain";
  cluster.world = "gloo";
  cluster.device.name = cluster.device.driver_name = "core";
  cluster.device.peak(Arithmetic::f32) = cluster.device.peak(Arithmetic::f64) = teraflops_per_second(0.05);
  cluster.is_this_machine = true;
  cluster.device.memory_bandwidth = gigabytes_per_second(10);
  cluster.device.launch = microseconds(1);
  cluster.levels = {
      {.name = "node", .size = ranks, .link = {.latency = microseconds(20), .bandwidth = gigabytes_per_second(2)}}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) cluster.place.push_back({rank});
  return cluster;
}

/// So many of the cluster's devices on each node, the links between the nodes as those within.
inline Cluster on_nodes(Cluster cluster, std::uint32_t devices_per_node) {
  const auto nodes = static_cast<std::uint32_t>((cluster.place.size() + devices_per_node - 1) / devices_per_node);
  cluster.levels.resize(1);
  cluster.levels[0].size = devices_per_node;
  cluster.levels.push_back({.name = "network", .size = nodes, .link = cluster.link()});
  return cluster;
}

}  // namespace sim::testing
