// SPDX-License-Identifier: Apache-2.0
// What the ring algorithms have in common.
#pragma once
#include "comm/algorithms/algorithm.hpp"

namespace lockstep::comm {

// Around a ring of `positions`, in one step, the position at distance c from where chunk run 0 is sends run c and
// receives run c - 1, where run c is chunks [first + c * count, first + (c + 1) * count). For c in [begin, end) these
// have the given sizes. There are at most six such stretches.
struct RingStretch {
  std::int64_t begin, end, sent, received;
};
std::vector<RingStretch> ring_stretches(std::int64_t n, std::int64_t chunks, std::int64_t first, std::int64_t count,
                                        std::int64_t positions);

// Outline of a reduce-scatter and an allgather over a ring of all ranks in which rank r sends one chunk at a time to
// rank r + 1; with `both_ways`, as many chunks again go to rank r - 1 at the same time.
void ring_outline(ScheduleRequest const& request, bool both_ways, OutlineVisitor const& visit);

}  // namespace lockstep::comm
