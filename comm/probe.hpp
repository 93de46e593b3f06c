// SPDX-License-Identifier: Apache-2.0
// What a communicator's ranks and paths can do, from small probes: rates of memory, time of one step, of a message. The
// models of cost.hpp are fitted from these alone, never from an allreduce.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/cost.hpp"

namespace lockstep::comm {

class Probe {
 public:
  // Collective; takes tens of milliseconds for each factor of four up to `most_bytes` per rank. The same on all ranks.
  Probe(Communicator& world, std::int64_t most_bytes, int repeats = 7);

  // Seconds, medians, for vectors of `bytes` per rank that their owners have just written, after as many bytes of
  // something else: other ranks' lines are dirty in other cores' caches, as an allreduce finds them.
  struct Point {
    std::int64_t bytes = 0;
    double update      = 0;  // in memory: update_shares
    double fastest     = 0;  // of the repeats
    // Every rank adds half of its neighbour's vector to its own, or copies it; rank 1 alone does so with all of it.
    double add = 0, copy = 0, add_alone = 0, copy_alone = 0;
    // By messages, `add` and `fastest` are such an addition's.
  };
  std::vector<Point> const& points() const { return m_points; }
  void set(Point const& point);                   // from now on, instead of what was found for as many bytes
  bool is_memory() const { return m_memory; }     // else a network of messages
  double step_seconds() const { return m_step; }  // of a schedule, with next to no data
  double copy_rate() const {
    return m_copy;
  }  // bytes read and written per second by one rank, alone; the longest vector
  double add_rate() const { return m_add; }

  // Models for vectors of `bytes` per rank: rates depend on which cache they fit.
  SharedMemoryModel memory(std::int64_t bytes) const;
  NetworkModel network(std::int64_t bytes, bool fastest = false) const;

  Seconds predict(std::string_view algorithm, ScheduleRequest const& request, int element_bytes) const;  // or `fused`
  Seconds bounds(ScheduleRequest const& request, int element_bytes) const;

 private:
  Point at(std::int64_t bytes) const;
  SharedMemoryModel updates(Point const& point, bool fastest) const;
  Point probe_messages(Communicator& world, std::vector<Buffer<float>> const& buffers, int repeats) const;

  std::vector<Point> m_points;
  int m_ranks, m_cores;
  bool m_memory = false;
  double m_step = 0, m_copy = 0, m_add = 0;
  double m_signal = 0;  // seconds until all ranks know of all others that they are there
};

// Measures a Point of shared memory.
class PointSampler {
 public:
  // vectors: of `bytes` each, as Communicator::everywhere gave them; prepare: owners write something else, then these.
  PointSampler(Communicator& world, std::vector<char*> vectors, std::int64_t bytes, std::function<void()> prepare);

  enum class What { update, everything };
  void sample(What what);  // once; collective
  void forget();           // what was sampled so far
  Probe::Point point() const;
  std::vector<double> const& updates() const { return m_update; }  // seconds, in turn

 private:
  void work_on_neighbour(bool everyone, bool add) const;

  Communicator& m_world;
  std::vector<char*> m_vectors;
  std::int64_t m_bytes;
  std::function<void()> m_prepare;
  std::vector<double> m_update, m_add, m_copy, m_add_alone, m_copy_alone;
};

// What an allreduce in place has to read and write at least: every rank updates its 1 / ranks of all vectors, of
// `bytes` each, that Communicator::everywhere gave. Collective; enqueued.
void update_shares(Communicator& world, std::vector<char*> const& vectors, std::int64_t bytes);

// Seconds from a common start to the last rank's end of `calls` calls of f; the same on all ranks. Collective. With one
// clock for all (one node) the start is when the first rank starts; else every rank has its own start.
template <class F>
double time_together(Communicator& world, std::int64_t calls, F&& f, double* skew = nullptr);

// Seconds on a clock that processes of a node share.
double clock_seconds();
void start_together(Communicator& world);
double longest(Communicator& world, double start, double end, double* skew);

template <class F>
double time_together(Communicator& world, std::int64_t calls, F&& f, double* skew) {
  start_together(world);
  double const start = clock_seconds();
  for (std::int64_t i = 0; i < calls; ++i) f();
  world.fence();
  double const end = clock_seconds();
  return longest(world, start, end, skew);
}

}  // namespace lockstep::comm
