// Peers: the same training steps in plain PyTorch (bench/peers/), so that a forecast is also scored against what a
// PyTorch user sees. Any model and, where PyTorch has it, any strategy; built from the parsed model and strategy.
//
//   Peers peers(options.machine, 2);                                   // two Python processes, a core each
//   Peers::Answer a = peers.run(model, strategy, "gloo", /*best=*/true, 1, 10);  // the first run of a step builds it
//   if (a.skipped.empty()) use(a.step_s);
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/machine/process.hpp"
#include "bench/commands.hpp"
#include "sim/strategy/strategy.hpp"

namespace bench {

/// Whether plain PyTorch runs the strategy in this world: in one process (`local`) or in one per rank (`gloo`). In one
/// process, data_parallel and hypar run in a pinned thread per rank.
bool has_peer(const sim::Model& model, const sim::Strategy& strategy, std::string_view world);

/// A request's `subject`: what bench/peers/serve.py is to run (the format is described there).
nlohmann::ordered_json peer_subject(const sim::Model& model, const sim::Strategy& strategy, std::string_view world,
                                    bool best);

class Peers {
 public:
  /// Starts the processes and doesn't wait for them: $PARAGAUGE_PYTHON, else the .venv of the source tree, else
  /// python3. RunError when that can't be done.
  Peers(const Machine& machine, std::uint32_t ranks);
  ~Peers();
  Peers(const Peers&) = delete;

  struct Answer {
    std::vector<double> step_s;
    /// Per step, warm-up included: the same numbers as paragauge's; NaN if not finite. None of a module that draws random
    /// numbers of its own.
    std::vector<double> losses;
    std::int64_t resident_peak_bytes = 0;  // of the largest process, Python and PyTorch themselves included
    std::string settings;                  // what isn't PyTorch's default: "fused updates, channels_last"
    std::string skipped;                   // why plain PyTorch has no such step; empty: it has, and the rest is set
  };
  /// `best`: PyTorch at its best, with fused updates, and with channels_last if a trial of both in the first run was
  /// faster with it; else PyTorch's defaults. ConfigError when the step needs more ranks than there are. RunError when
  /// a process has died or there is no answer within machine.timeout_s; then all processes are ended, and every later
  /// run fails.
  Answer run(const sim::Model& model, const sim::Strategy& strategy, std::string_view world, bool best,
             std::uint32_t warmup_steps, std::uint32_t steps);

 private:
  [[noreturn]] void fail(const std::string& what);
  std::string answer_line();
  std::string where_they_stand();

  double timeout_s_;
  int channel_ = -1;  // rank 0's standard input and output
  std::string received_;
  std::deque<backend::Process> processes_;  // empty: failed
  std::vector<std::string> messages_;       // what each has written to its stderr
};

}  // namespace bench
