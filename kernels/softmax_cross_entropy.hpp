// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of one block of images, logits [class][lane]. Loss of an image: ln(sum exp(z - max)) -
// (z[label] - max); a NaN or +Inf logit makes it NaN.
#pragma once
#include "kernels/math.hpp"

namespace lockstep {

// The losses of one pack of images, whose logits at their labels are given, and softmax [class][lane] in `softmax`.
template <class P>
KOKKOS_FORCEINLINE_FUNCTION P softmax_losses(int classes, float const* logits, P at_label, float* softmax) {
  P highest = P::load(logits);
  for (int c = 1; c < classes; ++c) highest = larger(highest, P::load(logits + c * lanes));
  P sum(0.0f);
  for (int c = 0; c < classes; ++c) {
    P const e = exponential(P::load(logits + c * lanes) - highest);
    e.store(softmax + c * lanes);
    sum = sum + e;
  }
  P const losses = logarithm(sum) - (at_label - highest);
  for (int c = 0; c < classes; ++c) (P::load(softmax + c * lanes) / sum).store(softmax + c * lanes);
  return losses;
}

// losses [lane] and gradient [class][lane] = softmax - onehot; both zero from lane `images` on. gradient may be logits.
template <class P>
KOKKOS_FUNCTION void softmax_cross_entropy(int classes, float const* logits, int const* labels, int images,
                                           float* losses, float* gradient) {
  for (int lane = 0; lane < lanes; lane += P::width) {
    float at_label[P::width];
    for (int l = 0; l < P::width; ++l)
      at_label[l] = lane + l < images ? logits[labels[lane + l] * lanes + lane + l] : 0.0f;
    softmax_losses(classes, logits + lane, P::load(at_label), gradient + lane).store(losses + lane);
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
