// SPDX-License-Identifier: Apache-2.0
// The machine-readable record of a run.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "miniapp/runtime.hpp"

namespace lockstep {

// {"schema": "lockstep/1", "subcommand": ..., "build": {...}, "environment": {...}}
nlohmann::ordered_json new_record(std::string const& subcommand, Runtime const& runtime);

// Throws Error (usage) if the file exists and force is not given, or if its folder cannot be written. Call before work
// that takes time, on the process that will write. "" and "-" are always fine.
void check_json_target(std::string const& path, bool force, std::string const& option = "--json");

// To the file, under a temporary name first, or to standard output for "-"; nothing for "".
void write_text(std::string const& path, std::string const& text, bool force, std::string const& option);

// Numbers that are not finite become null, and bytes that are not UTF-8 the replacement character.
std::string as_text(nlohmann::ordered_json const& json, int indent = -1);
void write_json(std::string const& path, nlohmann::ordered_json const& record, bool force,
                std::string const& option = "--json");

}  // namespace lockstep
