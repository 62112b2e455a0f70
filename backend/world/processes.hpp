// What worlds of processes share: how the ranks meet, connections of gloo's between them, and their Control.
//
//   const auto meeting = std::make_shared<Meeting>("gloo", options);     // of this process, which is one rank
//   ProcessGroup group = meeting->connect("everyone", meeting->rank, meeting->ranks, meeting->timeout);
//   World world{.control = make_control(meeting)};
//
// The variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who meets where, on several hosts LOCAL_WORLD_SIZE how many
// are on each: backend/machine/launch.hpp. c10d's
// store is where they meet: torchrun's agent serves it, or rank 0.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "backend/machine/clock.hpp"
#include "backend/world/hosts.hpp"
#include "backend/world/world.hpp"

namespace c10d {
class ProcessGroupGloo;  // 10 s of headers: only gloo.cpp and processes.cpp call it
}
namespace gloo::transport {
class Device;
}

namespace backend {

using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

/// gloo's and c10d's messages begin with a source position and may go on with a stack: only what happened remains.
std::string reason(const std::exception& error);

/// What `call` throws becomes a RunError that says `what()` has failed.
template <class What, class Call>
auto guarded(What what, Call call) {
  try {
    return call();
  } catch (const sim::ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    throw sim::RunError("{}: {}", what(), reason(error));
  }
}

/// This process among the ranks of its world. It pins the calling thread, which executes the rank; gloo's threads
/// inherit its core, and the priority under which they are made.
struct Meeting {
  using Milliseconds = std::chrono::milliseconds;

  /// ConfigError for variables that are missing or don't match, and for hosts that differ (SaidByAnother on all ranks but
  /// rank 0); RunError where nobody comes.
  Meeting(std::string_view its_world, const SessionOptions& options);

  /// A process group of `members` in which this process is number `me`. All members make it at the same time.
  [[nodiscard]] ProcessGroup connect(const std::string& name, std::uint32_t me, std::uint32_t members,
                                     Milliseconds patience) const;
  /// Closes the connections of all these groups, for good: what other members wait for there fails within a round trip.
  void disconnect() const;

  const std::string world;  // for messages
  const std::uint32_t rank, ranks;
  const Milliseconds timeout;
  const c10::intrusive_ptr<c10d::Store> store;
  const Hosts hosts;
  bool real_time = false;
  std::shared_ptr<::gloo::transport::Device> device;
  std::string network;  // what the device calls itself: interface, Mbit/s, address

 private:
  struct Groups;
  const std::shared_ptr<Groups> groups_;  // all that `connect` has made
};

/// A transfer as messages name it: "the receive from rank 1 (tag 3)", "the all_reduce of ranks 0, 1".
struct TransferName {
  sim::InstructionKind kind = sim::InstructionKind::send;  // or recv, collective
  std::uint32_t partner = 0, tag = 0;                      // of a message
  sim::CollectiveKind collective = sim::CollectiveKind::all_reduce;
  const std::vector<std::uint32_t>* members = nullptr;  // of the collective

  [[nodiscard]] std::string text(const Hosts& hosts) const;
};

/// The member list, of each group, that has this rank in it; empty where none has.
std::vector<std::vector<std::uint32_t>> memberships_of(const std::vector<sim::Group>& groups, std::uint32_t rank);
/// "group 0 of 0,2": the same on all members.
std::string group_name(std::uint32_t group, const std::vector<std::uint32_t>& members);

/// The barrier at the start of a step: the moment that comes out is the same for all, whatever their hosts' clocks say.
class StepStart {
 public:
  explicit StepStart(std::shared_ptr<const Meeting> meeting);
  ~StepStart();
  /// The process group of all ranks.
  [[nodiscard]] const ProcessGroup& everyone() const;
  /// Connections among the first `ranks` are kept for later programs. On several hosts these ranks read their clocks.
  void prepare(std::uint32_t ranks);
  /// A barrier. Returns the moment at which all ranks leave it, at that moment, on this host's clock.
  double come();
  /// Whether each rank of the program that is on this host has a core for itself.
  [[nodiscard]] bool has_own_core() const { return own_core_; }
  /// The same ranks read their clocks once more: what is now known of the moments since `prepare`.
  SharedClock read_clock();
  /// Leaves at the end of the process, not now: what is posted may never be done.
  void leave();

 private:
  void add_offset();

  std::shared_ptr<const Meeting> meeting_;
  std::uint32_t ranks_ = 0;        // that run the program
  bool has_other_clocks_ = false;  // whether some of them are on another host than rank 0
  SharedClock clock_;
  std::map<std::uint32_t, ProcessGroup> firsts_;  // of the first so many ranks
  ProcessGroup group_;                            // of the ranks that run the program; null: one
  bool own_core_ = false;                         // each of them has a core for itself: it may spin
  at::Tensor moment_;
};

/// Rank 0, who may serve the store, stays until so many `others` have added to `heard`, but at most so many seconds.
void linger(c10d::Store& store, const std::string& heard, std::size_t others, double longest_s);

std::unique_ptr<Control> make_control(std::shared_ptr<const Meeting> meeting);

}  // namespace backend
