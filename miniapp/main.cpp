// SPDX-License-Identifier: Apache-2.0
#include "miniapp/commands/command.hpp"
#include "miniapp/commands/documentation.hpp"
#include "miniapp/runtime.hpp"
#include "miniapp/version.hpp"
#include "verify/command.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>

namespace {

using namespace lockstep;

int run(Arguments const& arguments) {
  Commands const commands{&train_command,          &allreduce_command,     &verify_command,
                          &schedule_command,       &simulate_command,      &bench_command,
                          &info_command,           &study_batch_command,   &study_allreduce_command,
                          &study_accuracy_command, &study_unequal_command, &study_overlap_command,
                          &study_loss_command};

  std::string const name = arguments.empty() ? "" : arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    std::cout << "Usage: lockstep COMMAND [options]\n\nCommands:\n";
    for (auto const* command : commands)
      std::cout << usage_of(*command).replace(0, 9, "  ") << "  " << command->summary << '\n';
    std::cout << "  man, completion  print the man page, or a completion for bash\n";
    return 0;
  }
  if (name == "--version" || name == "version") {
    std::cout << "lockstep " << version() << " (" << git_hash() << ")\n";
    return 0;
  }
  try {
    if (name == "man" || name == "completion") {
      LOCKSTEP_THROW_IF(arguments.size() > 1, ExitCode::usage,
                        name + ": '" + arguments[1] + "' given; expected nothing");
      (name == "man" ? print_man_page : print_bash_completion)(std::cout, commands);
      return 0;
    }
    std::string const two_words = arguments.size() > 1 ? name + ' ' + arguments[1] : name;
    for (auto const* command : commands)
      for (auto const& [words, count] : {std::pair(name, 1), std::pair(two_words, 2)})
        if (words == command->name) return int(command->run({arguments.begin() + count, arguments.end()}));
    std::string second_words, help;
    for (auto const* command : commands)
      if (std::string const full = command->name; full.rfind(name + ' ', 0) == 0) {
        second_words += (second_words.empty() ? "" : ", ") + full.substr(name.size() + 1);
        help += "  " + full + "  " + command->summary + '\n';
      }
    if (!name.empty() && !help.empty()) {
      std::string const second = arguments.size() > 1 ? arguments[1] : "";
      LOCKSTEP_THROW_IF(
          second != "--help" && second != "-h", ExitCode::usage,
          name + (second.empty() ? " alone" : " '" + second + "' given") + "; expected one of " + second_words);
      std::cout << "Usage: lockstep " << name << " NAME [options]\n\n" << help;
      return 0;
    }
    throw Error(ExitCode::usage, name.empty() ? "no command given (see 'lockstep --help')"
                                              : "unknown command '" + name + "' (see 'lockstep --help')");
  } catch (Error const& error) {
    if (launcher_rank() == 0) std::cerr << "lockstep: " << error.what() << std::endl;
    return int(error.code());
  } catch (std::exception const& error) {
    std::cerr << "lockstep: " << first_line(error) << std::endl;
    return int(ExitCode::environment);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Files that are opened must not take the numbers of standard streams that are closed.
  int file = 0;
  while ((file = open("/dev/null", O_RDWR)) >= 0 && file <= 2) continue;
  if (file > 2) close(file);
  std::signal(SIGXFSZ, SIG_IGN);  // a write that fails says why
  int const code = run({argv + 1, argv + argc});
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout) return code;
  std::cerr << "lockstep: standard output could not be written" << std::endl;
  return code == 0 ? int(ExitCode::environment) : code;
}
