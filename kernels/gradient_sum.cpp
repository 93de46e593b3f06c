// SPDX-License-Identifier: Apache-2.0
#include "kernels/gradient_sum.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"

namespace lockstep {
namespace {

// Elements of one tensor that a team takes: their sums stay in the cache, and rows are read in runs that are worth
// prefetching, several rows at a time.
constexpr std::int64_t chunk = 4096;
constexpr int rows_at_once   = 8;

using Policy = Kokkos::TeamPolicy<Space>;
using Team   = Policy::member_type;

// 2^n for -1022 <= n <= 1023.
KOKKOS_FORCEINLINE_FUNCTION double power_of_two(std::int64_t n) {
  std::uint64_t const bits = std::uint64_t(n + 1023) << 52;
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}

// Of x = value * scale, exact and at most 2^50 in magnitude, rounded to the nearest integer: x + zero_bits, modulo
// 2^64.
constexpr std::uint64_t zero_bits = 0x4338000000000000;  // the bits of 1.5 * 2^52, where doubles are the integers
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t rounded_bits(float value, double scale) {
  double const sum = double(value) * scale + 6755399441055744.0;  // 1.5 * 2^52
  std::uint64_t bits;
  std::memcpy(&bits, &sum, 8);
  return bits;
}

KOKKOS_FORCEINLINE_FUNCTION std::uint32_t magnitude_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits & 0x7fffffffu;
}

// The exponent code of the largest magnitude of a tensor.
KOKKOS_FORCEINLINE_FUNCTION std::int64_t exponent_code(std::uint32_t magnitude) {
  if (magnitude == 0) return exponent_zero;
  if (magnitude >= 0x7f800000u) return exponent_not_finite;
  std::int64_t const biased = magnitude >> 23;
  if (biased > 0) return biased - 126;
  std::int64_t code = -149;  // subnormal: magnitude * 2^-149
  for (; magnitude; magnitude >>= 1) ++code;
  return code;
}

KOKKOS_FORCEINLINE_FUNCTION bool has_values(std::int64_t exponent) {
  return exponent > exponent_zero && exponent < exponent_not_finite;
}

// body(first row, a sequence of the numbers from 0 of those that follow) for all rows. Folds over the sequence are
// unrolled before loops over elements are vectorised.
template <class Body>
KOKKOS_FORCEINLINE_FUNCTION void for_each_group_of_rows(std::int64_t row_count, Body const& body) {
  std::int64_t row = 0;
  for (; row + rows_at_once <= row_count; row += rows_at_once)
    body(row, std::make_integer_sequence<int, rows_at_once>());
  for (; row < row_count; ++row) body(row, std::make_integer_sequence<int, 1>());
}

template <int... r>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t largest_magnitude(float const* value, std::int64_t stride,
                                                            std::uint32_t largest, std::integer_sequence<int, r...>) {
  auto const add = [&largest](std::uint32_t bits) { largest = bits > largest ? bits : largest; };
  (add(magnitude_bits(value[r * stride])), ...);
  return largest;
}

template <int... r>
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t sum_of_rounded(float const* value, std::int64_t stride, double scale,
                                                         std::integer_sequence<int, r...>) {
  return (rounded_bits(value[r * stride], scale) + ...);
}

template <int... r>
KOKKOS_FORCEINLINE_FUNCTION float sum_in_order(float sum, float const* value, std::int64_t stride,
                                               std::integer_sequence<int, r...>) {
  ((sum += value[r * stride]), ...);
  return sum;
}

int fixed_point_bits(std::int64_t total_rows) {
  int log2 = 0;
  while ((std::int64_t(1) << log2) < total_rows) ++log2;
  return std::min(50, 62 - log2);
}

}  // namespace

GradientSum::GradientSum(Space const& space, TensorLayout const& layout) : m_layout(layout) {
  // Chunks of tensors: begin, end, tensor.
  std::vector<std::int64_t> table;
  for (int t = 0; t < layout.tensors(); ++t) {
    m_first_of.push_back(std::int64_t(table.size()) / 3);
    for (std::int64_t begin = layout.offsets[t]; begin < layout.offsets[t + 1]; begin += chunk)
      table.insert(table.end(), {begin, std::min(begin + chunk, layout.offsets[t + 1]), t});
  }
  m_first_of.push_back(std::int64_t(table.size()) / 3);
  m_chunks = Buffer<std::int64_t>(
      Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "lockstep::gradient_sum::chunks"), table.size());
  HostBuffer<const std::int64_t> const host(table.data(), table.size());
  Kokkos::deep_copy(space, m_chunks, host);
  fence(space, "lockstep::gradient_sum::construct");  // `table` ends here
}

TensorRange GradientSum::within(TensorRange range) const {
  return {range.begin, std::min(range.end, m_layout.tensors())};
}

Buffer<const std::int64_t> GradientSum::chunks_of(TensorRange range) const {
  TensorRange const tensors = within(range);
  return Kokkos::subview(
      m_chunks, std::make_pair(3 * m_first_of[std::size_t(tensors.begin)], 3 * m_first_of[std::size_t(tensors.end)]));
}

void GradientSum::exponents(Space const& space, Buffer<const float> const& rows, std::int64_t row_count,
                            Buffer<std::int64_t> const& exponents, TensorRange range) const {
  TensorRange const tensors = within(range);
  Kokkos::deep_copy(space, Kokkos::subview(exponents, std::make_pair(tensors.begin, tensors.end)), exponent_zero);
  auto const chunks        = chunks_of(range);
  std::int64_t const count = m_layout.count();
  launch(
      "lockstep::gradient_sum::exponents", Policy(space, int(chunks.extent(0) / 3), Kokkos::AUTO),
      KOKKOS_LAMBDA(Team const& team) {
        std::int64_t const* entry = &chunks(3 * team.league_rank());
        std::int64_t const begin = entry[0], end = entry[1];
        std::uint32_t largest = 0;
        for_each_group_of_rows(row_count, [&](std::int64_t row, auto group) {
          float const* const values = rows.data() + row * count;
          std::uint32_t most        = 0;
          Kokkos::parallel_reduce(
              Kokkos::TeamVectorRange(team, begin, end),
              [=](std::int64_t i, std::uint32_t& m) { m = largest_magnitude(values + i, count, m, group); },
              Kokkos::Max<std::uint32_t>(most));
          largest = most > largest ? most : largest;
        });
        Kokkos::single(Kokkos::PerTeam(team),
                       [&]() { Kokkos::atomic_fetch_max(&exponents(entry[2]), exponent_code(largest)); });
      });
}

void GradientSum::fixed_point(Space const& space, Buffer<const float> const& rows, std::int64_t row_count,
                              Buffer<const std::int64_t> const& exponents, std::int64_t total_rows,
                              Buffer<std::int64_t> const& out, TensorRange range) const {
  LOCKSTEP_THROW_IF(row_count > total_rows || total_rows > (std::int64_t(1) << 40), ExitCode::wrong_result,
                    "gradient sum: " + std::to_string(row_count) + " of " + std::to_string(total_rows) +
                        " rows; expected at most the total, and that at most 2^40");
  auto const chunks        = chunks_of(range);
  std::int64_t const count = m_layout.count();
  int const bits           = fixed_point_bits(total_rows);
  launch(
      "lockstep::gradient_sum::fixed_point", Policy(space, int(chunks.extent(0) / 3), Kokkos::AUTO),
      KOKKOS_LAMBDA(Team const& team) {
        std::int64_t const* entry = &chunks(3 * team.league_rank());
        std::int64_t const begin = entry[0], end = entry[1], exponent = exponents(entry[2]);
        bool const empty   = !has_values(exponent);
        double const scale = empty ? 0.0 : power_of_two(bits - exponent);
        // An element stays with one thread in all of these loops, so that they need no barrier. Captured by value: a
        // reference to an integer could alias what is written, and the loops would not be vectorised.
        auto* const to            = reinterpret_cast<std::uint64_t*>(out.data());
        std::uint64_t const start = empty ? 0 : 0 - std::uint64_t(row_count) * zero_bits;
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, begin, end), [=](std::int64_t i) { to[i] = start; });
        if (empty) return;
        for_each_group_of_rows(row_count, [&](std::int64_t row, auto group) {
          float const* const values = rows.data() + row * count;
          Kokkos::parallel_for(Kokkos::TeamVectorRange(team, begin, end),
                               [=](std::int64_t i) { to[i] += sum_of_rounded(values + i, count, scale, group); });
        });
      });
}

void GradientSum::to_float(Space const& space, Buffer<const std::int64_t> const& sum,
                           Buffer<const std::int64_t> const& exponents, std::int64_t total_rows, std::int64_t divisor,
                           Buffer<float> const& gradient) const {
  Buffer<const std::int64_t> const chunks = m_chunks;
  int const bits                          = fixed_point_bits(total_rows);
  double const over                       = double(divisor);
  launch(
      "lockstep::gradient_sum::to_float", Policy(space, int(chunks.extent(0) / 3), Kokkos::AUTO),
      KOKKOS_LAMBDA(Team const& team) {
        std::int64_t const* entry      = &chunks(3 * team.league_rank());
        std::int64_t const exponent    = exponents(entry[2]);
        double const unit              = exponent == exponent_not_finite ? double(NAN)
                                         : exponent == exponent_zero     ? 0.0
                                                                         : power_of_two(exponent - bits);
        std::int64_t const* const from = sum.data();
        float* const to                = gradient.data();
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, entry[0], entry[1]),
                             [=](std::int64_t i) { to[i] = float(double(from[i]) * unit / over); });
      });
}

void GradientSum::plain(Space const& space, Buffer<const float> const& rows, std::int64_t row_count,
                        Buffer<float> const& out, TensorRange range) const {
  auto const chunks        = chunks_of(range);
  std::int64_t const count = m_layout.count();
  launch(
      "lockstep::gradient_sum::plain", Policy(space, int(chunks.extent(0) / 3), Kokkos::AUTO),
      KOKKOS_LAMBDA(Team const& team) {
        std::int64_t const* entry = &chunks(3 * team.league_rank());
        std::int64_t const begin = entry[0], end = entry[1];
        float* const to = out.data();
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, begin, end), [=](std::int64_t i) { to[i] = 0.0f; });
        for_each_group_of_rows(row_count, [&](std::int64_t row, auto group) {
          float const* const values = rows.data() + row * count;
          Kokkos::parallel_for(Kokkos::TeamVectorRange(team, begin, end),
                               [=](std::int64_t i) { to[i] = sum_in_order(to[i], values + i, count, group); });
        });
      });
}

void GradientSum::divide(Space const& space, Buffer<float> const& values, std::int64_t divisor) const {
  double const over =
      double(divisor);  // not a float: it could alias what is written, and the loop would not be vectorised
  launch(
      "lockstep::gradient_sum::divide", Kokkos::RangePolicy<Space>(space, 0, values.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { values(i) /= float(over); });
}

}  // namespace lockstep
