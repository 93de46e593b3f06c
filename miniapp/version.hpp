// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace lockstep {

char const* version();      // "0.1.0"
char const* git_hash();     // of the source, "-dirty" when it had uncommitted changes; "unknown" outside a checkout
std::string compiler();     // name and version
std::string mpi_library();  // "none" in a build without MPI

}  // namespace lockstep
