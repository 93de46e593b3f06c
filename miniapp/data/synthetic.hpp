// SPDX-License-Identifier: Apache-2.0
// The embedded data set: ten kinds of drawn signs, 28 x 28, jittered, dimmed, cluttered and noisy. Integer arithmetic
// and counter-based random numbers only, so that every machine draws the same bytes; image i does not depend on how
// many are drawn. A linear softmax classifier reaches 78 % of the test images, the chapter's network 97 % after four
// epochs and 98.9 % after ten; as on Fashion-MNIST, it stays at its start for the first.
#pragma once
#include "miniapp/data/dataset.hpp"

namespace lockstep {

constexpr std::int64_t synthetic_train_images = 60000, synthetic_test_images = 10000;

enum class SyntheticPart { train, test };

// count images of 28 x 28; count >= 1.
Dataset make_synthetic(SyntheticPart part, std::int64_t count);

}  // namespace lockstep
