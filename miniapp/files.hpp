// SPDX-License-Identifier: Apache-2.0
// Files that a run writes: whole or not at all.
#pragma once
#include <string>
#include <vector>

namespace lockstep {

struct Target {
  std::string option, path;  // "--json" and what it was given; empty: not given
};

// Before work that takes time, on the process that will write. Throws Error (usage) if two targets are one, if a file
// exists and force is not given, or if it cannot be written. "-" is standard output.
void check_targets(std::vector<Target> const& targets, bool force);

// Replaces a file at once, by way of a temporary one beside it; writes into what is no regular file, such as a pipe.
// lasting: waits until it is on the disk, which may take seconds. Throws Error (environment), and leaves nothing behind
// then.
void write_file(std::string const& path, std::string const& bytes, bool lasting);

}  // namespace lockstep
