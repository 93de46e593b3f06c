// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <sstream>

#include "comm/communicator.hpp"
#include "miniapp/commands/command.hpp"
#include "miniapp/commands/kernel_table.hpp"
#include "miniapp/data/dataset.hpp"
#include "miniapp/report.hpp"
#include "miniapp/runtime.hpp"

namespace lockstep {
namespace {

namespace po = boost::program_options;

struct Settings {
  std::string json;
  std::int64_t threads;
  bool roofline = false, force = false;
};

Fact data_found() {
  try {
    TrainTest const data = load_dataset("auto");
    return {"data", data.name + " (" + data.source + "), " + std::to_string(data.train.count) + " + " +
                        std::to_string(data.test.count) + " images" + (data.notice.empty() ? "" : "; " + data.notice)};
  } catch (Error const& error) {
    return {"data", std::string("unusable: ") + error.what()};
  }
}

std::vector<std::string> kokkos_configuration() {
  std::ostringstream text;
  Kokkos::print_configuration(text);
  std::vector<std::string> lines;
  std::istringstream stream(text.str());
  for (std::string line; std::getline(stream, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

Fact transport_found(Runtime const& runtime) {
  comm::Communicator const world(runtime.instances(1));
  return {"transport", world.transport() + (world.notes().empty() ? "" : "; ") + world.notes()};
}

ExitCode report(Settings const& settings, Runtime const& runtime) {
  Fact const transport = transport_found(runtime);
  if (!runtime.is_root()) return ExitCode::success;
  std::ostream& out = settings.json == "-" ? std::cerr : std::cout;
  Fact const data   = data_found();
  for (auto const& facts : {build_facts(), environment_facts(runtime), std::vector<Fact>{transport, data}})
    for (auto const& [key, value] : facts) out << key << " : " << value << '\n';
  out << "Kokkos configuration:\n";
  for (auto const& line : kokkos_configuration()) out << "  " << line << '\n';
  auto record      = new_record("info", runtime);
  record["result"] = {
      {"transport", transport.value}, {"data", data.value}, {"kokkos_configuration", kokkos_configuration()}};
  if (settings.roofline) {
    out << std::endl;
    record["result"].update(kernel_table(Space(), 21, convs_of("both"), out));
  }
  write_json(settings.json, record);
  return ExitCode::success;
}

ExitCode run(Arguments const& arguments) {
  Settings settings;
  po::options_description options("Options");
  auto add = options.add_options();
  add("roofline", po::bool_switch(&settings.roofline), "measure this machine's limits and each kernel's share of them");
  add("threads", po::value(&settings.threads)->default_value(0), "threads (0: as for train)");
  add("json", po::value(&settings.json), "write a record to this file (-: standard output)");
  add("force", po::bool_switch(&settings.force), "replace an existing record");
  po::variables_map values;
  if (!parse(info_command, options, arguments, values)) return ExitCode::success;
  in_range("--threads", settings.threads, 0, most_threads);
  return with_runtime(int(settings.threads), [&](Runtime const& runtime) {
    if (runtime.is_root()) check_targets({{"--json", settings.json}}, settings.force);
    return report(settings, runtime);
  });
}

}  // namespace

Command const info_command{"info", "print the build, the machine and the data sets found", run};

}  // namespace lockstep
