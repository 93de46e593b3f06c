// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "miniapp/commands/command.hpp"

namespace lockstep {

extern Command const verify_command;

}  // namespace lockstep
