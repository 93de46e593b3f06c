// SPDX-License-Identifier: Apache-2.0
// This machine's limits, and the time of each kernel alone against them.
#pragma once
#include <string>
#include <vector>

#include "miniapp/executor.hpp"
#include "miniapp/network.hpp"

namespace lockstep {

// Per second, of all threads of the execution space together.
struct MachineLimits {
  double flops  = 0;  // multiply-adds, each two operations
  double l1     = 0;  // bytes read, 16 KiB a thread
  double l2     = 0;  // bytes read, 256 KiB a thread
  double shared = 0;  // bytes read, 8 MiB together
  double copy   = 0;  // bytes read plus bytes written, copying 128 MiB
};

MachineLimits measure_machine(Space const& space);

struct KernelTime {
  std::string name;
  double flops = 0, bytes = 0;  // needed, of all threads together
  double seconds = 0;           // median
  // Limits measured for this kernel: multiply-adds in turn with it; reading as many bytes as it works on.
  double peak = 0, read_rate = 0;

  double share_of_peak() const { return flops / seconds / peak; }
  double share_of_read_rate() const { return bytes / seconds / read_rate; }
  bool is_bound_by_arithmetic() const { return share_of_peak() >= share_of_read_rate(); }
};

// Stage by stage, one of `convs` beside the other: direct kernels on every thread at once, each on a block of its own
// (batch = threads x 16 images); matrix products on one block, shared among the threads. Then, on the whole step's
// buffers, the kernels that work on these. samples: timings of which the median is taken.
std::vector<KernelTime> time_kernels(Space const& space, Network const& network, int samples,
                                     std::vector<Conv> const& convs);

}  // namespace lockstep
