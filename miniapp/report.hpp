// SPDX-License-Identifier: Apache-2.0
// The machine-readable record of a run.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "miniapp/files.hpp"
#include "miniapp/runtime.hpp"

namespace lockstep {

// {"schema": "lockstep/1", "subcommand": ..., "build": {...}, "environment": {...}}
nlohmann::ordered_json new_record(std::string const& subcommand, Runtime const& runtime);

// To the file (see files.hpp), or to standard output for "-"; nothing for "".
void write_text(std::string const& path, std::string const& text);

// Numbers that are not finite become null, and bytes that are not UTF-8 the replacement character.
std::string as_text(nlohmann::ordered_json const& json, int indent = -1);
void write_json(std::string const& path, nlohmann::ordered_json const& record);

}  // namespace lockstep
