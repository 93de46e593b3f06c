// SPDX-License-Identifier: Apache-2.0
#include "comm/algorithms.hpp"

#include "comm/algorithms/algorithm.hpp"
#include "kernels/error.hpp"

namespace lockstep::comm {

// The registration: one line for each algorithm, in the order in which they are listed and printed.
#define LOCKSTEP_ALGORITHMS(X) \
  X(naive)                     \
  X(tree)                      \
  X(double_tree)               \
  X(ring)                      \
  X(bidirectional_ring)        \
  X(recursive_doubling)        \
  X(halving_doubling)          \
  X(direct)                    \
  X(hierarchical)

#define LOCKSTEP_DECLARE(name) extern Algorithm const name##_algorithm;
LOCKSTEP_ALGORITHMS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

namespace {

#define LOCKSTEP_ADDRESS(name) &name##_algorithm,
constexpr Algorithm const* algorithms[] = {LOCKSTEP_ALGORITHMS(LOCKSTEP_ADDRESS)};
#undef LOCKSTEP_ADDRESS

Algorithm const& find(std::string_view name) {
  std::string known;
  for (auto const* algorithm : algorithms) {
    if (name == algorithm->name) return *algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm->name);
  }
  throw Error(ExitCode::usage, "unknown algorithm '" + std::string(name) + "', expected one of: " + known);
}

ScheduleRequest check(ScheduleRequest request) {
  LOCKSTEP_THROW_IF(request.ranks < 1, ExitCode::usage,
                    "number of ranks is " + std::to_string(request.ranks) + ", expected at least 1");
  LOCKSTEP_THROW_IF(request.elements < 0, ExitCode::usage,
                    "number of elements is " + std::to_string(request.elements) + ", expected at least 0");
  LOCKSTEP_THROW_IF(request.pipeline < 0, ExitCode::usage,
                    "pipeline depth is " + std::to_string(request.pipeline) + ", expected at least 0");
  request.ranks_per_node = ranks_per_node(request);
  return request;
}

}  // namespace

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (auto const* algorithm : algorithms) names.emplace_back(algorithm->name);
  return names;
}

Schedule make_schedule(std::string_view name, ScheduleRequest const& request) {
  Algorithm const& algorithm = find(name);
  auto const checked         = check(request);
  Schedule schedule;
  schedule.algorithm = algorithm.name;
  schedule.ranks     = request.ranks;
  if (request.ranks > 1) algorithm.build(checked, schedule);
  return schedule;
}

void outline(std::string_view name, ScheduleRequest const& request, OutlineVisitor const& visit) {
  Algorithm const& algorithm = find(name);
  auto const checked         = check(request);
  if (request.ranks == 1) return;
  if (algorithm.outline)
    algorithm.outline(checked, visit);
  else
    outline(make_schedule(name, checked), checked.elements, checked.ranks_per_node, visit);
}

int ranks_per_node(ScheduleRequest const& request) {
  return request.ranks_per_node > 0 && request.ranks % request.ranks_per_node == 0 ? request.ranks_per_node
                                                                                   : request.ranks;
}

}  // namespace lockstep::comm
