// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of one block of images, logits [class][lane]. Loss of an image: ln(sum exp(z - max)) -
// (z[label] - max); a NaN or +Inf logit makes it NaN.
#pragma once
#include "kernels/math.hpp"

namespace lockstep {

// losses [lane] and gradient [class][lane] = softmax - onehot; both zero from lane `images` on. gradient may be logits.
template <class P>
KOKKOS_FUNCTION void softmax_cross_entropy(int classes, float const* logits, int const* labels, int images,
                                           float* losses, float* gradient) {
  for (int lane = 0; lane < lanes; lane += P::width) {
    P highest = P::load(logits + lane);
    for (int c = 1; c < classes; ++c) highest = larger(highest, P::load(logits + c * lanes + lane));
    float at_label[P::width];
    for (int l = 0; l < P::width; ++l)
      at_label[l] = lane + l < images ? logits[labels[lane + l] * lanes + lane + l] : 0.0f;
    P sum(0.0f);
    for (int c = 0; c < classes; ++c) {
      P const e = exponential(P::load(logits + c * lanes + lane) - highest);
      e.store(gradient + c * lanes + lane);
      sum = sum + e;
    }
    (logarithm(sum) - (P::load(at_label) - highest)).store(losses + lane);
    for (int c = 0; c < classes; ++c) (P::load(gradient + c * lanes + lane) / sum).store(gradient + c * lanes + lane);
  }
  for (int lane = 0; lane < images; ++lane) gradient[labels[lane] * lanes + lane] -= 1.0f;
  for (int lane = images; lane < lanes; ++lane) {
    losses[lane] = 0.0f;
    for (int c = 0; c < classes; ++c) gradient[c * lanes + lane] = 0.0f;
  }
}

// Whether the largest logit (the first on ties) is at the label; never with a NaN among the logits.
KOKKOS_INLINE_FUNCTION bool is_correct(int classes, float const* logits, int label) {
  int best = 0;
  for (int c = 0; c < classes; ++c) {
    float const z = logits[std::int64_t(c) * lanes];
    if (z != z) return false;
    if (z > logits[std::int64_t(best) * lanes]) best = c;
  }
  return best == label;
}

}  // namespace lockstep
