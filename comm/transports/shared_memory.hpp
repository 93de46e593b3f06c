// SPDX-License-Identifier: Apache-2.0
// Memory that the processes of a node share, and the counters by which they tell each other how far they are.
#pragma once
#include "comm/transports/world.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::comm {

class SharedMemory {
 public:
  // Vectors of up to this many bytes per device need no slot: they fit between the counters.
  static constexpr std::int64_t inline_bytes = 8192;

  // Collective, as are reserve and allocate. Without `wanted`, or where there is none to be had, not usable.
  SharedMemory(World& world, int local_size, bool wanted);
  ~SharedMemory();
  SharedMemory(SharedMemory const&)            = delete;
  SharedMemory& operator=(SharedMemory const&) = delete;

  bool usable() const { return !m_control.bases.empty(); }

  // A slot per device for data that its owner keeps elsewhere. False if there is not enough memory.
  bool reserve(std::int64_t bytes_per_device);
  char* slot(int rank) const;  // null on other nodes
  // Memory of each local device that stays until the end; null if there is not enough.
  std::vector<char*> allocate(std::int64_t bytes_per_device);
  // Where `rank` has what local device `local` has at `pointer`, in memory of one allocate; null if not reachable.
  char* counterpart(void const* pointer, int local, int rank) const;

  // A call takes `stages` values of the counters, the same number in all processes. Returns the value before the first.
  std::int64_t begin(std::int64_t stages) {
    std::int64_t const base = m_next;
    m_next += stages;
    return base;
  }
  void publish_ready(std::int64_t value) { control(m_world.process()).ready.store(value, std::memory_order_release); }
  void publish_read(std::int64_t value) { control(m_world.process()).read.store(value, std::memory_order_release); }
  void wait_ready(int process, std::int64_t value) { wait(control(process).ready, value, process); }
  void wait_read(int process, std::int64_t value) { wait(control(process).read, value, process); }
  void wait_all_ready(std::int64_t value) {
    for (int p = 0; p < m_world.processes(); ++p)
      if (p != m_world.process()) wait_ready(p, value);
  }

  // Where local device `local` keeps its input and output in this call; told before publish_ready. Pointers outside
  // shared memory are told as such.
  void describe(int local, void const* input, void const* output, std::int64_t bytes);
  // The same of any rank of the node, as addresses here; null if it is not shared. Valid after wait_ready.
  char* input_of(int rank) const { return resolve(rank, descriptor(rank).input); }
  char* output_of(int rank) const { return resolve(rank, descriptor(rank).output); }

  // One of two areas of inline_bytes; calls take turns.
  char* inline_area(int rank, int turn) const;

 private:
  struct Place {
    std::int64_t window = -1, offset = 0;
  };
  struct Descriptor {
    Place input, output;
  };
  struct Control {
    alignas(128) std::atomic<std::int64_t> ready{0};
    alignas(128) std::atomic<std::int64_t> read{0};
  };
  struct Window {
    World::Shared shared;
    std::int64_t bytes = 0;  // per process
  };

  void wait(std::atomic<std::int64_t> const& counter, std::int64_t value, int process) {
    m_world.wait([&] { return counter.load(std::memory_order_acquire) >= value; }, process);
  }
  Control& control(int process) const { return *reinterpret_cast<Control*>(m_control.bases[std::size_t(process)]); }
  Descriptor& descriptor(int rank) const;
  Place find(void const* pointer, std::int64_t bytes) const;
  char* resolve(int rank, Place place) const;

  World& m_world;
  int m_local_size;
  World::Shared m_control;        // Control, descriptors, inline areas
  std::vector<Window> m_windows;  // the first holds the slots
  std::int64_t m_slot_bytes = 0, m_next = 0;
};

}  // namespace lockstep::comm
