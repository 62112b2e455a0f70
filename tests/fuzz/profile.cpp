// A profile; its links are asked for times, and a small program is executed with it.
#include "sim/cost/profile.hpp"

#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sim::Cluster cluster = sim::load_cluster("cpu_gloo", 2, 2);
  return fuzz::read([&] {
    const sim::Profile profile = sim::profile_from_json(fuzz::text_of(data, size), "profile");
    const std::string text = profile.to_json();
    fuzz::require(sim::profile_from_json(text, "again").to_json() == text, "to_json can be read and is the same then");
    for (const auto& [link, times] : profile.links()) {
      static_cast<void>(times.line());
      for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1000}, std::int64_t{1} << 40})
        if (const auto time = profile.transfer(link, bytes))
          fuzz::require(time->latency_s >= 0 && time->wire_s >= 0, "transfers take time");
    }
    fuzz::execute(fuzz::small_program(), *sim::cost_model_table().at("profiled").make(cluster, &profile), cluster);
  });
}
