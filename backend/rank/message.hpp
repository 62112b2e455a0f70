// What the processes of a world tell each other between steps, as bytes. All of them are the same program on the same
// host.
//
//   std::string bytes = to_bytes(request);
//   RunRequest same = request_from(bytes);
#pragma once

#include <string>
#include <string_view>

#include "backend/rank/run.hpp"

namespace backend {

std::string to_bytes(const RunRequest& request);
RunRequest request_from(std::string_view bytes);

std::string to_bytes(const RankReport& report);
RankReport report_from(std::string_view bytes);

}  // namespace backend
