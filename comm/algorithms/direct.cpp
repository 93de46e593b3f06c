// SPDX-License-Identifier: Apache-2.0
// Direct two-step: rank r owns chunk r. Every rank sends every owner its contribution; the owners add them in rank
// order (contributions wait in scratch, that of rank 0 in the vector itself); every owner sends its sum to every rank.
#include <map>
#include <tuple>
#include <utility>

#include "comm/algorithms/algorithm.hpp"

namespace lockstep::comm {

namespace {

void build(ScheduleRequest const& request, Schedule& schedule) {
  int const k     = request.ranks;
  schedule.chunks = schedule.places = k;
  schedule.transfers.reserve(3 * std::size_t(k) * k);
  Steps steps(schedule);
  auto const from_scratch = [](Transfer& t, int place) { t.source_slot = Slot::scratch, t.place = place; };
  auto const to_scratch   = [](Transfer& t, int place) { t.destination_slot = Slot::scratch, t.place = place; };
  steps.next();
  for (int owner = 1; owner < k; ++owner) to_scratch(steps.copy(owner, owner, owner), owner);
  steps.next();
  // Rotated, so that ranks that work the list off in order do not all send to the same owner.
  for (int shift = 1; shift < k; ++shift)
    for (int rank = 0; rank < k; ++rank) {
      int const owner   = (rank + shift) % k;
      Transfer& arrives = steps.copy(rank, owner, owner);
      if (rank > 0) to_scratch(arrives, rank);
    }
  for (int rank = 1; rank < k; ++rank) {
    steps.next();
    for (int owner = 0; owner < k; ++owner) from_scratch(steps.reduce(owner, owner, owner, 1, Side::right), rank);
  }
  steps.next();
  for (int shift = 1; shift < k; ++shift)
    for (int owner = 0; owner < k; ++owner) steps.copy(owner, (owner + shift) % k, owner);
}

void outline_steps(ScheduleRequest const& request, OutlineVisitor const& visit) {
  std::int64_t const k = request.ranks, g = request.ranks_per_node, n = request.elements;
  std::int64_t const filled = n < k ? n : k;  // chunks with elements
  auto const size           = [&](std::int64_t begin, std::int64_t end) {
    return begin < end ? chunk_range(n, k, end - 1).end - chunk_range(n, k, begin).begin : 0;
  };
  auto const filled_in = [&](std::int64_t begin, std::int64_t end) {
    return (end < filled ? end : filled) - (begin < filled ? begin : filled);
  };
  // Ranks differ in the size of their own chunk and in the elements of their node's chunks: a handful of kinds.
  struct Kind {
    std::int64_t own, node, node_filled, own_filled;
    bool operator<(Kind const& b) const {
      return std::tie(own, node, node_filled, own_filled) < std::tie(b.own, b.node, b.node_filled, b.own_filled);
    }
  };
  std::map<Kind, std::int64_t> kinds;
  std::map<std::int64_t, std::int64_t> sizes;  // own chunk -> owners
  for (std::int64_t rank = 0; rank < k; ++rank) {
    std::int64_t const node = rank / g * g, own = size(rank, rank + 1);
    ++kinds[{own, size(node, node + g), filled_in(node, node + g), own > 0}];
    ++sizes[own];
  }

  StepClass keep;
  for (auto const& [own, count] : sizes) {
    StepClass::Ranks ranks{{}, count - (own == size(0, 1))};
    ranks.work.local_copied = own;
    keep.ranks.push_back(ranks);
  }
  visit(keep);

  StepClass scatter, gather;
  for (auto const& [kind, count] : kinds) {
    Work::Traffic to_owners[2], from_ranks[2];
    to_owners[inside].add(kind.node_filled - kind.own_filled, kind.node - kind.own);
    to_owners[between].add(filled - kind.node_filled, n - kind.node);
    from_ranks[inside].add(kind.own_filled * (g - 1), kind.own * (g - 1));
    from_ranks[between].add(kind.own_filled * (k - g), kind.own * (k - g));
    StepClass::Ranks ranks{{}, count};
    for (Link link : {inside, between}) {
      ranks.work.out[link] = to_owners[link];
      ranks.work.in[link]  = from_ranks[link];
    }
    scatter.ranks.push_back(ranks);
    for (Link link : {inside, between}) std::swap(ranks.work.out[link], ranks.work.in[link]);
    gather.ranks.push_back(ranks);
  }
  visit(scatter);
  StepClass add;
  add.repeat = k - 1;
  for (auto const& [own, count] : sizes) {
    StepClass::Ranks ranks{{}, count};
    ranks.work.local_reduced = own;
    add.ranks.push_back(ranks);
  }
  visit(add);
  visit(gather);
}

}  // namespace

extern Algorithm const direct_algorithm;
Algorithm const direct_algorithm = {"direct", build, outline_steps};

}  // namespace lockstep::comm
