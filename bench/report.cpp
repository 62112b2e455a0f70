#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/commands.hpp"
#include "sim/error.hpp"
#include "sim/report/report.hpp"
#include "sim/text/spec.hpp"

namespace bench {

int report(const Options& options) {
  sim::Result all;
  all.kind = "report";
  for (const std::string& file : options.files) {
    const sim::Result one = sim::load_result(file);
    if (options.files.size() == 1) all.kind = one.kind;  // the same rounds, written anew
    for (sim::Session session : one.sessions) {
      if (options.files.size() > 1) session.context["file"] = file;
      all.sessions.push_back(std::move(session));
    }
    for (const sim::Cell& cell : one.cells) {
      sim::Cell& merged = all.cell(cell.model, cell.strategy, cell.world, cell.executor);
      if (!merged.rounds.empty())
        throw sim::ConfigError("{}: {} {} on {} is in an earlier file too", file, cell.model, cell.strategy,
                               cell.world);
      merged = cell;
    }
  }
  const sim::Report report = sim::make_report(all);
  fmt::print("{}", sim::to_console(report));
  if (!options.json.empty()) {
    sim::check_replaceable(options.json, all.kind);
    options.compact ? sim::save_result(options.json, all) : sim::save_report(options.json, all);
  }
  if (!options.csv.empty()) sim::write_text_file(options.csv, sim::to_csv(report));
  if (!options.record.empty()) sim::write_text_file(options.record, sim::to_json(sim::track_record(all)));
  return 0;
}

}  // namespace bench
