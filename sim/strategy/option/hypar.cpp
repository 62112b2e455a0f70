// HyPar's hierarchy, and what each layer does on its levels.
#include <algorithm>
#include <functional>
#include <numeric>

#include "sim/error.hpp"
#include "sim/strategy/option/reading.hpp"

namespace sim {
namespace {

void read_levels(const StrategyReading& r, Strategy& s) {
  if (!r.kind.takes("levels")) return;
  std::int64_t ranks = 1;
  for (const std::string& level : split(r.text.text("levels").value_or("2"), 'x')) {
    s.levels.push_back(static_cast<std::uint32_t>(r.text.integer_in("levels", level, 2, kMostRanks)));
    ranks *= s.levels.back();
    if (s.levels.size() > 8 || ranks > kMostRanks)
      throw ConfigError("strategy '{}': levels must be at most 8, of at most {} ranks together", r.text.whole(),
                        kMostRanks);
  }
}

/// dp+3*in: dp+in+in+in.
std::vector<std::string> read_choices(const SpecText& text, const std::string& level) {
  constexpr std::int64_t kMost = 10'000;
  std::vector<std::string> choices;
  for (const std::string& item : split(level, '+')) {
    const std::size_t star = item.find('*');
    const bool is_repeated = star != std::string::npos;
    const std::int64_t times = is_repeated ? text.integer_in("layers", item.substr(0, star), 1, kMost) : 1;
    choices.insert(choices.end(), static_cast<std::size_t>(times), is_repeated ? item.substr(star + 1) : item);
    if (std::ssize(choices) > kMost) throw ConfigError("strategy '{}': more than {} layers", text.whole(), kMost);
  }
  return choices;
}

void read_layers(const StrategyReading& r, Strategy& s) {
  if (s.levels.empty()) return;
  for (const std::string& level : split(r.text.text("layers").value_or("dp"), '/'))
    s.layers.push_back(read_choices(r.text, level));
  if (s.layers.size() == 1) s.layers.resize(s.levels.size(), s.layers[0]);
  if (s.layers.size() != s.levels.size())
    throw ConfigError("strategy '{}': layers for {} levels, but {} levels; give one list for all or one for each",
                      r.text.whole(), s.layers.size(), s.levels.size());
}

/// The inverse of read_choices: three alike or more are counted.
std::string choices_text(const std::vector<std::string>& choices) {
  constexpr std::ptrdiff_t kCounted = 3;
  std::vector<std::string> items;
  for (auto begin = choices.begin(); begin != choices.end();) {
    const auto end = std::find_if(begin, choices.end(), [&](const std::string& choice) { return choice != *begin; });
    if (end - begin >= kCounted)
      items.push_back(fmt::format("{}*{}", end - begin, *begin));
    else
      items.insert(items.end(), begin, end);
    begin = end;
  }
  return fmt::to_string(fmt::join(items, "+"));
}

std::string write_layers(const Strategy& s, const StrategyKind& /*kind*/) {
  std::vector<std::string> by_level;
  for (const auto& choices : s.layers) by_level.push_back(choices_text(choices));
  return fmt::to_string(fmt::join(by_level, "/"));
}

void read_form(const StrategyReading& r, Strategy& s) {
  const std::string form = r.text.text("form").value_or("derived");
  if (form != "derived" && form != "rooted")
    throw ConfigError("strategy '{}': form={} must be derived or rooted", r.text.whole(), form);
  s.rooted = form == "rooted";
}

}  // namespace

std::vector<StrategyOption> hypar_options() {
  using Kind = StrategyKind;
  using Values = std::vector<std::string>;
  return {{.name = "levels",
           .values = "sizes joined by x",
           .meaning = "HyPar's hierarchy of devices, outermost first",
           .read = read_levels,
           .write = [](const Strategy& s, const Kind&) { return fmt::to_string(fmt::join(s.levels, "x")); },
           .tried = [](const Model&, const Kind&) { return Values{"2x2"}; },
           .ranks =
               [](const Strategy& s) {
                 return std::accumulate(s.levels.begin(), s.levels.end(), std::uint32_t{1}, std::multiplies());
               }},
          {.name = "layers",
           .values = "dp, in, out joined by +, levels by /; 3*dp: dp+dp+dp",
           .meaning = "how each layer is cut, one choice for all or one for each",
           .read = read_layers,
           .write = write_layers,
           .tried =
               [](const Model& model, const Kind&) {
                 return model.input[0] > 1 ? Values{"out", "in"} : Values{"out"};  // one channel can't be cut
               }},
          {.name = "form",
           .values = "derived or rooted",
           .meaning = "rooted: sums go to the first device, and from there to all",
           .read = read_form,
           .write = [](const Strategy& s, const Kind&) { return std::string(s.rooted ? "rooted" : ""); },
           .tried = [](const Model&, const Kind&) { return Values{"rooted"}; }}};
}

}  // namespace sim
