#include "backend/machine/speed.hpp"

#include <array>
#include <atomic>
#include <vector>

#include "backend/machine/scheduling.hpp"

namespace backend {
namespace {

constexpr std::size_t kFloats = std::size_t{32} << 18;  // 32 MiB

std::atomic<std::int64_t> held_bytes = 0;
std::atomic<float> result;  // so that the work is done

const std::vector<float>& memory() {
  static const std::vector<float> floats(kFloats, 1.0F);
  held_bytes = static_cast<std::int64_t>(kFloats * sizeof(float));
  return floats;
}

}  // namespace

double compute_probe_s() {
  std::array<float, 2048> values;
  values.fill(1);
  const double begin_s = now_s();
  for (int repeat = 0; repeat < 8000; ++repeat)
    for (float& value : values) value = value * 0.999F + 0.001F;
  const double end_s = now_s();
  result = values[0];
  return end_s - begin_s;
}

double memory_probe_s(std::uint32_t part, std::uint32_t parts) {
  const std::vector<float>& floats = memory();
  std::array<float, 16> sums{};
  const std::size_t first = kFloats / parts * part / sums.size() * sums.size();
  const auto read = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; i += sums.size())
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += floats[i + k];
  };
  const double begin_s = now_s();
  read(first, kFloats);
  read(0, first);
  const double end_s = now_s();
  float sum = 0;
  for (const float partial : sums) sum += partial;
  result = sum;
  return end_s - begin_s;
}

std::int64_t probe_bytes() { return held_bytes; }

}  // namespace backend
