// Which accesses of a device's memory are ordered by nothing: a vector clock per stream, as of Lamport and Fidge.
//
//   races.enqueued(3, "conv", {{begin, end, true}});        // stream 3 will write this
//   const Clock at = races.clock(3);                       // an event is recorded
//   races.merge(5, at);                                    // stream 5 waits for it
//   races.host_waited(at);                                 // the host has; what it enqueues from now on comes later
//   races.take()                                           // "add on stream 5 reads what conv on stream 3 writes"
//
// It knows nothing of time: what is found depends on the order in which the host enqueues only. There is one clock for
// all threads of the host, so that a race may be missed where one thread waits and another enqueues; nothing is reported
// that is ordered. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace standin {

/// Of a stream's items; `end` is one past the last byte.
struct Access {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool writes = false;
};

/// By stream: how many of its items come before.
using Clock = std::vector<std::uint64_t>;

class RaceDetector {
 public:
  explicit RaceDetector(std::size_t streams) : clocks_(streams, Clock(streams)), enqueued_(streams), host_(streams) {}

  /// The next item of a stream, and what it reads and writes.
  void enqueued(std::size_t stream, const std::string& name, const std::vector<Access>& accesses);
  [[nodiscard]] const Clock& clock(std::size_t stream) const { return clocks_[stream]; }
  void merge(std::size_t stream, const Clock& earlier) { merge(clocks_[stream], earlier); }
  void host_waited(const Clock& earlier) { merge(host_, earlier); }

  /// Races since the last call, each once.
  std::vector<std::string> take() { return std::exchange(races_, {}); }
  /// Nothing that came before is a race with what comes.
  void forget();

 private:
  struct Past {
    Access access;
    std::size_t stream = 0;
    std::uint64_t number = 0;  // of the stream's items
    std::string name;
  };
  static void merge(Clock& clock, const Clock& earlier);
  void check(std::size_t stream, const std::string& name, const Access& access);

  std::vector<Clock> clocks_;  // what the next item of each stream comes after
  std::vector<std::uint64_t> enqueued_;
  Clock host_;
  std::multimap<const char*, Past> pasts_;  // by where they begin
  std::ptrdiff_t longest_ = 0;              // of them, in bytes
  std::vector<std::string> races_;
};

}  // namespace standin
