// SPDX-License-Identifier: Apache-2.0
#include "miniapp/commands/command.hpp"

#include <iostream>

namespace lockstep {

namespace po = boost::program_options;

namespace {
po::options_description* asked_for = nullptr;  // by option_table()

std::vector<std::string> texts_of(po::variable_value const& value) {
  if (auto const* text = boost::any_cast<std::string>(&value.value())) return {*text};
  if (auto const* list = boost::any_cast<std::vector<std::string>>(&value.value())) return *list;
  return {};
}

}  // namespace

bool parse(Command const& command, po::options_description options, Arguments const& arguments,
           po::variables_map& values) {
  options.add_options()("help,h", "print this help and exit");
  if (asked_for) {
    asked_for->add(options);
    return false;
  }
  std::string const usage = usage_of(command);
  try {
    // An empty positional description makes Boost refuse left-over words.
    po::store(po::command_line_parser(arguments)
                  .options(options)
                  .positional(po::positional_options_description())
                  .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
                  .run(),
              values);
    if (values.count("help")) {
      std::cout << "Usage: " << usage << " [options]\n" << command.summary << "\n\n" << options;
      return false;
    }
    for (auto const& [name, value] : values)
      for (auto const& text : texts_of(value))
        LOCKSTEP_THROW_IF(text.empty() && !value.defaulted(), ExitCode::usage,
                          "--" + name + " is empty; expected a value, or no --" + name);
    po::notify(values);
  } catch (po::error const& error) {
    throw Error(ExitCode::usage, usage + ": " + error.what() + " (see '" + usage + " --help')");
  }
  return true;
}

po::options_description option_table(Command const& command) {
  po::options_description table;
  asked_for = &table;
  command.run({});
  asked_for = nullptr;
  return table;
}

std::int64_t in_range(std::string const& option, std::int64_t value, std::int64_t low, std::int64_t high) {
  LOCKSTEP_THROW_IF(
      value < low || value > high, ExitCode::usage,
      option + " " + std::to_string(value) + "; expected " + std::to_string(low) + " to " + std::to_string(high));
  return value;
}

bool is_on(std::string const& option, std::string const& value) {
  LOCKSTEP_THROW_IF(value != "on" && value != "off", ExitCode::usage, option + " " + value + "; expected on or off");
  return value == "on";
}

std::string usage_of(Command const& command) {
  return std::string("lockstep ") + command.name + (*command.operand ? " " : "") + command.operand;
}

}  // namespace lockstep
