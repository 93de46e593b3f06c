// SPDX-License-Identifier: Apache-2.0
// Elementary functions with the same bits in every lane, on a vector and on a scalar.
#pragma once
#include "kernels/pack.hpp"

namespace lockstep {

// e^x for x <= 88 with a relative error below 1.5e-7 (series to r^7/7!, |r| <= ln(2)/2); zero below -87 (where the
// result would leave the normal range), NaN for NaN.
template <class P>
KOKKOS_FORCEINLINE_FUNCTION P exponential(P x) {
  P const magic(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  P const clamped = larger(P(-88.0f), x);
  P const shifted = multiply_add(clamped, P(1.44269504f), magic);
  P const whole   = shifted - magic;
  P r = multiply_add(whole, P(-0.693145752f), clamped);  // ln 2 in two parts, the first with trailing zero bits
  r   = multiply_add(whole, P(-1.42860677e-6f), r);
  P y(1.0f / 5040.0f);
  y = multiply_add(y, r, P(1.0f / 720.0f));
  y = multiply_add(y, r, P(1.0f / 120.0f));
  y = multiply_add(y, r, P(1.0f / 24.0f));
  y = multiply_add(y, r, P(1.0f / 6.0f));
  y = multiply_add(y, r, P(0.5f));
  y = multiply_add(y, r, P(1.0f));
  y = multiply_add(y, r, P(1.0f));
  // A NaN's exponent does not survive times_two_to; clamped - clamped is zero or NaN.
  return zero_below(x, -87.0f, times_two_to(y, shifted) + (clamped - clamped));
}

// ln x for positive normal x with an absolute error below 1.2e-7 for x in [1, 2^10]; NaN for NaN.
template <class P>
KOKKOS_FORCEINLINE_FUNCTION P logarithm(P x) {
  P m, e;
  split(x, m, e);
  P const s  = (m - P(1.0f)) / (m + P(1.0f));  // ln m = 2 artanh s, |s| <= 0.172
  P const s2 = s * s;
  P y(2.0f / 9.0f);
  y = multiply_add(y, s2, P(2.0f / 7.0f));
  y = multiply_add(y, s2, P(2.0f / 5.0f));
  y = multiply_add(y, s2, P(2.0f / 3.0f));
  y = multiply_add(y, s2, P(2.0f));
  y = multiply_add(e, P(1.42860677e-6f), y * s);
  return multiply_add(e, P(0.693145752f), y) + (x - x);  // split loses a NaN
}

}  // namespace lockstep
