// SPDX-License-Identifier: Apache-2.0
// Order between the streams of a process's devices, and their work as a graph: captured once, launched again and again.
// The host waits for nothing.
#pragma once
#include <functional>
#include <vector>

#include "comm/device_runtime.hpp"

namespace lockstep {

// Throws Error (environment) where a call fails.
class StreamOrder {
 public:
  StreamOrder(DeviceCalls& calls, std::vector<int> const& gpus, std::vector<Stream> streams);  // by device
  ~StreamOrder();
  StreamOrder(StreamOrder const&)            = delete;
  StreamOrder& operator=(StreamOrder const&) = delete;

  // What the first stream is given from now on comes after all that the others have been given; and the reverse.
  void gather();
  void scatter();
  // What any stream is given from now on comes after all that any of them has been given.
  void join() {
    gather();
    scatter();
  }
  Stream first() const { return m_streams.front(); }

 private:
  void record(std::size_t device);
  void wait(std::size_t device, std::size_t for_device);

  DeviceCalls& m_calls;
  std::vector<Stream> m_streams;
  std::vector<Event> m_events;  // by device; none of a single one
};

class DeviceGraph {
 public:
  DeviceGraph(DeviceCalls& calls, std::vector<int> const& gpus, std::vector<Stream> streams);
  ~DeviceGraph();
  DeviceGraph(DeviceGraph const&)            = delete;
  DeviceGraph& operator=(DeviceGraph const&) = delete;

  // Whether there is something to launch.
  bool captured() const { return m_program != nullptr; }
  // Makes a graph of what `enqueue` gives to the streams, which is not run. Kernels keep the arguments that they are
  // given now. All that the work needs is there before: memory, kernels that were launched once. Throws Error
  // (environment) where something in it cannot be captured; the streams are then as they were.
  void capture(std::function<void()> const& enqueue);
  // After all, and before all, that any of the streams is given before, and after.
  void launch();

 private:
  DeviceCalls& m_calls;
  StreamOrder m_order;
  Program m_program = nullptr;
};

}  // namespace lockstep
