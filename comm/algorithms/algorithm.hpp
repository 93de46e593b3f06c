// SPDX-License-Identifier: Apache-2.0
// What a file of this folder defines: one Algorithm, named in the list in comm/algorithms.cpp.
#pragma once
#include "comm/algorithms.hpp"

namespace lockstep::comm {

struct Algorithm {
  char const* name;
  // Called with ranks >= 2 only: the schedule of one rank is empty.
  void (*build)(ScheduleRequest const& request, Schedule& schedule);
  // Step classes of that schedule; null where the schedule itself has few transfers (order k log k). In both requests
  // ranks_per_node divides ranks.
  void (*outline)(ScheduleRequest const& request, OutlineVisitor const& visit) = nullptr;
};

// Appends transfers step by step. make_schedule has set `algorithm`, `ranks`, and `chunks` to 1.
class Steps {
 public:
  explicit Steps(Schedule& schedule) : m_schedule(schedule) {}
  void next() { ++m_schedule.steps; }  // opens a step; the first call opens step 0
  Transfer& copy(int source, int destination, int chunk, int count = 1) {
    return add(source, destination, chunk, count, Action::copy, Side::right);
  }
  Transfer& reduce(int source, int destination, int chunk, int count, Side side) {
    return add(source, destination, chunk, count, Action::reduce, side);
  }

 private:
  Transfer& add(int source, int destination, int chunk, int count, Action action, Side side) {
    Transfer& t   = m_schedule.transfers.emplace_back();
    t.step        = m_schedule.steps - 1;
    t.source      = source;
    t.destination = destination;
    t.chunk       = chunk;
    t.count       = count;
    t.action      = action;
    t.side        = side;
    return t;
  }
  Schedule& m_schedule;
};

}  // namespace lockstep::comm
