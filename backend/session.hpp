// A session: the ranks of one world, up and serving. It executes Programs and returns what was measured.
//
//   std::unique_ptr<Session> session = open_session({.world = "local", .ranks = 2, .device = "cpu"});
//   RunResult result = session->run({.program = program, .warmup_steps = 1, .steps = 3});
//   result.steps[0].timeline.step_s
//
// World `local`: the session starts one pinned thread per rank. World `gloo`: every rank is a process that runs the
// same command line (torchrun's variables RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set; on several hosts
// LOCAL_WORLD_SIZE, too); rank 0's session drives,
// and open_session() on the other ranks serves rank 0's requests until it closes and then returns null.
// `spawn_ranks` (backend/supervise.hpp) starts such processes from one command and watches them.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "backend/train/training.hpp"
#include "sim/calibrate/machine_speed.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/timeline.hpp"

namespace backend {

struct SessionOptions {
  std::string world = "local";
  std::uint32_t ranks = 1;
  std::string device = "cpu";  // as sim::check_device knows them
  double timeout_s = 60;       // for one transfer, barrier or step
  double meeting_s = 0;        // for the ranks to meet, where rank 0 has other work before; 0: timeout_s
  bool real_time = true;       // real-time scheduling where permitted; Session::real_time says what was had
  /// What the processes of a world must have alike, by what it is called: "world" → "gloo".
  std::map<std::string, std::string> alike = {};
  nlohmann::json about_host = {};  // of the first rank of each host, for Session::hosts
};

struct RunRequest {
  sim::Program program;
  std::uint32_t warmup_steps = 1;  // how often the lists are played: of an unrolled program several training steps each
  std::uint32_t steps = 1;         // both 0: a training's samples are brought to every rank, and there is no result
  std::uint64_t seed = 1;
  /// Compares with the reference (backend/rank/verify.hpp) after the last step, which is
  /// slower for it; use f64 programs.
  bool verify = false;
  /// An accelerator's ranks capture the second step and replay it from then on (backend/machine/graph.hpp): two warm-up
  /// steps at least, and sim::check_capture allows it. Timelines then have the whole step's time only.
  bool graph = false;
  /// Every so many steps but the first, an accelerator's host is kept ahead of it (Executor::let_host_lead); 0: never.
  std::uint32_t host_leads_every = 0;
  /// Ranks on a CPU probe how fast the machine is before the first step and after the last (backend/machine/speed.hpp).
  bool probe_speed = false;
  /// The steps train on samples, and only the whole of each has a time; else all are of one batch, made of the seed.
  std::optional<Training> training = {};
  /// Called where rank 0 is, after each of its steps.
  std::function<void(std::uint32_t step)> after_step = {};
};

struct RankMemory {
  std::int64_t peak_bytes = 0;            // tensors between two instructions: sim::peak_memory and a loss or two
  std::int64_t allocator_peak_bytes = 0;  // all host tensors of the rank, the ops' own workspace included
  std::int64_t resident_peak_bytes = 0;   // VmHWM of the process (world local: of all ranks together)
};

struct StepResult {
  sim::Timeline timeline;  // merged over ranks, ready times filled in, broken down
  double loss = 0;         // mean over the partition; of training steps that are played together the last one's
};

struct VerifiedTensor {
  std::string name;           // "loss step 2", "gradient fc.weight", "parameter fc.weight", "buffer bn1.running_mean"
  double relative_error = 0;  // max |difference| / ‖reference‖₂ (over ranks)
  std::vector<std::int64_t> piece = {};  // that was compared: of each dimension its begin and size; empty: all of it;
                                         // the last two: of its elements, where it isn't all of these
  std::int64_t elements = 0;             // that were compared
};

/// A host's clock beside the reference's, that of rank 0's host (backend/machine/clock.hpp). Of the reference all are 0.
struct ClockReading {
  double offset_s = 0, drift = 0;  // what the reference is ahead, and gains in a second
  double error_s = 0;              // the reference's times of what happened there are off by this at most
  std::uint32_t host = 0;          // its number
  std::string rank;                // whose host it is: "rank 3 on b"
};

struct RunResult {
  std::vector<StepResult> steps;
  std::vector<ClockReading> clocks;  // by rank; empty where all are on one host
  std::vector<double> losses;        // of each training step, warm-up included
  std::vector<RankMemory> memory;
  std::vector<std::vector<std::int64_t>> workspace_bytes;  // [rank][instruction]: beside the outputs, in the first step
  std::vector<VerifiedTensor> verified;
  std::optional<sim::MachineSpeed> speed;  // where it was asked for
  std::string state;                       // that training has ended with, as safetensors (backend/train/state.hpp)
};

/// Thrown where another rank, mostly rank 0, tells the user what is wrong, for all.
struct SaidByAnother : std::exception {};

class Session {
 public:
  virtual ~Session() = default;  // closes the world
  [[nodiscard]] const SessionOptions& options() const { return options_; }
  /// Whether the ranks run under real-time scheduling.
  [[nodiscard]] bool real_time() const { return real_time_; }
  /// Of several hosts, in the order of their ranks: {name, ranks (how many), network (as gloo calls what it uses:
  /// interface, Mbit/s, address), environment, about (SessionOptions::about_host, where there is something), clock
  /// (beside the first host's, in the latest run: ahead_s, gains_ppm, error_us)}. Empty where all ranks are on one.
  [[nodiscard]] const nlohmann::json& hosts() const { return hosts_; }
  /// Collective over the ranks; sim::RunError names rank and instruction when one fails or the timeout passes,
  /// SaidByAnother where another rank has told the user already. A program for fewer ranks than the session has leaves the
  /// others idle.
  virtual RunResult run(const RunRequest& request) = 0;
  /// Why there aren't so many bytes for tensors; none where there are. Of an accelerator by trying ("does not fit:
  /// needs 80.1 GiB, has 79.6"), of a host by what the system says is available.
  [[nodiscard]] std::optional<std::string> missing_memory(std::int64_t bytes) const;

 protected:
  explicit Session(const SessionOptions& options) : options_(options) {}

  const SessionOptions options_;
  bool real_time_ = true;
  nlohmann::json hosts_ = nlohmann::json::array();
};

/// Opens a session: from here on LibTorch uses one thread per rank, and the counting allocator.
/// ConfigError: unknown world or device, no such device, ranks that don't match WORLD_SIZE. Null on a rank that
/// served and is done.
std::unique_ptr<Session> open_session(const SessionOptions& options);

/// This process ends before it has opened a session, with this sim::exit_status, and this is why. Where it is one of
/// several that a launcher has started, the others learn it, so that they don't wait for it. True where rank 0 then says
/// it, once for all; rank 0 itself says it before.
bool stay_away(int status, const std::string& why);

}  // namespace backend
