// SPDX-License-Identifier: Apache-2.0
// GPUs beside what Kokkos does: how many there are, which one a logical device gets, streams, peer access. Together
// with device_calls.cpp and transports/nccl* the only place that knows CUDA and HIP. On host back ends there are no
// GPUs.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/types.hpp"

namespace lockstep {

using Stream  = void*;  // a cudaStream_t or hipStream_t
using Event   = void*;
using Graph   = void*;  // a cudaGraph_t: work as it was captured
using Program = void*;  // a cudaGraphExec_t: a graph that can be launched

struct Gpu {
  std::string name;
  std::string bus;  // PCI address: tells GPUs of a node apart, whatever numbers processes see them by
};

// The few calls of the vendor's runtime that Lockstep makes itself. Results: 0 is success.
class DeviceCalls {
 public:
  virtual ~DeviceCalls()                                                         = default;
  virtual std::string version()                                                  = 0;  // "CUDA 12.4, driver 12.6"
  virtual std::string text(int result)                                           = 0;
  virtual int count(int& gpus)                                                   = 0;
  virtual int describe(int gpu, Gpu& found)                                      = 0;
  virtual int use(int gpu)                                                       = 0;  // by this thread, from now on
  virtual int create_stream(Stream& stream)                                      = 0;  // on the GPU in use
  virtual int destroy_stream(Stream stream)                                      = 0;
  virtual int can_access(int gpu, int peer, bool& can)                           = 0;
  virtual int enable_access(int peer)                                            = 0;  // from the GPU in use
  virtual int copy(Stream stream, void* to, void const* from, std::size_t bytes) = 0;  // any memory to any
  virtual int create_event(Event& event)                                         = 0;  // on the GPU in use
  virtual int destroy_event(Event event)                                         = 0;
  virtual int record(Event event, Stream stream)                                 = 0;
  virtual int query(Event event, bool& done)                                     = 0;
  virtual int wait(Stream stream, Event event)                                   = 0;  // for what was recorded last
  // What is given to the stream, and to streams that come to wait for it, becomes a graph instead of being run.
  virtual int begin_capture(Stream stream)               = 0;
  virtual int end_capture(Stream stream, Graph& graph)   = 0;
  virtual int instantiate(Graph graph, Program& program) = 0;
  virtual int launch(Program program, Stream stream)     = 0;
  virtual int destroy_graph(Graph graph)                 = 0;
  virtual int destroy_program(Program program)           = 0;
  // Makes a capture's work be enqueued. A fake, from which no runtime takes kernels, keeps it for its launches.
  virtual void capture(std::function<void()> const& enqueue) { enqueue(); }
};

// Of this build's back end; null where devices are parts of the host.
DeviceCalls* device_calls();
// Throws Error (environment) unless result is 0.
void check(DeviceCalls& calls, int result, char const* what);

// The GPU of each of a process's `devices` logical devices. The processes of a node divide its GPUs in runs (or share
// them, where there are fewer); a process's devices take turns on its own, or all lie on its first where this Kokkos
// runs on one GPU a process.
std::vector<int> map_devices(int gpus, int node_rank, int node_processes, int devices, bool several_per_process);

// The GPUs that this process sees, and streams on them. Throws Error (timeout: no device) where there is none.
class DeviceRuntime {
 public:
  explicit DeviceRuntime(DeviceCalls& calls);
  // After everything that was made on the streams is gone.
  ~DeviceRuntime();
  DeviceRuntime(DeviceRuntime const&)            = delete;
  DeviceRuntime& operator=(DeviceRuntime const&) = delete;

  std::vector<Gpu> const& gpus() const { return m_gpus; }
  // A stream for each logical device, on these GPUs; asked again, the same ones.
  std::vector<Stream> streams(std::vector<int> const& gpus);

 private:
  DeviceCalls& m_calls;
  std::vector<Gpu> m_gpus;
  std::map<int, std::vector<Stream>> m_streams;  // by GPU
};

// Whether each of these GPUs can read every other's memory; makes it so where it can be.
bool enable_peer_access(DeviceCalls& calls, std::vector<int> gpus);

Space instance_on(Stream stream);
Stream stream_of(Space const& space);  // null on host back ends
int gpu_of(Space const& space);        // -1 on host back ends

}  // namespace lockstep
