// Streams and events of a stand-in accelerator, on the CPU: what is enqueued runs later, in its stream's order and in no
// other, unless events say so. device.cpp makes it a device of LibTorch's, kernels.cpp gives it operators.
//
//   configure({.mode = Mode::drawn, .seed = 7});
//   enqueue(stream, "add", {{begin, end, true}}, [] { add(); return true; });
//   const Recording event = record(stream);
//   block(other, event);                       // stream `other` goes on when `stream` has come there
//   synchronize(other);
//   take_races()                               // empty: what `other` reads is ordered after what `stream` wrote
//
// Everything may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/standin/races.hpp"
#include "tests/standin/stream_abi.h"

namespace standin {

constexpr std::size_t kStreamsOfDevice = 33;  // 0 is the default; the others are the pool's, in turn, as CUDA's are
constexpr std::size_t kMostDevices = 4;

enum class Mode : std::uint8_t {
  threads,  // a thread per stream, which sleeps for a random while before each item: what may happen
  drawn  // no threads: whoever waits runs items of streams that are drawn by lot. With one host thread always the same
};
struct Options {
  Mode mode = Mode::threads;
  std::uint64_t seed = 0;
  std::uint32_t delay_us = 50;  // threads: at most before each item
  bool synchronous = false;     // every item is done before the host goes on
};
/// Once all streams are empty. Forgets races and errors.
void configure(const Options& options);
/// STANDIN="mode=drawn,seed=7,delay_us=0,synchronous=1" of the environment.
Options options_of_environment();

/// Accesses of the same memory that nothing orders, since the last call.
std::vector<std::string> take_races();
/// Enqueued since the process began.
std::size_t items();

/// True: done. An item that can't go on yet returns false and is called again. What it throws, the next synchronise does.
using Poll = std::function<bool()>;
/// `begin`: called when the stream is given the item, which is at each replay where it is captured.
void enqueue(std::size_t stream, std::string name, const std::vector<Access>& accesses, Poll poll,
             std::function<void()> begin = nullptr);
/// Also where the stream captures: it runs, and no graph has it.
void enqueue_uncaptured(std::size_t stream, std::string name, const std::vector<Access>& accesses, Poll poll);
/// Everything that has been enqueued is done.
bool is_idle(std::size_t stream);
void synchronize(std::size_t stream);
/// For the NCCL stand-in.
standin_stream* native_handle(std::size_t stream);

/// One recording of an event.
struct RecordingState;
using Recording = std::shared_ptr<RecordingState>;
Recording record(std::size_t stream);
void block(std::size_t stream, const Recording& recording);
bool has_come(const Recording& recording);
void synchronize(const Recording& recording);
/// Both have come.
double milliseconds_between(const Recording& begin, const Recording& end);

/// Items enqueued on `stream` from now on come after everything that is on `other` now.
void order_after(std::size_t stream, std::size_t other);

/// What streams are given between `begin_capture` and `end_capture`, to run at each replay. As CUDA has it: a stream that
/// waits for an event recorded in the capture joins it, and must have been waited for at the end; nobody may wait for a
/// stream that captures, or for its events, or ask them; a stream that captures waits for no event from outside.
struct CapturedItems;
using Captured = std::shared_ptr<CapturedItems>;
Captured begin_capture(std::size_t stream);
void end_capture(const Captured& captured);
/// The first stream's items go to `stream`, the others' to streams that only graphs have (numbers from kMostDevices ×
/// kStreamsOfDevice on): nothing but the captured events orders them. A graph's replays come one after the other.
void replay(const Captured& captured, std::size_t stream);
/// Which capture has the stream now; 0: none has.
std::uint64_t capture_on(std::size_t stream);
std::uint64_t number_of(const Captured& captured);

}  // namespace standin
