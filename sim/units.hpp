// Quantities as types: a time is not a size, and neither comes from a bare number.
//
//   Seconds t = microseconds(20) + bytes(4 << 20) / gigabytes_per_second(3.2);
//   double ms = t.in_milliseconds();
//   // bytes(1) + seconds(1) doesn't compile (tests/must_not_compile)
//
// Conventions: GB = 10^9 bytes, GiB = 2^30 bytes; one multiply-add is 2 FLOP; values are stored in SI base units.
#pragma once

#include <compare>
#include <cstdint>

namespace sim {

enum class Dimension : std::uint8_t { time, size, work, bandwidth, rate };

/// A double with a dimension. Linear arithmetic inside a dimension; a ratio of two equal dimensions is a plain number.
template <Dimension dimension>
class Quantity {
 public:
  constexpr Quantity() = default;
  static constexpr Quantity from_base(double value) { return Quantity(value); }
  /// The value in the SI base unit of the dimension (s, B, FLOP, B/s, FLOP/s).
  [[nodiscard]] constexpr double base() const { return value_; }

  [[nodiscard]] constexpr double in_seconds() const requires(dimension == Dimension::time) { return value_; }
  [[nodiscard]] constexpr double in_milliseconds() const requires(dimension == Dimension::time) { return value_ * 1e3; }
  [[nodiscard]] constexpr double in_GiB() const requires(dimension == Dimension::size) { return value_ / 1073741824.0; }

  constexpr Quantity& operator+=(Quantity other) { return *this = *this + other; }
  constexpr Quantity& operator-=(Quantity other) { return *this = *this - other; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value_ + b.value_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value_ - b.value_); }
  friend constexpr Quantity operator*(Quantity a, double k) { return Quantity(a.value_ * k); }
  friend constexpr Quantity operator*(double k, Quantity a) { return Quantity(a.value_ * k); }
  friend constexpr Quantity operator/(Quantity a, double k) { return Quantity(a.value_ / k); }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value_ / b.value_; }
  friend constexpr auto operator<=>(Quantity, Quantity) = default;

 private:
  constexpr explicit Quantity(double value) : value_(value) {}
  double value_ = 0;
};

using Seconds = Quantity<Dimension::time>;
using Bytes = Quantity<Dimension::size>;
using Flops = Quantity<Dimension::work>;
using BytesPerSecond = Quantity<Dimension::bandwidth>;
using FlopsPerSecond = Quantity<Dimension::rate>;

constexpr Seconds seconds(double v) { return Seconds::from_base(v); }
constexpr Seconds microseconds(double v) { return Seconds::from_base(v * 1e-6); }
constexpr Bytes bytes(double v) { return Bytes::from_base(v); }
constexpr Bytes mebibytes(double v) { return Bytes::from_base(v * 1048576.0); }
constexpr Bytes gibibytes(double v) { return Bytes::from_base(v * 1073741824.0); }
constexpr Flops flops(double v) { return Flops::from_base(v); }
constexpr BytesPerSecond gigabytes_per_second(double v) { return BytesPerSecond::from_base(v * 1e9); }
constexpr FlopsPerSecond teraflops_per_second(double v) { return FlopsPerSecond::from_base(v * 1e12); }

constexpr Seconds operator/(Bytes size, BytesPerSecond rate) { return seconds(size.base() / rate.base()); }
constexpr Seconds operator/(Flops work, FlopsPerSecond rate) { return seconds(work.base() / rate.base()); }

}  // namespace sim
