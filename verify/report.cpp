// SPDX-License-Identifier: Apache-2.0
#include "verify/report.hpp"

#include <iomanip>
#include <sstream>

namespace lockstep::verify {
namespace {

std::string escaped(std::string const& text) {
  std::string result;
  for (char const c : text) switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  return result;
}

}  // namespace

nlohmann::ordered_json as_json(std::vector<Result> const& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  bool passed                 = true;
  for (Result const& result : results) {
    Outcome const& outcome = result.outcome;
    passed                 = passed && outcome.passed;
    list.push_back({{"group", result.group},
                    {"name", result.name},
                    {"passed", outcome.passed},
                    {"detail", outcome.detail},
                    {"seconds", result.seconds}});
    if (outcome.step >= 0) list.back()["step"] = outcome.step;
    if (!outcome.tensor.empty()) list.back()["tensor"] = outcome.tensor;
  }
  return {{"passed", passed}, {"results", list}};
}

std::string as_junit(std::vector<Result> const& results) {
  std::vector<std::string> groups;
  for (Result const& result : results)
    if (groups.empty() || groups.back() != result.group) groups.push_back(result.group);

  std::ostringstream xml;
  xml << std::fixed << std::setprecision(3) << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  for (std::string const& group : groups) {
    int tests = 0, failures = 0;
    double seconds = 0;
    std::ostringstream cases;
    cases << std::fixed << std::setprecision(3);
    for (Result const& result : results) {
      if (result.group != group) continue;
      ++tests;
      failures += !result.outcome.passed;
      seconds += result.seconds;
      cases << "    <testcase classname=\"lockstep.verify." << escaped(group) << "\" name=\"" << escaped(result.name)
            << "\" time=\"" << result.seconds << "\">\n";
      if (result.outcome.passed)
        cases << "      <system-out>" << escaped(result.outcome.detail) << "</system-out>\n";
      else
        cases << "      <failure message=\"" << escaped(result.outcome.detail) << "\"/>\n";
      cases << "    </testcase>\n";
    }
    xml << "  <testsuite name=\"lockstep.verify." << escaped(group) << "\" tests=\"" << tests << "\" failures=\""
        << failures << "\" time=\"" << seconds << "\">\n"
        << cases.str() << "  </testsuite>\n";
  }
  xml << "</testsuites>\n";
  return xml.str();
}

}  // namespace lockstep::verify
