// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/world.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <new>

namespace lockstep::comm {
namespace {

std::int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

constexpr std::int64_t millisecond = 1000000;

// Launchers answer the death of one process with SIGTERM for the others. A process that waits takes it as a hint to
// name the dead one first.
std::atomic<int> g_terminated{0};
void on_terminate(int) {
  g_terminated = 1;
}

// The socket between this process and its launcher, where that is MPICH's (Hydra) or speaks like it; else -1.
int launcher_connection() {
  static int const connection = [] {
    char const* const number = std::getenv("PMI_FD");
    return number ? std::atoi(number) : -1;
  }();
  return connection;
}

// For a process that leaves without MPI's help: the launcher hears of it whoever holds copies of the connection.
void hang_up() {
  if (int const connection = launcher_connection(); connection >= 0) shutdown(connection, SHUT_RDWR);
}

// Of this program's file, so that processes of different builds do not work together.
std::uint64_t executable_hash() {
  static std::uint64_t const value = [] {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    std::vector<char> block(1 << 20);
    std::uint64_t hash = 0;
    while (file.read(block.data(), std::streamsize(block.size())) || file.gcount() > 0) {
      hash = hash_bytes(block.data(), std::size_t(file.gcount()), hash);
      if (!file) break;
    }
    return hash;
  }();
  return value;
}

}  // namespace

std::uint64_t hash_bytes(void const* data, std::size_t size, std::uint64_t hash) {
  auto const* bytes = static_cast<unsigned char const*>(data);
  for (; size >= 8; size -= 8, bytes += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  for (; size > 0; --size, ++bytes) hash = (hash ^ *bytes) * 1099511628211ull;
  return hash;
}

World::World(CommunicatorOptions const& options, int local_size) : m_local_size(local_size) {
  m_timeout    = std::int64_t(options.timeout.count() * 1e9);
  m_exceptions = std::uncaught_exceptions();
  m_status.assign(1, &m_own);
#ifdef LOCKSTEP_HAVE_MPI
  int initialized = 0, finalized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  check(MPI_Finalized(&finalized), "MPI_Finalized");
  if (initialized && !finalized && !options.alone) {
    check(MPI_Comm_rank(MPI_COMM_WORLD, &m_process), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &m_processes), "MPI_Comm_size");
  }
  if (m_processes == 1) return;
  m_status.assign(std::size_t(m_processes), nullptr);
  m_status[std::size_t(m_process)] = &m_own;
  assemble();

  int size = 0, first = m_process;
  {
    Blocking const deadline(*this);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &m_comm), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(m_comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");

    check(MPI_Comm_split_type(m_comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &m_node), "MPI_Comm_split_type");
    if (options.processes_per_node > 0) {
      MPI_Comm part = MPI_COMM_NULL;
      check(MPI_Comm_split(m_node, m_process / options.processes_per_node, 0, &part), "MPI_Comm_split");
      check(MPI_Comm_free(&m_node), "MPI_Comm_free");
      m_node = part;
    }
    check(MPI_Comm_set_errhandler(m_node, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");

    m_board = allocate_shared(sizeof(Status));
    check(MPI_Comm_size(m_node, &size), "MPI_Comm_size");
    check(MPI_Bcast(&first, 1, MPI_INT, 0, m_node), "MPI_Bcast");
  }
  m_watchdog.stop();  // it looks at what changes now
  if (!m_board.bases.empty()) {
    m_mine = new (m_board.bases[std::size_t(m_process)]) Status;
    m_mine->pid.store(getpid());
    m_mine->beat.store(now_ns());
    for (std::size_t p = 0; p < m_board.bases.size(); ++p) m_status[p] = reinterpret_cast<Status*>(m_board.bases[p]);
  }

  struct NodeFacts {
    int size, first;
    cpu_set_t cores;
  };
  NodeFacts mine{size, first, {}};
  CPU_ZERO(&mine.cores);
  if (sched_getaffinity(0, sizeof mine.cores, &mine.cores) != 0) CPU_SET(0, &mine.cores);
  std::vector<NodeFacts> all(std::size_t(m_processes), mine);
  allgather(&mine, sizeof mine, all.data(), "start");
  cpu_set_t cores;
  CPU_ZERO(&cores);
  m_processes_per_node = size;
  for (int p = 0; p < m_processes; ++p) {
    auto const& other = all[std::size_t(p)];
    if (other.size != size || other.first != p / size * size) m_processes_per_node = 0;
    if (other.first == first) CPU_OR(&cores, &cores, &other.cores);
  }
  m_cores          = CPU_COUNT(&cores);
  m_oversubscribed = size > m_cores;
  m_spins          = m_oversubscribed ? 1 : 2000;

  // Only where process numbers mean the same to all of the node (not one container each) can the dead be told.
  m_sees_pids = !m_board.bases.empty();
  for (auto const* status : m_status)
    if (status && kill(pid_t(status->pid.load()), 0) != 0 && errno != EPERM) m_sees_pids = false;
  Blocking const deadline(*this);
  hold_neighbour();
  check_same_executable();
#endif
}

#ifdef LOCKSTEP_HAVE_MPI
void World::wait(MPI_Request* requests, int count, int peer) {
  wait(
      [&] {
        int done = 0;
        check(MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
        return done != 0;
      },
      peer);
}

// All processes report to the first, which answers when all have: it can so name those that do not come. Before there
// is a communicator or memory of our own.
void World::assemble() {
  constexpr int tag = 0x10c5;
  std::strncpy(m_mine->label, "start", sizeof m_mine->label - 1);
  int const others = m_process == 0 ? m_processes - 1 : 1;
  std::vector<MPI_Request> requests(static_cast<std::size_t>(others));
  auto const exchange = [&](bool receive) {
    for (int i = 0; i < others; ++i) {
      int const peer = m_process == 0 ? i + 1 : 0;
      auto* request  = &requests[std::size_t(i)];
      if (receive)
        check(MPI_Irecv(nullptr, 0, MPI_BYTE, peer, tag, MPI_COMM_WORLD, request), "MPI_Irecv");
      else
        check(MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag, MPI_COMM_WORLD, request), "MPI_Isend");
    }
    for (int i = 0; i < others; ++i) wait(&requests[std::size_t(i)], 1, m_process == 0 ? i + 1 : 0);
  };
  std::int64_t const timeout = m_timeout;
  if (m_process != 0) m_timeout += 1000 * millisecond;  // the first process knows better who is missing
  exchange(m_process == 0);
  exchange(m_process != 0);
  m_timeout = timeout;
}

// Hydra sends all processes SIGKILL as soon as one's connection or output closes, before any can say who died. So the
// next process of the node holds a copy of both: Hydra then hears of a death from those who name the dead, or when the
// deadline has passed. It also looks when any process prints, which may be sooner. Other launchers are left alone.
void World::hold_neighbour() {
  if (launcher_connection() < 0) return;
  struct Place {
    int process;
    socklen_t size;
    sockaddr_un address;
  } mine{m_process, sizeof mine.address, {}};
  int const channel          = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  auto* const address        = reinterpret_cast<sockaddr*>(&mine.address);
  mine.address.sun_family    = AF_UNIX;
  constexpr auto any_address = socklen_t(sizeof mine.address.sun_family);  // the system chooses one that is free
  if (bind(channel, address, any_address) != 0 || getsockname(channel, address, &mine.size) != 0) mine.size = 0;

  int rank = 0, size = 0;
  check(MPI_Comm_rank(m_node, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(m_node, &size), "MPI_Comm_size");
  std::vector<Place> places(static_cast<std::size_t>(size));
  check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, places.data(), sizeof mine, MPI_BYTE, m_node), "MPI_Allgather");
  auto& next     = places[std::size_t((rank + 1) % size)];
  m_neighbour    = places[std::size_t((rank + size - 1) % size)].process;
  char byte      = 0;
  iovec content  = {&byte, 1};
  msghdr message = {};
  std::array<int, 4> copies{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof copies)> control{};
  message.msg_iov     = &content;
  message.msg_iovlen  = 1;
  message.msg_control = control.data();
  std::size_t count   = 0;
  for (int const file : {launcher_connection(), 0, 1, 2})
    if (fcntl(file, F_GETFD) >= 0) copies[count++] = file;
  if (next.size > 0 && count > 0) {
    message.msg_name       = &next.address;
    message.msg_namelen    = next.size;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const header  = CMSG_FIRSTHDR(&message);
    header->cmsg_level     = SOL_SOCKET;
    header->cmsg_type      = SCM_RIGHTS;
    header->cmsg_len       = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), copies.data(), count * sizeof(int));
    sendmsg(channel, &message, MSG_NOSIGNAL);
  }
  check(MPI_Barrier(m_node), "MPI_Barrier");  // all are sent

  message.msg_name       = nullptr;
  message.msg_namelen    = 0;
  message.msg_controllen = control.size();
  if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) > 0) {
    if (cmsghdr* const header = CMSG_FIRSTHDR(&message); header && header->cmsg_type == SCM_RIGHTS) {
      m_held.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(m_held.data(), CMSG_DATA(header), m_held.size() * sizeof(int));
    }
  }
  close(channel);
  if (!m_sees_pids || size == 1) release_neighbour();
  m_holds = !m_held.empty();
}
#endif

void World::release_neighbour() {
  for (int const file : m_held) close(file);
  m_held.clear();
  m_holds = false;
}

World::~World() {
  m_watchdog.stop();
#ifdef LOCKSTEP_HAVE_MPI
  if (m_comm == MPI_COMM_NULL) return;
  if (!can_part()) {
    release_neighbour();
    return;
  }
  barrier("end");
  release_neighbour();
  leave_board();
  Blocking const deadline(*this);
  release_shared(m_board);
  MPI_Comm_free(&m_node);
  MPI_Comm_free(&m_comm);
#endif
}

// Before the board goes: what is then said of ranks that do not come to free it is from here. Who has ended by now need
// not have died.
void World::leave_board() {
  m_last.reset(new Status[std::size_t(m_processes)]);
  for (int p = 0; p < m_processes; ++p) {
    auto*& status = m_status[std::size_t(p)];
    if (!status) continue;
    auto& last = m_last[std::size_t(p)];
    last.call  = m_call;  // which all have come to
    last.step  = Status::finished;
    last.beat  = status->beat.load();
    last.pid   = status->pid.load();
    std::memcpy(last.label, status->label, sizeof last.label - 1);
    std::memcpy(last.stage, status->stage, sizeof last.stage - 1);
    status = &last;
  }
  m_mine    = m_status[std::size_t(m_process)];
  m_parting = true;
}

bool World::Watchdog::nap() {
  std::unique_lock<std::mutex> lock(mutex);
  return !wake.wait_for(lock, std::chrono::milliseconds(20), [&] { return stopping; });
}

void World::Watchdog::stop() {
  if (!thread.joinable()) return;
  {
    std::lock_guard<std::mutex> const lock(mutex);
    stopping = true;
  }
  wake.notify_one();
  thread.join();
}

World::Blocking::Blocking(World& world) : m_world(world) {
  if (auto& watchdog = world.m_watchdog; !watchdog.thread.joinable()) {
    watchdog.stopping = false;
    watchdog.thread   = std::thread([&world] {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
      std::int64_t neighbour_seen = now_ns();
      while (world.m_watchdog.nap()) {
        // Nobody waited for the dead neighbour: the launcher is to end the job.
        if (std::int64_t const silent = now_ns() - neighbour_seen; world.m_holds && silent > 500 * millisecond) {
          if (!world.is_dead(world.m_neighbour))
            neighbour_seen = now_ns();
          else if (silent > world.m_timeout)
            world.release_neighbour();
        }
        std::int64_t const since = world.m_blocked_since.load(std::memory_order_acquire);
        if (since == 0) continue;
        if (std::string const message = world.complaint(now_ns() - since); !message.empty()) world.end(message);
      }
    });
  }
  m_outer = world.m_blocked_since.exchange(now_ns());
}

std::string World::complaint(std::int64_t waited) const {
  m_mine->beat.store(now_ns(), std::memory_order_relaxed);
  for (int p : least_advanced())
    if (is_dead(p)) return ranks_of(p) + " died: " + blame(p, waited);
  return waited > m_timeout ? "deadline passed: " + blame(-1, waited) : "";
}

// MPI may be called by the thread that is blocked only.
void World::end(std::string const& message) const {
  speak(message);
  hang_up();
  _exit(int(ExitCode::timeout));
}

std::string World::ranks_of(int process) const {
  int const first = process * m_local_size;
  if (m_local_size == 1) return "rank " + std::to_string(first);
  return "ranks " + std::to_string(first) + ".." + std::to_string(first + m_local_size - 1);
}

void World::set_stage(std::string const& stage) {
  std::strncpy(m_mine->stage, stage.c_str(), sizeof m_mine->stage - 1);
}

void World::enter(char const* label, std::uint64_t signature) {
  // Negative while signature and label change.
  m_mine->call.store(-++m_call, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  m_mine->signature.store(signature, std::memory_order_relaxed);
  std::strncpy(m_mine->label, label, sizeof m_mine->label - 1);
  m_mine->step.store(0, std::memory_order_relaxed);
  m_mine->call.store(m_call, std::memory_order_release);
}

// One process of a node prints; the others give it time.
void World::speak(std::string const& message) const {
  Status* speaker = nullptr;
  for (auto* status : m_status)
    if (status && !speaker) speaker = status;
  if (speaker->spoken.fetch_add(1) == 0) {
    std::cout.flush();
    std::fflush(stdout);
    std::fprintf(stderr, "lockstep: %s\n", message.c_str());
    std::fflush(stderr);
  } else {
    sleep(1);
  }
}

void World::fail(ExitCode code, std::string const& message) const {
  if (m_processes == 1) throw Error(code, message);
#ifdef LOCKSTEP_HAVE_MPI
  speak(message);
  // The library's own way to end may hang as well, and does when the launcher is ending the job already.
  if (g_terminated) _exit(int(code));
  if (launcher_connection() >= 0) {  // Hydra drops what it has not passed on when a process aborts
    timespec const nap{0, 200 * millisecond};
    nanosleep(&nap, nullptr);
  }
  std::signal(SIGALRM, [](int) {
    hang_up();
    std::signal(SIGALRM, SIG_DFL);
    raise(SIGALRM);
  });
  alarm(1);
  MPI_Abort(MPI_COMM_WORLD, int(code));
#endif
  _exit(int(code));
}

std::vector<int> World::least_advanced() const {
  std::vector<int> found;
  std::int64_t call = INT64_MAX, step = INT64_MAX;
  for (int p = 0; p < m_processes; ++p) {
    auto const* status = m_status[std::size_t(p)];
    if (!status) continue;
    std::int64_t const c = std::abs(status->call.load(std::memory_order_acquire)),
                       s = status->step.load(std::memory_order_acquire);
    if (c < call || (c == call && s < step)) {
      call = c;
      step = s;
      found.clear();
    }
    if (c == call && s == step) found.push_back(p);
  }
  return found;
}

// The character that the system gives a process's state: R, S, T (stopped), Z (dead, not yet collected); 0: no such
// process.
static char process_state(std::int64_t pid) {
  if (kill(pid_t(pid), 0) != 0 && errno == ESRCH) return 0;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return '?';
  auto const name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
}

bool World::is_dead(int process) const {
  if (m_parting || !m_sees_pids || process == m_process || !on_node(process)) return false;
  char const state = process_state(m_status[std::size_t(process)]->pid.load());
  return state == 0 || state == 'Z' || state == 'X';
}

std::string World::state_of(int process) const {
  auto const* status = m_status[std::size_t(process)];
  if (!status) return "";
  std::string const pid = "process " + std::to_string(status->pid.load());
  if (!m_sees_pids) return pid;
  char const state = process_state(status->pid.load());
  if (state == 0 || state == 'Z' || state == 'X') return pid + (m_parting ? " has ended" : " is dead");
  if (state == 'T' || state == 't') return pid + " is stopped";
  return pid + " is alive";
}

std::string World::blame(int peer, std::int64_t waited) const {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g s", double(waited) * 1e-9);
  auto const place = [](Status const& status) {
    std::int64_t const step = status.step.load();
    std::string const what =
        std::string("'") + status.label + "', call " + std::to_string(std::abs(status.call.load()));
    std::string const stage = status.stage[0] ? std::string(" of ") + status.stage : "";
    return (step == Status::finished ? "after " + what : "in " + what + ", step " + std::to_string(step)) + stage;
  };
  auto suspects = least_advanced();
  std::vector<int> stopped, stale;
  for (int p : suspects)
    if (m_sees_pids && p != m_process)
      if (char const state = process_state(m_status[std::size_t(p)]->pid.load()); state == 'T' || state == 't')
        stopped.push_back(p);
  if (!stopped.empty()) suspects = stopped;
  for (int p : suspects)
    if (p != m_process && now_ns() - m_status[std::size_t(p)]->beat.load() > std::max(waited / 2, 100 * millisecond))
      stale.push_back(p);
  if (!stale.empty()) suspects = stale;
  suspects.erase(std::remove(suspects.begin(), suspects.end(), m_process), suspects.end());
  if (suspects.empty() && peer >= 0) suspects.push_back(peer);

  std::string message = ranks_of(m_process) + " waited " + seconds + " " + place(*m_mine) + ", for ";
  if (m_processes == 1) return message + "its own devices";
  if (suspects.empty()) return message + "ranks of other nodes";
  for (std::size_t i = 0; i < suspects.size(); ++i) {
    int const p = suspects[i];
    message += (i ? "; " : "") + ranks_of(p);
    if (auto const* status = m_status[std::size_t(p)])
      message += " (last seen " + place(*status) + "; " + state_of(p) + ")";
  }
  return message;
}

// Processes in the same call with different arguments would wait for each other for ever.
void World::check_signatures() const {
  std::map<std::uint64_t, std::vector<int>> calls;
  for (int p = 0; p < m_processes; ++p) {
    auto const* status = m_status[std::size_t(p)];
    if (!status || status->call.load(std::memory_order_acquire) != m_call) continue;
    std::uint64_t const signature = status->signature.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (status->call.load(std::memory_order_relaxed) == m_call) calls[signature].push_back(p);
  }
  if (calls.size() < 2) return;
  auto const usual    = std::max_element(calls.begin(), calls.end(),
                                         [](auto const& a, auto const& b) { return a.second.size() < b.second.size(); });
  std::string message = "call " + std::to_string(m_call) + " differs between ranks: ";
  for (auto const& [signature, where] : calls) {
    if (signature == usual->first) continue;
    for (int p : where) message += ranks_of(p) + " is in '" + m_status[std::size_t(p)]->label + "', ";
  }
  fail(ExitCode::wrong_result, message + "expected '" + m_status[std::size_t(usual->second[0])]->label + "' as on " +
                                   ranks_of(usual->second[0]));
}

World::SlowWait::SlowWait(World& world, int peer)
    : m_world(world), m_peer(peer), m_start(now_ns()), m_checked(m_start) {}

World::SlowWait::~SlowWait() {
  if (m_handles_term) hand_back_term();
}

// What came in the meantime goes to whom it would have gone.
void World::SlowWait::hand_back_term() {
  sigaction(SIGTERM, &m_previous, nullptr);
  m_handles_term = false;
  if (g_terminated.exchange(0)) raise(SIGTERM);
}

void World::SlowWait::pause() {
  ++m_rounds;
  if (m_rounds < 1000) {
    sched_yield();
  } else {
    timespec const nap{0, m_rounds < 4000 ? 20000 : 200000};
    nanosleep(&nap, nullptr);
  }
  if (m_rounds % 16 == 0)
    if (std::int64_t const now = now_ns(); now - m_checked > 2 * millisecond) look_around(now);
}

void World::SlowWait::look_around(std::int64_t now) {
  m_checked   = now;
  auto& world = m_world;
  world.m_mine->beat.store(now, std::memory_order_relaxed);
  if (world.m_processes == 1) return;
  if (!m_handles_term) {
    struct sigaction action = {};
    action.sa_handler       = on_terminate;
    m_handles_term          = sigaction(SIGTERM, &action, &m_previous) == 0;
  }
  auto const fail_if_dead = [&](int p) {
    if (world.is_dead(p)) world.fail(ExitCode::timeout, world.ranks_of(p) + " died: " + world.blame(p, now - m_start));
  };
  if (g_terminated) {
    for (int p = 0; p < world.m_processes; ++p) fail_if_dead(p);
    hand_back_term();
    return;
  }
  auto const suspects = world.least_advanced();
  for (std::size_t i = 0; i < std::min<std::size_t>(4, suspects.size()); ++i)
    fail_if_dead(suspects[(std::size_t(m_rounds) / 16 + i) % suspects.size()]);

  if (now - m_start > 20 * millisecond) world.check_signatures();
  if (now - m_start > world.m_timeout)
    world.fail(ExitCode::timeout, "deadline passed: " + world.blame(m_peer, now - m_start));
}

void World::allgather(void const* mine, std::size_t bytes, void* all, char const* label, char const* detail) {
  if (m_processes == 1) {
    std::memcpy(all, mine, bytes);
    return;
  }
#ifdef LOCKSTEP_HAVE_MPI
  enter((label + std::string(detail ? " on " : "") + (detail ? detail : "")).c_str(),
        hash_bytes(label, std::strlen(label)));
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(mine, int(bytes), MPI_BYTE, all, int(bytes), MPI_BYTE, m_comm, &request), "MPI_Iallgather");
  wait(&request, 1, -1);
  leave();
#else
  (void)label;
  (void)detail;
#endif
}

std::vector<std::string> World::gather(std::string const& mine) {
  std::vector<std::string> texts{mine};
#ifdef LOCKSTEP_HAVE_MPI
  if (m_processes == 1) return texts;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(m_processes));
  auto const size = std::int64_t(mine.size());
  allgather(&size, sizeof size, sizes.data(), "gather");
  std::vector<int> counts, places;
  std::int64_t total = 0;
  for (std::int64_t const other : sizes) {
    LOCKSTEP_THROW_IF(total + other > std::numeric_limits<int>::max(), ExitCode::environment,
                      "texts of all processes have more than " + std::to_string(std::numeric_limits<int>::max()) +
                          " bytes; expected less: record fewer steps");
    counts.push_back(int(other));
    places.push_back(int(total));
    total += other;
  }
  std::string all(m_process == 0 ? std::size_t(total) : 0, ' ');
  enter("gather", hash_bytes("gather", 6));
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Igatherv(mine.data(), int(size), MPI_CHAR, all.data(), counts.data(), places.data(), MPI_CHAR, 0, m_comm,
                     &request),
        "MPI_Igatherv");
  wait(&request, 1, 0);
  leave();
  texts.clear();
  if (m_process == 0)
    for (std::size_t p = 0; p < counts.size(); ++p)
      texts.push_back(all.substr(std::size_t(places[p]), std::size_t(counts[p])));
#endif
  return texts;
}

bool World::everywhere(bool mine, char const* label) {
  std::vector<char> all(static_cast<std::size_t>(m_processes));
  char const value = mine ? 1 : 0;
  allgather(&value, sizeof value, all.data(), label);
  return std::count(all.begin(), all.end(), char(0)) == 0;
}

void World::barrier(char const* label) {
  if (m_processes == 1) return;
#ifdef LOCKSTEP_HAVE_MPI
  enter(label, hash_bytes(label, std::strlen(label)));
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(m_comm, &request), "MPI_Ibarrier");
  wait(&request, 1, -1);
  leave();
#else
  (void)label;
#endif
}

void World::agree(std::string const& what, Statement const& mine) {
  if (m_processes == 1) return;
  std::vector<Statement> all(static_cast<std::size_t>(m_processes));
  allgather(&mine, sizeof mine, all.data(), "agreement", mine.text);
  // The right value is the one that most state; of several, the lowest rank's.
  std::map<std::uint64_t, int> votes;
  for (auto const& statement : all) ++votes[statement.value];
  if (votes.size() == 1) return;
  Statement const* right = &all[0];
  for (auto const& statement : all)
    if (votes[statement.value] > votes[right->value]) right = &statement;
  std::string message = what + " differs between ranks: ";
  bool first          = true;
  for (int p = 0; p < m_processes; ++p) {
    if (all[std::size_t(p)].value == right->value) continue;
    message += (first ? "" : ", ") + ranks_of(p) + " has '" + all[std::size_t(p)].text + "'";
    first = false;
  }
  throw Error(ExitCode::wrong_result, message + "; expected '" + right->text + "' as on the others");
}

void World::check_same_executable() {
  Statement mine{executable_hash(), {}};
  std::snprintf(mine.text, sizeof mine.text, "executable %016llx, %d devices",
                static_cast<unsigned long long>(mine.value), m_local_size);
  mine.value += std::uint64_t(m_local_size);
  agree("the program", mine);
}

World::Shared World::allocate_shared(std::int64_t bytes) {
  Shared shared;
#ifdef LOCKSTEP_HAVE_MPI
  if (m_processes == 1) return shared;
  Blocking const deadline(*this);
  // MPI aligns a process's part for no more than a word; the same offset is aligned for all, who map whole pages.
  constexpr std::uintptr_t alignment = alignof(Status);
  bytes += alignment;
  void* base     = nullptr;
  int const code = MPI_Win_allocate_shared(MPI_Aint(bytes), 1, MPI_INFO_NULL, m_node, &base, &shared.window);
  // All processes of the world must know whether it worked for all.
  int failed = code != MPI_SUCCESS;
  check(MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, m_comm), "MPI_Allreduce");
  if (failed) {
    if (code == MPI_SUCCESS) check(MPI_Win_free(&shared.window), "MPI_Win_free");
    shared.window = MPI_WIN_NULL;
    return shared;
  }
  std::memset(base, 0, std::size_t(std::min<std::int64_t>(bytes, 1 << 20)));
  shared.bases.assign(std::size_t(m_processes), nullptr);
  int size = 0;
  check(MPI_Comm_size(m_node, &size), "MPI_Comm_size");
  std::vector<int> members(static_cast<std::size_t>(size));
  check(MPI_Allgather(&m_process, 1, MPI_INT, members.data(), 1, MPI_INT, m_node), "MPI_Allgather");
  for (int i = 0; i < size; ++i) {
    MPI_Aint length = 0;
    int unit        = 0;
    void* address   = nullptr;
    check(MPI_Win_shared_query(shared.window, i, &length, &unit, &address), "MPI_Win_shared_query");
    std::uintptr_t const start = (reinterpret_cast<std::uintptr_t>(address) + alignment - 1) / alignment * alignment;
    shared.bases[std::size_t(members[std::size_t(i)])] = reinterpret_cast<std::byte*>(start);
  }
  check(MPI_Barrier(m_node), "MPI_Barrier");
#else
  (void)bytes;
#endif
  return shared;
}

void World::release_shared(Shared& shared) {
#ifdef LOCKSTEP_HAVE_MPI
  if (shared.window != MPI_WIN_NULL) {
    Blocking const deadline(*this);
    check(MPI_Win_free(&shared.window), "MPI_Win_free");
  }
#endif
  shared.bases.clear();
}

#ifdef LOCKSTEP_HAVE_MPI
void World::mpi_failed(int code, char const* call) const {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ExitCode::environment, ranks_of(m_process) + ": " + call + ": " + std::string(text, std::size_t(length)));
}
#endif

}  // namespace lockstep::comm
