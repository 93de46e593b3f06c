// SPDX-License-Identifier: Apache-2.0
// One process's part of a schedule, with everything that does not depend on data worked out once.
#pragma once
#include "comm/schedule.hpp"

#include <cstdint>
#include <vector>

namespace lockstep::comm {

// How a schedule meets the machine: which ranks' memory this process reads in place, from where messages come instead.
struct Placement {
  int process = 0, processes = 1, local_size = 1;
  std::vector<bool> readable;  // by process, this one included
  bool direct = true;          // else what is read of another rank of this process is copied to staging memory first
  int process_of(int rank) const { return rank / local_size; }
};

struct Move {
  std::int64_t source_at = 0, destination_at = 0, count = 0;  // elements of the slots
  std::int32_t source = 0, destination = 0;                   // ranks
  bool reduce           = false;
  bool late             = false;  // its destination is read in the same step: applied when all reads are done
  Slot source_slot      = Slot::data;
  Slot destination_slot = Slot::data;
  std::int64_t staging  = -1;  // where it waits in the destination's staging memory (elements); -1: applied directly
};

// Until `process` has read what it reads in steps before `step`.
struct Reader {
  std::int32_t process;
  std::int64_t step;
};

struct PlanStep {
  std::vector<Move> pulls;  // sources that this process reads in place
  std::vector<Move> sends, receives;
  std::vector<std::int32_t> sources;              // other processes whose memory the pulls read
  std::vector<Reader> before_early, before_late;  // whom a write must wait for
};

struct Plan {
  std::vector<PlanStep> steps;
  std::vector<Reader> before_leaving;
  std::vector<std::int64_t> staging;  // elements, by local device
  std::int64_t scratch       = 0;     // elements, of every rank
  std::int64_t messages      = 0;     // elements, of all messages of a step at most
  std::int64_t elements_sent = 0, messages_sent = 0, elements_reduced = 0;  // per call, by this process's devices
};

// Where the data of the call in progress is: of all ranks whose memory this process may use.
struct Addresses {
  std::vector<char*> data, scratch;  // by rank
  std::vector<char*> staging;        // by local device
  std::int64_t item = 4;             // bytes per element

  char* at(int rank, Slot slot, std::int64_t element) const {
    return (slot == Slot::data ? data : scratch)[std::size_t(rank)] + element * item;
  }
  char* source(Move const& move) const { return at(move.source, move.source_slot, move.source_at); }
  char* destination(Move const& move) const { return at(move.destination, move.destination_slot, move.destination_at); }
  char* staged(Move const& move) const {
    return staging[std::size_t(move.destination) % staging.size()] + move.staging * item;
  }
  // Where a received message goes.
  char* landing(Move const& move) const { return move.staging >= 0 ? staged(move) : destination(move); }
};

Plan make_plan(Schedule const& schedule, std::int64_t elements, Placement const& placement);

}  // namespace lockstep::comm
