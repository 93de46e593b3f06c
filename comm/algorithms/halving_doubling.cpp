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
  // The block of `width` chunks that a rank holds once it has met its partners up to the distance active / width / 2:
  // bit i of the index chooses the half at level i.
  auto const block = [&](int index, int width) {
    int begin = 0;
    for (int size = fold.active / 2; size >= width; size /= 2, index /= 2) begin += index % 2 ? size : 0;
    return begin;
  };
  fold.begin(steps, fold.active);
  for (int distance = 1, width = fold.active / 2; width >= 1; distance *= 2, width /= 2) {
    steps.next();
    for (int index = 0; index < fold.active; ++index) {
      int const partner = index ^ distance;
      steps.reduce(fold.rank(index), fold.rank(partner), block(partner, width), width,
                   index < partner ? Side::left : Side::right);
    }
  }
  for (int distance = fold.active / 2, width = 1; distance >= 1; distance /= 2, width *= 2) {
    steps.next();
    for (int index = 0; index < fold.active; ++index)
      steps.copy(fold.rank(index), fold.rank(index ^ distance), block(index, width), width);
  }
  fold.end(steps, fold.active);
}

}  // namespace

extern Algorithm const halving_doubling_algorithm;
Algorithm const halving_doubling_algorithm = {"halving_doubling", build};

}  // namespace lockstep::comm
