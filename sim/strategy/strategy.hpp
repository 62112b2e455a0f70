// How: a parallel strategy, as a text and as degrees.
//
//   Strategy s = parse_strategy("pipeline,pp=2,split_size=4,cut=r1", model);     // preset, then overrides
//   Strategy d = parse_strategy("dp=2,pp=2,microbatches=4", model);              // degrees alone do too
//   s.text();                                  // canonical: parse_strategy makes the same strategy of it again
//
// A preset (a row of table.cpp) says which keys it takes (option/), what they are without being given, and what Layout
// (layout.hpp) it makes of them; lowering knows layouts, no names.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.hpp"
#include "sim/strategy/daso.hpp"
#include "sim/table.hpp"

namespace sim {

struct StrategyKind;

/// What a forward doesn't keep, but the backward computes anew: what ops without parameters make for the next layer; all
/// inside each block (of names: layer1.0.conv1 is in layer1.0), or several together; all inside a stage.
enum class Recompute : std::uint8_t { none, selective, block, full };
inline constexpr EnumNames<Recompute, 4> kRecomputes{"recompute", {"none", "selective", "block", "full"}};

struct Strategy {
  std::string preset;
  std::uint32_t dp = 1;            // data-parallel replicas
  std::uint32_t pp = 1;            // pipeline or model-parallel stages
  std::uint32_t tp = 1;            // ranks that share each layer
  bool sp = false;                 // and each have a part of what lies between the layers that are cut
  std::vector<std::string> order;  // of these axes, outermost first; empty: as the preset has them
  std::string schedule = "gpipe";  // an entry of schedule_table; its default where there is one microbatch only
  std::int32_t chunks = 1;         // stages of each rank along pp (schedules that interleave them)
  std::int64_t microbatches = 1;   // per replica and step
  Recompute recompute = Recompute::none;
  std::uint32_t recomputed_blocks = 1;  // together, with Recompute::block
  std::uint32_t threads = 1;            // of each rank, each with a CPU core for itself
  std::uint32_t bodies = 1;             // of the Program, that are played between two barriers (sim/program/unroll.hpp)
  /// Last node (or name prefix: "layer2" = its last node) of every stage but the last; empty: balanced by predicted
  /// cost.
  std::vector<std::string> cut;
  double first_bucket_MiB = 1, bucket_MiB = 25;  // DDP's gradient buckets; PyTorch's defaults
  bool overlap = false;           // of replicas: a bucket goes when its gradients are complete, not after the backward
  bool broadcast_buffers = true;  // DDP: rank 0's batch-norm buffers go to all before each forward
  // HyPar: the hierarchy's branches, outermost first; by level a choice (dp, in, out) for all layers or for each.
  std::vector<std::uint32_t> levels;
  std::vector<std::vector<std::string>> layers;
  bool rooted = false;  // sums at the first device, then to all
  // ZeRO: along dp are cut 1: the optimizer's states, 2: and the sums of gradients, 3: and the weights.
  std::uint32_t zero = 0;
  std::uint32_t shard = 0;       // replicas among whom everything is cut once; 0: all of them
  bool flat = true;              // cut is the unit as one flat tensor, not each parameter by its rows
  std::string units;             // layer, block, all, a size (25MiB, or 2e8 elements), or nodes' prefixes joined by +
  std::uint32_t prefetch = 1;    // units that are gathered ahead
  double prefetch_elements = 0;  // at most; 0: any number
  double persistence = 0;        // parameters of at most so many elements aren't cut (stage 3)
  double reuse_elements = 0;     // weights stay that are used again before so many others (stage 3)
  bool reshard = true;           // what a forward has gathered isn't kept for the backward
  bool sums_each_microbatch = false;  // else after the last one's backward
  bool scatters = true;               // sums go to whom they concern; else to all
  /// A model of half precision: weights are gathered, and used, in it, and gradients are summed in it.
  bool half_parameters = false, half_sums = false;
  std::uint32_t idle = 0;  // devices asked for that get no sample (data_parallel)
  // Nodes of daso->local replicas each go their own ways (daso.hpp).
  std::optional<Daso> daso = {};
  std::int64_t chunk_elements = 10'000'000;  // that nodes send each other in one piece
  Dtype downcast = Dtype::bf16;              // as which they send what they wait for at once

  [[nodiscard]] std::uint32_t ranks() const;
  [[nodiscard]] std::string text() const;
  /// The preset's row; without a preset that of `mesh`.
  [[nodiscard]] const StrategyKind& kind() const;
};

struct AxisKind;
struct ParameterCycle;

/// Which of the programs of plain PyTorch in bench/peers does the same.
enum class PeerKind : std::uint8_t { stages, data_parallel, parts };

struct StrategyKind {
  std::string_view name;
  std::string_view description;  // one line
  std::string_view example;  // a small text that works for models of even batch (tp: for chains): what benches execute
  /// A key that its text may set (a row of strategy_option_table), and what a number, or a word, is where the text doesn't
  /// say, if not the usual. A degree (dp, pp) must be at least that: with less it would be another strategy.
  struct Key {
    std::string_view option;
    std::optional<double> otherwise;
    std::string_view word;
    // Implicit, so that a key is written as its name. NOLINTNEXTLINE
    Key(const char* name, std::optional<double> value = {}) : option(name), otherwise(value) {}
    template <std::size_t length>
    Key(const char* name, const char (&value)[length]) : option(name), word(value) {}
  };
  std::vector<Key> keys;
  bool needs_equal_parts = true;    // dp must divide the batch
  bool is_proposed = true;          // `plan` tries it; not what is another row with other settings
  std::string_view not_tried = "";  // why it doesn't, where that is to be said: no other row has the very same
  /// The axes of its mesh, outermost first.
  std::vector<const AxisKind*> axes;
  ParameterCycle (*parameters)(const Model&, const Strategy&) = nullptr;
  PeerKind peer = PeerKind::stages;
  std::string_view schedule = "";  // where the text doesn't say; empty: gpipe, or without a pipeline 1f1b
  std::string_view also = "";      // another name that people know it by: texts may begin with it

  [[nodiscard]] bool takes(std::string_view key) const {
    return std::ranges::find(keys, key, &Key::option) != keys.end();
  }
  /// What a number is where the text doesn't say: `usual` unless this kind has another.
  [[nodiscard]] double otherwise(std::string_view key, double usual) const;
  /// The same of a word.
  [[nodiscard]] std::string_view word_otherwise(std::string_view key, std::string_view usual) const;
  [[nodiscard]] std::vector<std::string_view> key_names() const;
  /// Its replicas are groups that share out their states: `replicas` and `shard` instead of `dp`, whatever else it takes.
  [[nodiscard]] bool is_hybrid() const { return takes("shard") && !takes("dp"); }
};
const Table<StrategyKind>& strategy_table();

/// ConfigError where the text is none, whatever the model: an unknown preset or key.
void check_strategy_text(std::string_view text);

/// ConfigError when the text is wrong or the model's global_batch can't be divided so.
Strategy parse_strategy(std::string_view text, const Model& model);

/// The model that a strategy plays, where `device_batch` is given: as many samples for each of its data-parallel
/// replicas. Else the model itself.
Model with_global_batch(const Model& model, std::string_view strategy);

/// What a user should know of it beside its text; often nothing.
std::string remark_on(const Strategy& strategy, const Model& model);

/// The stage of every node, non-decreasing, of pp times chunks: which stage executes it. `strategy.cut` names, or cuts
/// balanced by the roofline time of both passes on a generic device, the loss with the node before it. ConfigError for a
/// cut name that doesn't exist (lists similar ones) or cuts out of order.
std::vector<std::uint32_t> stages_of(const Model& model, const Strategy& strategy);

}  // namespace sim
