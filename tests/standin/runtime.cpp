#include "tests/standin/runtime.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

namespace standin {

/// By stream that has joined a capture: how many of its items come before.
using Seen = std::map<std::size_t, std::size_t>;

struct RecordingState {
  bool has_come = false;
  double time_ms = 0;
  Clock clock;
  std::uint64_t capture = 0;  // in which it was recorded: it never comes, each replay has one of its own
  Seen seen;                  // of the capture's items
};

struct CapturedItems {
  /// An item; or an event that is recorded, or waited for.
  struct Item {
    std::size_t stream = 0;
    std::string name{};
    std::vector<Access> accesses{};
    Poll poll{};
    std::function<void()> begin{};
    Recording recorded{}, awaited{};
  };
  std::uint64_t number = 0;
  std::size_t origin = 0;  // the first stream
  std::vector<Item> items;
  std::map<std::size_t, Seen> seen;  // by stream that has joined
  Recording end_of_replay;           // the last one's
};

namespace {

constexpr std::size_t kStreams = kMostDevices * kStreamsOfDevice;
constexpr std::size_t kQueues = 2 * kStreams;  // a stream's number + kStreams: what a graph's replays have in its place
constexpr std::chrono::microseconds kPause(20);  // before an item that couldn't go on is called again

using Lock = std::unique_lock<std::mutex>;

struct Queue : standin_stream {
  std::size_t id = 0;
  std::deque<Poll> items;
  std::uint64_t enqueued = 0, finished = 0;
  std::mt19937_64 draw;
  bool is_busy = false, has_thread = false;
  std::exception_ptr error;   // the first since the last synchronise
  Captured capture;           // that gets what the stream is given
  Queue* launcher = nullptr;  // of a graph's: the stream that replays it, where errors go
};

void enqueue_from_c(standin_stream* stream, const char* name, const standin_access* list, std::size_t count,
                    void (*begin)(void*), int (*poll)(void*), void (*destroy)(void*), void* argument);

class Runtime {
 public:
  Runtime() {
    for (std::size_t s = 0; s < kQueues; ++s) {
      queues_[s].id = s;
      queues_[s].magic = STANDIN_MAGIC;
      queues_[s].enqueue = &enqueue_from_c;
    }
    set(options_of_environment());
  }

  void configure(const Options& options) {
    Lock lock(mutex_);
    for (Queue& queue : queues_) {
      wait_for(lock, [&] { return queue.finished == queue.enqueued; });
      races_.host_waited(races_.clock(queue.id));
      queue.error = nullptr;
    }
    races_.forget();
    set(options);
  }

  void enqueue(std::size_t stream, std::string name, const std::vector<Access>& accesses, Poll poll,
               std::function<void()> begin, bool may_be_captured = true) {
    Lock lock(mutex_);
    Queue& queue = queues_.at(stream);
    if (queue.capture && may_be_captured) {
      ++queue.capture->seen[stream][stream];
      queue.capture->items.push_back({stream, std::move(name), accesses, std::move(poll), std::move(begin), {}, {}});
      return;
    }
    if (begin) begin();
    push(queue, std::move(name), accesses, std::move(poll));
    if (options_.synchronous && !queue.capture) synchronize(lock, queue);
  }

  void synchronize(std::size_t stream) {
    Lock lock(mutex_);
    synchronize(lock, queues_.at(stream));
  }

  bool is_idle(std::size_t stream) {
    Lock lock(mutex_);
    Queue& queue = queues_.at(stream);
    refuse_capturing(queue, "is asked whether it's idle");
    if (options_.mode == Mode::drawn && queue.finished < queue.enqueued) run_one(lock);
    return queue.finished == queue.enqueued;
  }

  Recording record(std::size_t stream) {
    const Lock lock(mutex_);
    return record(queues_.at(stream));
  }

  void block(std::size_t stream, const Recording& recording) {
    const Lock lock(mutex_);
    block(queues_.at(stream), recording);
  }

  void order_after(std::size_t stream, std::size_t other) {
    const Lock lock(mutex_);
    block(queues_.at(stream), record(queues_.at(other)));
  }

  Captured begin_capture(std::size_t stream) {
    const Lock lock(mutex_);
    Queue& queue = queues_.at(stream);
    refuse_capturing(queue, "begins a capture");
    if (stream % kStreamsOfDevice == 0) throw std::runtime_error("stand-in: the default stream can't capture");
    queue.capture = std::make_shared<CapturedItems>();
    queue.capture->number = ++captures_;
    queue.capture->origin = stream;
    queue.capture->seen[stream] = {};
    return queue.capture;
  }

  void end_capture(const Captured& captured) {
    const Lock lock(mutex_);
    for (Queue& queue : queues_)
      if (queue.capture == captured) queue.capture = nullptr;
    const Seen at_end = captured->seen.at(captured->origin);
    for (const auto& [stream, seen] : captured->seen) {
      const auto own = seen.find(stream), joined = at_end.find(stream);
      if (own != seen.end() && (joined == at_end.end() || joined->second < own->second))
        throw std::runtime_error(fmt::format(
            "stand-in: stream {} ends a capture and hasn't waited for all of stream {}", captured->origin, stream));
    }
  }

  void replay(const Captured& captured, std::size_t stream) {
    Lock lock(mutex_);
    Queue& launcher = queues_.at(stream);
    refuse_capturing(launcher, "replays a graph");
    if (captured->end_of_replay) wait_for(lock, [&] { return captured->end_of_replay->has_come; });
    std::map<const RecordingState*, Recording> recordings;
    for (const CapturedItems::Item& item : captured->items) {
      Queue& queue = item.stream == captured->origin ? launcher : queues_.at(kStreams + item.stream);
      if (&queue != &launcher) queue.launcher = &launcher;
      if (item.recorded) {
        recordings[item.recorded.get()] = record(queue);
      } else if (item.awaited) {
        block(queue, recordings.at(item.awaited.get()));
      } else {
        if (item.begin) item.begin();
        push(queue, item.name, item.accesses, item.poll);
      }
    }
    captured->end_of_replay = record(launcher);
    if (options_.synchronous) synchronize(lock, launcher);
  }

  std::uint64_t capture_on(std::size_t stream) {
    const Lock lock(mutex_);
    const Queue& queue = queues_.at(stream);
    return queue.capture ? queue.capture->number : 0;
  }

  bool has_come(const Recording& recording) {
    Lock lock(mutex_);
    refuse_captured(*recording);
    if (options_.mode == Mode::drawn && !recording->has_come) run_one(lock);
    if (recording->has_come) races_.host_waited(recording->clock);
    return recording->has_come;
  }

  void synchronize(const Recording& recording) {
    Lock lock(mutex_);
    refuse_captured(*recording);
    wait_for(lock, [&] { return recording->has_come; });
    races_.host_waited(recording->clock);
  }

  double milliseconds_between(const Recording& begin, const Recording& end) {
    const Lock lock(mutex_);
    for (const Recording& recording : {begin, end}) refuse_captured(*recording);
    if (!begin->has_come || !end->has_come) throw std::runtime_error("stand-in: an event's time before it has come");
    return end->time_ms - begin->time_ms;
  }

  std::vector<std::string> take_races() {
    const Lock lock(mutex_);
    return races_.take();
  }
  std::size_t items() {
    const Lock lock(mutex_);
    return items_;
  }
  standin_stream* native_handle(std::size_t stream) { return &queues_.at(stream); }

 private:
  void set(const Options& options) {
    options_ = options;
    draw_.seed(options.seed);
    for (Queue& queue : queues_) queue.draw.seed(options.seed * 1'000'003 + queue.id);
  }

  static void refuse_capturing(const Queue& queue, const char* what) {
    if (queue.capture) throw std::runtime_error(fmt::format("stand-in: stream {} captures and {}", queue.id, what));
  }
  static void refuse_captured(const RecordingState& recording) {
    if (recording.capture != 0) throw std::runtime_error("stand-in: the host asks for an event of a capture");
  }

  Recording record(Queue& queue) {
    auto recording = std::make_shared<RecordingState>();
    if (queue.capture) {
      recording->capture = queue.capture->number;
      recording->seen = queue.capture->seen[queue.id];
      queue.capture->items.push_back({.stream = queue.id, .recorded = recording});
      return recording;
    }
    push(queue, "record", {}, [this, recording] {
      const Lock inside(mutex_);
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      recording->time_ms = std::chrono::duration<double, std::milli>(now).count();
      recording->has_come = true;
      changed_.notify_all();
      return true;
    });
    recording->clock = races_.clock(queue.id);
    return recording;
  }

  void block(Queue& queue, const Recording& recording) {
    if (!queue.capture && recording->capture != 0)
      for (const Queue& other : queues_)
        if (other.capture && other.capture->number == recording->capture) queue.capture = other.capture;  // it joins
    if ((queue.capture ? queue.capture->number : 0) != recording->capture)
      throw std::runtime_error(
          fmt::format("stand-in: stream {} waits for an event of another capture, or of none", queue.id));
    if (queue.capture) {
      Seen& seen = queue.capture->seen[queue.id];
      for (const auto& [stream, items] : recording->seen) seen[stream] = std::max(seen[stream], items);
      ++seen[queue.id];
      queue.capture->items.push_back({.stream = queue.id, .awaited = recording});
      return;
    }
    races_.merge(queue.id, recording->clock);
    push_wait(queue, [recording] { return recording->has_come; });
  }

  void push(Queue& queue, std::string name, const std::vector<Access>& accesses, Poll poll) {
    races_.enqueued(queue.id, name, accesses);
    queue.items.push_back(std::move(poll));
    ++queue.enqueued, ++items_;
    if (options_.mode == Mode::threads && !queue.has_thread) {
      queue.has_thread = true;
      std::thread([this, &queue] { serve(queue); }).detach();  // as long as the process, like the runtime
    }
    changed_.notify_all();
  }

  /// `ready` is called with the lock held.
  void push_wait(Queue& queue, std::function<bool()> ready) {
    push(queue, "wait", {}, [this, ready = std::move(ready)] {
      Lock inside(mutex_);
      if (options_.mode == Mode::threads) changed_.wait(inside, ready);
      return ready();
    });
  }

  void synchronize(Lock& lock, Queue& queue) {
    refuse_capturing(queue, "is waited for");
    const std::uint64_t until = queue.enqueued;
    const Clock clock = races_.clock(queue.id);
    wait_for(lock, [&] { return queue.finished >= until; });
    races_.host_waited(clock);
    if (queue.error) std::rethrow_exception(std::exchange(queue.error, nullptr));
  }

  template <class Ready>
  void wait_for(Lock& lock, Ready ready) {
    if (options_.mode == Mode::threads) return changed_.wait(lock, ready);
    while (!ready())
      if (!run_one(lock)) pause(lock);  // another host thread has to go on first, or another process
  }

  static void pause(Lock& lock) {
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }

  /// Once, without the lock. True when the item is done.
  bool call(Lock& lock, Queue& queue, const Poll& poll) {
    bool done = true;
    std::exception_ptr error;
    lock.unlock();
    try {
      done = poll();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    Queue& told = queue.launcher != nullptr ? *queue.launcher : queue;
    if (error && !told.error) told.error = error;
    return done;
  }

  void finish_front(Lock& lock, Queue& queue) {
    Poll poll = std::move(queue.items.front());
    queue.items.pop_front();
    ++queue.finished;
    changed_.notify_all();
    lock.unlock();  // what the item holds may be freed, and that enqueues
    poll = nullptr;
    lock.lock();
  }

  /// drawn: one item of a stream drawn by lot. False: none could go on.
  bool run_one(Lock& lock) {
    std::vector<Queue*> candidates;
    for (Queue& queue : queues_)
      if (!queue.items.empty() && !queue.is_busy) candidates.push_back(&queue);
    std::shuffle(candidates.begin(), candidates.end(), draw_);
    for (Queue* queue : candidates) {
      if (queue->is_busy || queue->items.empty()) continue;  // another host thread has been here meanwhile
      queue->is_busy = true;
      const bool done = call(lock, *queue, queue->items.front());  // stays where it is while others push
      if (done) finish_front(lock, *queue);
      queue->is_busy = false;
      if (done) return true;
    }
    return false;
  }

  /// threads: a stream's thread.
  void serve(Queue& queue) {
    at::set_num_threads(1);  // each new thread starts with OpenMP's
    Lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return options_.mode == Mode::threads && !queue.items.empty(); });
      const auto delay_us = queue.draw() % (options_.delay_us + 1);
      lock.unlock();
      if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      lock.lock();
      while (!call(lock, queue, queue.items.front())) pause(lock);
      finish_front(lock, queue);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Queue, kQueues> queues_;
  Options options_;
  std::mt19937_64 draw_;
  RaceDetector races_{kQueues};
  std::size_t items_ = 0;
  std::uint64_t captures_ = 0;
};

/// Never destroyed: threads and tensors outlive statics.
Runtime& runtime() {
  static Runtime& the = *new Runtime;
  return the;
}

void enqueue_from_c(standin_stream* stream, const char* name, const standin_access* list, std::size_t count,
                    void (*begin)(void*), int (*poll)(void*), void (*destroy)(void*), void* argument) {
  std::vector<Access> accesses;
  for (const standin_access* access = list; access != list + count; ++access) {
    const auto* first = static_cast<const char*>(access->begin);
    accesses.push_back({first, first + access->bytes, access->write != 0});
  }
  const std::shared_ptr<void> owner(argument, destroy);
  runtime().enqueue(
      static_cast<Queue*>(stream)->id, name, accesses,
      [poll, owner] {
        const int state = poll(owner.get());
        if (state < 0) throw std::runtime_error("stand-in: a communication has failed");
        return state == 1;
      },
      [begin, owner] { begin(owner.get()); });
}

}  // namespace

Options options_of_environment() {
  Options options;
  const char* text = std::getenv("STANDIN");
  std::string_view rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const std::string_view key = part.substr(0, part.find('=')),
                           value = part.substr(std::min(part.size(), key.size() + 1));
    std::uint64_t number = 0;
    std::from_chars(value.data(), value.data() + value.size(), number);
    if (key == "mode" && (value == "drawn" || value == "threads"))
      options.mode = value == "drawn" ? Mode::drawn : Mode::threads;
    else if (key == "seed")
      options.seed = number;
    else if (key == "delay_us")
      options.delay_us = static_cast<std::uint32_t>(number);
    else if (key == "synchronous")
      options.synchronous = number != 0;
    else
      throw std::runtime_error(
          fmt::format("STANDIN: '{}'; known: mode=threads|drawn, seed=, delay_us=, synchronous=", part));
  }
  return options;
}

void configure(const Options& options) { runtime().configure(options); }
std::vector<std::string> take_races() { return runtime().take_races(); }
std::size_t items() { return runtime().items(); }
void enqueue(std::size_t stream, std::string name, const std::vector<Access>& accesses, Poll poll,
             std::function<void()> begin) {
  runtime().enqueue(stream, std::move(name), accesses, std::move(poll), std::move(begin));
}
void enqueue_uncaptured(std::size_t stream, std::string name, const std::vector<Access>& accesses, Poll poll) {
  runtime().enqueue(stream, std::move(name), accesses, std::move(poll), nullptr, /*may_be_captured=*/false);
}
bool is_idle(std::size_t stream) { return runtime().is_idle(stream); }
void synchronize(std::size_t stream) { runtime().synchronize(stream); }
standin_stream* native_handle(std::size_t stream) { return runtime().native_handle(stream); }
Recording record(std::size_t stream) { return runtime().record(stream); }
void block(std::size_t stream, const Recording& recording) { runtime().block(stream, recording); }
bool has_come(const Recording& recording) { return runtime().has_come(recording); }
void synchronize(const Recording& recording) { runtime().synchronize(recording); }
double milliseconds_between(const Recording& begin, const Recording& end) {
  return runtime().milliseconds_between(begin, end);
}
void order_after(std::size_t stream, std::size_t other) { runtime().order_after(stream, other); }
Captured begin_capture(std::size_t stream) { return runtime().begin_capture(stream); }
void end_capture(const Captured& captured) { runtime().end_capture(captured); }
void replay(const Captured& captured, std::size_t stream) { runtime().replay(captured, stream); }
std::uint64_t capture_on(std::size_t stream) { return runtime().capture_on(stream); }
std::uint64_t number_of(const Captured& captured) { return captured->number; }

}  // namespace standin
