// SPDX-License-Identifier: Apache-2.0
// Two levels, m nodes of g ranks: a ring reduce-scatter inside every node leaves each rank with one of g runs of m
// chunks; the ranks that hold the same run reduce it over a ring of nodes; a ring allgather inside every node spreads
// it. Only 1 / g of the vector of a rank crosses between nodes.
#include "comm/algorithms/ring.hpp"

namespace lockstep::comm {

namespace {

void build(ScheduleRequest const& request, Schedule& schedule) {
  int const g = request.ranks_per_node, m = request.ranks / g;
  schedule.chunks = request.ranks;
  Steps steps(schedule);
  auto const in_nodes = [&](Action action) {
    for (int step = 0; step < g - 1; ++step) {
      steps.next();
      for (int node = 0; node < m; ++node)
        for (int i = 0; i < g; ++i) {
          int const from = node * g + i, to = node * g + (i + 1) % g;
          if (action == Action::reduce)
            steps.reduce(from, to, (i - step + g) % g * m, m, Side::left);
          else
            steps.copy(from, to, (i + 1 - step + g) % g * m, m);
        }
    }
  };
  auto const over_nodes = [&](Action action) {
    for (int step = 0; step < m - 1; ++step) {
      steps.next();
      for (int node = 0; node < m; ++node)
        for (int i = 0; i < g; ++i) {
          int const from = node * g + i, to = (node + 1) % m * g + i, run = (i + 1) % g * m;
          if (action == Action::reduce)
            steps.reduce(from, to, run + (node - step + m) % m, 1, Side::left);
          else
            steps.copy(from, to, run + (node + 1 - step + m) % m);
        }
    }
  };
  in_nodes(Action::reduce);
  over_nodes(Action::reduce);
  over_nodes(Action::copy);
  in_nodes(Action::copy);
}

void outline_steps(ScheduleRequest const& request, OutlineVisitor const& visit) {
  std::int64_t const k = request.ranks, g = request.ranks_per_node, m = k / g, n = request.elements;
  StepClass in_nodes, over_nodes;
  in_nodes.repeat   = g - 1;
  over_nodes.repeat = m - 1;
  auto const add    = [](StepClass& step, Link link, RingStretch const& stretch, std::int64_t times) {
    StepClass::Ranks ranks{{}, times * (stretch.end - stretch.begin)};
    ranks.work.out[link].add(stretch.sent);
    ranks.work.in[link].add(stretch.received);
    ranks.work.reduced = stretch.received;
    step.ranks.push_back(ranks);
  };
  for (auto const& stretch : ring_stretches(n, k, 0, m, g)) add(in_nodes, inside, stretch, m);
  // Runs of long chunks only, the one with both sizes, runs of short ones only: each kind is one ring over the nodes.
  std::int64_t const mixed  = n % k / m;
  std::int64_t const runs[] = {0, mixed, mixed + 1, g};
  for (int i = 0; i < 3; ++i)
    if (runs[i] < runs[i + 1])
      for (auto const& stretch : ring_stretches(n, k, runs[i] * m, 1, m))
        add(over_nodes, between, stretch, runs[i + 1] - runs[i]);
  for (Action action : {Action::reduce, Action::copy}) {
    for (StepClass* step : {&in_nodes, &over_nodes}) {
      if (action == Action::copy)
        for (auto& ranks : step->ranks) ranks.work.reduced = 0;
      if (step->repeat > 0) visit(*step);
    }
  }
}

}  // namespace

extern Algorithm const hierarchical_algorithm;
Algorithm const hierarchical_algorithm = {"hierarchical", build, outline_steps};

}  // namespace lockstep::comm
