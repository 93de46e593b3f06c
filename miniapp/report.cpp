// SPDX-License-Identifier: Apache-2.0
#include "miniapp/report.hpp"

#include <iostream>

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

void write_text(std::string const& path, std::string const& text) {
  if (path == "-")
    std::cout << text << std::flush;
  else if (!path.empty())
    write_file(path, text, false);
}

std::string as_text(nlohmann::ordered_json const& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void write_json(std::string const& path, nlohmann::ordered_json const& record) {
  write_text(path, as_text(record, 2) + '\n');
}

}  // namespace lockstep
