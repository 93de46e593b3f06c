// SPDX-License-Identifier: Apache-2.0
// Sums of shard gradients. Exact: 64-bit fixed point with one exponent per parameter tensor, so that neither order nor
// grouping can change a bit. Float: plain float32 in shard order.
//
// Why the exact sum cannot overflow and what it rounds. All devices agree e, the maximum of their exponents, so |v| <
// 2^e for every value v of the tensor. With R rows in all, B = min(50, 62 - ceil(log2 R)).
// - v * 2^(B - e) is exact in double: v has 24 significant bits, and -149 - 78 <= the exponents involved <= 210, since
//   -148 <= e <= 128 (2^-149 is the smallest subnormal) and, for R <= 2^40, 22 <= B <= 50.
// - It is below 2^B <= 2^50 in magnitude, so adding 1.5 * 2^52 rounds it once, to the nearest integer (ties to even),
// which is the
//   difference of the two doubles' bit patterns; at most 2^B in magnitude.
// - |sum| <= R * 2^B <= 2^62 < 2^63: no partial sum overflows either, in any order, and integer addition is
// associative.
// - Each row is off by at most 2^(e - B - 1), 2^-51 of the tensor's largest value for R <= 2^12 rows: values down to
// 2^-26 of it
//   keep all of float's 24 bits.
// - Inf and NaN make e the code `exponent_not_finite`, the largest, which the max carries to every device.
#pragma once
#include "kernels/types.hpp"

#include <cstdint>
#include <limits>
#include <vector>

namespace lockstep {

// Where the tensors lie in a row of values: tensor t is [offsets[t], offsets[t + 1]).
struct TensorLayout {
  std::vector<std::int64_t> offsets;  // tensors + 1 entries
  int tensors() const { return int(offsets.size()) - 1; }
  std::int64_t count() const { return offsets.back(); }
};

// Tensors [begin, end) of a layout; all of them unless given.
struct TensorRange {
  int begin = 0, end = std::numeric_limits<int>::max();
};

// Exponent codes, agreed by a max over all devices: e means every |value| < 2^e; `exponent_zero` (the smallest code)
// all values are zero; `exponent_not_finite` (the largest) some value is Inf or NaN.
constexpr std::int64_t exponent_zero       = -1000;
constexpr std::int64_t exponent_not_finite = 1000;

// Buffers are of the whole layout; where a range is given, only its tensors' entries are read and written.
class GradientSum {
 public:
  GradientSum(Space const& space, TensorLayout const& layout);

  // rows is [row_count][layout.count()]; exponents has layout.tensors() entries.
  void exponents(Space const& space, Buffer<const float> const& rows, std::int64_t row_count,
                 Buffer<std::int64_t> const& exponents, TensorRange range = {}) const;

  // out[i] = sum over rows of round(rows[r][i] * 2^(B - e)), e the tensor's agreed exponent, with B such that
  // total_rows (all rows of all devices) values below 2^B cannot overflow. Tensors that are zero or not finite give
  // zero.
  void fixed_point(Space const& space, Buffer<const float> const& rows, std::int64_t row_count,
                   Buffer<const std::int64_t> const& exponents, std::int64_t total_rows,
                   Buffer<std::int64_t> const& out, TensorRange range = {}) const;

  // gradient[i] = float(sum * 2^(e - B) / divisor), a function of the exact integer alone; NaN for a tensor that is not
  // finite.
  void to_float(Space const& space, Buffer<const std::int64_t> const& sum, Buffer<const std::int64_t> const& exponents,
                std::int64_t total_rows, std::int64_t divisor, Buffer<float> const& gradient) const;

  // Float mode: out[i] = sum over rows in order.
  void plain(Space const& space, Buffer<const float> const& rows, std::int64_t row_count, Buffer<float> const& out,
             TensorRange range = {}) const;

  // Float mode's division: values[i] = float(values[i] / divisor).
  void divide(Space const& space, Buffer<float> const& values, std::int64_t divisor) const;

 private:
  TensorRange within(TensorRange range) const;
  Buffer<const std::int64_t> chunks_of(TensorRange range) const;

  Buffer<std::int64_t> m_chunks;         // [chunk]{begin, end, tensor}
  std::vector<std::int64_t> m_first_of;  // by tensor, the first of its chunks; and their number
  TensorLayout m_layout;
};

}  // namespace lockstep
