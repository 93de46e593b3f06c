// SPDX-License-Identifier: Apache-2.0
// Predicted time of a schedule: over a network of links (alpha-beta-gamma), or in the memory of one host that all ranks
// share. Seconds, bytes, seconds per byte, bytes per second. A step ends when its slowest rank is done; steps follow
// one another.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/algorithms.hpp"
#include "comm/schedule.hpp"
#include "comm/schedule_outline.hpp"

namespace lockstep::comm {

// A rank sends and receives at the same time, `ports` messages each way; its messages of a step share the ports evenly.
// It adds after it has received.
struct NetworkModel {
  struct LinkModel {
    double alpha = 0;  // per message
    double beta  = 0;  // per byte
  };
  LinkModel link[2];  // by Link: inside a node, between nodes
  double gamma = 0;   // per byte of result of an addition
  double copy  = 0;   // per byte copied inside a rank
  int ports    = 1;
};

// How a chunk gets from one rank to another: read in place; copied once, and then used; or copied into a buffer between
// the two and out of it. Traffic per byte is 2 (copy) or 3 (add), 2 or 5, 4 or 7.
enum class MemoryPath { direct, single_copy, staged };

struct SharedMemoryModel {
  double bandwidth      = 0;  // reads and writes of all cores together
  double core_bandwidth = 0;  // of one core; 0: as `bandwidth`
  int cores             = 0;  // 0: one for every rank
  double sync           = 0;  // per step with messages
  MemoryPath path       = MemoryPath::direct;
  // Traffic of a byte copied, added, or read and written in place by the one pass: bytes, or as much as it takes longer
  // than that where measured rates say so.
  double copy = 2, add = 3, update = 2;
};

enum class BoundKind { latency, link, memory, compute };
char const* name(BoundKind kind);

// Seconds by cause. Of a prediction they add up to its time; as lower bounds of a problem the largest holds.
struct Seconds {
  double latency = 0, link = 0, memory = 0, compute = 0;
  double sum() const { return latency + link + memory + compute; }
  double max() const;
  BoundKind largest() const;
};

using OutlineSource = std::function<void(OutlineVisitor const&)>;

Seconds predict(OutlineSource const& outline, int element_bytes, NetworkModel const& model);
Seconds predict(OutlineSource const& outline, int element_bytes, SharedMemoryModel const& model);

template <class Model>
Seconds predict(std::string_view algorithm, ScheduleRequest const& request, int element_bytes, Model const& model) {
  return predict([&](OutlineVisitor const& visit) { outline(algorithm, request, visit); }, element_bytes, model);
}
template <class Model>
Seconds predict(Schedule const& schedule, ScheduleRequest const& request, int element_bytes, Model const& model) {
  return predict(
      [&](OutlineVisitor const& visit) { outline(schedule, request.elements, ranks_per_node(request), visit); },
      element_bytes, model);
}

// One pass over k vectors in shared memory: every element is read k times, added, and written k times, 2 k n bytes in
// all.
Seconds predict_fused(ScheduleRequest const& request, int element_bytes, SharedMemoryModel const& model);

// What no allreduce of point-to-point messages can beat: ceil(log(k) / log(ports + 1)) messages one after the other,
// 2 (k - 1) / k n bytes through the busiest rank, and (k - 1) / k n bytes added on it (Thakur, Rabenseifner, Gropp,
// IJHPCA 19, 2005); between m nodes of g ranks, 2 (m - 1) / m n / g bytes. In shared memory: one fused pass.
Seconds lower_bounds(ScheduleRequest const& request, int element_bytes, NetworkModel const& model);
Seconds lower_bounds(ScheduleRequest const& request, int element_bytes, SharedMemoryModel const& model);

// What a rank does when, by the network model.
struct TimelineEvent {
  enum class Kind { send, receive, reduce, copy };
  Kind kind;
  std::int32_t rank, peer, step, chunk, count;  // peer: the other end of a message, else the rank itself
  std::int64_t bytes;
  double start, end;
};
std::vector<TimelineEvent> timeline(Schedule const& schedule, ScheduleRequest const& request, int element_bytes,
                                    NetworkModel const& model);

}  // namespace lockstep::comm
