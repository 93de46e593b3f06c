// SPDX-License-Identifier: Apache-2.0
#include "miniapp/version.hpp"

#include "git_hash.hpp"

#ifdef LOCKSTEP_HAVE_MPI
#include <mpi.h>
#endif

namespace lockstep {

char const* version() {
  return LOCKSTEP_VERSION;
}
char const* git_hash() {
  return LOCKSTEP_GIT_HASH;
}

std::string compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#elif defined(__GNUC__)
  return "GCC " __VERSION__;
#else
  return "unknown";
#endif
}

std::string mpi_library() {
#ifdef LOCKSTEP_HAVE_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown";
  std::string const line(text, std::size_t(length));
  return line.substr(0, line.find_first_of(",\n"));
#else
  return "none";
#endif
}

}  // namespace lockstep
