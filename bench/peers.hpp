// Peers: the same training steps in plain PyTorch (bench/peers/), so that a forecast is also scored against what a
// PyTorch user sees.
//
//   Peers peers(options.machine, 2);                                          // two Python processes, a core each
//   Peers::Answer a = peers.run("convnet", "ddp,dp=2,overlap=1", 1, 10);      // the first run of a text also builds it
//   if (a.skipped.empty()) use(a.step_s);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/commands.hpp"

namespace bench {

class Peers {
 public:
  /// Starts the processes and doesn't wait for them: $PARAGAUGE_PYTHON, else the .venv of the source tree, else
  /// python3. RunError when that can't be done.
  Peers(const Machine& machine, std::uint32_t ranks);
  ~Peers();
  Peers(const Peers&) = delete;

  struct Answer {
    std::vector<double> step_s;
    std::vector<double> losses;            // per step, warm-up included: the same numbers as paragauge's
    std::int64_t resident_peak_bytes = 0;  // of the largest process, Python and PyTorch themselves included
    std::string skipped;                   // why plain PyTorch has no such step; empty: it has, and the rest is set
  };
  /// ConfigError when a text is wrong. RunError when a process has died or there is no answer within machine.timeout_s;
  /// then all processes are ended, and every later run fails.
  Answer run(const std::string& model_text, const std::string& strategy_text, std::uint32_t warmup_steps,
             std::uint32_t steps);

 private:
  struct Process;
  [[noreturn]] void fail(const std::string& what);
  std::string answer_line();

  double timeout_s_;
  int channel_ = -1;  // rank 0's standard input and output
  std::string received_;
  std::vector<std::unique_ptr<Process>> processes_;  // empty: failed
};

}  // namespace bench
