#include "tests/standin/device.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <tuple>
#include <utility>

#include "backend/machine/graph.hpp"

namespace standin {
namespace {

std::size_t number_of(const char* variable, std::size_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

c10::DeviceIndex device_count() {
  static const auto count = static_cast<c10::DeviceIndex>(std::min(number_of("STANDIN_DEVICES", 1), kMostDevices));
  return count;
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kMostDevices> current_streams{};  // within their devices

std::size_t queue_of(c10::DeviceIndex device, c10::StreamId id) {
  return static_cast<std::size_t>(device) * kStreamsOfDevice + static_cast<std::size_t>(id);
}
std::size_t queue_of(const c10::Stream& stream) { return queue_of(stream.device_index(), stream.id()); }

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

// ---- Memory ----

struct Block {
  static constexpr std::size_t kHeader = 128;  // keeps data() aligned
  std::size_t capacity = 0;
  c10::DeviceIndex device = 0;
  std::size_t queue = 0;            // where it was allocated
  std::uint64_t capture = 0;        // whose pool it is of; 0: everyone's
  std::vector<std::size_t> others;  // that use it, too (recordStream)
  char* data() { return reinterpret_cast<char*>(this) + kHeader; }
};

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current_device);
    if (bytes == 0) return {nullptr, nullptr, [](void*) {}, device};
    Block* block = take((bytes + kAlignment - 1) / kAlignment * kAlignment);
    return {block->data(), block, &Memory::free, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_context() == nullptr) return;
    const std::lock_guard lock(mutex_);
    static_cast<Block*>(data.get_context())->others.push_back(queue_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0] = stats.reserved_bytes[0] = stats.requested_bytes[0] = allocated_.at(device);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    allocated_.at(device).reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    allocated_.at(device).reset_peak();
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return {capacity() - static_cast<std::size_t>(allocated_.at(device).current), capacity()};
  }

  /// The pool of a capture is its own from `reserve` to `release`.
  void reserve(std::uint64_t capture) {
    const std::lock_guard lock(mutex_);
    reserved_.insert(capture);
  }
  void release(std::uint64_t capture) {
    const std::lock_guard lock(mutex_);
    reserved_.erase(capture);
    for (auto waiting = pool_.lower_bound({capture, 0, 0});
         waiting != pool_.end() && std::get<0>(waiting->first) == capture; waiting = pool_.erase(waiting))
      put(waiting->second);
  }

  static Memory& the() {
    static Memory& memory = *new Memory;  // never destroyed: tensors outlive statics
    return memory;
  }

 private:
  static constexpr std::size_t kAlignment = 64;

  static std::size_t capacity() {
    static const std::size_t bytes = number_of("STANDIN_MEMORY_MIB", std::size_t{1} << 20) << 20;
    return bytes;
  }

  Block* take(std::size_t bytes) {
    const std::size_t queue = current_stream();
    const std::uint64_t capture = capture_on(queue);
    const std::lock_guard lock(mutex_);
    c10::CachingDeviceAllocator::Stat& allocated = allocated_.at(current_device);
    if (static_cast<std::size_t>(allocated.current) + bytes > capacity())
      C10_THROW_ERROR(OutOfMemoryError,
                      fmt::format("standin out of memory: tried to allocate {} bytes; {} of {} bytes are allocated",
                                  bytes, allocated.current, capacity()));
    allocated.increase(bytes);
    if (const auto waiting = pool_.find({capture, queue, bytes}); waiting != pool_.end()) {
      Block* block = waiting->second;
      pool_.erase(waiting);
      return block;
    }
    auto* block =
        new (std::aligned_alloc(kAlignment, Block::kHeader + bytes)) Block{bytes, current_device, queue, capture, {}};
    std::memset(block->data(), kPoison, bytes);
    return block;
  }

  static void free(void* context) {
    auto* block = static_cast<Block*>(context);
    for (const std::size_t other : std::exchange(block->others, {}))
      if (other != block->queue) order_after(block->queue, other);
    const std::vector<Access> all{{block->data(), block->data() + block->capacity, true}};
    const auto poison = [block] {
      std::memset(block->data(), kPoison, block->capacity);
      return true;
    };
    if (block->capture != 0 && block->capture == capture_on(block->queue))
      enqueue(block->queue, "free", all, poison);
    else
      enqueue_uncaptured(block->queue, "free", all, poison);
    Memory& memory = the();
    const std::lock_guard lock(memory.mutex_);
    memory.allocated_.at(block->device).decrease(block->capacity);
    memory.put(block);
  }

  void put(Block* block) {
    if (!reserved_.contains(block->capture)) block->capture = 0;
    pool_.emplace(std::tuple(block->capture, block->queue, block->capacity), block);
  }

  static constexpr int kPoison = 0xff;
  std::mutex mutex_;
  std::multimap<std::tuple<std::uint64_t, std::size_t, std::size_t>, Block*> pool_;  // by capture, queue and capacity
  std::set<std::uint64_t> reserved_;                                                 // captures
  std::array<c10::CachingDeviceAllocator::Stat, kMostDevices> allocated_{};
};

// ---- Streams and events ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  [[nodiscard]] c10::DeviceType type() const override { return kType; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, device.index())};
  }
  [[nodiscard]] c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < device_count(), "stand-in: no device ", device.index());
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  [[nodiscard]] c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = index_of(device);
    return stream_of(index, current_streams.at(index));
  }
  [[nodiscard]] c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    static std::mutex mutex;
    static std::array<std::size_t, kMostDevices> next{};
    const std::lock_guard lock(mutex);
    const c10::DeviceIndex index = index_of(device);
    return stream_of(index, static_cast<c10::StreamId>(1 + next.at(index)++ % (kStreamsOfDevice - 1)));
  }
  [[nodiscard]] c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, false);
  }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(stream.device_index(), std::exchange(current_streams.at(stream.device_index()), stream.id()));
  }
  [[nodiscard]] void* getStreamNativeHandle(const c10::Stream stream) const override {
    return native_handle(queue_of(stream));
  }
  [[nodiscard]] bool queryStream(const c10::Stream& stream) const override { return is_idle(queue_of(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(queue_of(stream)); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    for (std::size_t id = 0; id < kStreamsOfDevice; ++id) synchronize(queue_of(device, static_cast<c10::StreamId>(id)));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new Event{.is_timed = flag == c10::EventFlag::BACKEND_DEFAULT};
    static_cast<Event*>(*event)->last = standin::record(queue_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) standin::block(queue_of(stream), static_cast<Event*>(event)->last);
  }
  [[nodiscard]] bool queryEvent(void* event) const override {
    return event == nullptr || has_come(static_cast<Event*>(event)->last);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) synchronize(static_cast<Event*>(event)->last);
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  [[nodiscard]] double elapsedTime(void* begin, void* end, const c10::DeviceIndex /*device*/) const override {
    const auto *from = static_cast<Event*>(begin), *to = static_cast<Event*>(end);
    TORCH_CHECK(from->is_timed && to->is_timed, "stand-in: events without BACKEND_DEFAULT have no times");
    return milliseconds_between(from->last, to->last);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Memory::the().recordStream(data, stream);
  }

 private:
  struct Event {
    bool is_timed = false;
    Recording last{};
  };
  static c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

class CapturedGraph final : public backend::Graph {
 public:
  CapturedGraph() = default;
  CapturedGraph(const CapturedGraph&) = delete;
  ~CapturedGraph() override {
    if (captured_) Memory::the().release(number_of(captured_));
  }
  void capture(const std::function<void()>& work) override {
    TORCH_CHECK(!captured_, "stand-in: a graph that captures twice");
    captured_ = begin_capture(current_stream());
    Memory::the().reserve(number_of(captured_));
    try {
      work();
    } catch (...) {
      try {
        end_capture(captured_);
      } catch (const std::exception&) {
        // The first failure is the cause.
      }
      throw;
    }
    end_capture(captured_);
  }
  void replay() override { standin::replay(captured_, current_stream()); }

 private:
  Captured captured_;
};

struct Hooks final : at::PrivateUse1HooksInterface, backend::GraphMaker {
  [[nodiscard]] bool isBuilt() const override { return true; }
  [[nodiscard]] bool isAvailable() const override { return true; }
  [[nodiscard]] bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  [[nodiscard]] c10::DeviceIndex deviceCount() const override { return device_count(); }
  [[nodiscard]] std::unique_ptr<backend::Graph> make_graph() const override {
    return std::make_unique<CapturedGraph>();
  }
};

/// A program that was never asked for its races tells them when it ends.
void tell_races() {
  const std::vector<std::string> races = take_races();
  for (const std::string& race : races) fmt::print(stderr, "stand-in: race: {}\n", race);
  std::fflush(nullptr);
  if (!races.empty()) _exit(kRaceStatus);
}

const bool kRegistered = [] {
  c10::register_privateuse1_backend("standin");
  c10::SetAllocator(kType, &Memory::the());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  std::atexit(tell_races);
  if (std::getenv("LD_PRELOAD") != nullptr && std::getenv("RANK") == nullptr)
    fmt::print(stderr, "stand-in: device privateuseone is this CPU in disguise: its times mean nothing\n");
  return true;
}();

}  // namespace

std::size_t current_stream() { return queue_of(current_device, current_streams.at(current_device)); }

}  // namespace standin
