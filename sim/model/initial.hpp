// First values of tensors that outlive a step. They depend on the names and the seed only, never on the partition.
//
//   const Initial weight{.kind = Initial::Kind::uniform, .center = 0, .bound = 0.1};
//   const Initial positions{.kind = Initial::Kind::runs, .runs = runs_from("0+1x64")};   // 0, 1, … 63
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

/// first, first + step, … : so many values.
struct Run {
  double first = 0, step = 0;
  std::int64_t count = 1;
  friend bool operator==(const Run&, const Run&) = default;
};
using Runs = std::vector<Run>;

/// `count` of the values, from the one at `begin` on; fewer where there aren't so many.
std::shared_ptr<const Runs> part_of(const Runs& runs, std::int64_t begin, std::int64_t count);
/// How many values they are, at most one more than any tensor has.
std::int64_t count_of(const Runs& runs);
/// "0+1x64,7x3": 0 to 63, then 7 three times.
std::string to_string(const Runs& runs);
/// The inverse. ConfigError for any other text.
std::shared_ptr<const Runs> runs_from(std::string_view text);

struct Initial {
  enum class Kind : std::uint8_t { none, uniform, constant, runs, model_input, model_target } kind = Kind::none;
  // uniform: center ± bound; constant: center; model_input with a bound: as uniform, else with mean 0 and variance 1.
  double center = 0, bound = 0;
  std::int64_t classes = 0;               // model_target: of how many; model_input: of whole numbers below it, else 0
  std::shared_ptr<const Runs> runs = {};  // in row-major order
};

}  // namespace sim
