// SPDX-License-Identifier: Apache-2.0
// 64-bit fingerprints of tensors, to compare bits without moving the values.
#pragma once
#include "kernels/gradient_sum.hpp"

namespace lockstep {

// out[t] = sum over the tensor's elements of mix(bits, position in the tensor), modulo 2^64: every bit and every
// position counts, and the order of summation cannot. out has layout.tensors() entries. +0 and -0 differ, as do NaNs
// with different bits.
void fingerprints(Space const& space, Buffer<const float> const& values, TensorLayout const& layout,
                  Buffer<std::uint64_t> const& out);

}  // namespace lockstep
