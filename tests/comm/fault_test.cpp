// SPDX-License-Identifier: Apache-2.0
// A rank that dies, stops, sleeps, leaves or differs ends the whole job in time, with the rank named.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Outcome {
  std::string output;
  int status     = 0;
  double message = 0, end = 0;  // clock_seconds() when the program's last message came, and when the launcher was gone
};

Outcome run_command(std::string const& command);

Outcome run(std::string const& fault, std::string const& transport, std::string const& algorithm, double timeout) {
  std::string const command = std::string(LOCKSTEP_MPIEXEC) + " 4 " + LOCKSTEP_FAULT_PROGRAM + " " + fault + " " +
                              transport + " " + algorithm + " " + std::to_string(timeout) + " 2>&1";
  return run_command(command);
}

// Process numbers of the program that still run at that time: a launcher may go before those that it killed are gone.
std::string left_running(double latest) {
  std::string found;
  do {
    if (!found.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    found.clear();
    for (auto const& entry : std::filesystem::directory_iterator("/proc")) {
      std::error_code error;  // of other users' processes, and of what is no process
      if (std::filesystem::read_symlink(entry.path() / "exe", error) == LOCKSTEP_FAULT_PROGRAM)
        found += entry.path().filename().string() + " ";
    }
  } while (!found.empty() && clock_seconds() < latest);
  return found;
}

Outcome run_command(std::string const& command) {
  Outcome outcome;
  FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 4096> block;
  while (std::fgets(block.data(), int(block.size()), pipe)) {
    outcome.output.append(block.data());
    if (outcome.message == 0 && outcome.output.find("lockstep: ") != std::string::npos)
      outcome.message = clock_seconds();
  }
  outcome.status = pclose(pipe);
  outcome.end    = clock_seconds();
  return outcome;
}

using Case = std::tuple<char const*, char const*, char const*>;  // fault, transport, algorithm

class Fault : public testing::TestWithParam<Case> {};

TEST_P(Fault, EndsTheJobInTimeAndNamesTheRank) {
  auto const [fault, transport, algorithm] = GetParam();
  std::string const kind                   = fault;
  double const timeout                     = 3;
  Outcome const outcome                    = run(fault, transport, algorithm, timeout);
  SCOPED_TRACE(outcome.output);
  EXPECT_NE(outcome.status, 0);
  auto const fault_at = outcome.output.find("fault at ");
  ASSERT_NE(fault_at, std::string::npos);
  double const since = std::stod(outcome.output.substr(fault_at + 9));
  EXPECT_LT(outcome.message - since, timeout + 2);
  EXPECT_LT(outcome.end - since, timeout + 2 + 2) << "the launcher has processes to collect";
  EXPECT_EQ(left_running(since + timeout + 2 + 2), "");
  auto const message = outcome.output.find("lockstep: ");
  ASSERT_NE(message, std::string::npos);
  // At the end a launcher that ends the job wakes the rank that stopped, and the others may be done before they are
  // gone.
  EXPECT_EQ(outcome.output.substr(0, kind == "stop-at-end" ? message : std::string::npos).find("finished"),
            std::string::npos);
  std::string const line = outcome.output.substr(message, outcome.output.find('\n', message) - message);
  EXPECT_NE(line.find("rank 2"), std::string::npos) << line;
  if (kind == "die") {
    EXPECT_NE(line.find("rank 2 died"), std::string::npos) << line;
  }
  if (kind == "stop" || kind == "sleep" || kind == "die") {
    EXPECT_NE(line.find("step"), std::string::npos) << line;
  }
  if (kind == "stop" || kind == "stop-at-end") {
    EXPECT_NE(line.find("for rank 2 (last seen"), std::string::npos) << line;
    EXPECT_NE(line.find("is stopped)"), std::string::npos) << line;
  }
  if (kind == "length" || kind == "checked-length" || kind == "algorithm" || kind == "operation") {
    EXPECT_NE(line.find("differs"), std::string::npos) << line;
    EXPECT_NE(line.find("float[5000]"), std::string::npos) << line;
    EXPECT_NE(line.find(kind == "operation"   ? "max"
                        : kind == "algorithm" ? "naive"
                                              : "[5001]"),
              std::string::npos)
        << line;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Fault,
                         testing::Combine(testing::Values("die", "stop", "stop-at-end", "sleep", "leave", "length",
                                                          "checked-length", "operation", "algorithm"),
                                          testing::Values("messages", "memory"), testing::Values("ring")),
                         [](auto const& info) {
                           std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                           for (auto& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

// The others compute for longer than the deadline: the launcher ends the job.
TEST(Death, EndsTheJobThatDoesNotWait) {
  double const timeout  = 3;
  Outcome const outcome = run("die-unawaited", "memory", "ring", timeout);
  SCOPED_TRACE(outcome.output);
  EXPECT_NE(outcome.status, 0);
  auto const fault_at = outcome.output.find("fault at ");
  ASSERT_NE(fault_at, std::string::npos);
  double const since = std::stod(outcome.output.substr(fault_at + 9));
  EXPECT_LT(outcome.end - since, timeout + 2);
  EXPECT_EQ(left_running(since + timeout + 2 + 2), "");
}

// The same program with one byte more stands for another build.
TEST(Build, AnotherOneIsRefused) {
  std::string const copy = std::string(LOCKSTEP_FAULT_PROGRAM) + "_other";
  std::filesystem::copy_file(LOCKSTEP_FAULT_PROGRAM, copy, std::filesystem::copy_options::overwrite_existing);
  std::ofstream(copy, std::ios::app) << 'x';
  std::string const arguments = " none messages ring 3";
  Outcome const outcome       = run_command(std::string(LOCKSTEP_MPIEXEC) + " 2 " + LOCKSTEP_FAULT_PROGRAM + arguments +
                                            " : " + LOCKSTEP_NUMPROC_FLAG + " 1 " + copy + arguments + " 2>&1");
  EXPECT_NE(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("the program differs between ranks: rank 2 has"), std::string::npos) << outcome.output;
  std::filesystem::remove(copy);
}

TEST(Faultless, Finishes) {
  Outcome const outcome = run("none", "messages", "ring", 3);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("finished"), std::string::npos) << outcome.output;
}

}  // namespace
