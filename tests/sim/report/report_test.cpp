#include "sim/report/report.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "sim/error.hpp"
#include "sim/text/spec.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

/// Two strategies with eight quiet rounds and two cost models, one noisy strategy, one that only was predicted, and one
/// that could not run.
Result sample_result() {
  Result result;
  const std::string model = "net,global_batch=32,loss=mse_loss";
  const auto add = [&](const std::string& strategy, double measured_s, double noise, double factor) {
    Cell& cell = result.cell(model, strategy, "gloo");
    cell.ranks = cell.replicas = strategy.starts_with("ddp") ? 2 : 1;
    cell.microbatches = 4;
    cell.global_batch = 32;
    cell.memory.predicted_peak_bytes = 3 << 20;
    cell.memory.measured_peak_bytes = (3 << 20) + 8;
    cell.memory.predicted_at_peak_bytes["weight"] = 1 << 20;
    for (int i = 0; i < 8; ++i) {
      Round& round = cell.rounds.emplace_back();
      round.round = i;
      const double step = measured_s * (1 + (i % 2 == 0 ? noise : -noise));
      round.measured = {{step, 0.75 * step, 0.125 * step, 0.0625 * step, 0.0625 * step}};
      round.predicted["profiled"] = {measured_s * factor, measured_s * factor, 0, 0, 0};
      round.predicted["analytic"] = {measured_s / 2, measured_s / 2, 0, 0, 0};
      round.replayed_s = step;
      cell.attribution["profiled"].add({{"conv2d.backward", 1, 1, 0.01 * measured_s}});
    }
  };
  add("single", 2, 0.001, 1.02);
  add("ddp,dp=2", 1, 0.002, 0.97);
  add("pipeline,pp=2,schedule=gpipe,microbatches=4,cut=layer2", 1.5, 0.1, 1.10);
  Round forecast;
  forecast.predicted["analytic"] = {0.5, 0.5, 0, 0, 0};
  result.cell(model, "mesh,dp=4", "gloo").rounds = {forecast};
  result.cell(model, "ddp,dp=64", "gloo").skipped = "64 ranks on 2 cores; \"allowed\": 2";
  return result;
}

std::size_t index_of(std::string_view name) {
  const auto found = std::ranges::find(row_columns(), name, &Column<RowSource>::name);
  if (found == row_columns().end()) throw std::logic_error("no column " + std::string(name));
  return static_cast<std::size_t>(found - row_columns().begin());
}

const Row& row_of(const Report& report, const std::string& strategy, const std::string& cost_model) {
  for (const Row& row : report.rows)
    if (row[index_of("strategy")] == Value(strategy) &&
        (row[index_of("cost_model")] == Value(cost_model) || cost_model.empty()))
      return row;
  throw std::logic_error("no row " + strategy + " " + cost_model);
}

double number(const Row& row, std::string_view name) { return std::get<double>(row[index_of(name)]); }
bool unavailable(const Row& row, std::string_view name) {
  return std::holds_alternative<std::nullptr_t>(row[index_of(name)]);
}

TEST(Report, NumbersAreThoseOfTheAssessment) {
  const Result result = sample_result();
  const Report report = make_report(result);
  ASSERT_EQ(report.rows.size(), 3 * 2 + 1 + 1U);
  const Row& ddp = row_of(report, "ddp,dp=2", "profiled");
  EXPECT_NEAR(number(ddp, "measured_s"), 1, 1e-12);
  EXPECT_NEAR(number(ddp, "predicted_s"), 0.97, 1e-12);
  EXPECT_NEAR(number(ddp, "error_percent"), 100 * std::log(0.97), 1e-9);
  EXPECT_NEAR(number(ddp, "relative_error_percent"), 100 * std::log(0.97 / 1.02), 1e-9);
  EXPECT_NEAR(number(ddp, "structure_error_percent"), 0, 1e-9);
  EXPECT_LE(number(ddp, "measured_low_s"), 1);
  EXPECT_GE(number(ddp, "measured_high_s"), 1);
  EXPECT_NEAR(number(ddp, "measured_population_sd_s"), 0.002, 1e-9);
  EXPECT_NEAR(number(ddp, "measured_sd_s"), 0.002 * std::sqrt(8.0 / 7), 1e-9);
  EXPECT_NEAR(number(ddp, "measured_exposed_communication_s"), 0.125, 1e-9);
  EXPECT_EQ(ddp[index_of("samples")], Value(std::int64_t{8}));
  EXPECT_EQ(ddp[index_of("microbatch")], Value(std::int64_t{32 / (2 * 4)}));
  EXPECT_EQ(ddp[index_of("peak_difference_bytes")], Value(std::int64_t{-8}));
  EXPECT_NEAR(number(ddp, "weight_MiB"), 1, 1e-12);
  EXPECT_EQ(ddp[index_of("status")], Value("conclusive"));
  const Row& noisy = row_of(report, "pipeline,pp=2,schedule=gpipe,microbatches=4,cut=layer2", "profiled");
  EXPECT_EQ(noisy[index_of("status")], Value("inconclusive"));
  EXPECT_GT(number(noisy, "noise_floor_percent"), 2);
}

// What plots and people read, so that nobody else has to parse a strategy's text.
TEST(Report, NamesAndLabelsOfStrategies) {
  Result result;
  const auto label = [&](const std::string& strategy, std::int64_t ranks, std::int64_t replicas,
                         std::int64_t microbatches) {
    Cell& cell = result.cell("/tmp/nets/resnet50.json,global_batch=32", strategy, "local");
    cell.ranks = ranks, cell.replicas = replicas, cell.microbatches = microbatches, cell.global_batch = 32;
    const Report report = make_report(result);
    const Row& row = row_of(report, strategy, "");
    EXPECT_EQ(row[index_of("model_name")], Value("resnet50"));
    EXPECT_EQ(row[index_of("preset")], Value(strategy.substr(0, strategy.find(','))));
    return std::get<std::string>(row[index_of("label")]);
  };
  EXPECT_EQ(label("single", 1, 1, 1), "single");
  EXPECT_EQ(label("model_parallel,pp=2,cut=layer2", 2, 1, 1), "model parallel, 2 ranks");
  EXPECT_EQ(label("ddp,dp=4", 4, 4, 1), "ddp, 4 ranks");
  EXPECT_EQ(label("ddp_blocking,dp=4", 4, 4, 1), "ddp blocking, 4 ranks");
  EXPECT_EQ(label("mesh,dp=4,overlap=0", 4, 4, 1), "mesh blocking dp=4, 4 ranks");
  EXPECT_EQ(label("pipeline,pp=4,schedule=forward_only,microbatches=8", 4, 1, 8),
            "pipeline forward only, split size 4, 4 ranks");
  EXPECT_EQ(label("mesh,dp=2,pp=2,schedule=1f1b,microbatches=4", 4, 2, 4),
            "mesh dp=2 pp=2 1f1b, split size 4, 4 ranks");
  const Report report = make_report(result);
  EXPECT_EQ(row_of(report, "pipeline,pp=4,schedule=forward_only,microbatches=8", "")[index_of("schedule")],
            Value("forward_only"));
  EXPECT_TRUE(unavailable(row_of(report, "single", ""), "schedule"));
}

TEST(Report, UnavailableIsNeverZero) {
  const Report report = make_report(sample_result());
  EXPECT_TRUE(unavailable(row_of(report, "single", "profiled"), "relative_error_percent"));
  EXPECT_TRUE(unavailable(row_of(report, "single", "profiled"), "allocator_peak_MiB"));
  EXPECT_TRUE(unavailable(row_of(report, "single", "profiled"), "verify_error"));
  const Row& predicted = row_of(report, "mesh,dp=4", "analytic");
  EXPECT_EQ(predicted[index_of("status")], Value("predicted"));
  EXPECT_NEAR(number(predicted, "predicted_s"), 0.5, 1e-12);
  for (const char* name : {"measured_s", "measured_low_s", "error_percent", "structure_error_percent",
                           "noise_floor_percent", "measured_compute_s"})
    EXPECT_TRUE(unavailable(predicted, name)) << name;
  const Row& skipped = row_of(report, "ddp,dp=64", "");
  EXPECT_EQ(skipped[index_of("status")], Value("skipped"));
  EXPECT_EQ(skipped[index_of("skip_reason")], Value("64 ranks on 2 cores; \"allowed\": 2"));
  EXPECT_TRUE(unavailable(skipped, "predicted_s"));
}

TEST(Report, ColumnsAreAList) {
  std::set<std::string_view> names;
  for (const auto& column : row_columns()) {
    EXPECT_TRUE(names.insert(column.name).second) << column.name;
    EXPECT_FALSE(column.description.empty()) << column.name;
    // A number that isn't a count says its unit.
    const bool is_text = column.format.empty(), is_count = column.format == "{}";
    const bool has_unit = column.name.ends_with("_s") || column.name.ends_with("_percent") ||
                          column.name.ends_with("_MiB") || column.name.ends_with("_bytes") ||
                          column.name == "verify_error";
    EXPECT_TRUE(is_text || is_count || has_unit) << column.name;
  }
}

TEST(Report, ConsoleCsvAndJsonHaveTheSameColumns) {
  const Result result = sample_result();
  const Report report = make_report(result);
  const std::string csv = to_csv(report);
  const nlohmann::json json = nlohmann::json::parse(report_to_json(result));
  std::string header = "format";
  for (const auto& column : row_columns()) header += "," + std::string(column.name);
  EXPECT_EQ(csv.substr(0, csv.find('\n')), header);
  ASSERT_EQ(json["columns"].size(), row_columns().size());
  ASSERT_EQ(json["rows"].size(), report.rows.size());
  for (std::size_t r = 0; r < report.rows.size(); ++r)
    for (std::size_t c = 0; c < row_columns().size(); ++c) {
      const nlohmann::json& value = json["rows"][r].at(std::string(row_columns()[c].name));
      const Value& expected = report.rows[r][c];
      if (std::holds_alternative<std::nullptr_t>(expected)) {
        EXPECT_TRUE(value.is_null());
      }
      if (const auto* text = std::get_if<std::string>(&expected)) {
        EXPECT_EQ(value, *text);
      }
      if (const auto* integer = std::get_if<std::int64_t>(&expected)) {
        EXPECT_EQ(value, *integer);
      }
      if (const auto* number = std::get_if<double>(&expected)) {
        EXPECT_EQ(value, *number);
      }
    }
  EXPECT_EQ(json["summary"].size(), 2U);
  EXPECT_EQ(json["summary"][1]["cost_model"], "profiled");
  EXPECT_EQ(json["summary"][1]["verdict"], "failed");  // 2 of 3 cells
  EXPECT_EQ(json["summary"][1]["classes"][0]["class"], "conv2d.backward");
}

TEST(Report, ConsoleIsReadable) {
  const Report report = make_report(sample_result());
  for (Detail detail : {Detail::brief, Detail::full}) {
    const std::string text = to_console(report, detail);
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin))
      EXPECT_LE(end - begin, 120U) << text.substr(begin, end - begin);
    EXPECT_EQ(begin, text.size()) << "the last line has no end";
    EXPECT_EQ(text.find("measured_low"), std::string::npos);  // headers are broken into lines
    EXPECT_NE(text.find("model net,global_batch=32,loss=mse_loss   world gloo   executor paragauge\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("\nddp,dp=64 skipped: 64 ranks on 2 cores; \"allowed\": 2\n"), std::string::npos) << text;
    EXPECT_NE(text.find("\nThis report has failed as a measurement: under 80 % of its cells are conclusive. "),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("allocator") != std::string::npos, false);  // nothing known: no column
    EXPECT_EQ(text.find("communication") != std::string::npos, detail == Detail::full);
  }
}

TEST(Report, ConsoleColumnsAreAligned) {
  // Every figure of a column ends where its header does.
  const std::string text = to_console(make_report(sample_result()));
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin))
    lines.push_back(text.substr(begin, end - begin));
  const auto header = std::ranges::find_if(lines, [](const std::string& line) { return line.starts_with("strategy"); });
  ASSERT_NE(header, lines.end());
  const std::size_t end = header->find("measured_s") + 10;
  int figures = 0;
  for (auto line = header + 1; !line->empty(); ++line) {
    if (line->size() <= end) continue;  // the rest of a long strategy
    EXPECT_EQ((*line)[end], ' ') << *line;
    figures += (*line)[end - 1] != ' ';
  }
  EXPECT_EQ(figures, 7);
}

// Quotes are doubled, what is unavailable is empty, and whatever ends a row inside a text is a space.
TEST(Report, CsvIsOneRowPerLine) {
  Result result = sample_result();
  result.cells[0].skipped = "a \"b\"\nc";
  const std::vector<std::string> lines = testing::lines_of(to_csv(make_report(result)));
  ASSERT_EQ(lines.size(), 1 + 3 * 2 + 1 + 1U);
  EXPECT_TRUE(lines[0].starts_with("format,model,world,executor,strategy,cost_model,"));
  for (std::size_t i = 1; i < lines.size(); ++i)
    EXPECT_TRUE(lines[i].starts_with("paragauge-result-4,\"net,")) << lines[i];
  EXPECT_NE(lines[1].find(",\"a \"\"b\"\" c\","), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find(",,"), std::string::npos);
}

// The committed files of tests/golden: what is stored in rows and summary is what their cells give today.
TEST(Report, CommittedResultsStillSayTheSame) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(testing::tests_folder() / "golden")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("result_") || entry.path().extension() != ".json") continue;
    SCOPED_TRACE(name);
    ++files;
    const nlohmann::json stored = nlohmann::json::parse(read_text_file(entry.path()));
    const Result loaded = load_result(entry.path());
    const nlohmann::json computed = nlohmann::json::parse(report_to_json(loaded));
    EXPECT_TRUE(result_from_json(computed.dump(), name).cells == loaded.cells);
    for (const char* part : {"rows", "summary"}) {
      ASSERT_EQ(computed[part].size(), stored[part].size());
      for (std::size_t r = 0; r < stored[part].size(); ++r)
        for (const auto& [key, value] : stored[part][r].items()) {
          if (value.is_array()) continue;  // classes
          const nlohmann::json& today = computed[part][r].at(key);
          if (value.is_number() && today.is_number()) {
            EXPECT_NEAR(today.get<double>(), value.get<double>(), 1e-9 * (1 + std::abs(value.get<double>()))) << key;
          } else {
            EXPECT_EQ(today, value) << key;
          }
        }
    }
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace sim
