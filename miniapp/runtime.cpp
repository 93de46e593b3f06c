// SPDX-License-Identifier: Apache-2.0
#include "miniapp/runtime.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <thread>

#include "comm/device_runtime.hpp"
#include "comm/transports/nccl.hpp"
#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"
#include "miniapp/version.hpp"

#ifdef LOCKSTEP_HAVE_MPI
#include <mpi.h>
#endif

namespace lockstep {
namespace {

// What the launchers of Open MPI, MPICH and Slurm say of the number of processes they started; 0 if none did.
int launched_processes() {
  for (char const* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (char const* value = std::getenv(name)) return std::atoi(value);
  return 0;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
}

// The cores of the affinity mask, "0-3,8".
std::string affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "unknown";
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &set)) continue;
    int const first = core;
    while (core + 1 < CPU_SETSIZE && CPU_ISSET(core + 1, &set)) ++core;
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (core > first) text.append("-").append(std::to_string(core));
  }
  return text;
}

#ifdef LOCKSTEP_HAVE_MPI
void check_mpi(int code, char const* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(ExitCode::environment, std::string(call) + ": " + std::string(text, std::size_t(length)));
}

// The processes of this node and this one's place among them.
void place_on_node(int& rank, int& processes) {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  check_mpi(MPI_Comm_rank(node, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(node, &processes), "MPI_Comm_size");
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
}
#endif

// Collective: throws on all processes what the first process says that has something to say.
void throw_if_any(Runtime const& runtime, std::string message, ExitCode code) {
#ifdef LOCKSTEP_HAVE_MPI
  int const mine = message.empty() ? 0 : runtime.processes() - runtime.process();
  int most       = 0;
  check_mpi(MPI_Allreduce(&mine, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
  if (most > 0 && runtime.processes() > 1) {
    char text[512] = {};
    message.copy(text, sizeof text - 1);
    int const first = runtime.processes() - most;
    check_mpi(MPI_Bcast(text, int(sizeof text), MPI_CHAR, first, MPI_COMM_WORLD), "MPI_Bcast");
    message = "process " + std::to_string(first) + ": " + text;
  }
#else
  (void)runtime;
#endif
  LOCKSTEP_THROW_IF(!message.empty(), code, message);
}

// On the root: "process 0: GPU 0 (NAME, BUS); process 1: ...".
std::string describe_gpus(Runtime const& runtime, std::vector<int> const& own, std::vector<Gpu> const& gpus) {
  constexpr std::size_t most = 16;
  std::string mine;
  for (int const gpu : own)
    mine += (mine.empty() ? "GPU " : ", GPU ") + std::to_string(gpu) + " (" + gpus[std::size_t(gpu)].name + ", " +
            gpus[std::size_t(gpu)].bus + ")";
  std::vector<std::array<char, 512>> texts(static_cast<std::size_t>(runtime.processes()));
  auto own_text = texts[0];
  own_text.fill(0);
  mine.copy(own_text.data(), own_text.size() - 1);
#ifdef LOCKSTEP_HAVE_MPI
  check_mpi(MPI_Gather(own_text.data(), int(own_text.size()), MPI_CHAR, texts.data(), int(own_text.size()), MPI_CHAR, 0,
                       MPI_COMM_WORLD),
            "MPI_Gather");
#else
  texts[0] = own_text;
#endif
  if (!runtime.is_root()) return "";
  std::string all;
  for (std::size_t p = 0; p < std::min(most, texts.size()); ++p)
    all += (p ? "; process " : "process ") + std::to_string(p) + ": " + texts[p].data();
  return all + (texts.size() > most ? "; ..." : "");
}

// 0 without OMP_NUM_THREADS. It may be a list, of nested levels.
int threads_of_environment() {
  char const* const text = std::getenv("OMP_NUM_THREADS");
  if (!text) return 0;
  char* end          = nullptr;
  long const threads = std::strtol(text, &end, 10);
  while (*end == ' ') ++end;
  LOCKSTEP_THROW_IF(
      end == text || (*end != '\0' && *end != ',') || threads < 1 || threads > most_threads, ExitCode::usage,
      std::string("OMP_NUM_THREADS is '") + text + "', expected a number from 1 to " + std::to_string(most_threads));
  return int(threads);
}

#ifdef LOCKSTEP_HAVE_MPI
// Nobody can say which process does not come: MPI is not up yet.
class StartDeadline {
 public:
  StartDeadline(int processes, double timeout) : m_armed(processes > 1) {
    if (!m_armed) return;
    bool const first = launcher_rank() == 0;
    std::snprintf(text, sizeof text, "lockstep: deadline passed: not all of %d processes had started MPI after %g s\n",
                  processes, timeout);
    m_previous = std::signal(SIGALRM, end);
    alarm(unsigned(std::ceil(timeout)) + (first ? 0 : 1));  // the first speaks for all
  }
  ~StartDeadline() {
    if (!m_armed) return;
    alarm(0);
    std::signal(SIGALRM, m_previous);
  }

 private:
  static void end(int) {
    if (write(2, text, std::strlen(text)) < 0) _exit(int(ExitCode::environment));
    _exit(int(ExitCode::timeout));
  }
  static char text[160];
  bool m_armed;
  void (*m_previous)(int) = SIG_DFL;
};
char StartDeadline::text[160];

// This program's, without its name.
std::string arguments_of_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string word, text;
  std::getline(file, word, '\0');
  while (std::getline(file, word, '\0')) text += (text.empty() ? "" : " ") + word;
  return text;
}
#endif

// Collective.
void compare_arguments([[maybe_unused]] Runtime const& runtime, [[maybe_unused]] double timeout) {
#ifdef LOCKSTEP_HAVE_MPI
  StartDeadline const deadline(runtime.processes(), timeout);
  std::string const mine = arguments_of_process();
  std::string first      = mine;
  long long length       = static_cast<long long>(first.size());
  check_mpi(MPI_Bcast(&length, 1, MPI_LONG_LONG, 0, MPI_COMM_WORLD), "MPI_Bcast");
  first.resize(std::size_t(length));
  check_mpi(MPI_Bcast(first.data(), int(length), MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
  throw_if_any(runtime, mine == first ? "" : "arguments '" + mine + "'; expected process 0's, '" + first + "'",
               ExitCode::usage);
#endif
}

}  // namespace

Runtime::Runtime(int threads, [[maybe_unused]] double timeout) {
  LOCKSTEP_THROW_IF(threads < 0 || threads > most_threads, ExitCode::usage,
                    "--threads " + std::to_string(threads) + "; expected up to " + std::to_string(most_threads));
  if (threads == 0) threads = threads_of_environment();
  int const launched = launched_processes();
  int sharing        = 1;
#ifdef LOCKSTEP_HAVE_MPI
  StartDeadline const deadline(launched, timeout);
  int provided = 0;  // asked for again where it matters
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &m_process), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &m_processes), "MPI_Comm_size");
  // A launcher that binds each process to its own cores leaves nothing to share.
  place_on_node(m_node_rank, m_node_processes);
  if (usable_cores() == std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))) sharing = m_node_processes;
#endif
  try {
    LOCKSTEP_THROW_IF(
        launched > 1 && m_processes == 1, ExitCode::environment,
        "the launcher started " + std::to_string(launched) +
            " processes but this program sees 1 (built without MPI, or with another MPI than the launcher's)");
    if (threads == 0) threads = std::clamp(usable_cores() / sharing, 1, most_threads);
    int gpu = -1;
    if (auto* const calls = device_calls()) {
      std::string missing;
      try {
        m_devices = std::make_unique<DeviceRuntime>(*calls);
      } catch (Error const& error) {
        missing = error.what();
      }
      throw_if_any(*this, missing, ExitCode::timeout);
      int const found = int(m_devices->gpus().size());
      auto own        = map_devices(found, m_node_rank, m_node_processes, found, several_gpus_per_process);
      gpu             = own[0];
      std::sort(own.begin(), own.end());
      own.erase(std::unique(own.begin(), own.end()), own.end());
      m_gpus = describe_gpus(*this, own, m_devices->gpus());
    }
    initialize_kokkos(threads, gpu);
  } catch (...) {
#ifdef LOCKSTEP_HAVE_MPI
    MPI_Finalize();
#endif
    throw;
  }
}

Runtime::~Runtime() {
  m_devices.reset();
  Kokkos::finalize();
#ifdef LOCKSTEP_HAVE_MPI
  MPI_Finalize();
#endif
}

std::vector<Space> Runtime::instances(int devices) const {
  LOCKSTEP_THROW_IF(devices < 1, ExitCode::usage, "--devices " + std::to_string(devices) + "; expected 1 or more");
  if (!m_devices) return std::vector<Space>(std::size_t(devices), Space());
  auto const map =
      map_devices(int(m_devices->gpus().size()), m_node_rank, m_node_processes, devices, several_gpus_per_process);
  std::vector<Space> instances;
  for (Stream const stream : m_devices->streams(map)) instances.push_back(instance_on(stream));
  return instances;
}

ExitCode with_runtime(int threads, std::function<ExitCode(Runtime const&)> const& body, double timeout) {
  Runtime const runtime(threads, timeout);
  if (runtime.processes() == 1) return body(runtime);
  ExitCode code = ExitCode::environment;
  std::string message;
  try {
    compare_arguments(runtime, timeout);
    return body(runtime);
  } catch (Error const& error) {
    code    = error.code();
    message = error.what();
  } catch (std::exception const& error) {
    message = first_line(error);
  }
  if (!runtime.is_root()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::cerr << "lockstep: process " << runtime.process() << ": " << message << std::endl;
#ifdef LOCKSTEP_HAVE_MPI
  MPI_Abort(MPI_COMM_WORLD, int(code));
#endif
  return code;
}

int launcher_rank() {
  for (char const* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (char const* value = std::getenv(name)) return std::atoi(value);
  return 0;
}

std::vector<Fact> build_facts() {
  return {{"Lockstep", std::string(version()) + " (" + git_hash() + ")"},
          {"Kokkos", std::to_string(KOKKOS_VERSION / 10000) + "." + std::to_string(KOKKOS_VERSION / 100 % 100) + "." +
                         std::to_string(KOKKOS_VERSION % 100) + " (" + Space::name() + ")"},
          {"compiler", compiler()},
          {"GPU runtime", device_calls() ? device_calls()->version() : "none"},
          {"NCCL", comm::nccl_version()},
          {"MPI", mpi_library()}};
}

std::vector<char const*> recorded_variables() {
  return {"OMP_NUM_THREADS",      "OMP_PROC_BIND",
          "OMP_PLACES",           "OMP_WAIT_POLICY",
          "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
          "SLURM_JOB_ID",         "SLURM_JOB_NUM_NODES",
          "SLURM_NTASKS",         "NCCL_ALGO",
          "NCCL_PROTO",           "KOKKOS_NUM_THREADS",
          "KOKKOS_TOOLS_LIBS",    "KOKKOS_PROFILE_LIBRARY"};
}

std::vector<Fact> environment_facts(Runtime const& runtime) {
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  std::vector<Fact> facts{{"host", host},
                          {"cores", std::to_string(usable_cores())},
                          {"affinity", affinity()},
                          {"processes", std::to_string(runtime.processes())},
                          {"threads", std::to_string(concurrency(Space()))}};
  if (!runtime.gpus().empty()) facts.push_back({"GPUs", runtime.gpus()});
  for (char const* name : recorded_variables())
    if (char const* value = std::getenv(name)) facts.push_back({name, value});
  return facts;
}

}  // namespace lockstep
