#include "tests/standin/races.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace standin {

void RaceDetector::merge(Clock& clock, const Clock& earlier) {
  for (std::size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], earlier[s]);
}

void RaceDetector::enqueued(std::size_t stream, const std::string& name, const std::vector<Access>& accesses) {
  Clock& clock = clocks_[stream];
  merge(clock, host_);
  clock[stream] = ++enqueued_[stream];
  for (const Access& access : accesses)
    if (access.begin != access.end) check(stream, name, access);
}

void RaceDetector::check(std::size_t stream, const std::string& name, const Access& access) {
  const Clock& clock = clocks_[stream];
  for (auto past = pasts_.lower_bound(access.begin - longest_); past != pasts_.end() && past->first < access.end;) {
    const Past& before = past->second;
    const bool overlaps = before.access.begin < access.end && access.begin < before.access.end;
    const bool is_ordered = clock[before.stream] >= before.number;
    if (overlaps && !is_ordered && (access.writes || before.access.writes)) {
      std::string race =
          fmt::format("{} on stream {} {} what {} on stream {} {}", name, stream, access.writes ? "writes" : "reads",
                      before.name, before.stream, before.access.writes ? "writes" : "reads");
      if (std::ranges::find(races_, race) == races_.end()) races_.push_back(std::move(race));
    }
    // Whoever is ordered after this write is ordered after what it covers.
    const bool is_own = before.stream == stream && before.number == clock[stream];
    const bool is_covered = access.begin <= before.access.begin && before.access.end <= access.end;
    if (overlaps && is_ordered && access.writes && is_covered && !is_own)
      past = pasts_.erase(past);
    else
      ++past;
  }
  longest_ = std::max(longest_, access.end - access.begin);
  pasts_.emplace(access.begin, Past{access, stream, clock[stream], name});
}

void RaceDetector::forget() {
  pasts_.clear();
  races_.clear();
}

}  // namespace standin
