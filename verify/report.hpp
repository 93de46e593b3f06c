// SPDX-License-Identifier: Apache-2.0
// What `lockstep verify` hands out beside its lines: JUnit's XML and the record's "verification" object.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "verify/check.hpp"

namespace lockstep::verify {

struct Result {
  std::string group, name;  // "check" or "fault", and its name
  Outcome outcome;
  double seconds = 0;
};

nlohmann::ordered_json as_json(std::vector<Result> const& results);
// One test suite a group. Characters that XML does not allow are replaced.
std::string as_junit(std::vector<Result> const& results);

}  // namespace lockstep::verify
