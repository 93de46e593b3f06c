// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/error.hpp"
#include "kernels/fingerprint.hpp"
#include "kernels/gradient_sum.hpp"
#include "kernels/sgd.hpp"
#include "tests/kernels/buffers.hpp"

namespace lockstep {
namespace {

TensorLayout const layout{{0, 3, 3000, 3001, 5000}};  // tensors longer than a chunk, and of one value
using Rows = std::vector<std::vector<float>>;

Rows random_rows(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Rows rows(count);
  for (auto& row : rows)
    for (std::int64_t i = 0; i < layout.count(); ++i)
      row.push_back(std::ldexp(normal(random), i < 3 ? 0 : i < 3000 ? -20 - int(random() % 12) : i == 3000 ? 7 : -140));
  return rows;
}

std::vector<float> flat(Rows const& rows) {
  std::vector<float> all;
  for (auto const& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

std::vector<std::int64_t> exponents_of(GradientSum const& sum, Rows const& rows) {
  Buffer<std::int64_t> const codes("lockstep::test::codes", layout.tensors());
  sum.exponents(Space(), to_device(flat(rows)), std::int64_t(rows.size()), codes);
  return to_host(codes);
}

std::vector<std::int64_t> integers_of(GradientSum const& sum, Rows const& rows, std::vector<std::int64_t> const& codes,
                                      std::int64_t total) {
  Buffer<std::int64_t> const out("lockstep::test::integers", layout.count());
  sum.fixed_point(Space(), to_device(flat(rows)), std::int64_t(rows.size()), to_device(codes), total, out);
  return to_host(out);
}

std::vector<float> floats_of(GradientSum const& sum, std::vector<std::int64_t> const& integers,
                             std::vector<std::int64_t> const& codes, std::int64_t total, std::int64_t divisor) {
  Buffer<float> const out("lockstep::test::floats", layout.count());
  sum.to_float(Space(), to_device(integers), to_device(codes), total, divisor, out);
  return to_host(out);
}

TEST(GradientSum, ExponentBoundsEveryValueTightly) {
  GradientSum const sum(Space(), layout);
  auto rows        = random_rows(5, 1);
  auto const codes = exponents_of(sum, rows);
  for (int t = 0; t < layout.tensors(); ++t) {
    double largest = 0.0;
    for (auto const& row : rows)
      for (auto i = layout.offsets[t]; i < layout.offsets[t + 1]; ++i)
        largest = std::max(largest, std::abs(double(row[i])));
    EXPECT_LT(largest, std::ldexp(1.0, int(codes[t]))) << t;
    EXPECT_GE(largest, std::ldexp(1.0, int(codes[t]) - 1)) << t;
  }
}

TEST(GradientSum, ExponentCodesAtTheEdges) {
  GradientSum const sum(Space(), layout);
  auto const code_of = [&](float value) {
    Rows rows(2, std::vector<float>(layout.count(), 0.0f));
    rows[1][2999] = value;
    return exponents_of(sum, rows)[1];
  };
  EXPECT_EQ(code_of(0.0f), exponent_zero);
  EXPECT_EQ(code_of(-0.0f), exponent_zero);
  EXPECT_EQ(code_of(1.0f), 1);
  EXPECT_EQ(code_of(-0.99999f), 0);
  EXPECT_EQ(code_of(std::numeric_limits<float>::max()), 128);
  EXPECT_EQ(code_of(std::numeric_limits<float>::min()), -125);
  EXPECT_EQ(code_of(std::numeric_limits<float>::denorm_min()), -148);
  EXPECT_EQ(code_of(-std::numeric_limits<float>::infinity()), exponent_not_finite);
  EXPECT_EQ(code_of(std::nanf("")), exponent_not_finite);
}

TEST(GradientSum, AnyGroupingGivesTheSameIntegers) {
  GradientSum const sum(Space(), layout);
  auto const rows  = random_rows(33, 2);
  auto const codes = exponents_of(sum, rows);
  auto const whole = integers_of(sum, rows, codes, 33);
  for (int parts : {2, 5, 8, 33, 40}) {
    std::vector<std::int64_t> total(layout.count(), 0);
    for (int part = parts - 1; part >= 0; --part) {
      Rows const mine(rows.begin() + 33 * part / parts, rows.begin() + 33 * (part + 1) / parts);
      auto const integers = integers_of(sum, mine, codes, 33);
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += integers[i];
    }
    EXPECT_EQ(total, whole) << parts;
  }
}

TEST(GradientSum, IsTheRoundedSumToWithinItsUnit) {
  GradientSum const sum(Space(), layout);
  for (int count : {1, 2, 3, 4, 7, 33}) {
    auto const rows   = random_rows(count, 3);
    auto const codes  = exponents_of(sum, rows);
    auto const floats = floats_of(sum, integers_of(sum, rows, codes, count), codes, count, 7);
    for (int t = 0; t < layout.tensors(); ++t)
      for (auto i = layout.offsets[t]; i < layout.offsets[t + 1]; ++i) {
        long double exact = 0.0L;
        for (auto const& row : rows) exact += row[i];
        double const unit = std::ldexp(double(count), int(codes[t]) - 50 - 1) / 7.0;
        double const ulp  = std::ldexp(std::abs(double(exact / 7.0L)), -24) + std::ldexp(1.0, -149);
        EXPECT_NEAR(floats[i], double(exact / 7.0L), unit + ulp) << count << " rows, element " << i;
      }
  }
}

TEST(GradientSum, TheLargestSumsDoNotOverflow) {
  GradientSum const sum(Space(), layout);
  float const largest = std::numeric_limits<float>::max();
  Rows const rows(16, std::vector<float>(layout.count(), -largest));
  auto const codes = exponents_of(sum, rows);
  // As if 2^36 devices had given 16 such rows each: the sum is 2^40 times one row's.
  std::int64_t const total = std::int64_t(1) << 40;
  auto integers            = integers_of(sum, rows, codes, total);
  for (auto& integer : integers) {
    std::int64_t all;
    ASSERT_FALSE(__builtin_mul_overflow(integer, std::int64_t(1) << 36, &all));
    integer = all;
  }
  auto const floats = floats_of(sum, integers, codes, total, total);
  EXPECT_THAT(floats, testing::Each(testing::FloatEq(-largest)));
  EXPECT_THROW(integers_of(sum, rows, codes, 15), Error);
}

TEST(GradientSum, ANotFiniteTensorIsNotANumberAndTheOthersAreUntouched) {
  GradientSum const sum(Space(), layout);
  auto rows         = random_rows(3, 4);
  auto const clean  = floats_of(sum, integers_of(sum, rows, exponents_of(sum, rows), 3), exponents_of(sum, rows), 3, 1);
  rows[2][1500]     = std::numeric_limits<float>::infinity();
  auto const codes  = exponents_of(sum, rows);
  auto const floats = floats_of(sum, integers_of(sum, rows, codes, 3), codes, 3, 1);
  for (std::int64_t i = 0; i < layout.count(); ++i)
    if (i >= 3 && i < 3000) {
      EXPECT_TRUE(std::isnan(floats[i])) << i;
    } else {
      EXPECT_EQ(floats[i], clean[i]) << i;
    }
}

TEST(GradientSum, ZeroTensorsGivePositiveZero) {
  GradientSum const sum(Space(), layout);
  Rows const rows(2, std::vector<float>(layout.count(), -0.0f));
  auto const codes  = exponents_of(sum, rows);
  auto const floats = floats_of(sum, integers_of(sum, rows, codes, 2), codes, 2, 5);
  for (float f : floats) EXPECT_TRUE(f == 0.0f && !std::signbit(f));
}

TEST(GradientSum, PlainSumsInRowOrderAndDivides) {
  GradientSum const sum(Space(), layout);
  for (int count : {0, 1, 3, 4, 9}) {
    auto const rows = random_rows(count, 5);
    Buffer<float> const out("lockstep::test::plain", layout.count());
    sum.plain(Space(), to_device(flat(rows)), count, out);
    auto const values = to_host(out);
    sum.divide(Space(), out, 3);
    auto const divided = to_host(out);
    for (std::int64_t i = 0; i < layout.count(); ++i) {
      float expected = 0.0f;
      for (auto const& row : rows) expected += row[i];
      ASSERT_EQ(values[i], expected) << count << " rows, element " << i;
      ASSERT_EQ(divided[i], expected / 3.0f);
    }
  }
}

// Of some tensors: their entries are those of the whole, and no other is touched.
TEST(GradientSum, ARangeOfTensorsIsAPartOfTheWhole) {
  GradientSum const sum(Space(), layout);
  auto const rows    = random_rows(6, 8);
  auto const codes   = exponents_of(sum, rows);
  auto const whole   = integers_of(sum, rows, codes, 6);
  auto const device  = to_device(flat(rows));
  auto const compare = [](auto const& found, auto const& all, std::int64_t begin, std::int64_t end, auto untouched) {
    for (std::int64_t i = 0; i < std::int64_t(found.size()); ++i)
      ASSERT_EQ(found[i], i >= begin && i < end ? all[i] : untouched) << i;
  };
  Buffer<float> const plain("lockstep::test::plain", layout.count());
  sum.plain(Space(), device, 6, plain);
  for (TensorRange const range :
       {TensorRange{0, 1}, TensorRange{1, 3}, TensorRange{2, 4}, TensorRange{0, 4}, TensorRange{3, 99}}) {
    int const last           = std::min(range.end, layout.tensors());
    std::int64_t const begin = layout.offsets[range.begin], end = layout.offsets[last];
    Buffer<std::int64_t> const some_codes("lockstep::test::codes", layout.tensors());
    Buffer<std::int64_t> const integers("lockstep::test::integers", layout.count());
    Buffer<float> const floats("lockstep::test::floats", layout.count());
    Kokkos::deep_copy(some_codes, std::int64_t(77));
    Kokkos::deep_copy(integers, std::int64_t(77));
    Kokkos::deep_copy(floats, 77.0f);
    sum.exponents(Space(), device, 6, some_codes, range);
    sum.fixed_point(Space(), device, 6, to_device(codes), 6, integers, range);
    sum.plain(Space(), device, 6, floats, range);
    compare(to_host(some_codes), codes, range.begin, last, std::int64_t(77));
    compare(to_host(integers), whole, begin, end, std::int64_t(77));
    compare(to_host(floats), to_host(plain), begin, end, 77.0f);
  }
}

TEST(Fingerprint, SeesEveryBitAndEveryPlace) {
  auto values          = random_rows(1, 6)[0];
  auto const prints_of = [&] {
    Buffer<std::uint64_t> const out("lockstep::test::prints", layout.tensors());
    fingerprints(Space(), to_device(values), layout, out);
    return to_host(out);
  };
  auto const before = prints_of();
  EXPECT_EQ(prints_of(), before);
  for (std::size_t at : {3, 4, 1000, 2999})
    for (int bit = 0; bit < 32; ++bit) {
      float const kept = values[at];
      std::uint32_t bits;
      std::memcpy(&bits, &kept, 4);
      bits ^= 1u << bit;
      std::memcpy(&values[at], &bits, 4);
      auto const after = prints_of();
      EXPECT_NE(after[1], before[1]);
      EXPECT_EQ(after[0], before[0]);
      EXPECT_EQ(after[3], before[3]);
      values[at] = kept;
    }
  std::swap(values[10], values[2000]);
  EXPECT_NE(prints_of()[1], before[1]);
}

TEST(Sgd, SubtractsTheScaledGradient) {
  auto const parameters = random_rows(1, 7)[0], gradient = random_rows(1, 8)[0];
  auto const device = to_device(parameters);
  sgd(Space(), 0.2f, to_device(gradient), device);
  auto const after = to_host(device);
  for (std::size_t i = 0; i < after.size(); ++i) {
    float const step = 0.2f * gradient[i];
    ASSERT_EQ(after[i], parameters[i] - step);
  }
  EXPECT_THROW(sgd(Space(), 0.2f, Buffer<float>("lockstep::test::short", 3), device), Error);
}

TEST(Sgd, TakesRateAndVerdictFromTheDevice) {
  auto const parameters = random_rows(1, 7)[0], gradient = random_rows(1, 8)[0];
  auto const expected = to_device(parameters), device = to_device(parameters);
  sgd(Space(), 0.3f, to_device(gradient), expected);
  auto const update = [&](std::vector<std::int64_t> const& codes) {
    Buffer<std::int64_t> const exponents("lockstep::test::exponents", codes.size());
    Kokkos::deep_copy(exponents, HostBuffer<const std::int64_t>(codes.data(), codes.size()));
    sgd(Space(), to_device(std::vector<float>{0.3f}), exponents, to_device(gradient), device);
    return to_host(device);
  };
  for (std::size_t place : {0, 1, 2}) {
    std::vector<std::int64_t> codes{exponent_zero, -3, 128};
    codes[place] = exponent_not_finite;
    EXPECT_EQ(update(codes), parameters) << place;
  }
  EXPECT_EQ(update({exponent_zero, -3, 128}), to_host(expected));
}

}  // namespace
}  // namespace lockstep
