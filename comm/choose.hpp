// SPDX-License-Identifier: Apache-2.0
// The table behind the algorithm `auto`: which one is the fastest for which length, measured here or read from a file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace lockstep::comm {

// Collective; the same on all ranks. Times the world's algorithms, MPI's and NCCL's own apart (their NaN rules are
// others), on float sums of lengths up to most_bytes. Which one wins may differ from run to run, and with it the
// rounding of floating-point sums.
std::vector<Choice> measure_choices(Communicator& world, std::int64_t most_bytes, int repeats = 5);

// Of a file of lines "BYTES ALGORITHM", BYTES rising; # begins a comment. Error (usage) names file and line.
std::vector<Choice> read_choices(std::string const& path);
std::string as_text(std::vector<Choice> const& choices);

}  // namespace lockstep::comm
