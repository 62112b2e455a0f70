// Accelerators through LibTorch's device-generic interfaces: nothing here names one.
//
//   const at::Device device = first_device("cuda");        // ConfigError where there is none
//   describe("cuda").name                                  // "NVIDIA H200"
//   StreamClock clock(stream);
//   clock.begin();                                         // the stream is idle
//   clock.mark(&moment_s);                                 // when what has been enqueued is done …
//   stream.synchronize(), clock.settle();                  // … is known from here on
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "backend/machine/allocator.hpp"

namespace backend {

/// The first device of this kind, initialised. ConfigError where this LibTorch or machine has none.
at::Device first_device(const std::string& name);

/// An accelerator as its driver describes it.
struct Accelerator {
  std::string name;
  std::int64_t memory_bytes = 0;
  nlohmann::json details;  // clocks, power limit, driver, …, by the driver's names; null where there are none
};
/// The first device of this kind; initialises nothing. ConfigError where there is none.
Accelerator describe(const std::string& device);
/// All GPUs that NVIDIA's driver lists; it is asked once.
const std::vector<Accelerator>& gpus();

/// The device's memory, in use or not.
std::int64_t memory_bytes(at::Device device);
/// What this process has allocated there, as LibTorch's allocator counts it.
RankBytes allocated_bytes(at::Device device);
/// The peak starts again at what is live.
void reset_allocated_peak(at::Device device);

/// A stream that nobody else has: LibTorch's pool has 32 for a device, and then begins again with the first. CUDA's lives
/// as long as the process; of other devices one of the pool.
c10::Stream own_stream(at::Device device);

/// The calling thread's current stream does nothing for at least so long, so that the host gets ahead of it. Does nothing
/// on a device that LibTorch can't hold: any but CUDA's.
void hold(at::Device device, double seconds);

/// c10::Event does nothing, and says nothing, where it was never recorded; this one throws.
class StreamEvent {
 public:
  void record(const c10::Stream& stream);
  /// What the stream is given from now on waits for this event.
  void block(const c10::Stream& stream) const { recorded().block(stream); }
  [[nodiscard]] bool has_come() const { return recorded().query(); }
  /// The seconds between two events that have come.
  [[nodiscard]] double seconds_since(const StreamEvent& earlier) const;

 private:
  [[nodiscard]] const c10::Event& recorded() const;
  std::optional<c10::Event> event_;
};

/// The moments of a stream's work on the host's clock: by events, so that the host needn't wait for the device.
class StreamClock {
 public:
  explicit StreamClock(const c10::Stream& stream) : stream_(stream) {}
  /// The stream is idle, and begins now. Forgets what was marked before.
  void begin();
  /// Asks for the moment at which the stream will have done what it has been given so far.
  void mark(double* moment_s);
  /// When `event` comes, of whatever stream; the latest where there are several for
  /// one moment. It must outlive `settle`.
  void mark_at(const StreamEvent& event, double* moment_s) { moments_.push_back({moment_s, &event}); }
  /// What has been marked is not to be filled in.
  void forget() { moments_.clear(); }
  /// All that is marked has come: fills it in.
  void settle();

 private:
  struct Moment {
    double* moment_s = nullptr;
    const StreamEvent* event = nullptr;
  };
  const c10::Stream stream_;
  StreamEvent begin_;
  double begin_s_ = 0;
  std::deque<StreamEvent> events_;  // used again in every step
  std::size_t events_used_ = 0;
  std::vector<Moment> moments_;
};

}  // namespace backend
