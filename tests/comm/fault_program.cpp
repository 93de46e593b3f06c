// SPDX-License-Identifier: Apache-2.0
// Ranks that allreduce in turns until rank 2 misbehaves in the way named on the command line; see fault_test.cpp.
// Prints when that is, by the clock that the processes of a machine share.
// fault_program FAULT TRANSPORT ALGORITHM TIMEOUT
#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "comm/communicator.hpp"
#include "kernels/error.hpp"
#include "miniapp/runtime.hpp"

using namespace lockstep;
using namespace lockstep::comm;

namespace {

bool stops_at_the_end = false;

void say_when() {
  std::printf("fault at %.6f\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
  std::fflush(stdout);
}

}  // namespace

// In place of the library's: all ranks free what they share when the communicator ends.
extern "C" int MPI_Win_free(MPI_Win* window) {
  if (stops_at_the_end) {
    say_when();
    std::raise(SIGSTOP);
  }
  return PMPI_Win_free(window);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::string const fault = argv[1], transport = argv[2], algorithm = argv[3];
  Runtime runtime;
  CommunicatorOptions options;
  options.timeout          = std::chrono::duration<double>(std::atof(argv[4]));
  options.transport        = transport == "messages" ? Transport::messages : Transport::shared_memory;
  options.check_every_call = fault == "checked-length";
  try {
    Communicator world({Space()}, options);
    std::vector<Buffer<float>> buffer{Buffer<float>("test", 5000)}, longer{Buffer<float>("test", 5001)};
    bool const culprit = world.process() == 2;
    for (int round = 0; round < 100; ++round) {
      if (round == 50 && culprit) {
        stops_at_the_end = fault == "stop-at-end";
        if (!stops_at_the_end) say_when();
        // MPICH's launcher looks for dead processes whenever it has passed on output: not this line's.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        if (fault == "die" || fault == "die-unawaited") std::raise(SIGKILL);
        if (fault == "stop") std::raise(SIGSTOP);
        if (fault == "sleep") std::this_thread::sleep_for(std::chrono::seconds(60));
        if (fault == "leave") std::exit(0);
        if (fault == "length" || fault == "checked-length") world.allreduce(algorithm, Op::sum, longer);
        if (fault == "operation") world.allreduce(algorithm, Op::max, buffer);
        if (fault == "algorithm") world.allreduce("naive", Op::sum, buffer);
      }
      if (round == 50 && fault == "die-unawaited") std::this_thread::sleep_for(std::chrono::seconds(60));
      world.allreduce(algorithm, Op::sum, buffer);
    }
  } catch (Error const& error) {
    std::cerr << "lockstep: " << error.what() << std::endl;
    return int(error.code());
  }
  std::printf("finished\n");
  return 0;
}
