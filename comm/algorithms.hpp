// SPDX-License-Identifier: Apache-2.0
// The registry of allreduce algorithms. One file each in algorithms/, one line each in algorithms.cpp.
#pragma once
#include "comm/schedule.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

// What a schedule may depend on: facts that all ranks share.
struct ScheduleRequest {
  int ranks             = 1;
  std::int64_t elements = 0;  // pipelined algorithms choose their chunk count from it
  int ranks_per_node    = 0;  // hierarchical; 0 or not a divisor of ranks: one node
};

std::vector<std::string> algorithm_names();
// Throws Error (usage) that lists the known names.
Schedule make_schedule(std::string_view algorithm, ScheduleRequest const& request);

}  // namespace lockstep::comm
