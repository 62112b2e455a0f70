// A result; its report is made and shown in every form.
#include "sim/report/result.hpp"

#include "sim/report/answer.hpp"
#include "sim/report/report.hpp"
#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::read([&] {
    const sim::Result result = sim::result_from_json(fuzz::text_of(data, size), "result");
    const sim::Report report = sim::make_report(result);
    static_cast<void>(sim::to_console(report, sim::Detail::full));
    static_cast<void>(sim::answer_of(result, nullptr, "--rounds {}"));
    static_cast<void>(result.next_round());
    const std::string csv = sim::to_csv(report);
    fuzz::require(static_cast<std::size_t>(std::ranges::count(csv, '\n')) == report.rows.size() + 1,
                  "to_csv has a line per row");
    try {
      // Written, numbers have seven digits; written again, they stay.
      const sim::Result again = sim::result_from_json(sim::to_json(result), "again");
      fuzz::require(again.cells.size() == result.cells.size(), "to_json has every cell");
      fuzz::require(sim::result_from_json(sim::to_json(again), "once more").cells == again.cells,
                    "to_json is the same result");
    } catch (const sim::ConfigError& error) {
      fuzz::require(false, error.what());  // these are our own files
    }
  });
}
