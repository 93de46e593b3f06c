// SPDX-License-Identifier: Apache-2.0
// Where this process's time goes: kernels, copies and regions, heard through Kokkos' tool callbacks in-process. A tool
// that was loaded goes on listening. On a back end with devices of its own Kokkos waits for the device before and after
// each kernel while somebody listens, so kernels have their true times but do not overlap, and the run is slower.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace lockstep {

struct Timer {
  std::string name;
  std::int64_t calls    = 0;
  std::int64_t launches = 0;  // of kernels inside, fills of Views included
  double seconds        = 0;  // from begin to end
  double own            = 0;  // the same, less what ran inside under other names
};

class Profiler {
 public:
  // One at a time. keep_events: for timeline(), up to a few million; times count from here, so construct it on all
  // processes together, behind a barrier.
  explicit Profiler(bool keep_events);
  ~Profiler();
  Profiler(Profiler const&)            = delete;
  Profiler& operator=(Profiler const&) = delete;

  // The longest own time first.
  std::vector<Timer> timers() const;

  // Collective. On the root a timeline of all processes in Chrome's trace format (chrome://tracing, ui.perfetto.dev): a
  // process of it is a process, a track of it is the host or a device. Times in microseconds.
  nlohmann::ordered_json timeline(comm::Communicator& world) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> m_impl;
};

// Kernels that a call of this name launched, on average; 0 if it was not called.
double launches_of(std::vector<Timer> const& timers, std::string const& name);

// name, calls, seconds, share of the whole.
std::string as_table(std::vector<Timer> const& timers);
nlohmann::ordered_json as_json(std::vector<Timer> const& timers);

}  // namespace lockstep
