// SPDX-License-Identifier: Apache-2.0
// Ring: reduce-scatter, then allgather, each of k - 1 steps in which every rank sends one of k chunks to its right
// neighbour. Chunk c is summed in the order c, c + 1, ... (mod k) and is complete on rank c - 1.
#include "comm/algorithms/ring.hpp"

#include <algorithm>

namespace lockstep::comm {

std::vector<RingStretch> ring_stretches(std::int64_t n, std::int64_t chunks, std::int64_t first, std::int64_t count,
                                        std::int64_t positions) {
  auto const size = [&](std::int64_t c) {
    c = first + (c + positions) % positions * count;
    return chunk_range(n, chunks, c + count - 1).end - chunk_range(n, chunks, c).begin;
  };
  // Runs before `mixed` have long chunks only, runs after it short ones only.
  std::int64_t const mixed = std::clamp<std::int64_t>((n % chunks - first) / count, 0, positions);
  std::vector<std::int64_t> cuts{0, 1, mixed, mixed + 1, mixed + 2, positions};
  for (auto& cut : cuts) cut = std::min(cut, positions);
  std::sort(cuts.begin(), cuts.end());
  std::vector<RingStretch> stretches;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    RingStretch const next{cuts[i], cuts[i + 1], size(cuts[i]), size(cuts[i] - 1)};
    if (!stretches.empty() && stretches.back().sent == next.sent && stretches.back().received == next.received)
      stretches.back().end = next.end;
    else
      stretches.push_back(next);
  }
  return stretches;
}

void ring_outline(ScheduleRequest const& request, bool both_ways, OutlineVisitor const& visit) {
  std::int64_t const k = request.ranks, g = request.ranks_per_node, n = request.elements;
  std::int64_t const chunks = both_ways ? 2 * k : k;
  // Chunks are of two sizes, so at most one of the two directions has both. Look along that one: for the way back, from
  // the other end of the row of ranks, which looks the same because nodes are equally large.
  auto stretches       = ring_stretches(n, chunks, 0, 1, k);
  std::int64_t counter = both_ways ? chunk_range(n, chunks, k).size() : 0;  // every chunk of the other direction
  if (both_ways && stretches.size() == 1) {
    counter   = stretches.front().sent;
    stretches = ring_stretches(n, chunks, k, 1, k);
  }
  auto const multiples = [&](std::int64_t begin, std::int64_t end) {  // of g in [begin, end), for end <= 2k
    return (end + g - 1) / g - (begin + g - 1) / g;
  };
  // How many first (last) ranks of a node a stretch holds depends on the steps done modulo g.
  std::int64_t const kinds = stretches.size() == 1 || g == 1 || g == k ? 1 : g;
  for (Action action : {Action::reduce, Action::copy}) {
    std::int64_t const start = action == Action::reduce ? 0 : k - 1;
    for (std::int64_t kind = 0; kind < std::min(kinds, k - 1); ++kind) {
      StepClass step;
      step.repeat = (k - 2 - kind) / kinds + 1;
      for (auto const& stretch : stretches) {
        std::int64_t const shift = (start + kind) % k, begin = stretch.begin + shift, end = stretch.end + shift;
        auto const add = [&](bool first, bool last, std::int64_t count) {  // rank of its node, where nodes matter
          StepClass::Ranks ranks{{}, count};
          Work& work = ranks.work;
          work.out[last ? between : inside].add(stretch.sent);
          work.in[first ? between : inside].add(stretch.received);
          work.out[first ? between : inside].add(counter);
          work.in[last ? between : inside].add(counter);
          if (action == Action::reduce) work.reduced = stretch.received + counter;
          if (count > 0) step.ranks.push_back(ranks);
        };
        if (g == k || g == 1) {
          add(g == 1, g == 1, end - begin);
        } else {
          std::int64_t const firsts = multiples(begin, end), lasts = multiples(begin + 1, end + 1);
          add(true, false, firsts);
          add(false, true, lasts);
          add(false, false, end - begin - firsts - lasts);
        }
      }
      visit(step);
    }
  }
}

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

void outline_steps(ScheduleRequest const& request, OutlineVisitor const& visit) {
  ring_outline(request, false, visit);
}

}  // namespace

extern Algorithm const ring_algorithm;
Algorithm const ring_algorithm = {"ring", build, outline_steps};

}  // namespace lockstep::comm
