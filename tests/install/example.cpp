// SPDX-License-Identifier: Apache-2.0
// Two devices sum 1000 numbers of each by the ring algorithm.
#include <Kokkos_Core.hpp>
#include <iostream>
#include <vector>

#include "comm/communicator.hpp"
#include "miniapp/runtime.hpp"
#include "miniapp/version.hpp"

int main() {
  lockstep::Runtime const runtime;
  auto const devices = runtime.instances(2);
  lockstep::comm::Communicator communicator(devices);
  std::vector<lockstep::Buffer<float>> buffers;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    buffers.emplace_back("example::values", 1000);
    Kokkos::deep_copy(devices[i], buffers.back(), float(i + 1));
  }
  communicator.allreduce("ring", lockstep::comm::Op::sum, buffers);
  for (auto const& device : devices) device.fence();

  int wrong = 0;
  for (auto const& buffer : buffers) {
    auto const values = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, buffer);
    for (std::size_t i = 0; i < values.extent(0); ++i) wrong += values(i) != 3;
  }
  std::cout << "Lockstep " << lockstep::version() << ": " << wrong << " wrong sums\n";
  return wrong != 0;
}
