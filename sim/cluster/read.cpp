#include "sim/cluster/read.hpp"

#include "sim/error.hpp"

namespace sim {
namespace {

double within(const JsonObject& json, std::string_view key, double value, double minimum, double maximum) {
  if (!(value >= minimum && value <= maximum))
    throw ConfigError("{}: {}={} must be from {} to {}", json.where(), key, value, minimum, maximum);
  return value;
}

}  // namespace

double read_rate_up_to(double most, JsonObject& json, std::string_view key) {
  return within(json, key, json.number(key), kLeastRate, most);
}

Bytes read_size_MiB(JsonObject& json, std::string_view key, Bytes otherwise) {
  return json.has(key) ? mebibytes(within(json, key, json.number(key), 0, kMostSize)) : otherwise;
}

Seconds read_time_us(JsonObject& json, std::string_view key, std::optional<double> otherwise) {
  return microseconds(within(json, key, json.number(key, otherwise), 0, kLongest_us));
}

double read_share(JsonObject& json, std::string_view key, double otherwise, double minimum) {
  return within(json, key, json.number(key, otherwise), minimum, 1);
}

}  // namespace sim
