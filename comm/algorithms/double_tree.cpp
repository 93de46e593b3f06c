// SPDX-License-Identifier: Apache-2.0
// Double binary tree, pipelined (Sanders, Speck, Traeff, Parallel Computing 35, 2009): two trees over all ranks with
// half of the vector each, in which the inner ranks of one are leaves of the other, so that all ranks send about as
// much as they receive. The edges get two colours such that no rank sends, or receives, over two edges of one colour; a
// step uses one colour. The broadcast then takes at most 2L + 2m steps, for m chunks per tree and L = ceil(log2 k); the
// reduction before it is the same backwards in time.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "comm/algorithms/algorithm.hpp"

namespace lockstep::comm {

namespace {

struct Edge {  // of the broadcast
  int from, to, tree;
  int colour         = -1;
  std::int64_t start = 0;  // step of its first chunk; one more chunk every `period` steps
};

struct Trees {
  std::vector<Edge> edges;  // parents before children
  int period         = 1;   // number of colours in use
  std::int64_t depth = 0;   // largest start
};

// The first tree has rank 0 on top of the search tree over 1..k-1 in which the number with the most trailing zero bits
// of a range is on top: odd ranks are leaves. The second is its mirror image (k even: odd ranks inside), or the first
// shifted by one rank (k odd: of the even ranks only 0 is inside both, with one child in each).
Trees make_trees(int k) {
  Trees trees;
  auto const add_subtree = [&](auto const& self, int parent, int begin, int end) -> void {
    if (begin >= end) return;
    int top = begin;
    while (top + (top & -top) < end) top += top & -top;
    trees.edges.push_back({parent, top, 0});
    self(self, top, begin, top);
    self(self, top, top + 1, end);
  };
  add_subtree(add_subtree, 0, 1, k);
  auto const image = [&](int rank) { return k % 2 ? (rank + 1) % k : k - 1 - rank; };
  for (int i = 0; i < k - 1; ++i) trees.edges.push_back({image(trees.edges[i].from), image(trees.edges[i].to), 1});

  // Edges that exclude each other: the two into a rank, and the two out of it. Every edge has at most two such, one at
  // each end, alternating along any walk, so that cycles are even and two colours do.
  auto& edges = trees.edges;
  std::vector<std::array<int, 2>> into(k, {-1, -1}), out_of(k, {-1, -1});
  auto const note = [](std::array<int, 2>& pair, int edge) { pair[pair[0] < 0 ? 0 : 1] = edge; };
  for (int e = 0; e < int(edges.size()); ++e) {
    note(into[edges[e].to], e);
    note(out_of[edges[e].from], e);
  }
  std::vector<int> open;
  for (int first = 0; first < int(edges.size()); ++first) {
    if (edges[first].colour >= 0) continue;
    edges[first].colour = 0;
    for (open.push_back(first); !open.empty();) {
      int const e = open.back();
      open.pop_back();
      for (auto const& pair : {into[edges[e].to], out_of[edges[e].from]}) {
        int const other = pair[0] == e ? pair[1] : pair[0];
        if (other < 0 || edges[other].colour >= 0) continue;
        edges[other].colour = 1 - edges[e].colour;
        trees.period        = 2;
        open.push_back(other);
      }
    }
  }
  std::vector<std::int64_t> arrival[2] = {std::vector<std::int64_t>(k, -1), std::vector<std::int64_t>(k, -1)};
  for (Edge& edge : edges) {
    edge.start = arrival[edge.tree][edge.from] + 1;
    if (trees.period == 2) edge.start += (edge.start + edge.colour) % 2;
    arrival[edge.tree][edge.to] = edge.start;
    trees.depth                 = std::max(trees.depth, edge.start);
  }
  return trees;
}

// Chunks per tree: sqrt(beta n L / (2 alpha)) balances latency and bandwidth; alpha / beta is taken as 16384 elements.
std::int64_t chunks_per_tree(ScheduleRequest const& request) {
  if (request.pipeline > 0) return request.pipeline;
  int levels = 0;
  while ((std::int64_t(1) << levels) < request.ranks) ++levels;
  double const best = std::sqrt(double(request.elements) * levels / (2.0 * 16384));
  return std::clamp<std::int64_t>(std::int64_t(best), 1, 4096);
}

void build(ScheduleRequest const& request, Schedule& schedule) {
  Trees const trees             = make_trees(request.ranks);
  std::int64_t const m          = chunks_per_tree(request);
  std::int64_t const last_steps = trees.depth + trees.period * (m - 1);
  schedule.chunks               = int(2 * m);
  std::vector<std::vector<std::pair<Edge const*, int>>> moves(last_steps + 1);  // of the broadcast, by step
  for (Edge const& edge : trees.edges)
    for (std::int64_t i = 0; i < m; ++i)
      moves[edge.start + trees.period * i].emplace_back(&edge, int(edge.tree * m + i));
  Steps steps(schedule);
  for (auto step = moves.rbegin(); step != moves.rend(); ++step) {
    if (!step->empty()) steps.next();
    for (auto const& [edge, chunk] : *step)
      steps.reduce(edge->to, edge->from, chunk, 1, edge->to < edge->from ? Side::left : Side::right);
  }
  for (auto const& step : moves) {
    if (!step.empty()) steps.next();
    for (auto const& [edge, chunk] : step) steps.copy(edge->from, edge->to, chunk);
  }
}

void outline_steps(ScheduleRequest const& request, OutlineVisitor const& visit) {
  Trees const trees    = make_trees(request.ranks);
  std::int64_t const m = chunks_per_tree(request), n = request.elements, p = trees.period, g = request.ranks_per_node;

  // In a step of colour c a rank uses at most one edge out and one in. Ranks whose edges have the same tree, start and
  // link work alike in all steps of that colour.
  struct Use {
    int tree           = -1;  // -1: no edge
    std::int64_t start = 0;
    Link link          = inside;
    bool operator<(Use const& b) const { return std::tie(tree, start, link) < std::tie(b.tree, b.start, b.link); }
  };
  std::map<std::pair<Use, Use>, std::int64_t> kinds[2];  // by colour: (out, in) -> ranks
  for (int colour = 0; colour < p; ++colour) {
    std::vector<std::pair<Use, Use>> uses(request.ranks);
    for (Edge const& edge : trees.edges) {
      if (edge.colour != colour) continue;
      Use const use{edge.tree, edge.start, edge.from / g == edge.to / g ? inside : between};
      uses[edge.from].first = uses[edge.to].second = use;
    }
    for (auto const& use : uses) ++kinds[colour][use];
  }
  // Elements that cross an edge of a tree which started at `start`, in step `step`; -1: nothing crosses, not even an
  // empty chunk.
  auto const crossing = [&](int tree, std::int64_t start, std::int64_t step) -> std::int64_t {
    std::int64_t const i = step < start ? -1 : (step - start) / p;
    return tree < 0 || i < 0 || i >= m ? -1 : chunk_range(n, 2 * m, tree * m + i).size();
  };
  auto const emit = [&](std::int64_t step, std::int64_t repeat) {
    StepClass down, up;
    down.repeat = up.repeat = repeat;
    bool any                = false;
    for (auto const& [uses, count] : kinds[step % p]) {
      auto const& [use_out, use_in] = uses;
      std::int64_t const out        = crossing(use_out.tree, use_out.start, step);
      std::int64_t const in         = crossing(use_in.tree, use_in.start, step);
      if (out < 0 && in < 0) continue;
      any = true;
      StepClass::Ranks broadcasts{{}, count}, reduces{{}, count};
      if (out > 0) {
        broadcasts.work.out[use_out.link].add(out);
        reduces.work.in[use_out.link].add(out);
        reduces.work.reduced = out;
      }
      if (in > 0) {
        broadcasts.work.in[use_in.link].add(in);
        reduces.work.out[use_in.link].add(in);
      }
      down.ranks.push_back(broadcasts);
      up.ranks.push_back(reduces);
    }
    if (!any) return;
    visit(up);
    visit(down);
  };
  // Steps of one colour look alike where, at every possible start, both trees move chunks of one size each.
  std::map<std::array<std::int64_t, 3>, std::pair<std::int64_t, std::int64_t>> alike;  // -> one of them, how many
  for (std::int64_t step = 0; step <= trees.depth + p * (m - 1); ++step) {
    std::int64_t const sizes[2] = {crossing(0, 0, step), crossing(1, 0, step)};
    bool const uniform          = step >= trees.depth && sizes[0] >= 0 && sizes[1] >= 0 &&
                         crossing(0, trees.depth, step) == sizes[0] && crossing(1, trees.depth, step) == sizes[1];
    if (uniform) {
      auto& entry = alike[{step % p, sizes[0], sizes[1]}];
      entry.first = step;
      ++entry.second;
    } else {
      emit(step, 1);
    }
  }
  for (auto const& [key, entry] : alike) emit(entry.first, entry.second);
}

}  // namespace

extern Algorithm const double_tree_algorithm;
Algorithm const double_tree_algorithm = {"double_tree", build, outline_steps};

}  // namespace lockstep::comm
