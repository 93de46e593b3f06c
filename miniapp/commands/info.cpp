// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "miniapp/commands/command.hpp"
#include "miniapp/runtime.hpp"

namespace lockstep {
namespace {

ExitCode run(Arguments const& arguments) {
  boost::program_options::variables_map values;
  if (!parse(info_command, boost::program_options::options_description("Options"), arguments, values))
    return ExitCode::success;
  Runtime const runtime;
  if (!runtime.is_root()) return ExitCode::success;
  for (auto const& facts : {build_facts(), environment_facts(runtime)})
    for (auto const& [key, value] : facts) std::cout << key << " : " << value << '\n';
  return ExitCode::success;
}

}  // namespace

Command const info_command{"info", "print the build, the machine and the data sets found", run};

}  // namespace lockstep
