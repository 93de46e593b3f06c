// SPDX-License-Identifier: Apache-2.0
// The processes of the job and what passes between them beside the data: agreement, waiting with a deadline, who is to
// blame.
#pragma once
#include "comm/communicator.hpp"
#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#ifdef LOCKSTEP_HAVE_MPI
#include <mpi.h>
#endif

namespace lockstep::comm {

// What a process is doing, where the processes of its node can see it.
struct alignas(128) Status {
  std::atomic<std::int64_t> call{0};  // of the last collective entered, from 1; negative while it is being entered
  std::atomic<std::int64_t> step{0};  // of that collective; `finished` after it
  std::atomic<std::int64_t> beat{0};  // monotonic nanoseconds, renewed while waiting
  std::atomic<std::int64_t> pid{0};
  std::atomic<std::uint64_t> signature{0};
  std::atomic<int> spoken{0};                   // on the node's first process: somebody prints the last message
  char label[96]                         = {};  // of the collective
  char stage[40]                         = {};  // of the program, in its own words; may be empty
  static constexpr std::int64_t finished = INT64_MAX;
};

class World {
 public:
  World(CommunicatorOptions const& options, int local_size);
  ~World();
  World(World const&)            = delete;
  World& operator=(World const&) = delete;

  int process() const { return m_process; }
  int processes() const { return m_processes; }
  bool on_node(int process) const { return m_status[std::size_t(process)] != nullptr; }
  int processes_per_node() const { return m_processes_per_node; }  // 0 if nodes differ
  int cores() const { return m_cores; }                            // of this node, for its processes
  bool oversubscribed() const { return m_oversubscribed; }
  std::string ranks_of(int process) const;  // "rank 3", "ranks 4..5"

  // The stage of the program, and the collective, that waits report.
  void set_stage(std::string const& stage);
  void enter(char const* label, std::uint64_t signature);
  void at_step(std::int64_t step) { m_mine->step.store(step, std::memory_order_release); }
  void leave() { m_mine->step.store(Status::finished, std::memory_order_release); }
  std::int64_t call() const { return m_call; }

  // Polls done() until it is true, yielding; ends the job after the deadline. `peer` may be to blame if nobody else is
  // (-1: any).
  template <class Done>
  void wait(Done&& done, int peer) {
    if (done()) return;
    ScopedRegion const region("lockstep::comm::wait");
    for (int i = 0; i < m_spins; ++i) {
      if (done()) return;
      relax();
    }
    SlowWait slow(*this, peer);
    while (!done()) slow.pause();
  }

  // For calls that block inside a library: ends the job when the object is not destroyed within the deadline.
  class Blocking {
   public:
    explicit Blocking(World& world);
    ~Blocking() { m_world.m_blocked_since.store(m_outer); }

   private:
    World& m_world;
    std::int64_t m_outer = 0;  // when an enclosing one began
  };

  // False while an exception unwinds this process: the others may not come to free what only all can free.
  bool can_part() const { return std::uncaught_exceptions() <= m_exceptions; }

  // For threads that watch: what is to be said of a wait that long: who died, or that the deadline passed; empty: go
  // on.
  std::string complaint(std::int64_t nanoseconds) const;
  // Says it and ends this process, from any thread; the launcher ends the others.
  [[noreturn]] void end(std::string const& message) const;

  // Ends the job: throws in a world of one process; else prints and aborts all.
  [[noreturn]] void fail(ExitCode code, std::string const& message) const;

  // All processes' `bytes` bytes, in process order.
  void allgather(void const* mine, std::size_t bytes, void* all, char const* label, char const* detail = nullptr);
  // On process 0 all processes' texts, in process order; elsewhere nothing. Up to 2 GiB together.
  std::vector<std::string> gather(std::string const& mine);
  // Whether it is so on all processes.
  bool everywhere(bool mine, char const* label);
  void barrier(char const* label);

  struct Statement {
    std::uint64_t value;
    char text[104];
  };
  // Throws Error (wrong_result) on all processes unless all state the same value.
  void agree(std::string const& what, Statement const& mine);

#ifdef LOCKSTEP_HAVE_MPI
  void wait(MPI_Request* requests, int count, int peer);
  MPI_Comm comm() const {
    return m_comm;
  }
  void check(int code, char const* call) const {
    if (code != MPI_SUCCESS) mpi_failed(code, call);
  }
#endif
  // Memory of `bytes` bytes per process that the processes of the node share, its first MiB zeroed: bases by process,
  // null off the node. Empty where there is none to be had. Collective. Lives as long as this object, or until
  // released.
  struct Shared {
    std::vector<std::byte*> bases;
#ifdef LOCKSTEP_HAVE_MPI
    MPI_Win window = MPI_WIN_NULL;
#endif
  };
  Shared allocate_shared(std::int64_t bytes);
  void release_shared(Shared& shared);

 private:
  class SlowWait {
   public:
    SlowWait(World& world, int peer);
    ~SlowWait();
    void pause();

   private:
    void look_around(std::int64_t now);
    void hand_back_term();
    World& m_world;
    int m_peer;
    int m_rounds = 0;
    std::int64_t m_start, m_checked;
    bool m_handles_term         = false;
    struct sigaction m_previous = {};
  };

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  void mpi_failed(int code, char const* call) const;
  std::string blame(int peer, std::int64_t waited) const;
  std::vector<int> least_advanced() const;
  bool is_dead(int process) const;
  std::string state_of(int process) const;
  void assemble();
  void hold_neighbour();
  void release_neighbour();
  void leave_board();
  void check_same_executable();
  void check_signatures() const;
  void speak(std::string const& message) const;

  int m_process = 0, m_processes = 1, m_local_size = 1, m_processes_per_node = 1;
  int m_spins            = 0;
  int m_cores            = 1;
  bool m_oversubscribed  = false;
  bool m_sees_pids       = false;
  bool m_parting         = false;  // past the last call: who has ended need not have died
  std::int64_t m_timeout = 0;      // nanoseconds
  std::int64_t m_call    = 0;
  int m_exceptions       = 0;
  std::atomic<std::int64_t> m_blocked_since{0};
  Status m_own;  // where no memory is shared
  Status* m_mine = &m_own;
  std::vector<Status*> m_status;  // by process; null where not visible
  Shared m_board;
  std::unique_ptr<Status[]> m_last;  // the board as it was when it went
  int m_neighbour = 0;               // the process whose files m_held are copies of, see hold_neighbour()
  std::vector<int> m_held;
  std::atomic<bool> m_holds{false};  // set last: the watchdog looks
#ifdef LOCKSTEP_HAVE_MPI
  MPI_Comm m_comm = MPI_COMM_NULL, m_node = MPI_COMM_NULL;
#endif
  // Watches over Blocking; started by the first. The last member: it stops before what it looks at goes.
  struct Watchdog {
    std::mutex mutex;
    std::condition_variable wake;
    bool stopping = false;
    std::thread thread;
    bool nap();  // false: it is to stop
    void stop();
    ~Watchdog() { stop(); }
  } m_watchdog;
};

std::uint64_t hash_bytes(void const* data, std::size_t size, std::uint64_t start = 1469598103934665603ull);

}  // namespace lockstep::comm
