// SPDX-License-Identifier: Apache-2.0
// Halving-doubling after Rabenseifner: a reduce-scatter in which partners at distances 1, 2, 4, ... exchange halves of
// what they still hold, then an allgather over the same pairs backwards. With the nearest partners first, the vector is
// summed in the same association as by recursive doubling.
#include "comm/algorithms/fold.hpp"

namespace lockstep::comm {

namespace {

void build(ScheduleRequest const& request, Schedule& schedule) {
  Fold const fold(request.ranks);
  schedule.chunks = fold.active;
  schedule.transfers.reserve(2 * std::size_t(fold.active) * fold.levels + 2 * fold.folded);
  Steps steps(schedule);
  // First chunk of the block that a rank holds. Partners hold the same block; who has bit `distance` set keeps its
  // upper half.
  std::vector<int> begin(fold.active, 0);
  auto const upper = [](int index, int distance, int width) { return index & distance ? width : 0; };
  fold.begin(steps, fold.active);
  int distance = 1, width = fold.active / 2;
  for (; width >= 1; distance *= 2, width /= 2) {
    steps.next();
    for (int index = 0; index < fold.active; ++index) {
      int const partner = index ^ distance;
      steps.reduce(fold.rank(index), fold.rank(partner), begin[index] + upper(partner, distance, width), width,
                   index < partner ? Side::left : Side::right);
    }
    for (int index = 0; index < fold.active; ++index) begin[index] += upper(index, distance, width);
  }
  for (distance /= 2, width = 1; distance >= 1; distance /= 2, width *= 2) {
    steps.next();
    for (int index = 0; index < fold.active; ++index)
      steps.copy(fold.rank(index), fold.rank(index ^ distance), begin[index], width);
    for (int index = 0; index < fold.active; ++index) begin[index] -= upper(index, distance, width);
  }
  fold.end(steps, fold.active);
}

}  // namespace

extern Algorithm const halving_doubling_algorithm;
Algorithm const halving_doubling_algorithm = {"halving_doubling", build};

}  // namespace lockstep::comm
