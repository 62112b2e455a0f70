#include "sim/report/track_record.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/error.hpp"
#include "sim/text/spec.hpp"

namespace sim {

ErrorRecord record_of(const std::vector<double>& log_errors) {
  ErrorRecord record{.count = log_errors.size()};
  for (double error : log_errors) record.mean += error / static_cast<double>(record.count);
  for (double error : log_errors) record.sd += (error - record.mean) * (error - record.mean);
  if (record.count > 1) record.sd = std::sqrt(record.sd / static_cast<double>(record.count - 1));
  return record;
}

std::optional<Interval> ErrorRecord::interval_90(double predicted_s) const {
  if (count < kFewestErrors) return std::nullopt;
  const auto n = static_cast<double>(count);
  const double reach = student_t(kNormal95, n - 1) * sd * std::sqrt(1 + 1 / n);
  return Interval{predicted_s * std::exp(-mean - reach), predicted_s * std::exp(-mean + reach)};
}

const ErrorRecord* find(const TrackRecord& record, const std::string& device, const std::string& cost_model) {
  const auto of_device = record.find(device);
  if (of_device == record.end()) return nullptr;
  const auto found = of_device->second.find(cost_model);
  return found == of_device->second.end() ? nullptr : &found->second;
}

std::optional<RatioRecord> ratio_record(const TrackRecord& record, const std::string& device,
                                        const std::string& cost_model) {
  const auto of = [](const ErrorRecord& errors, const std::string& where) {
    return RatioRecord{*errors.relative_sd, std::hypot(*errors.relative_sd, errors.relative_mean), where};
  };
  if (const ErrorRecord* own = find(record, device, cost_model); own != nullptr && own->relative_sd)
    return of(*own, device);
  std::optional<RatioRecord> worst;
  for (const auto& [elsewhere, cost_models] : record)
    if (const auto found = cost_models.find(cost_model); found != cost_models.end() && found->second.relative_sd)
      if (!worst || *found->second.relative_sd > worst->sd) worst = of(found->second, elsewhere);
  return worst;
}

std::string to_json(const TrackRecord& record) {
  nlohmann::ordered_json file{{"format", "paragauge-track-record-2"}, {"devices", nlohmann::ordered_json::object()}};
  for (const auto& [device, cost_models] : record)
    for (const auto& [cost_model, errors] : cost_models) {
      nlohmann::ordered_json& row = file["devices"][device][cost_model];
      row = {{"cells", errors.count}, {"mean_log_error", errors.mean}, {"sd_log_error", errors.sd}};
      if (!errors.relative_sd) continue;
      row["mean_relative_log_error"] = errors.relative_mean;
      row["sd_relative_log_error"] = *errors.relative_sd;
    }
  return file.dump(1) + "\n";
}

TrackRecord load_track_record(const std::filesystem::path& path) {
  JsonObject file = read_json_file(path);
  check_format(file, "paragauge-track-record", 2, "'paragauge report --record' writes it again");
  TrackRecord record;
  JsonObject devices = file.object("devices");
  for (const std::string& device : devices.keys()) {
    JsonObject cost_models = devices.object(device);
    for (const std::string& name : cost_models.keys()) {
      JsonObject row = cost_models.object(name);
      const std::int64_t cells = row.integer("cells");
      ErrorRecord& errors = record[device][name];
      errors.mean = row.number("mean_log_error");
      errors.sd = row.number("sd_log_error");
      errors.relative_mean = row.number("mean_relative_log_error", 0);
      if (row.has("sd_relative_log_error")) errors.relative_sd = row.number("sd_relative_log_error");
      if (cells < 0 || errors.sd < 0 || errors.relative_sd.value_or(0) < 0)
        throw ConfigError(
            "{}: 'cells', 'sd_log_error' and 'sd_relative_log_error' must not be negative, found {}, {} and {}",
            row.where(), cells, errors.sd, errors.relative_sd.value_or(0));
      errors.count = static_cast<std::size_t>(cells);
      row.finish();
    }
  }
  file.finish();
  return record;
}

}  // namespace sim
