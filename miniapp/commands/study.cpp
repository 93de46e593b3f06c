// SPDX-License-Identifier: Apache-2.0
#include "miniapp/commands/study.hpp"

#include <algorithm>

#include "miniapp/report.hpp"

namespace lockstep {

namespace po = boost::program_options;

bool StudyOptions::parse(Command const& command, Arguments const& arguments) {
  auto add = m_table.add_options();
  add("quick", po::bool_switch(&quick), "a small form of the same, under a minute; other options are kept if given");
  add("threads", po::value(&threads)->default_value(0), "threads per process (0: as train chooses)");
  add("json", po::value(&json), "write a record to this file (-: standard output)");
  add("force", po::bool_switch(&force), "replace an existing record");
  po::variables_map given;
  if (!lockstep::parse(command, m_table, arguments, given)) return false;
  if (quick)
    for (auto const& make_small : m_small) make_small(given);
  return true;
}

void StudyOptions::add(char const* name, std::string& option, char const* text) {
  m_table.add_options()(name, po::value(&option), text);
}

void StudyOptions::add_data(std::int64_t small_train, std::int64_t small_test) {
  add("data", data, std::string("auto"), std::string("synthetic"),
      "auto, fashion-mnist, synthetic, or a folder with the four IDX files");
  add("train-images", train_images, std::int64_t(0), small_train, "use the first N (0: all)");
  if (small_test > 0) add("test-images", test_images, std::int64_t(0), small_test, "use the first N (0: all)");
}

void StudyOptions::check() const {
  in_range("--threads", threads, 0, most_threads);
  in_range("--train-images", train_images, 0, most);
  in_range("--test-images", test_images, 0, most);
}

std::vector<Target> StudyOptions::targets() const {
  return {{"--json", json}};
}

std::string Table::text() const {
  std::vector<std::size_t> widths(m_rows[0].size(), 0);
  for (auto const& cells : m_rows)
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  std::string text;
  for (auto const& cells : m_rows) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      std::string const space(widths[i] - cells[i].size(), ' ');
      text += i == 0 ? cells[i] + space : "  " + space + cells[i];
    }
    text += '\n';
  }
  return text;
}

std::string format(char const* printf_format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, printf_format, value);
  return text;
}

Study::Study(Command const& command, StudyOptions const& options, Runtime const& runtime)
    : m_options(options),
      m_runtime(runtime),
      m_out(options.json == "-" ? stderr : stdout),
      m_record(new_record(command.name, runtime)) {
  for (auto const& facts : {build_facts(), environment_facts(runtime)})
    for (auto const& [key, value] : facts) say("%s : %s\n", key.c_str(), value.c_str());
  parameters()       = {{"quick", options.quick}};
  result()["claims"] = nlohmann::ordered_json::array();
}

void Study::describe(TrainTest const& data) {
  say("data : %s (%s), %lld + %lld images\n", data.name.c_str(), data.source.c_str(),
      static_cast<long long>(data.train.count), static_cast<long long>(data.test.count));
  if (!data.notice.empty()) say("NOTE: %s\n", data.notice.c_str());
  parameters().update({{"data", data.name}, {"train_images", data.train.count}, {"test_images", data.test.count}});
}

void Study::describe(comm::Communicator const& world) {
  say("devices : %d (%d processes x %d), %s\n", world.size(), world.processes(), world.local_size(),
      world.transport().c_str());
  parameters().update({{"devices", world.size()},
                       {"processes", world.processes()},
                       {"transport", world.transport()},
                       {"oversubscribed", world.oversubscribed()}});
}

void Study::equality(std::string const& claim, bool holds) {
  m_passed = m_passed && holds;
  add("equality", claim, holds);
}

void Study::order(std::string const& claim, bool holds) {
  add("order", claim, holds);
}

void Study::add(std::string const& kind, std::string const& claim, bool holds) {
  result()["claims"].push_back({{"claim", claim}, {"kind", kind}, {"holds", holds}});
}

void Study::write() {
  if (!m_runtime.is_root() || m_options.json.empty() || m_options.json == "-") return;
  write_json(m_options.json, m_record);
}

ExitCode Study::finish() {
  std::size_t hold     = 0;
  auto const& claims   = result()["claims"];
  std::string verdict  = "no equality to check";
  std::size_t equal    = 0;
  std::string failures = "";
  for (auto const& claim : claims) {
    bool const holds = claim["holds"];
    say("%s : %s\n", holds ? "holds" : "DOES NOT HOLD", claim["claim"].get<std::string>().c_str());
    if (claim["kind"] != "equality") continue;
    ++equal;
    hold += holds;
    if (!holds) failures += (failures.empty() ? "" : "; ") + claim["claim"].get<std::string>();
  }
  if (equal > 0) verdict = failures.empty() ? std::to_string(hold) + " equalities hold" : "does not hold: " + failures;
  say("VERIFICATION: %s (%s)\n", m_passed ? "PASSED" : "FAILED", verdict.c_str());
  m_record["verification"] = {{"passed", m_passed}, {"detail", verdict}};
  if (m_options.json == "-") {
    if (m_runtime.is_root()) write_json("-", m_record);
  } else {
    write();
  }
  return m_passed ? ExitCode::success : ExitCode::wrong_result;
}

void require_one_process(Command const& command, Runtime const& runtime) {
  LOCKSTEP_THROW_IF(runtime.processes() > 1, ExitCode::usage,
                    std::string(command.name) + " in " + std::to_string(runtime.processes()) +
                        " processes; expected 1: it makes its devices itself");
}

}  // namespace lockstep
