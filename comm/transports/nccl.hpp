// SPDX-License-Identifier: Apache-2.0
// Collectives over NCCL (RCCL has the same calls): our schedules as groups of ncclSend and ncclRecv with our reductions
// between them, and ncclAllReduce. Everything is enqueued on the devices' streams; the host waits for nothing.
#pragma once
#include "comm/device_runtime.hpp"
#include "comm/transports/plan.hpp"
#include "comm/transports/reduce.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::comm {

struct NcclId {
  char bytes[128];
};
using NcclComm = void*;

// The calls of NCCL that are made, under their names there. Results: 0 is success.
class NcclCalls {
 public:
  virtual ~NcclCalls()                                                         = default;
  virtual std::string text(int result)                                         = 0;
  virtual int version(int& code)                                               = 0;
  virtual int unique_id(NcclId& id)                                            = 0;
  virtual int init_all(NcclComm* comms, int count, int const* gpus)            = 0;
  virtual int init_rank(NcclComm& comm, int ranks, NcclId const& id, int rank) = 0;  // on the GPU in use
  virtual int group_start()                                                    = 0;
  virtual int group_end()                                                      = 0;
  virtual int send(void const* from, std::size_t count, Type type, int peer, NcclComm, Stream)     = 0;
  virtual int recv(void* to, std::size_t count, Type type, int peer, NcclComm, Stream)             = 0;
  virtual int allreduce(void const* from, void* to, std::size_t count, Type, Op, NcclComm, Stream) = 0;
  virtual int async_error(NcclComm comm, int& error)                                               = 0;
  virtual int abort(NcclComm comm)                                                                 = 0;
  virtual int destroy(NcclComm comm)                                                               = 0;
};

// Of the NCCL that this program was built with; null: without.
NcclCalls* nccl_calls();
// "2.22.3"; "none".
std::string nccl_version();
std::string nccl_version_text(int code);

// Where a process's devices are, and by which calls they are reached. Tests put a recorder here.
struct DeviceSetup {
  DeviceCalls* device = nullptr;  // null: parts of the host
  NcclCalls* nccl     = nullptr;  // null: not built with it
  // By local device.
  std::vector<int> gpus;
  std::vector<Stream> streams;
  // Enqueued on a local device's stream.
  std::function<void(int local, void* to, void const* from, std::int64_t bytes)> copy;
  std::function<void(int local, Type type, Op op, void* into, void const* from, std::int64_t count)> reduce;
};
DeviceSetup device_setup(std::vector<Space> const& spaces);

// Why NCCL cannot join ranks that use these GPUs, by rank and as "host, PCI address", empty where unknown; empty: it
// can. several_ranks: NCCL was told to accept ranks that share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1, since 2.30).
std::string nccl_obstacle(std::vector<std::string> const& gpu_of_rank, bool several_ranks);

class Nccl {
 public:
  // What it needs to know of the other processes.
  struct Job {
    int process = 0, processes = 1;
    std::function<void(NcclId&)> broadcast;  // process 0's value to all
    std::function<std::string(std::int64_t nanoseconds)>
        complaint;                                        // of a wait that long: who died, or is late; or none
    std::function<void(std::string const& message)> end;  // ends the job; called by the watching thread
    std::function<std::shared_ptr<void>()> blocking;      // lives while a call may wait for others
  };

  // Collective. Throws Error (environment) with NCCL's words.
  Nccl(DeviceSetup const& setup, std::vector<Space> const& spaces, Job job);
  // Aborts, instead of waiting for the others, while an exception unwinds this process.
  ~Nccl();
  Nccl(Nccl const&)            = delete;
  Nccl& operator=(Nccl const&) = delete;

  struct SchedulePlan {
    std::vector<Plan> of;  // by local device
    std::int64_t elements_sent = 0, messages_sent = 0, elements_reduced = 0;
  };
  SchedulePlan plan(Schedule const& schedule, std::int64_t count, Type type);
  // By local device. Enqueued.
  void run(SchedulePlan const& plan, Type type, Op op, std::int64_t count, std::vector<char*> const& inputs,
           std::vector<char*> const& outputs);
  void allreduce(Type type, Op op, std::int64_t count, std::vector<char*> const& inputs,
                 std::vector<char*> const& outputs);

 private:
  int rank(std::size_t d) const { return m_job.process * int(m_setup.gpus.size()) + int(d); }
  void check(int result, char const* call, int rank) const;
  void watch_next();
  void watch();
  std::string trouble();
  void abort();

  DeviceSetup m_setup;
  NcclCalls& m_calls;
  std::vector<Space> m_spaces;
  Job m_job;
  int m_exceptions = 0;
  std::vector<NcclComm> m_comms;
  std::vector<Buffer<char>> m_scratch, m_staging;

  // The watching thread follows one event a device, which is recorded behind the latest call.
  std::mutex m_mutex;
  std::vector<Event> m_events;
  std::int64_t m_calls_made = 0, m_call_watched = 0;
  bool m_pending = false;
  std::chrono::steady_clock::time_point m_since;
  std::atomic<bool> m_stop{false}, m_aborted{false};
  std::thread m_watcher;
};

}  // namespace lockstep::comm
