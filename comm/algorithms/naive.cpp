// SPDX-License-Identifier: Apache-2.0
// Rank 0 adds the vectors of ranks 1, 2, ... to its own in index order, then copies the sum back to each of them.
#include "comm/algorithms/algorithm.hpp"

namespace lockstep::comm {

namespace {

void build(ScheduleRequest const& request, Schedule& schedule) {
  Steps steps(schedule);
  for (int rank = 1; rank < request.ranks; ++rank) {
    steps.next();
    steps.reduce(rank, 0, 0, 1, Side::right);
  }
  steps.next();
  for (int rank = 1; rank < request.ranks; ++rank) steps.copy(0, rank, 0);
}

}  // namespace

extern Algorithm const naive_algorithm;
Algorithm const naive_algorithm = {"naive", build};

}  // namespace lockstep::comm
