// SPDX-License-Identifier: Apache-2.0
// Lifetime of MPI and Kokkos, and the facts of this run that reports print.
#pragma once
#include "kernels/error.hpp"
#include "kernels/types.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

class DeviceRuntime;

// Kokkos' OpenMP back end keeps its threads in an array of this length.
constexpr int most_threads = 512;

// Starts MPI (when built with it and started by a launcher, or alone) and Kokkos; ends both. Threads per process:
// --threads, else OMP_NUM_THREADS, else this node's cores (affinity mask) divided by its ranks, at least one. Built for
// GPUs, it takes this process's share of the node's; Error (timeout: no device) where there are none. A job whose
// processes do not all start MPI within `timeout` seconds is ended with one line and exit code 3.
class Runtime {
 public:
  explicit Runtime(int threads = 0, double timeout = 60);
  ~Runtime();
  Runtime(Runtime const&)            = delete;
  Runtime& operator=(Runtime const&) = delete;

  int process() const { return m_process; }
  int processes() const { return m_processes; }
  bool is_root() const { return m_process == 0; }
  // One execution-space instance per local device: on a stream of its GPU where there are GPUs. They, and what was
  // allocated on them, must go before this object.
  std::vector<Space> instances(int devices) const;
  // Which GPUs the first processes' devices take turns on, in words, on the root; empty elsewhere, and without GPUs.
  std::string const& gpus() const { return m_gpus; }

 private:
  int m_process = 0, m_processes = 1, m_node_rank = 0, m_node_processes = 1;
  std::unique_ptr<DeviceRuntime> m_devices;  // null without GPUs
  std::string m_gpus;
};

// Runs `body` with the runtime up. In a job of several processes an exception on one of them ends all: it is printed
// and the job aborted with its exit code; rank 0 goes first, so that what befalls all alike is printed once. Processes
// whose programs have other arguments are refused: Error (usage).
ExitCode with_runtime(int threads, std::function<ExitCode(Runtime const&)> const& body, double timeout = 60);

// This process's number in the job as its launcher says, before MPI is up; 0 without one.
int launcher_rank();

// "lockstep 0.1.0 (git hash)", Kokkos and MPI versions, back end, threads: `key : value` lines.
struct Fact {
  std::string key, value;
};
std::vector<Fact> build_facts();
// Host, cores and affinity, processes, threads; of the environment's variables those of recorded_variables() that are
// set, and no others.
std::vector<Fact> environment_facts(Runtime const& runtime);
std::vector<char const*> recorded_variables();

}  // namespace lockstep
