// Worlds: the real ranks and how they talk. What each is and can't do: sim/cluster/world.hpp.
//
//   World world = world_table().at("local").make({.ranks = 2});    // the communicators of the ranks in this process
//   Communicator& rank0 = *world.ranks[0];
//   auto ticket = rank0.post_send(tensor, 1, 0);
//   rank0.wait(ticket, done);
//
// A Communicator is one rank's end of a world: its device's compute lane and its transfers. Posting never blocks. Every
// call that waits for others fails with sim::RunError after the timeout, naming the partner. One thread at a time uses
// a communicator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/machine/clock.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/rank/progress.hpp"
#include "backend/session.hpp"
#include "sim/program/program.hpp"
#include "sim/table.hpp"

namespace backend {

/// When a transfer was ready (the last party had posted) and done, on now_s().
struct Completion {
  double start_s = 0;  // 0: this rank doesn't know; the session derives it from everyone's post times
  double end_s = 0;
};

/// What a rank knows of the reference's clock (rank 0's host's) during a run. Empty where all ranks are on one host.
struct SharedClock {
  /// A step's start, on this host's clock, and when it should have been, on the reference's.
  struct Start {
    double here_s = 0, reference_s = 0;
  };

  HostClock host;
  std::vector<Start> starts{};  // since the world was prepared
  double read_s = 0;            // when the offset was last read: about, on the reference's clock

  /// How much later than it should have the step began that began here at `here_s`, as is known now.
  [[nodiscard]] double late_s(double here_s) const;
};

struct Collective {
  sim::CollectiveKind kind = sim::CollectiveKind::all_reduce;
  std::uint32_t group = 0;  // of the groups that were prepared
  std::uint32_t root = 0;   // index in the member list
  sim::Reduction reduction = sim::Reduction::sum;
};

/// One tensor per block of a collective's operands: `parts` of one tensor are its equal parts, flat.
std::vector<at::Tensor> blocks_of(sim::Moved moved, std::span<const at::Tensor> tensors, std::uint32_t members);
/// Any collective of a group of one: everything goes to itself.
void copy_to_itself(std::span<const at::Tensor> reads, std::span<const at::Tensor> writes);
/// One part more; the first is copied. A mean is a sum until it is divided.
void reduce_into(at::Tensor& total, const at::Tensor& part, sim::Reduction reduction, bool is_first);

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  [[nodiscard]] virtual at::Device device() const { return at::kCPU; }
  /// Whether other ranks of this process use the same accelerator, so that its allocator counts theirs, too.
  [[nodiscard]] virtual bool shares_device() const { return false; }

  /// Makes the communicators of a program's groups; called before its first step by the first `ranks` of the world,
  /// those that run it, while no other program runs. The others have nothing to do with it.
  virtual void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) = 0;
  /// This rank's messages in a program, by source and destination, in lanes: tags that are received in the order in which
  /// they are sent.
  using Channels = std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::vector<std::uint32_t>>>;
  /// Connects the ranks, after `prepare`. Worlds that connect everybody with everybody, and know tags, needn't know.
  virtual void connect(const Channels& /*channels*/) {}

  /// A barrier of these ranks: each leaves at the moment that is returned, the step's time 0. Tickets start again at 0.
  virtual double begin_step() = 0;
  /// After the last step of the ranks that were prepared, all of which call it.
  virtual SharedClock read_clock() { return {}; }
  /// Which of the ranks of its host this one is.
  [[nodiscard]] virtual std::uint32_t place() const { return rank(); }
  /// What moves the bytes between hosts, as gloo calls it: interface, Mbit/s, address. Empty where nothing does.
  [[nodiscard]] virtual std::string network() const { return ""; }
  /// The number of a rank's host.
  [[nodiscard]] virtual std::uint32_t host_of(std::uint32_t /*of*/) const { return 0; }
  /// A rank of this world, for messages: "rank 1", on several hosts "rank 1 on b".
  [[nodiscard]] virtual std::string named(std::uint32_t of) const { return fmt::format("rank {}", of); }
  /// The moment at which the compute lane gets here. On an accelerator `*moment_s` is filled in by `end_step`.
  virtual void mark(double* moment_s) { *moment_s = now_s(); }
  /// The compute lane has finished, and every `mark` and Completion of the step is filled in.
  virtual void end_step() {}
  /// What the step has marked and posted so far was captured (backend/machine/graph.hpp): it has no times.
  virtual void forget_captured() {}

  using Ticket = std::uint32_t;  // counted from 0 within a step
  /// A rank may send to itself; both ends must be posted before either is waited for.
  /// Tensors are contiguous and stay untouched until the ticket has been waited for; each ticket is waited for once.
  virtual Ticket post_send(const at::Tensor& tensor, std::uint32_t destination, std::uint32_t tag) = 0;
  virtual Ticket post_recv(const at::Tensor& tensor, std::uint32_t source, std::uint32_t tag) = 0;
  /// What it reads and writes: sim/program/collective.hpp. `reads` mustn't change until the ticket has been waited for.
  virtual Ticket post_collective(const Collective& collective, std::span<const at::Tensor> reads,
                                 std::span<const at::Tensor> writes) = 0;
  Ticket post_collective(sim::CollectiveKind kind, const at::Tensor& in_place, std::uint32_t group,
                         std::uint32_t root) {
    return post_collective({kind, group, root}, {&in_place, 1}, {&in_place, 1});
  }
  /// Waits for a transfer: on a CPU returns when it is done; on an accelerator makes the compute lane wait for it.
  virtual void wait(Ticket ticket, Completion& done) = 0;

  /// This rank has failed: the others stop waiting for it.
  virtual void abandon() = 0;
};

/// Why ranks can't go on.
struct Failures {
  struct Said {
    std::uint32_t rank = 0;
    Failure failure;
  };
  std::vector<Said> said;             // in the order in which they have failed
  std::vector<std::uint32_t> silent;  // the ranks that don't say so: who has made the others fail may be among them
  bool is_speaker = false;            // this rank tells the user, for all
};

/// Messages between the processes of a world, outside of steps. Waits for as long as it takes.
class Control {
 public:
  virtual ~Control() = default;
  /// Rank 0's text, on every rank.
  virtual std::string broadcast(const std::string& text) = 0;
  /// Rank 0's values, into the other ranks' contiguous CPU tensors of the same shape and type.
  virtual void broadcast_into(const at::Tensor& tensor) = 0;
  /// Every rank's text, on rank 0; empty elsewhere.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  /// This rank has failed, for the first time: it says why, calls `leave`, by which the others fail, too, as soon as they
  /// wait for this rank, and waits a moment for what they say; or, but on rank 0, for rank 0. Empty where nobody can be
  /// told.
  virtual Failures exchange_failures(const std::exception& /*own*/, const std::function<void()>& leave) {
    leave();
    return {};
  }
};

struct World {
  std::vector<std::unique_ptr<Communicator>> ranks;  // those that live in this process
  std::unique_ptr<Control> control;                  // where the others are processes
};

World make_local_world(const SessionOptions& options);
World make_gloo_world(const SessionOptions& options);
/// ConfigError in a build without NCCL.
World make_nccl_world(const SessionOptions& options);

/// How to make the worlds of sim::world_table(), by name.
struct WorldMaker {
  std::string_view name;
  World (*make)(const SessionOptions&);
};
inline const sim::Table<WorldMaker>& world_table() {
  static constexpr std::array kMakers{WorldMaker{"local", make_local_world}, WorldMaker{"gloo", make_gloo_world},
                                      WorldMaker{"nccl", make_nccl_world}};
  static constexpr sim::Table<WorldMaker> kTable("world", kMakers);
  return kTable;
}

}  // namespace backend
