// The rows of a result as CSV; written and read again.
#include "sim/report/report.hpp"
#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::File file("rows.csv");
  return fuzz::read([&] {
    const sim::Report report{sim::rows_from_csv(file.holding(fuzz::text_of(data, size))), {}, {}};
    static_cast<void>(sim::to_console(report, sim::Detail::full));
    const std::string text = sim::to_csv(report);
    fuzz::require(sim::rows_from_csv(file.holding(text)) == report.rows, "to_csv can be read and is the same then");
  });
}
