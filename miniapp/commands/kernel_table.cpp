// SPDX-License-Identifier: Apache-2.0
#include "miniapp/commands/kernel_table.hpp"

#include <cstdio>

#include "kernels/error.hpp"
#include "kernels/pack.hpp"

namespace lockstep {

std::vector<Conv> convs_of(std::string const& option) {
  LOCKSTEP_THROW_IF(option != "direct" && option != "gemm" && option != "both", ExitCode::usage,
                    "--conv " + option + "; expected direct, gemm or both");
  std::vector<Conv> convs;
  if (option != "gemm") convs.push_back(Conv::direct);
  if (option == "gemm" || (option == "both" && on_host)) convs.push_back(Conv::gemm);
  return convs;
}

nlohmann::ordered_json kernel_table(Space const& space, int samples, std::vector<Conv> const& convs,
                                    std::ostream& out) {
  MachineLimits const machine = measure_machine(space);
  auto const kernels          = time_kernels(space, Network::chapter(), samples, convs);

  nlohmann::ordered_json record;
  record["machine"] = {{"threads", space.concurrency()},
                       {"flops_per_s", machine.flops},
                       {"l1_read_bytes_per_s", machine.l1},
                       {"l2_read_bytes_per_s", machine.l2},
                       {"shared_read_bytes_per_s", machine.shared},
                       {"memory_copy_bytes_per_s", machine.copy}};
  for (auto const& kernel : kernels)
    record["kernels"].push_back({{"name", kernel.name},
                                 {"flops", kernel.flops},
                                 {"bytes", kernel.bytes},
                                 {"seconds", kernel.seconds},
                                 {"flops_per_s", kernel.flops / kernel.seconds},
                                 {"bytes_per_s", kernel.bytes / kernel.seconds},
                                 {"share_of_peak", kernel.share_of_peak()},
                                 {"share_of_read_rate", kernel.share_of_read_rate()},
                                 {"limit", kernel.is_bound_by_arithmetic() ? "flops" : "bytes"}});

  char line[200];
  auto const print = [&](char const* format, auto... values) {
    std::snprintf(line, sizeof line, format, values...);
    out << line;
  };
  print("multiply-add peak : %.1f GFLOP/s (float32, %d threads)\n", machine.flops * 1e-9, int(space.concurrency()));
  print("cache, 16 KiB a thread : %.1f GB/s read\n", machine.l1 * 1e-9);
  print("cache, 256 KiB a thread : %.1f GB/s read\n", machine.l2 * 1e-9);
  print("cache, 8 MiB together : %.1f GB/s read\n", machine.shared * 1e-9);
  print("memory, copying 128 MiB : %.1f GB/s read and written\n\n", machine.copy * 1e-9);
  out << "Of peak: multiply-adds measured in turn with the kernel. Of reads: as many bytes read from where they lie.\n";
  print("%-43s %9s %9s %9s %9s %9s %9s  %s\n", "kernel (16 images a thread; gemm 16 in all)", "MFLOP", "KiB", "us",
        "GFLOP/s", "of peak", "of reads", "limit");
  for (auto const& kernel : kernels)
    print("%-43s %9.2f %9.1f %9.1f %9.1f %8.1f%% %8.1f%%  %s\n", kernel.name.c_str(), kernel.flops * 1e-6,
          kernel.bytes / 1024, kernel.seconds * 1e6, kernel.flops / kernel.seconds * 1e-9, 100 * kernel.share_of_peak(),
          100 * kernel.share_of_read_rate(), kernel.is_bound_by_arithmetic() ? "multiply-add" : "bytes");
  return record;
}

}  // namespace lockstep
