// SPDX-License-Identifier: Apache-2.0
// The table of kernels against the machine's limits, shared by `bench kernels` and `info --roofline`.
#pragma once
#include <ostream>

#include "miniapp/executor/kernel_bench.hpp"
#include "miniapp/report.hpp"

namespace lockstep {

// --conv of both commands: direct, gemm or both (what of these this back end has).
std::vector<Conv> convs_of(std::string const& option);

// Measures and prints; returns {"machine": {...}, "kernels": [...]} for the record.
nlohmann::ordered_json kernel_table(Space const& space, int samples, std::vector<Conv> const& convs, std::ostream& out);

}  // namespace lockstep
