#include "backend/machine/speed.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <semaphore>
#include <thread>
#include <vector>

#include "backend/machine/scheduling.hpp"
#include "sim/calibrate/machine_speed.hpp"

namespace backend {
namespace {

constexpr std::size_t kFloats = std::size_t{32} << 18;  // 32 MiB
constexpr std::size_t kParts = 16;                      // of either probe

std::atomic<std::int64_t> held_bytes = 0;
std::atomic<float> result;  // so that the work is done

const std::vector<float>& memory() {
  static const std::vector<float> floats(kFloats, 1.0F);
  held_bytes = static_cast<std::int64_t>(kFloats * sizeof(float));
  return floats;
}

/// Seconds of all parts: work(0), work(1), …
template <typename Work>
double in_parts_s(const Work& work) {
  std::array<double, kParts> parts_s;
  double begin_s = now_s();
  for (std::size_t part = 0; part < kParts; ++part) {
    work(part);
    const double end_s = now_s();
    parts_s[part] = end_s - begin_s;
    begin_s = end_s;
  }
  return sim::uninterrupted_s(parts_s);
}

}  // namespace

double compute_probe_s() {
  std::array<float, 2048> values;
  values.fill(1);
  const double seconds = in_parts_s([&](std::size_t) {
    for (std::size_t repeat = 0; repeat < 8000 / kParts; ++repeat)
      for (float& value : values) value = value * 0.999F + 0.001F;
  });
  result = values[0];
  return seconds;
}

double memory_probe_s(std::uint32_t part, std::uint32_t parts) {
  const std::vector<float>& floats = memory();
  std::array<float, 16> sums{};
  const std::size_t first = kParts * part / parts;
  const double seconds = in_parts_s([&](std::size_t p) {
    const std::size_t from = (first + p) % kParts * (kFloats / kParts);
    for (std::size_t i = from; i < from + kFloats / kParts; i += sums.size())
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += floats[i + k];
  });
  float sum = 0;
  for (const float partial : sums) sum += partial;
  result = sum;
  return seconds;
}

double core_to_core_probe_s(std::uint32_t other_core) {
  constexpr std::uint32_t kTrips = 256;
  constexpr double kPatience_s = 10e-3;
  struct alignas(64) Line {
    std::atomic<std::uint32_t> trip{0};  // odd: on its way there
  } line;
  std::atomic<bool> given_up{false};
  std::binary_semaphore there(0);
  std::thread partner([&] {
    pin_to_core(other_core);  // began on the caller's
    there.release();
    for (std::uint32_t trip = 1; trip < 2 * kTrips && !given_up;)
      if (line.trip.load(std::memory_order_acquire) == trip) {
        line.trip.store(trip + 1, std::memory_order_release);
        trip += 2;
      }
  });
  given_up = !there.try_acquire_for(std::chrono::duration<double>(kPatience_s));
  const double end_s = now_s() + kPatience_s;
  std::uint32_t trip = 1;
  const auto go = [&] {
    if (given_up) return;
    line.trip.store(trip, std::memory_order_release);
    for (std::uint32_t looked = 1; line.trip.load(std::memory_order_acquire) != trip + 1; ++looked)
      if (looked % 1024 == 0 && now_s() > end_s) {
        given_up = true;
        return;
      }
    trip += 2;
  };
  const double seconds = in_parts_s([&](std::size_t) {
    for (std::uint32_t i = 0; i < kTrips / kParts; ++i) go();
  });
  partner.join();
  return given_up ? 0 : seconds / kTrips;
}

std::int64_t probe_bytes() { return held_bytes; }

}  // namespace backend
