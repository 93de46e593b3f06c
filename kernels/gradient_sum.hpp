// SPDX-License-Identifier: Apache-2.0
// Sums of shard gradients. Exact: 64-bit fixed point with one exponent per parameter tensor, so that neither order nor
// grouping can change a bit. Float: plain float32 in shard order.
#pragma once
#include "kernels/types.hpp"

#include <cstdint>
#include <vector>

namespace lockstep {

// Where the tensors lie in a row of values: tensor t is [offsets[t], offsets[t + 1]).
struct TensorLayout {
  std::vector<std::int64_t> offsets;  // tensors + 1 entries
  int tensors() const { return int(offsets.size()) - 1; }
  std::int64_t count() const { return offsets.back(); }
};

// Exponent codes, agreed by a max over all devices: e means every |value| < 2^e; `exponent_zero` (the smallest code)
// all values are zero; `exponent_not_finite` (the largest) some value is Inf or NaN.
constexpr std::int64_t exponent_zero       = -1000;
constexpr std::int64_t exponent_not_finite = 1000;

class GradientSum {
 public:
  GradientSum(Space const& space, TensorLayout const& layout);

  // rows is [row_count][layout.count()]; exponents has layout.tensors() entries.
  void exponents(Space const& space, Buffer<const float> const& rows, std::int64_t row_count,
                 Buffer<std::int64_t> const& exponents) const;

  // out[i] = sum over rows of round(rows[r][i] * 2^(B - e)), e the tensor's agreed exponent, with B such that
  // total_rows (all rows of all devices) values below 2^B cannot overflow. Tensors that are zero or not finite give
  // zero.
  void fixed_point(Space const& space, Buffer<const float> const& rows, std::int64_t row_count,
                   Buffer<const std::int64_t> const& exponents, std::int64_t total_rows,
                   Buffer<std::int64_t> const& out) const;

  // gradient[i] = float(sum * 2^(e - B) / divisor), a function of the exact integer alone; NaN for a tensor that is not
  // finite.
  void to_float(Space const& space, Buffer<const std::int64_t> const& sum, Buffer<const std::int64_t> const& exponents,
                std::int64_t total_rows, std::int64_t divisor, Buffer<float> const& gradient) const;

  // Float mode: out[i] = sum over rows in order.
  void plain(Space const& space, Buffer<const float> const& rows, std::int64_t row_count,
             Buffer<float> const& out) const;

  // Float mode's division: values[i] = float(values[i] / divisor).
  void divide(Space const& space, Buffer<float> const& values, std::int64_t divisor) const;

 private:
  Buffer<std::int64_t> m_offsets;
  TensorLayout m_layout;
};

}  // namespace lockstep
