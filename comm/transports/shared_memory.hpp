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

  // A call takes `stages` values of the counters, the same number in all processes, and publishes the first as ready
  // once it is told what the others read. Returns the value before the first. Nobody is more than one call ahead, so
  // that descriptors and inline areas, of which calls take turns, are free.
  std::int64_t begin(std::int64_t stages) {
    if (m_all_ready < m_entry) wait_all_ready(m_entry);
    std::int64_t const base = m_next;
    m_entry                 = base + 1;
    m_next += stages;
    m_turn = 1 - m_turn;
    return base;
  }
  void publish_ready(std::int64_t value) { control(m_world.process()).ready.store(value, std::memory_order_release); }
  void publish_read(std::int64_t value) { control(m_world.process()).read.store(value, std::memory_order_release); }
  void wait_ready(int process, std::int64_t value) { wait(control(process).ready, value, process); }
  void wait_read(int process, std::int64_t value) { wait(control(process).read, value, process); }
  // All of the node.
  void wait_all_ready(std::int64_t value) {
    for (int p = 0; p < m_world.processes(); ++p)
      if (p != m_world.process() && m_world.on_node(p)) wait_ready(p, value);
    m_all_ready = value;
  }
  // After wait_all_ready: work(piece) for every piece of [0, pieces) that no other process has taken. Returns when all
  // are done, though others may not have come: where processes wait for each other's core, those that have one work.
  template <class Work>
  void share_out(std::int64_t pieces, Work&& work) {
    Control& common          = control(0);
    std::int64_t const first = m_taken;
    m_taken += pieces + m_world.processes();  // each process takes one too many before it can be in the next call
    m_done += pieces;
    for (;;) {
      std::int64_t const piece = common.taken.fetch_add(1, std::memory_order_relaxed) - first;
      if (piece >= pieces) break;
      work(piece);
      common.done.fetch_add(1, std::memory_order_release);
    }
    wait(common.done, m_done, -1);
  }

  // Where local device `local` keeps its input and output in this call; told before publish_ready. Pointers outside
  // shared memory are told as such.
  void describe(int local, void const* input, void const* output, std::int64_t bytes);
  // The same of any rank of the node, as addresses here; null if it is not shared. Valid after wait_ready.
  char* input_of(int rank) const { return resolve(rank, descriptor(rank).input); }
  char* output_of(int rank) const { return resolve(rank, descriptor(rank).output); }

  // inline_bytes of memory for this call.
  char* inline_area(int rank) const;

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
    alignas(128) std::atomic<std::int64_t> taken{0};  // process 0's: pieces of share_out, in all calls
    alignas(128) std::atomic<std::int64_t> done{0};
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
  World::Shared m_control;        // Control, two turns of descriptors, two turns of inline areas
  std::vector<Window> m_windows;  // the first holds the slots
  std::int64_t m_slot_bytes = 0, m_next = 0, m_taken = 0, m_done = 0;
  std::int64_t m_entry = 0, m_all_ready = 0;  // first value of the last call; what all are known to have published
  int m_turn = 0;                             // of two, by call
};

}  // namespace lockstep::comm
