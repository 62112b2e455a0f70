// The "format" key of the files paragauge writes: a name and a version.
//
//   JsonObject file = read_json_file("p.json");
//   check_format(file, "paragauge-profile", 1, "calibrate again");
//   // p.json: format 'paragauge-profile-0' is older than 'paragauge-profile-1'; calibrate again
//   // p.json: format 'paragauge-model-1' is not 'paragauge-profile-1'
#pragma once

#include <string_view>

#include "sim/text/spec.hpp"

namespace sim {

/// ConfigError unless the object's "format" is `name`-`version`; `remedy` is what to do about an older file.
void check_format(JsonObject& file, std::string_view name, int version, std::string_view remedy);
/// The same for a format that stands elsewhere; `where` names the file.
void check_format(std::string_view format, std::string_view where, std::string_view name, int version,
                  std::string_view remedy);

}  // namespace sim
