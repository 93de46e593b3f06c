// SPDX-License-Identifier: Apache-2.0
#include "miniapp/report.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "kernels/error.hpp"

namespace lockstep {
namespace {

nlohmann::ordered_json as_json(std::vector<Fact> const& facts) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (auto const& [key, value] : facts) object[key] = value;
  return object;
}

}  // namespace

nlohmann::ordered_json new_record(std::string const& subcommand, Runtime const& runtime) {
  return {{"schema", "lockstep/1"},
          {"subcommand", subcommand},
          {"build", as_json(build_facts())},
          {"environment", as_json(environment_facts(runtime))}};
}

void check_json_target(std::string const& path, bool force, std::string const& option) {
  if (path.empty() || path == "-") return;
  std::error_code ignored;
  LOCKSTEP_THROW_IF(!force && std::filesystem::exists(path, ignored), ExitCode::usage,
                    option + " " + path + ": the file exists; give another name, or --force to replace it");
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  LOCKSTEP_THROW_IF(!std::filesystem::is_directory(folder, ignored) || access(folder.c_str(), W_OK) != 0,
                    ExitCode::usage,
                    option + " " + path + ": found no folder " + folder.string() + " that can be written to");
}

void write_text(std::string const& path, std::string const& text, bool force, std::string const& option) {
  if (path.empty()) return;
  if (path == "-") {
    std::cout << text << std::flush;
    return;
  }
  check_json_target(path, force, option);
  std::string const temporary = path + ".tmp";
  std::ofstream file(temporary);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) std::remove(temporary.c_str());
  LOCKSTEP_THROW_IF(!file || error, ExitCode::environment, option + " " + path + ": could not be written");
}

std::string as_text(nlohmann::ordered_json const& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void write_json(std::string const& path, nlohmann::ordered_json const& record, bool force, std::string const& option) {
  write_text(path, as_text(record, 2) + '\n', force, option);
}

}  // namespace lockstep
