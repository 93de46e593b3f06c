// SPDX-License-Identifier: Apache-2.0
// The registry of allreduce algorithms. One file each in algorithms/, one line each in algorithms.cpp.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "comm/schedule.hpp"
#include "comm/schedule_outline.hpp"

namespace lockstep::comm {

// What a schedule may depend on: facts that all ranks share.
struct ScheduleRequest {
  int ranks             = 1;
  std::int64_t elements = 0;  // pipelined algorithms choose their chunk count from it
  int ranks_per_node    = 0;  // 0 or not a divisor of ranks: one node
  int pipeline          = 0;  // chunks in flight of pipelined algorithms; 0: chosen from elements
};

std::vector<std::string> algorithm_names();
// Throws Error (usage) that lists the known names.
Schedule make_schedule(std::string_view algorithm, ScheduleRequest const& request);

// What outline() gives for make_schedule()'s schedule, step classes in any order, without the transfers where there are
// many: 65,536 ranks take well under a second.
void outline(std::string_view algorithm, ScheduleRequest const& request, OutlineVisitor const& visit);

// request.ranks_per_node, or request.ranks where that means one node.
int ranks_per_node(ScheduleRequest const& request);

}  // namespace lockstep::comm
