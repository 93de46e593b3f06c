// SPDX-License-Identifier: Apache-2.0
// A subcommand of the program: one file each in this folder (verify's in verify/), one line each in main.cpp.
#pragma once
#include "kernels/error.hpp"

#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

using Arguments = std::vector<std::string>;  // after the subcommand's name

struct Command {
  char const* name;                   // one word, or two: "study batch"
  char const* summary;                // one line for `lockstep --help`
  ExitCode (*run)(Arguments const&);  // throws Error; main prints its message as one line
  char const* operand = "";           // the word that follows the name, if one must
};

// Parses into `values` and notifies. Returns false when --help was asked for, after printing it. Errors (an unknown
// option, a value that does not parse, a left-over word) become one-line Error (usage). Call before runtime set-up:
// cheap.
bool parse(Command const& command, boost::program_options::options_description options, Arguments const& arguments,
           boost::program_options::variables_map& values);

// The options that the command hands to parse(). The command does not run.
boost::program_options::options_description option_table(Command const& command);

// The value, or Error (usage) "--option value; expected low to high".
std::int64_t in_range(std::string const& option, std::int64_t value, std::int64_t low, std::int64_t high);
// "on" or "off", else Error (usage).
bool is_on(std::string const& option, std::string const& value);

// "lockstep name operand"
std::string usage_of(Command const& command);

extern Command const train_command;
extern Command const allreduce_command;
extern Command const schedule_command;
extern Command const simulate_command;
extern Command const info_command;
extern Command const bench_command;
extern Command const study_batch_command;
extern Command const study_allreduce_command;
extern Command const study_accuracy_command;
extern Command const study_unequal_command;
extern Command const study_overlap_command;
extern Command const study_loss_command;

}  // namespace lockstep
