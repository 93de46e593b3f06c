// SPDX-License-Identifier: Apache-2.0
#include "miniapp/commands/documentation.hpp"

#include <map>
#include <regex>
#include <sstream>

#include "miniapp/runtime.hpp"
#include "miniapp/version.hpp"

namespace lockstep {
namespace {

struct OptionText {
  std::string name, letter, initial, description;
  bool takes_value = false;
};

std::vector<OptionText> options_of(Command const& command) {
  std::vector<OptionText> all;
  auto const table = option_table(command);
  for (auto const& option : table.options()) {
    OptionText text;
    text.name        = option->long_name();
    text.description = option->description();
    text.takes_value = option->semantic()->max_tokens() > 0;
    // "-k [ --devices ]" and "arg (=1)"
    std::string const shown = option->format_name(), parameter = option->format_parameter();
    if (shown.size() > 1 && shown[0] == '-' && shown[1] != '-') text.letter = shown.substr(1, 1);
    if (auto const begin = parameter.find("(="); begin != std::string::npos)
      text.initial = parameter.substr(begin + 2, parameter.rfind(')') - begin - 2);
    all.push_back(std::move(text));
  }
  return all;
}

// Words that a description offers: "ring, tree, naive", or "on: ...; off: ...".
std::vector<std::string> choices_of(OptionText const& option) {
  std::vector<std::string> words;
  static std::regex const list("[a-z0-9_-]+(, [a-z0-9_-]+)+"), word("[a-z0-9_-]+"),
      before_colon("(?:^|; )([a-z0-9_-]+): ");
  auto const& text = option.description;
  bool const plain = std::regex_match(text, list);
  auto const& each = plain ? word : before_colon;
  for (std::sregex_iterator found(text.begin(), text.end(), each), end; found != end; ++found)
    words.push_back((*found)[plain ? 0 : 1]);
  if (words.size() < 2) words.clear();
  return words;
}

std::string roff(std::string const& text) {
  std::string escaped;
  for (char const c : text) {
    if (c == '\\' || c == '-') escaped += '\\';
    escaped += c;
  }
  if (!escaped.empty() && (escaped[0] == '.' || escaped[0] == '\'')) escaped.insert(0, "\\&");
  return escaped;
}

}  // namespace

void print_man_page(std::ostream& out, Commands const& commands) {
  out << ".TH LOCKSTEP 1 \"\" \"lockstep " << version() << "\" \"User Commands\"\n"
      << ".SH NAME\nlockstep \\- train a small network on k devices, and prove that they computed what one computes\n"
      << ".SH SYNOPSIS\n.B lockstep\n.I COMMAND\n[options]\n.SH COMMANDS\n";
  for (auto const* command : commands) {
    out << ".SS " << usage_of(*command) << '\n' << roff(command->summary) << '\n';
    for (auto const& option : options_of(*command)) {
      out << ".TP\n\\fB" << (option.letter.empty() ? "" : "\\-" + option.letter + "\\fR, \\fB") << "\\-\\-"
          << roff(option.name) << "\\fR" << (option.takes_value ? " \\fIvalue\\fR" : "") << '\n'
          << roff(option.description) << (option.initial.empty() ? "" : " [" + roff(option.initial) + "]") << '\n';
    }
  }
  out << ".SH EXIT STATUS\n"
      << ".TP\n0\nSuccess, and VERIFICATION: PASSED where there is something to verify.\n"
      << ".TP\n1\nA result is wrong, or not finite: VERIFICATION: FAILED.\n"
      << ".TP\n2\nOptions or input files are not as expected.\n"
      << ".TP\n3\nA rank died or stalled, or no device was found. After a death the launcher may give another code, "
         "that of the signal.\n"
      << ".TP\n4\nA library call failed (MPI, NCCL, CUDA, file system, standard output).\n"
      << ".SH ENVIRONMENT\n.TP\nLOCKSTEP_DATA\nThe folder with the data set's four IDX files.\n"
      << ".PP\nJSON records hold these variables and no others:\n";
  bool first = true;
  for (char const* name : recorded_variables()) {
    out << (first ? "" : ",\n") << name;
    first = false;
  }
  out << ".\n";
}

void print_bash_completion(std::ostream& out, Commands const& commands) {
  std::string names;                           // first words
  std::map<std::string, std::string> seconds;  // of commands of two words, by the first
  for (auto const* command : commands) {
    std::string const full = command->name, first = full.substr(0, full.find(' '));
    if (seconds.count(first) == 0) names += (names.empty() ? "" : " ") + first;
    if (first != full) seconds[first] += (seconds[first].empty() ? "" : " ") + full.substr(first.size() + 1);
  }
  out << "# bash completion for lockstep " << version() << "\n"
      << "_lockstep() {\n"
      << "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=\n"
      << "  if [ \"$COMP_CWORD\" = 1 ]; then\n"
      << "    words='" << names << " help'\n";
  for (auto const& [first, words] : seconds)
    out << "  elif [ \"$COMP_CWORD ${COMP_WORDS[1]}\" = '2 " << first << "' ]; then\n"
        << "    words='" << words << "'\n";
  out << "  else\n    local command=${COMP_WORDS[1]}\n";
  for (auto const& [first, words] : seconds)
    out << "    [ \"$command\" != " << first << " ] || command+=\" ${COMP_WORDS[2]}\"\n";
  out << "    case $command:$before in\n";
  std::ostringstream options;
  for (auto const* command : commands) {
    options << "      '" << command->name << "':*) words='";
    std::string separator, free_values;
    for (auto const& option : options_of(*command)) {
      options << separator << "--" << option.name;
      separator = " ";
      if (!option.takes_value) continue;
      // After an option with a value come its choices, else names of files.
      std::string const quoted = std::string("'") + command->name + "'";
      std::string pattern      = quoted + ":--" + option.name;
      if (!option.letter.empty()) pattern += "|" + quoted + ":-" + option.letter;
      auto const choices = choices_of(option);
      if (choices.empty()) {
        free_values += (free_values.empty() ? "" : "|") + pattern;
        continue;
      }
      out << "      " << pattern << ") words='";
      for (auto const& choice : choices) out << (&choice == &choices.front() ? "" : " ") << choice;
      out << "' ;;\n";
    }
    options << "' ;;\n";
    if (!free_values.empty()) out << "      " << free_values << ") ;;\n";
  }
  out << options.str() << "    esac\n  fi\n"
      << "  [ -n \"$words\" ] && mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      << "}\n"
      << "complete -o default -F _lockstep lockstep\n";
}

}  // namespace lockstep
