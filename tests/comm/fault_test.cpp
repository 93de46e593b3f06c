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

namespace {

struct Outcome {
  std::string output;
  int status     = 0;
  double seconds = 0;
};

Outcome run_command(std::string const& command);

Outcome run(std::string const& fault, std::string const& transport, std::string const& algorithm, double timeout) {
  std::string const command = std::string(LOCKSTEP_MPIEXEC) + " 4 " + LOCKSTEP_FAULT_PROGRAM + " " + fault + " " +
                              transport + " " + algorithm + " " + std::to_string(timeout) + " 2>&1";
  return run_command(command);
}

Outcome run_command(std::string const& command) {
  auto const start = std::chrono::steady_clock::now();
  Outcome outcome;
  FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 4096> block;
  while (std::size_t const got = std::fread(block.data(), 1, block.size(), pipe))
    outcome.output.append(block.data(), got);
  outcome.status  = pclose(pipe);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  EXPECT_EQ(outcome.output.find("finished"), std::string::npos);
  static double const faultless = run("none", "messages", "ring", 60).seconds;
  // The program's own limit is the deadline and two seconds; a loaded machine may take longer to start and end four
  // processes. A job that does not end takes for ever.
  double const slack = 20;
  EXPECT_LT(outcome.seconds, faultless + timeout + 2 + slack);
  auto const message = outcome.output.find("lockstep: ");
  ASSERT_NE(message, std::string::npos);
  std::string const line = outcome.output.substr(message, outcome.output.find('\n', message) - message);
  EXPECT_NE(line.find("rank 2"), std::string::npos) << line;
  if (kind == "die") {
    EXPECT_NE(line.find("rank 2 died"), std::string::npos) << line;
  }
  if (kind == "stop" || kind == "sleep" || kind == "die") {
    EXPECT_NE(line.find("step"), std::string::npos) << line;
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
                         testing::Combine(testing::Values("die", "stop", "sleep", "leave", "length", "checked-length",
                                                          "operation", "algorithm"),
                                          testing::Values("messages", "memory"), testing::Values("ring")),
                         [](auto const& info) {
                           std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                           for (auto& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

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
