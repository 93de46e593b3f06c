// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "miniapp/commands/command.hpp"
#include "miniapp/commands/kernel_table.hpp"

namespace lockstep {
namespace {

namespace po = boost::program_options;

ExitCode run(Arguments const& all) {
  std::int64_t threads, samples;
  std::string conv, json;
  bool force = false;
  po::options_description options("Options");
  auto add = options.add_options();
  add("threads", po::value(&threads)->default_value(0), "threads (0: as for train)");
  add("samples", po::value(&samples)->default_value(21), "timings of each kernel, of which the median is shown");
  add("conv", po::value(&conv)->default_value("both"),
      "direct: this project's kernels; gemm: Kokkos Kernels' matrix products; both: one beside the other");
  add("json", po::value(&json), "write a record to this file (-: standard output)");
  add("force", po::bool_switch(&force), "replace an existing record");
  po::variables_map values;
  bool const kernels = !all.empty() && all.front() == "kernels";
  if (!parse(bench_command, options, {all.begin() + kernels, all.end()}, values)) return ExitCode::success;
  LOCKSTEP_THROW_IF(!kernels, ExitCode::usage, "bench: nothing to time given; expected 'lockstep bench kernels'");
  in_range("--threads", threads, 0, most_threads);
  in_range("--samples", samples, 1, 10000);
  auto const convs = convs_of(conv);
  return with_runtime(int(threads), [&](Runtime const& runtime) {
    if (!runtime.is_root()) return ExitCode::success;
    check_targets({{"--json", json}}, force);
    auto record      = new_record("bench", runtime);
    record["result"] = kernel_table(Space(), int(samples), convs, json == "-" ? std::cerr : std::cout);
    write_json(json, record);
    return ExitCode::success;
  });
}

}  // namespace

Command const bench_command{"bench", "time each kernel alone", run, "kernels"};

}  // namespace lockstep
