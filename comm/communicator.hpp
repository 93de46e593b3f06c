// SPDX-License-Identifier: Apache-2.0
// A world of devices: processes (MPI ranks, or one) x devices per process. Rank = process * local_size() + local index.
#pragma once
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

enum class Op { sum, max, min };

struct Traffic {  // of this process's devices, since construction
  std::int64_t bytes_sent = 0, messages_sent = 0, bytes_reduced = 0;
};

struct CommunicatorOptions {
  std::chrono::duration<double> timeout{
      60};                        // of any single wait; then Error (timeout) naming rank and step, on all ranks
  bool check_every_call = false;  // agree on (op, type, length, algorithm, sequence number) before every call
  // This process's devices are the world, also when MPI is initialised: what a run is compared with.
  bool alone = false;
  // Applied to every schedule before it is used; the verifier plants faults with it. Empty: schedules are used as made.
  std::function<void(Schedule&)> alter_schedule;
};

class Communicator {
 public:
  // One device per instance. Uses MPI when it is initialised (MPI_COMM_WORLD duplicated). Every process gives the same
  // number of instances.
  explicit Communicator(std::vector<Space> instances, CommunicatorOptions const& options = {});
  ~Communicator();
  Communicator(Communicator&&) noexcept;

  int size() const;  // world
  int processes() const;
  int process() const;
  int local_size() const;  // devices in this process
  int rank(int local) const { return process() * local_size() + local; }
  Space const& instance(int local) const;

  // In place, collective. buffers[i] belongs to local device i; all ranks' lengths agree. All ranks end with the same
  // bits. `algorithm` is a name from algorithm_names(). T: float, double, std::int64_t.
  template <class T>
  void allreduce(std::string_view algorithm, Op op, std::vector<Buffer<T>> const& buffers);

  // Copies rank 0's buffer to all.
  template <class T>
  void broadcast(std::vector<Buffer<T>> const& buffers);

  // Host values. agree: throws Error (wrong_result) naming the ranks whose value differs from rank 0's. one value per
  // process.
  void agree(std::string_view what, std::uint64_t value);
  // Every process gets all processes' values, in process order.
  std::vector<double> gather(double value);
  std::vector<std::uint64_t> gather(std::uint64_t value);
  void barrier();

  Traffic traffic() const;
  double seconds() const;  // host time spent in allreduce and broadcast

 private:
  struct Impl;
  std::unique_ptr<Impl> m_impl;
};

}  // namespace lockstep::comm
