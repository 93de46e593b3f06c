// SPDX-License-Identifier: Apache-2.0
// A world of devices: processes (MPI ranks, or one) x devices per process. Rank = process * local_size() + local index.
#pragma once
#include "comm/device_graph.hpp"
#include "comm/schedule.hpp"
#include "kernels/types.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

// NaN rule, for all transports of our own: where an operand is NaN, or a sum is Inf - Inf, the result is the positive
// quiet NaN without payload, for max and min too. max(-0, +0) is +0, min is -0. Operations are so commutative bit for
// bit. Sums of int64 wrap. `mpi` and `nccl` follow those libraries' rules.
enum class Op { sum, max, min };

struct Traffic {  // of this process's devices, since construction; what a peer reads in shared memory counts as sent
  std::int64_t bytes_sent = 0, messages_sent = 0, bytes_reduced = 0;
};

// How processes exchange data. Devices of one process always use each other's memory.
enum class Transport {
  automatic,      // on GPUs nccl between processes, where it can be; else shared_memory where it works, else messages
  messages,       // MPI point to point
  shared_memory,  // a window that the processes of a node read each other's data in; messages between nodes
  nccl            // NCCL's send and receive between all GPUs; else messages, see notes()
};

struct DeviceSetup;

struct CommunicatorOptions {
  // Of any single wait. Then the whole job ends with exit code 3 and a message naming rank and step.
  std::chrono::duration<double> timeout{60};
  bool check_every_call          = false;  // agree on (op, type, length, algorithm, sequence number) before every call
  Transport transport            = Transport::automatic;
  bool host_staging              = false;  // messages pass through host memory even where MPI could read the device's
  std::int64_t max_message_bytes = std::int64_t(1) << 30;  // longer messages are split
  int processes_per_node =
      0;  // 0: as MPI says; else nodes are runs of that many processes (to try several on one machine)
  // Where the devices are; null: as the instances say. Tests put a recorder of calls here.
  std::shared_ptr<DeviceSetup const> devices;
  // This process's devices are the world, also when MPI is initialised: what a run is compared with.
  bool alone = false;
  // Applied to every schedule before it is used: the verifier plants faults with it, a study exchanges one for a
  // schedule that is not registered. Empty: schedules are used as made.
  std::function<void(Schedule&)> alter_schedule;
};

// `auto`: vectors of up to `bytes` are summed with `algorithm`; the last entry also serves longer ones.
struct Choice {
  std::int64_t bytes;
  std::string algorithm;
};

class Communicator {
 public:
  // One device per instance. Uses MPI when it is initialised (MPI_COMM_WORLD duplicated). Every process gives the same
  // number of instances and runs the same executable; else Error (wrong_result) naming the processes that differ.
  explicit Communicator(std::vector<Space> instances, CommunicatorOptions const& options = {});
  ~Communicator();
  Communicator(Communicator&&) noexcept;

  int size() const;  // world
  int processes() const;
  int process() const;
  int local_size() const;  // devices in this process
  int rank(int local) const { return process() * local_size() + local; }
  Space const& instance(int local) const;
  int ranks_per_node() const;  // 0 if nodes differ

  // What allreduce accepts here: algorithm_names(); `fused` where all ranks share one memory (one pass: every rank sums
  // its part of all vectors, from rank 0 up, and writes it to all); `mpi` (MPI_Allreduce) among several processes;
  // `nccl` (ncclAllReduce) among several GPUs.
  std::vector<std::string> algorithms() const;
  int usable_cores()
      const;  // of this node, by all its processes together; for devices of one process: 1, they take turns
  bool oversubscribed() const;  // more processes than cores
  // "in-process", "messages", "shared memory", "NCCL" ...
  std::string transport() const;
  std::string notes() const;  // what was found on the way to it, for people; may be empty

  // Collective. buffers[i] belongs to local device i; all ranks' lengths agree. All ranks end with the same bits.
  // `algorithm` is one of algorithms(), or `auto`. T: float, double, std::int64_t. What ranks must agree on is compared
  // at the first use of a (algorithm, op, T, length): Error (wrong_result) naming the ranks that differ.
  template <class T>
  void allreduce(std::string_view algorithm, Op op, std::vector<Buffer<T>> const& buffers);
  // Out of place; inputs stay as they are. An input may be its output, but must not overlap it in part.
  template <class T>
  void allreduce(std::string_view algorithm, Op op, std::vector<Buffer<T>> const& inputs,
                 std::vector<Buffer<T>> const& outputs);

  // Makes and agrees on what a first allreduce of this kind would. Collective.
  template <class T>
  void prepare(std::string_view algorithm, Op op, std::int64_t count);
  // Whether a thread other than the one that uses Kokkos may call, taking turns: kernels run on the host, and MPI is
  // initialised with MPI_THREAD_SERIALIZED or more on all processes. Such a thread makes only calls that are prepared,
  // and is a side thread (kokkos_compat.hpp). Collective.
  bool serves_side_threads();

  // Why calls with this algorithm cannot be a part of a graph of the devices' work; empty: they can, once they are
  // prepared. A graph that has them is stale when a call that was not prepared is made.
  std::string graph_obstacle(std::string_view algorithm) const;
  // For the streams of this process's devices, where there is no obstacle.
  std::unique_ptr<DeviceGraph> make_graph() const;

  // What the algorithm `auto` stands for, by length; see choose.hpp. Throws Error (wrong_result) unless all ranks give
  // the same, (usage) for an algorithm that is not one of algorithms(). Collective.
  void set_choices(std::vector<Choice> choices);

  // A buffer for each local device, in memory that the ranks of the node read and write in place if the transport has
  // such: spares allreduce a copy into it. Valid until the communicator's end. Collective; contents undefined.
  template <class T>
  std::vector<Buffer<T>> allocate(std::string const& label, std::int64_t count);

  // Addresses here of all ranks' buffers of one allocate, by rank; empty unless all share one memory.
  template <class T>
  std::vector<T*> everywhere(std::vector<Buffer<T>> const& buffers) const;

  // Collective. On process 0 all processes' texts, in process order; elsewhere nothing. Up to 2 GiB together.
  std::vector<std::string> gather(std::string const& text);

  // What the program is at, such as "training step 7", for the messages about ranks that died or stall; up to 39
  // characters. Not while another thread calls.
  void set_stage(std::string const& stage);

  // Copies rank 0's buffer to all.
  template <class T>
  void broadcast(std::vector<Buffer<T>> const& buffers);

  // What probes of the machine time. One step: every rank adds half of its neighbour's vector to its own. Leaves its
  // sums in the buffers.
  void exchange(std::vector<Buffer<float>> const& buffers);

  // Collective, of host values, one per process. Throws Error (wrong_result) naming the ranks whose value is not what
  // most have; up to 103 characters of it are shown.
  void agree(std::string_view what, std::string const& value);
  // Every process gets all processes' values, in process order.
  std::vector<double> gather(double value);
  std::vector<std::uint64_t> gather(std::uint64_t value);
  void barrier();
  // Waits for what was enqueued on this process's devices: on GPUs calls within a process, and NCCL's, are left on
  // their streams.
  void fence() const;
  // After a barrier: returns at nearly the same moment everywhere, where ranks share a memory.
  void align();

  Traffic traffic() const;
  double seconds() const;  // host time spent in allreduce and broadcast

 private:
  struct Impl;
  std::unique_ptr<Impl> m_impl;
};

}  // namespace lockstep::comm
