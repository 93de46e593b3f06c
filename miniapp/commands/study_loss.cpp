// SPDX-License-Identifier: Apache-2.0
// What a lost rank costs: a job of k ranks loses one, ends, and goes on with k - 1 from its last checkpoint. The ranks
// are this program, started again by the launcher.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "comm/probe.hpp"
#include "miniapp/commands/study.hpp"
#include "miniapp/version.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json   = nlohmann::ordered_json;
using Words  = std::vector<std::string>;

struct Settings : StudyOptions {
  std::string launcher;
  std::int64_t ranks, batch, steps, every, lose;
  double timeout;

  Settings() {
    add<std::int64_t>("ranks", ranks, 2, "ranks at the start; the last one is lost");
    add("launcher", launcher,
        "command that starts ranks; their number comes behind it (default: mpirun -n, or mpiexec -n)");
    add<std::int64_t>("batch", batch, 256, 64, "images a step, of all ranks together");
    add<std::int64_t>("steps", steps, 400, 300, "of the whole training");
    add<std::int64_t>("every", every, 50, 20, "steps between checkpoints");
    add<std::int64_t>("lose", lose, 200, 100, "the rank is lost after the checkpoint of this step, or the next");
    add("timeout", timeout, 5.0, 2.0, "seconds after which a silent rank ends the job");
    add_data(4000, 500);
  }
  void check() const {
    StudyOptions::check();
    in_range("--ranks", ranks, 2, 4096);
    in_range("--batch", batch, 1, most);
    in_range("--steps", steps, 2, most);
    in_range("--every", every, 1, steps - 1);
    in_range("--lose", lose, 1, steps - 1);
    LOCKSTEP_THROW_IF(!(timeout > 0 && timeout <= 86400), ExitCode::usage,
                      "--timeout " + std::to_string(timeout) + "; expected more than 0, up to 86400 seconds");
    LOCKSTEP_THROW_IF(launcher_rank() > 0 || std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("PMI_SIZE"),
                      ExitCode::usage, "study loss under a launcher; expected none: it starts its ranks itself");
  }
};

// "mpirun -n", or nothing where there is none.
Words find_launcher(std::string const& given) {
  Words words;
  std::istringstream stream(given);
  for (std::string word; stream >> word;) words.push_back(word);
  if (!words.empty() || mpi_library() == "none") return words;
  char const* const path = std::getenv("PATH");
  for (char const* name : {"mpirun", "mpiexec"}) {
    std::istringstream folders(path ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');)
      if (access((folder + '/' + name).c_str(), X_OK) == 0) return {name, "-n"};
  }
  return {};
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "lockstep-XXXXXX").string();
    LOCKSTEP_THROW_IF(!mkdtemp(name.data()), ExitCode::environment, name + ": could not be made");
    m_path = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(m_path, ignored);
  }
  Folder(Folder const&)            = delete;
  Folder& operator=(Folder const&) = delete;
  std::string operator/(std::string const& name) const { return (m_path / name).string(); }

 private:
  fs::path m_path;
};

std::string read(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The process and its descendants.
std::vector<pid_t> family(pid_t pid) {
  std::vector<pid_t> all{pid};
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::error_code ignored;  // it may have ended
    // Launchers start processes from any of their threads.
    for (auto const& thread : fs::directory_iterator("/proc/" + std::to_string(all[i]) + "/task", ignored)) {
      std::istringstream children(read(thread.path().string() + "/children"));
      for (pid_t child; children >> child;) all.push_back(child);
    }
  }
  return all;
}

// A command with its standard error in a file.
class Process {
 public:
  Process(Words const& words, std::string const& errors) : m_start(comm::clock_seconds()) {
    std::vector<char*> arguments;
    for (auto const& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    m_pid = fork();
    LOCKSTEP_THROW_IF(m_pid < 0, ExitCode::environment, "no process could be started");
    if (m_pid > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // a launcher then ends its ranks
    int const nothing = open("/dev/null", O_RDWR), file = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(nothing, 0);
    dup2(nothing, 1);
    dup2(file, 2);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }

  ~Process() {
    if (!is_running()) return;
    for (pid_t pid : family(m_pid)) kill(pid, SIGKILL);
    wait();
  }
  Process(Process const&)            = delete;
  Process& operator=(Process const&) = delete;

  bool is_running() {
    if (m_ended) return false;
    int status         = 0;
    pid_t const result = waitpid(m_pid, &status, WNOHANG);
    if (result == 0) return true;
    m_ended = true;
    m_end   = comm::clock_seconds();
    m_code  = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return false;
  }
  int wait() {
    while (is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return m_code;
  }
  pid_t pid() const { return m_pid; }
  double start() const { return m_start; }
  double end() const { return m_end; }

 private:
  double m_start, m_end = 0;
  pid_t m_pid;
  bool m_ended = false;
  int m_code   = 0;
};

// The process of that rank, by what its launcher told it; -1 if there is none.
pid_t find_rank(pid_t launcher, std::int64_t rank) {
  for (pid_t pid : family(launcher)) {
    std::istringstream variables(read("/proc/" + std::to_string(pid) + "/environ"));
    for (std::string variable; std::getline(variables, variable, '\0');)
      for (char const* name : {"OMPI_COMM_WORLD_RANK=", "PMI_RANK=", "PMIX_RANK=", "SLURM_PROCID="})
        if (variable == name + std::to_string(rank)) return pid;
  }
  return -1;
}

std::int64_t last_checkpoint(std::string const& folder) {
  std::int64_t last = 0;
  std::error_code ignored;
  for (auto const& entry : fs::directory_iterator(folder, ignored)) {
    long long step         = 0;
    int length             = 0;
    std::string const name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "step-%lld.safetensors%n", &step, &length) == 1 && length == int(name.size()))
      last = std::max<std::int64_t>(last, step);
  }
  return last;
}

class Loss {
 public:
  Loss(Settings const& settings) : m_settings(settings), m_launcher(find_launcher(settings.launcher)) {}

  ExitCode execute() {
    Finished const whole = finish(m_settings.ranks, {});
    std::vector<Lost> rows;
    rows.push_back(lose("killed", SIGKILL, whole));
    if (!m_launcher.empty()) rows.push_back(lose("stopped", SIGSTOP, whole));
    // MPI only now: a process that has it up cannot start jobs of its own.
    return with_runtime(int(m_settings.threads), [&](Runtime const& runtime) { return report(runtime, whole, rows); });
  }

 private:
  struct Finished {
    double seconds = 0, step_seconds = 0;
    std::int64_t resumed_at = 0;
    std::string sha256;
  };
  struct Lost {
    std::string how, message;
    std::int64_t checkpoint = 0;   // that the job went on from
    int code                = 0;   // of the job that lost the rank
    double until_end        = 0;   // seconds from the loss to the job's end
    double first = 0, second = 0;  // seconds of the two jobs
    Finished resumed;
  };

  Words command(std::int64_t ranks, Words const& more) const {
    auto const& s   = m_settings;
    bool const jobs = !m_launcher.empty();
    Words words     = m_launcher;
    if (jobs) words.push_back(std::to_string(ranks));
    for (auto const& word : {fs::read_symlink("/proc/self/exe").string(),
                             std::string("train"),
                             std::string("--data"),
                             s.data,
                             std::string("--devices"),
                             std::to_string(jobs ? 1 : ranks),
                             std::string("--batch"),
                             std::to_string(s.batch),
                             std::string("--steps"),
                             std::to_string(s.steps),
                             std::string("--epochs"),
                             std::to_string(s.steps),
                             std::string("--train-images"),
                             std::to_string(s.train_images),
                             std::string("--test-images"),
                             std::to_string(s.test_images),
                             std::string("--threads"),
                             std::to_string(s.threads),
                             std::string("--timeout"),
                             std::to_string(s.timeout)})
      words.push_back(word);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // A job that must end well.
  Finished finish(std::int64_t ranks, Words more) const {
    std::string const record = m_folder / "record.json", errors = m_folder / "errors";
    more.insert(more.end(), {"--json", record, "--force"});
    Process job(command(ranks, more), errors);
    int const code = job.wait();
    LOCKSTEP_THROW_IF(code != 0, ExitCode::environment,
                      (m_launcher.empty() ? "training" : m_launcher[0]) + " ended with exit code " +
                          std::to_string(code) + ", expected 0: " + message_of(errors));
    auto const found = nlohmann::json::parse(read(record));
    auto const& done = found["result"];
    Finished finished{job.end() - job.start(), 0, done.value("resumed_at_step", std::int64_t(0)),
                      done["parameters_sha256"].get<std::string>()};
    for (auto const& epoch : done["epochs"]) finished.step_seconds += epoch["seconds"].get<double>();
    finished.step_seconds /= double(std::max<std::int64_t>(1, m_settings.steps - finished.resumed_at));
    return finished;
  }

  // The program's own line if there is one, else the launcher's first.
  static std::string message_of(std::string const& errors) {
    std::istringstream lines(read(errors));
    std::string first;
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("lockstep: ", 0) == 0) return line.substr(10);
      if (first.empty() && line.find_first_not_of("-= \t") != std::string::npos) first = line;
    }
    return first;
  }

  Lost lose(std::string const& how, int signal, Finished const& whole) const {
    Lost lost;
    lost.how                 = how;
    std::string const folder = m_folder / how, errors = m_folder / "errors";
    Process job(command(m_settings.ranks, {"--checkpoint", folder, "--every", std::to_string(m_settings.every)}),
                errors);
    while (job.is_running() && last_checkpoint(folder) < m_settings.lose)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // Not at the checkpoint itself, but half-way to the next.
    std::this_thread::sleep_for(std::chrono::duration<double>(whole.step_seconds * double(m_settings.every) / 2));
    pid_t const victim = m_launcher.empty() ? job.pid() : find_rank(job.pid(), m_settings.ranks - 1);
    double const at    = comm::clock_seconds();
    LOCKSTEP_THROW_IF(
        !job.is_running() || victim < 0 || kill(victim, signal) != 0, ExitCode::environment,
        "study loss: rank " + std::to_string(m_settings.ranks - 1) +
            " was not found, or had ended; expected it to be training: give more --steps, or an earlier --lose");
    lost.code       = job.wait();
    lost.until_end  = job.end() - at;
    lost.first      = job.end() - job.start();
    lost.message    = message_of(errors);
    lost.checkpoint = last_checkpoint(folder);
    lost.resumed    = finish(m_settings.ranks - 1, {"--resume", folder});
    lost.second     = lost.resumed.seconds;
    return lost;
  }

  ExitCode report(Runtime const& runtime, Finished const& whole, std::vector<Lost> const& rows) const {
    auto const& s = m_settings;
    Study study(study_loss_command, s, runtime);
    if (m_launcher.empty())
      study.say(
          "NOTE: no launcher found, expected mpirun, mpiexec or --launcher, and a build with MPI: one process has all "
          "%lld devices and is lost as a "
          "whole\n",
          static_cast<long long>(s.ranks));
    study.parameters().update({{"data", s.data},
                               {"ranks", s.ranks},
                               {"launcher", m_launcher.empty() ? Json() : Json(m_launcher[0])},
                               {"batch", s.batch},
                               {"steps", s.steps},
                               {"every", s.every},
                               {"timeout_s", s.timeout}});
    study.result()["undisturbed_s"]     = whole.seconds;
    study.result()["step_s"]            = whole.step_seconds;
    study.result()["parameters_sha256"] = whole.sha256;
    auto& list = study.result()["rows"] = Json::array();
    Table table({"rank", "exit code", "job ended after", "goes on at step", "of", "first job", "second job",
                 "undisturbed", "time lost"});
    for (auto const& row : rows) {
      double const lost = row.first + row.second - whole.seconds;
      table.row({row.how, std::to_string(row.code), format("%.2f s", row.until_end), std::to_string(row.checkpoint),
                 std::to_string(s.steps), format("%.2f s", row.first), format("%.2f s", row.second),
                 format("%.2f s", whole.seconds), format("%.2f s", lost)});
      list.push_back({{"how", row.how},
                      {"exit_code", row.code},
                      {"message", row.message},
                      {"until_end_s", row.until_end},
                      {"checkpoint_step", row.checkpoint},
                      {"first_s", row.first},
                      {"second_s", row.second},
                      {"second_step_s", row.resumed.step_seconds},
                      {"lost_s", lost},
                      {"parameters_sha256", row.resumed.sha256}});
    }
    study.say("\n%lld ranks lose the last one and go on with %lld\n", static_cast<long long>(s.ranks),
              static_cast<long long>(s.ranks - 1));
    study.say(table.text());
    for (auto const& row : rows) {
      study.say("%s : %s\n", row.how.c_str(), row.message.empty() ? "(no message)" : row.message.c_str());
      study.equality("rank " + row.how + ": the job ends with an error", row.code != 0);
      study.equality("rank " + row.how + ": the second job goes on from the last checkpoint",
                     row.checkpoint >= s.lose && row.resumed.resumed_at == row.checkpoint);
      study.equality("rank " + row.how + ": the second job ends in the bits of an undisturbed run",
                     row.resumed.sha256 == whole.sha256);
      if (row.how == "stopped")
        study.equality("rank stopped: the message names it",
                       row.message.find("rank " + std::to_string(s.ranks - 1)) != std::string::npos);
      study.order("rank " + row.how + ": the job ends within the deadline and 5 seconds",
                  row.until_end < s.timeout + 5);
    }
    return study.finish();
  }

  Settings const& m_settings;
  Words m_launcher;
  Folder m_folder;
};

ExitCode run(Arguments const& arguments) {
  Settings settings;
  if (!settings.parse(study_loss_command, arguments)) return ExitCode::success;
  settings.check();
  check_targets(settings.targets(), settings.force);
  return Loss(settings).execute();
}

}  // namespace

Command const study_loss_command{"study loss", "what a lost rank costs", run};

}  // namespace lockstep
