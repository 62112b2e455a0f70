// DDP's buckets of gradients, and its buffers.
#include "sim/error.hpp"
#include "sim/strategy/option/reading.hpp"

namespace sim {
namespace {

double read_MiB(const StrategyReading& r, std::string_view key, double usual) {
  return r.text.number(key, r.kind.otherwise(key, usual), 0, 1 << 20);
}

void read_overlap(const StrategyReading& r, Strategy& s) {
  s.overlap = read_switch(r, "overlap", false);
  if (!s.overlap && r.kind.name == "ddp")
    throw ConfigError("strategy '{}': ddp overlaps; use ddp_blocking", r.text.whole());
  s.overlap = s.overlap && s.dp > 1;
}

std::string write_overlap(const Strategy& s, const StrategyKind& kind) {
  return s.dp > 1 ? unless_usual(s.overlap ? 1 : 0, kind, "overlap", 0) : "";
}

}  // namespace

std::vector<StrategyOption> bucket_options() {
  using Reading = StrategyReading;
  using Kind = StrategyKind;
  using Values = std::vector<std::string>;
  return {
      {.name = "first_bucket_MiB",
       .values = "0 to 1048576",
       .meaning = "DDP's first gradient bucket",
       .read = [](const Reading& r, Strategy& s) { s.first_bucket_MiB = read_MiB(r, "first_bucket_MiB", 1); },
       .write = [](const Strategy& s,
                   const Kind& kind) { return unless_usual(s.first_bucket_MiB, kind, "first_bucket_MiB", 1); },
       .tried = [](const Model&, const Kind&) { return Values{"0.01"}; }},
      {.name = "bucket_MiB",
       .values = "0 to 1048576",
       .meaning = "the other buckets",
       .read = [](const Reading& r, Strategy& s) { s.bucket_MiB = read_MiB(r, "bucket_MiB", 25); },
       .write = [](const Strategy& s, const Kind& kind) { return unless_usual(s.bucket_MiB, kind, "bucket_MiB", 25); },
       .tried = [](const Model&, const Kind&) { return Values{"0.1"}; }},
      {.name = "overlap",
       .values = "0 or 1",
       .meaning = "a bucket goes when its gradients are complete, not after the backward",
       .read = read_overlap,
       .write = write_overlap,
       .tried = [](const Model&, const Kind& kind) { return Values{kind.name == "ddp" ? "1" : "0"}; }},
      {.name = "broadcast_buffers",
       .values = "0 or 1",
       .meaning = "the first replica's batch-norm buffers go to all before each forward; DDP's, not ZeRO's",
       .read = [](const Reading& r,
                  Strategy& s) { s.broadcast_buffers = read_switch(r, "broadcast_buffers", s.zero == 0); },
       .write =
           [](const Strategy& s, const Kind&) {
             return s.broadcast_buffers == (s.zero == 0) ? "" : fmt::format("{:d}", s.broadcast_buffers);
           },
       .tried = [](const Model&, const Kind& kind) { return Values{kind.otherwise("zero", 0) > 0 ? "1" : "0"}; }}};
}

}  // namespace sim
