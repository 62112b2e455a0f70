#include "sim/strategy/epoch.hpp"

#include <algorithm>
#include <utility>

#include "sim/error.hpp"

namespace sim {
namespace {

std::int64_t divided_up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

}  // namespace

Epoch epoch_of(std::int64_t samples, const Model& model, const Strategy& strategy, bool drop_last) {
  const StrategyKind& kind = strategy.kind();
  // Of DataParallel and HyPar one loader makes the batch of all.
  const std::int64_t replicas = kind.needs_equal_parts ? strategy.dp : 1;
  const std::int64_t of_replica = divided_up(samples, replicas), batch = model.global_batch / replicas;
  Epoch epoch{.full_steps = of_replica / batch, .last = {}};
  const std::int64_t rest = of_replica % batch;
  if (rest == 0 || drop_last) {
    if (epoch.full_steps == 0)
      throw ConfigError("an epoch of {} samples has no step of global_batch={} where the last one is dropped", samples,
                        model.global_batch);
    return epoch;
  }
  Epoch::Last last{.model = model, .strategy = strategy, .samples = rest * replicas};
  last.strategy.microbatches = std::min(strategy.microbatches, rest);
  const std::int64_t microbatches = last.strategy.microbatches, least = strategy.levels.empty() ? 1 : strategy.ranks();
  std::int64_t of_microbatch = std::max(least, divided_up(rest, microbatches));
  if (microbatches > 1) of_microbatch = divided_up(of_microbatch, least) * least;
  last.model.global_batch = replicas * of_microbatch * microbatches;
  if (!kind.needs_equal_parts) {  // DataParallel: fewer devices may have something to do
    last.strategy.dp += last.strategy.idle;
    last.strategy = parse_strategy(rest == 1 ? "single" : last.strategy.text(), last.model);
  }
  epoch.last = std::move(last);
  return epoch;
}

}  // namespace sim
