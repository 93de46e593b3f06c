// SPDX-License-Identifier: Apache-2.0
// The machine-readable record of a run.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "miniapp/runtime.hpp"

namespace lockstep {

// {"schema": "lockstep/1", "subcommand": ..., "build": {...}, "environment": {...}}
nlohmann::ordered_json new_record(std::string const& subcommand, Runtime const& runtime);

// Throws Error (usage) if the file exists and force is not given, or (environment) if its folder cannot be written.
// Call before work that takes time. "" and "-" are always fine.
void check_json_target(std::string const& path, bool force, std::string const& option = "--json");

// To the file, under a temporary name first, or to standard output for "-"; nothing for "".
void write_text(std::string const& path, std::string const& text, bool force, std::string const& option);

// The same. Numbers that are not finite become null.
void write_json(std::string const& path, nlohmann::ordered_json const& record, bool force,
                std::string const& option = "--json");

}  // namespace lockstep
