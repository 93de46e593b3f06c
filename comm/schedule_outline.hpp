// SPDX-License-Identifier: Apache-2.0
// A schedule without its transfers: what the ranks do in each step, and how many of them do the same. This is all that
// costs depend on, and for most algorithms it is short where the transfers number k * k.
#pragma once
#include <functional>

#include "comm/schedule.hpp"

namespace lockstep::comm {

enum Link { inside = 0, between = 1 };  // of a node; rank r is on node r / ranks_per_node

// What one rank does in one step. Elements, and messages, which are transfers with elements between two ranks.
struct Work {
  struct Traffic {
    std::int64_t messages = 0, elements = 0;
    void add(std::int64_t count, std::int64_t total) {
      messages += count;
      elements += total;
    }
    void add(std::int64_t message) { add(message > 0, message); }
    friend bool operator==(Traffic const& a, Traffic const& b) {
      return a.messages == b.messages && a.elements == b.elements;
    }
  };
  Traffic out[2], in[2];           // by Link
  std::int64_t reduced       = 0;  // elements of `in` that are added to the rank's own
  std::int64_t local_reduced = 0;  // elements moved inside the rank: added, or copied
  std::int64_t local_copied  = 0;
  std::int64_t staged        = 0;  // of what arrives: waits elsewhere until all reads of the step are done
  friend bool operator==(Work const& a, Work const& b) {
    return a.out[inside] == b.out[inside] && a.out[between] == b.out[between] && a.in[inside] == b.in[inside] &&
           a.in[between] == b.in[between] && a.reduced == b.reduced && a.local_reduced == b.local_reduced &&
           a.local_copied == b.local_copied && a.staged == b.staged;
  }
};

struct StepClass {
  struct Ranks {
    Work work;
    std::int64_t count = 0;
  };
  std::int64_t repeat = 1;   // steps of the schedule, not necessarily consecutive, that look like this
  std::vector<Ranks> ranks;  // ranks that do nothing may be left out
};

using OutlineVisitor = std::function<void(StepClass const&)>;

void outline(Schedule const& schedule, std::int64_t elements, int ranks_per_node, OutlineVisitor const& visit);

}  // namespace lockstep::comm
