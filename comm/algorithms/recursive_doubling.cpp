// SPDX-License-Identifier: Apache-2.0
// Recursive doubling: partners at distances 1, 2, 4, ... exchange whole vectors and both add them, the lower one's
// first, so that every rank holds the same expression.
#include "comm/algorithms/fold.hpp"

namespace lockstep::comm {

namespace {

void build(ScheduleRequest const& request, Schedule& schedule) {
  Fold const fold(request.ranks);
  schedule.transfers.reserve(std::size_t(fold.active) * fold.levels + 2 * fold.folded);
  Steps steps(schedule);
  fold.begin(steps, 1);
  for (int distance = 1; distance < fold.active; distance *= 2) {
    steps.next();
    for (int index = 0; index < fold.active; ++index) {
      int const partner = index ^ distance;
      steps.reduce(fold.rank(index), fold.rank(partner), 0, 1, index < partner ? Side::left : Side::right);
    }
  }
  fold.end(steps, 1);
}

}  // namespace

extern Algorithm const recursive_doubling_algorithm;
Algorithm const recursive_doubling_algorithm = {"recursive_doubling", build};

}  // namespace lockstep::comm
