// A result; its report is made and shown in every form, and the CSV is read back.
#include "sim/report/result.hpp"

#include "sim/report/report.hpp"
#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::File file("result.csv");
  return fuzz::read([&] {
    const sim::Result result = sim::result_from_json(fuzz::text_of(data, size), "result");
    const sim::Report report = sim::make_report(result);
    static_cast<void>(sim::to_console(report, sim::Detail::full));
    static_cast<void>(result.next_round());
    try {
      fuzz::require(sim::result_from_json(sim::to_json(result), "again").cells == result.cells,
                    "to_json is the same result");
      fuzz::require(sim::rows_from_csv(file.holding(sim::to_csv(report))).size() == report.rows.size(),
                    "to_csv has every row");
    } catch (const sim::ConfigError& error) {
      fuzz::require(false, error.what());  // these are our own files
    }
  });
}
