// SPDX-License-Identifier: Apache-2.0
// What a file of this folder defines: one Algorithm, named in the list in comm/algorithms.cpp.
#pragma once
#include "comm/algorithms.hpp"

namespace lockstep::comm {

struct Algorithm {
  char const* name;
  // Called with ranks >= 2 only: the schedule of one rank is empty.
  void (*build)(ScheduleRequest const& request, Schedule& schedule);
};

// Appends transfers step by step. `algorithm`, `ranks`, and for the start chunks = 1, are set by make_schedule.
class Steps {
 public:
  explicit Steps(Schedule& schedule) : m_schedule(schedule) {}
  void next() { ++m_schedule.steps; }  // opens a step; the first call opens step 0
  void copy(int source, int destination, int chunk) { add(source, destination, chunk, Action::copy, Side::right); }
  void reduce(int source, int destination, int chunk, Side side) {
    add(source, destination, chunk, Action::reduce, side);
  }

 private:
  void add(int source, int destination, int chunk, Action action, Side side) {
    Transfer t;
    t.step        = m_schedule.steps - 1;
    t.source      = source;
    t.destination = destination;
    t.chunk       = chunk;
    t.action      = action;
    t.side        = side;
    m_schedule.transfers.push_back(t);
  }
  Schedule& m_schedule;
};

}  // namespace lockstep::comm
