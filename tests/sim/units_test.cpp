#include "sim/units.hpp"

#include <gtest/gtest.h>

#include <concepts>
#include <type_traits>

namespace sim {
namespace {

// tests/must_not_compile holds the same as whole units, with the compiler's messages.
template <class A, class B>
concept Adds = requires(A a, B b) {
  a + b;
};
template <class A, class B>
concept Subtracts = requires(A a, B b) {
  a - b;
};
template <class A, class B>
concept Multiplies = requires(A a, B b) {
  a* b;
};
template <class A, class B>
concept Divides = requires(A a, B b) {
  a / b;
};
template <class A, class B>
concept Compares = requires(A a, B b) {
  a < b;
};
template <class A>
concept InSeconds = requires(A a) {
  a.in_seconds();
};
template <class A>
concept InGiB = requires(A a) {
  a.in_GiB();
};

template <class A, class B>
constexpr bool kApart = !Adds<A, B> && !Subtracts<A, B> && !Compares<A, B> && !std::is_convertible_v<A, B> &&
                        !std::is_assignable_v<A&, B> && !std::is_constructible_v<A, B>;

template <class A>
constexpr bool kIsQuantity = Adds<A, A>&& Compares<A, A>&& Multiplies<A, double>&& Multiplies<double, A>&&
                                 Divides<A, A>&& Divides<A, double>&& kApart<A, double>&& kApart<double, A> &&
                             !std::is_constructible_v<A, int> && !Multiplies<A, A> && !Divides<double, A>;

static_assert(kIsQuantity<Seconds> && kIsQuantity<Bytes> && kIsQuantity<Flops> && kIsQuantity<BytesPerSecond> &&
              kIsQuantity<FlopsPerSecond>);
static_assert(kApart<Bytes, Seconds> && kApart<Seconds, Bytes> && kApart<Flops, Bytes> && kApart<Flops, Seconds>);
static_assert(kApart<BytesPerSecond, FlopsPerSecond> && kApart<BytesPerSecond, Bytes>);
static_assert(Divides<Bytes, BytesPerSecond> && Divides<Flops, FlopsPerSecond>);
static_assert(!Divides<Bytes, FlopsPerSecond> && !Divides<Flops, BytesPerSecond> && !Divides<Seconds, Bytes>);
static_assert(InSeconds<Seconds> && !InSeconds<Bytes> && !InSeconds<FlopsPerSecond>);
static_assert(InGiB<Bytes> && !InGiB<Seconds> && !InGiB<BytesPerSecond>);
static_assert(std::same_as<decltype(seconds(1) / seconds(1)), double>);
static_assert(std::same_as<decltype(bytes(1) / gigabytes_per_second(1)), Seconds>);

TEST(Units, FactoriesAndReadersAgree) {
  EXPECT_DOUBLE_EQ(microseconds(250).in_milliseconds(), 0.25);
  EXPECT_DOUBLE_EQ(gibibytes(2).base(), 2.0 * 1024 * 1024 * 1024);  // GiB is 2^30 …
  EXPECT_DOUBLE_EQ(gibibytes(2).in_GiB(), 2);
  EXPECT_DOUBLE_EQ(bytes(3.0 * 1024 * 1024 * 1024).in_GiB(), 3);
  EXPECT_DOUBLE_EQ(gigabytes_per_second(2).base(), 2e9);  // … and GB is 10^9
  EXPECT_DOUBLE_EQ(teraflops_per_second(2).base(), 2e12);
  EXPECT_EQ(Seconds().base(), 0);
}

TEST(Units, Arithmetic) {
  EXPECT_EQ(seconds(3) + seconds(4), seconds(7));
  EXPECT_EQ(seconds(3) - seconds(4), seconds(-1));
  EXPECT_EQ(2 * bytes(8), bytes(16));
  EXPECT_EQ(bytes(8) * 2, bytes(16));
  EXPECT_EQ(bytes(8) / 2, bytes(4));
  EXPECT_EQ(bytes(8) / bytes(2), 4.0);
  Seconds t = seconds(1);
  t += seconds(2);
  t -= seconds(0.5);
  EXPECT_EQ(t, seconds(2.5));
  EXPECT_LT(seconds(1), seconds(2));
  EXPECT_GE(bytes(2), bytes(2));
  EXPECT_NE(flops(1), flops(2));
}

TEST(Units, WorkOverRateIsTime) {
  EXPECT_DOUBLE_EQ((bytes(6e9) / gigabytes_per_second(3)).in_seconds(), 2);
  EXPECT_DOUBLE_EQ((flops(6e12) / teraflops_per_second(3)).in_seconds(), 2);
  // The header's example: 4 MiB at 3.2 GB/s behind 20 µs.
  const Seconds t = microseconds(20) + bytes(4 << 20) / gigabytes_per_second(3.2);
  EXPECT_DOUBLE_EQ(t.in_milliseconds(), 0.02 + 4194304 / 3.2e6);
}

}  // namespace
}  // namespace sim
