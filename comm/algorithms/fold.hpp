// SPDX-License-Identifier: Apache-2.0
// How power-of-two algorithms serve any number of ranks: of the first 2 * folded ranks, each odd one gives its vector
// to the even one before it and gets the result from it at the end. The remaining `active` ranks take part.
#pragma once
#include <algorithm>

#include "comm/algorithms/algorithm.hpp"

namespace lockstep::comm {

struct Fold {
  int active = 1, levels = 0, folded = 0;
  explicit Fold(int ranks) {
    for (; active <= ranks / 2; active *= 2) ++levels;
    folded = ranks - active;
  }
  int rank(int index) const { return index < folded ? 2 * index : index + folded; }  // of the index-th active rank

  void begin(Steps& steps, int chunks) const {
    if (folded) steps.next();
    for (int i = 0; i < folded; ++i) steps.reduce(2 * i + 1, 2 * i, 0, chunks, Side::right);
  }
  void end(Steps& steps, int chunks) const {
    if (folded) steps.next();
    for (int i = 0; i < folded; ++i) steps.copy(2 * i, 2 * i + 1, 0, chunks);
  }
};

}  // namespace lockstep::comm
