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
void enqueue(std::size_t stream, std::string name, const std::vector<Access>& accesses, Poll poll);
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

}  // namespace standin
