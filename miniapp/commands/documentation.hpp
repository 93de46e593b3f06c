// SPDX-License-Identifier: Apache-2.0
// The man page and the shell completion, made of the commands' own option tables.
#pragma once
#include <ostream>

#include "miniapp/commands/command.hpp"

namespace lockstep {

using Commands = std::vector<Command const*>;

void print_man_page(std::ostream& out, Commands const& commands);         // roff
void print_bash_completion(std::ostream& out, Commands const& commands);  // to be sourced by bash

}  // namespace lockstep
