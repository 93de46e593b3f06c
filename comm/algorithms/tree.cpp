// SPDX-License-Identifier: Apache-2.0
// Binomial tree: reduction to rank 0 over distances 1, 2, 4, ..., then a broadcast over the same edges backwards.
#include "comm/algorithms/algorithm.hpp"

namespace lockstep::comm {

namespace {

void build(ScheduleRequest const& request, Schedule& schedule) {
  std::int64_t const k = request.ranks;
  Steps steps(schedule);
  std::int64_t distance = 1;
  for (; distance < k; distance *= 2) {
    steps.next();
    for (std::int64_t rank = distance; rank < k; rank += 2 * distance)
      steps.reduce(int(rank), int(rank - distance), 0, 1, Side::right);
  }
  while (distance /= 2) {
    steps.next();
    for (std::int64_t rank = distance; rank < k; rank += 2 * distance) steps.copy(int(rank - distance), int(rank), 0);
  }
}

}  // namespace

extern Algorithm const tree_algorithm;
Algorithm const tree_algorithm = {"tree", build};

}  // namespace lockstep::comm
