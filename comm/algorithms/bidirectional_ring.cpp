// SPDX-License-Identifier: Apache-2.0
// Two rings at once, one each way, with half of the vector each: every link carries data in both directions, so that
// ranks that can drive two links at a time need half of a ring's time.
#include "comm/algorithms/ring.hpp"

namespace lockstep::comm {

namespace {

void build(ScheduleRequest const& request, Schedule& schedule) {
  int const k     = request.ranks;
  schedule.chunks = 2 * k;
  schedule.transfers.reserve(4 * std::size_t(k - 1) * k);
  Steps steps(schedule);
  // The way back is the way there with the ranks numbered from the other end.
  for (Action action : {Action::reduce, Action::copy})
    for (int step = 0; step < k - 1; ++step) {
      steps.next();
      for (int rank = 0; rank < k; ++rank) {
        int const mirrored = k - 1 - rank, next = (rank + 1) % k;
        if (action == Action::reduce) {
          int const chunk = (rank - step + k) % k;
          steps.reduce(rank, next, chunk, 1, Side::left);
          steps.reduce(mirrored, k - 1 - next, k + chunk, 1, Side::left);
        } else {
          int const chunk = (rank + 1 - step + k) % k;
          steps.copy(rank, next, chunk);
          steps.copy(mirrored, k - 1 - next, k + chunk);
        }
      }
    }
}

void outline_steps(ScheduleRequest const& request, OutlineVisitor const& visit) {
  ring_outline(request, true, visit);
}

}  // namespace

extern Algorithm const bidirectional_ring_algorithm;
Algorithm const bidirectional_ring_algorithm = {"bidirectional_ring", build, outline_steps};

}  // namespace lockstep::comm
