// SPDX-License-Identifier: Apache-2.0
// Ring: reduce-scatter, then allgather, each of k - 1 steps in which every rank sends one of k chunks to its right
// neighbour. Chunk c is summed in the order c, c + 1, ... (mod k) and is complete on rank c - 1.
#include "comm/algorithms/algorithm.hpp"

namespace lockstep::comm {

namespace {

void build(ScheduleRequest const& request, Schedule& schedule) {
  int const k     = request.ranks;
  schedule.chunks = k;
  schedule.transfers.reserve(2 * std::size_t(k - 1) * k);
  Steps steps(schedule);
  for (int step = 0; step < k - 1; ++step) {
    steps.next();
    for (int rank = 0; rank < k; ++rank) steps.reduce(rank, (rank + 1) % k, (rank - step + k) % k, 1, Side::left);
  }
  for (int step = 0; step < k - 1; ++step) {
    steps.next();
    for (int rank = 0; rank < k; ++rank) steps.copy(rank, (rank + 1) % k, (rank + 1 - step + k) % k);
  }
}

}  // namespace

extern Algorithm const ring_algorithm;
Algorithm const ring_algorithm = {"ring", build};

}  // namespace lockstep::comm
