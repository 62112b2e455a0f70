#include "backend/machine/accelerator.hpp"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "backend/machine/cuda.hpp"
#include "backend/machine/process.hpp"
#include "backend/machine/scheduling.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

std::vector<Accelerator> ask_driver() {
  constexpr std::string_view kFields =
      "name,memory.total,clocks.max.sm,clocks.max.memory,power.limit,compute_cap,mig.mode.current,driver_version";
  std::vector<Accelerator> list;
  const std::optional<std::string> table =
      output_of(fmt::format("nvidia-smi --query-gpu={} --format=csv,noheader", kFields));
  std::istringstream lines(table.value_or(""));
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    std::istringstream values(line), names{std::string(kFields)};
    Accelerator& gpu = list.emplace_back();
    for (std::string name, value; std::getline(names, name, ',') && std::getline(values, value, ',');)
      gpu.details[name] = value.substr(std::min(value.size(), value.find_first_not_of(' ')));
    gpu.name = gpu.details.value("name", "");
    gpu.memory_bytes = std::atoll(gpu.details.value("memory.total", "0").c_str()) << 20;  // "81559 MiB"
  }
  return list;
}

}  // namespace

at::Device first_device(const std::string& name) {
  const c10::DeviceType type = at::Device(name).type();
  if (type == c10::DeviceType::CUDA) load_cuda();
  if (!c10::impl::hasDeviceGuardImpl(type)) throw sim::ConfigError("device={0}: this LibTorch has no {0}", name);
  if (c10::impl::VirtualGuardImpl(type).deviceCount() == 0)
    throw sim::ConfigError("device={}: this machine has no usable one", name);
  at::globalContext().lazyInitDevice(type);
  return {type, 0};
}

const std::vector<Accelerator>& gpus() {
  static const std::vector<Accelerator> kGpus = ask_driver();
  return kGpus;
}

Accelerator describe(const std::string& device) {
  if (device == "cuda") {
    if (gpus().empty()) throw sim::ConfigError("device=cuda: this machine has no usable one (nvidia-smi names none)");
    return gpus()[0];
  }
  const at::Device first = first_device(device);
  return {c10::get_privateuse1_backend(), memory_bytes(first), {}};
}

std::int64_t memory_bytes(at::Device device) {
  return static_cast<std::int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
}

RankBytes allocated_bytes(at::Device device) {
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const c10::CachingAllocator::Stat& all = stats.allocated_bytes[0];
  return {all.current, all.peak};
}

void reset_allocated_peak(at::Device device) { c10::getDeviceAllocator(device.type())->resetPeakStats(device.index()); }

c10::Stream own_stream(at::Device device) {
  if (device.is_cuda()) return make_cuda_stream(device);
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamFromGlobalPool(device);
}

void hold(at::Device device, double seconds) {
  if (device.is_cuda()) hold_cuda(seconds);
}

void StreamEvent::record(const c10::Stream& stream) {
  if (!event_) event_.emplace(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  event_->record(stream);
}

double StreamEvent::seconds_since(const StreamEvent& earlier) const {
  return 1e-3 * earlier.recorded().elapsedTime(recorded());
}

const c10::Event& StreamEvent::recorded() const {
  sim::check_internal(event_.has_value(), "an event is waited for that nobody has recorded");
  return *event_;
}

void StreamClock::begin() {
  sim::check_internal(stream_.query(), "a step begins while the device is still at work");
  moments_.clear();
  events_used_ = 0;
  begin_.record(stream_);
  begin_s_ = now_s();  // not the moment that all were to begin: this thread may have been late
}

void StreamClock::mark(double* moment_s) {
  if (events_used_ == events_.size()) events_.emplace_back();
  StreamEvent& event = events_[events_used_++];
  event.record(stream_);
  mark_at(event, moment_s);
}

void StreamClock::settle() {
  for (const auto& [moment_s, event] : moments_) *moment_s = 0;
  for (const auto& [moment_s, event] : moments_)
    *moment_s = std::max(*moment_s, begin_s_ + event->seconds_since(begin_));
}

}  // namespace backend
