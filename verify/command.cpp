// SPDX-License-Identifier: Apache-2.0
#include "verify/command.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <sstream>

#include "miniapp/report.hpp"
#include "miniapp/runtime.hpp"
#include "verify/check.hpp"
#include "verify/faults.hpp"
#include "verify/report.hpp"

namespace lockstep {
namespace {

namespace po = boost::program_options;
using namespace verify;

struct Settings {
  bool quick = false, faults = false, force = false;
  std::vector<std::string> only;
  std::int64_t devices = 0, threads = 0;
  std::string plant, json, junit;
};

std::string joined(std::vector<std::string> const& words, char const* separator = ", ") {
  std::string text;
  for (auto const& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::vector<std::string> names(std::vector<Check> const& checks) {
  std::vector<std::string> result;
  for (Check const& check : checks) result.emplace_back(check.name);
  return result;
}

po::options_description describe(Settings& settings) {
  std::string list;
  for (Check const& check : all_checks()) list += "\n  " + std::string(check.name) + ": \t" + check.summary;
  po::options_description options("Options");
  auto add = options.add_options();
  add("quick", po::bool_switch(&settings.quick), "fewer cases: under 30 seconds");
  add("faults", po::bool_switch(&settings.faults),
      "plant known faults, one at a time, and show which check sees each; one that none sees is a failure");
  add("plant", po::value(&settings.plant), "plant this one fault of --faults, to see the checks fail");
  add("only", po::value(&settings.only)->composing(), ("these checks alone, in this order:" + list).c_str());
  add("devices,k", po::value(&settings.devices)->default_value(0),
      "devices per process (0: 1 to 8 in turn, or 1 under a launcher)");
  add("threads", po::value(&settings.threads)->default_value(0),
      "threads per process (0: OMP_NUM_THREADS, else the node's cores divided by its processes; with --faults 1)");
  add("json", po::value(&settings.json), "write a record to this file (-: standard output)");
  add("junit", po::value(&settings.junit), "write the results as JUnit XML to this file (-: standard output)");
  add("force", po::bool_switch(&settings.force), "replace existing files");
  return options;
}

// In the stated order, whatever the order on the command line.
std::vector<Check> chosen(std::vector<Check> const& checks, std::vector<std::string> const& given) {
  if (given.empty()) return checks;
  std::vector<std::string> wanted;
  for (std::string const& word : given) {
    std::istringstream list(word);
    for (std::string name; std::getline(list, name, ',');) wanted.push_back(name);
  }
  auto const known = names(checks);
  for (std::string const& name : wanted)
    LOCKSTEP_THROW_IF(std::find(known.begin(), known.end(), name) == known.end(), ExitCode::usage,
                      "--only " + name + "; expected one of " + joined(known));
  std::vector<Check> result;
  for (Check const& check : checks)
    if (std::find(wanted.begin(), wanted.end(), check.name) != wanted.end()) result.push_back(check);
  return result;
}

std::function<Plant()> planted(std::string const& name) {
  if (name.empty()) return [] { return Plant{}; };
  std::vector<std::string> known;
  for (Fault const& fault : all_faults()) {
    if (name == fault.name) return fault.plant;
    known.emplace_back(fault.name);
  }
  throw Error(ExitCode::usage, "--plant " + name + "; expected one of: " + joined(known));
}

class Run {
 public:
  Run(Settings const& settings, Runtime const& runtime, std::vector<Check> checks)
      : m_settings(settings),
        m_runtime(runtime),
        m_checks(std::move(checks)),
        m_out(settings.json == "-" || settings.junit == "-" ? stderr : stdout) {}

  ExitCode execute() {
    for (auto const& facts : {build_facts(), environment_facts(m_runtime)})
      for (auto const& [key, value] : facts) say("%s : %s\n", key.c_str(), value.c_str());
    nlohmann::ordered_json record = new_record("verify", m_runtime);
    if (m_settings.faults)
      plant_faults(record);
    else
      run_checks();

    bool passed           = true;
    std::size_t succeeded = 0;
    for (Result const& result : m_results) {
      passed = passed && result.outcome.passed;
      succeeded += result.outcome.passed;
    }
    say("\n%zu of %zu %s\n", succeeded, m_results.size(), m_settings.faults ? "as expected" : "checks passed");
    say("VERIFICATION: %s\n", passed ? "PASSED" : "FAILED");
    if (m_runtime.is_root()) {
      record["verification"] = as_json(m_results);
      write_json(m_settings.json, record);
      write_text(m_settings.junit, as_junit(m_results));
    }
    return passed ? ExitCode::success : ExitCode::wrong_result;
  }

 private:
  template <class... Values>
  void say(char const* format, Values... values) const {
    if (!m_runtime.is_root()) return;
    std::fprintf(m_out, format, values...);
    std::fflush(m_out);
  }

  template <class Function>
  static double seconds(Function const& function) {
    auto const start = std::chrono::steady_clock::now();
    function();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run_checks() {
    auto const plant   = planted(m_settings.plant);
    auto const context = [&] {
      return Context(m_runtime, m_settings.quick ? Scope::quick : Scope::full, int(m_settings.devices), plant());
    };
    auto const shapes = context().worlds();
    std::vector<std::string> worlds;
    for (WorldShape const& shape : shapes) worlds.push_back(std::to_string(shape.devices));
    worlds.erase(std::unique(worlds.begin(), worlds.end()), worlds.end());
    if (!m_settings.plant.empty()) say("planted : %s\n", m_settings.plant.c_str());
    say("world : %d process%s x %s devices\n\n%-12s %-6s %8s  %s\n", m_runtime.processes(),
        m_runtime.processes() == 1 ? "" : "es", joined(worlds).c_str(), "check", "result", "seconds", "what was found");
    for (Check const& check : m_checks) {
      Result result{"check", check.name, {}, 0};
      result.seconds = seconds([&] { result.outcome = run_agreed(check, context()); });
      say("%-12s %-6s %8.2f  %s\n", check.name, result.outcome.passed ? "ok" : "FAILED", result.seconds,
          result.outcome.detail.c_str());
      m_results.push_back(std::move(result));
    }
  }

  void plant_faults(nlohmann::ordered_json& record) {
    // The same small runs without a fault: what sees one here would see anything.
    Fault const none{"none", "no fault is planted", [] { return Plant{}; }};
    Result healthy{"healthy", "no fault", {}, 0};
    healthy.seconds = seconds([&] {
      for (Caught const& caught : hunt(m_runtime, none, m_checks))
        healthy.outcome = Outcome::failure("false alarm of " + caught.check + ": " + caught.outcome.detail);
    });
    say("\nwithout a fault: %s\n\n%-38s %-12s %4s  %s\n",
        healthy.outcome.passed ? "no check sees one" : healthy.outcome.detail.c_str(), "fault", "caught by", "step",
        "seen by all of");
    m_results.push_back(healthy);

    auto list = nlohmann::ordered_json::array();
    std::vector<std::vector<std::string>> seen_by;
    for (Fault const& fault : all_faults()) {
      std::vector<Caught> caught;
      Result result{"fault", fault.name, {}, 0};
      result.seconds = seconds([&] { caught = hunt(m_runtime, fault, m_checks); });
      seen_by.emplace_back();
      auto entries = nlohmann::ordered_json::array();
      for (Caught const& one : caught) {
        seen_by.back().push_back(one.check);
        entries.push_back({{"check", one.check}, {"detail", one.outcome.detail}});
        if (one.outcome.step >= 0) entries.back()["step"] = one.outcome.step;
        if (!one.outcome.tensor.empty()) entries.back()["tensor"] = one.outcome.tensor;
      }
      list.push_back({{"name", fault.name}, {"story", fault.story}, {"caught", entries}});
      if (caught.empty()) {
        result.outcome = Outcome::failure(std::string("no check sees it: ") + fault.story);
        say("%-38s %-12s %4s  %s\n", fault.name, "NOBODY", "", fault.story);
      } else {
        std::string step      = "-";  // the earliest in which a check that has steps sees it
        std::int64_t earliest = std::numeric_limits<std::int64_t>::max();
        for (Caught const& one : caught)
          if (one.outcome.step >= 0 && one.outcome.step < earliest) step = std::to_string(earliest = one.outcome.step);
        result.outcome = Outcome::success("seen by " + joined(seen_by.back()) + "; " + caught.front().check + ": " +
                                          caught.front().outcome.detail);
        say("%-38s %-12s %4s  %s\n", fault.name, caught.front().check.c_str(), step.c_str(),
            joined(seen_by.back()).c_str());
      }
      m_results.push_back(std::move(result));
    }
    record["faults"]       = list;
    record["switched_off"] = switch_off(seen_by);
  }

  // Which faults need which check: those that nobody would see without it.
  nlohmann::ordered_json switch_off(std::vector<std::vector<std::string>> const& seen_by) const {
    say("\nwith one check switched off:\n");
    auto record = nlohmann::ordered_json::object();
    for (Check const& check : m_checks) {
      std::vector<std::string> missed;
      for (std::size_t f = 0; f < seen_by.size(); ++f)
        if (seen_by[f] == std::vector<std::string>{check.name}) missed.emplace_back(all_faults()[f].name);
      say("  without %-12s %zu of %zu caught%s%s\n", check.name, seen_by.size() - missed.size(), seen_by.size(),
          missed.empty() ? "" : "; missed: ", joined(missed).c_str());
      record[check.name] = missed;
    }
    return record;
  }

  Settings const& m_settings;
  Runtime const& m_runtime;
  std::vector<Check> m_checks;
  std::FILE* m_out;
  std::vector<Result> m_results;
};

ExitCode run(Arguments const& arguments) {
  Settings settings;
  po::variables_map values;
  if (!parse(verify_command, describe(settings), arguments, values)) return ExitCode::success;
  in_range("--devices", settings.devices, 0, 4096);
  in_range("--threads", settings.threads, 0, most_threads);
  auto const checks = chosen(settings.faults ? fault_checks() : all_checks(), settings.only);
  planted(settings.plant);
  LOCKSTEP_THROW_IF(settings.faults && !settings.plant.empty(), ExitCode::usage,
                    "--faults with --plant " + settings.plant + "; expected one of them");

  // Thousands of tiny kernels: a second thread would cost more than it gives.
  if (settings.faults && settings.threads == 0) settings.threads = 1;
  return with_runtime(int(settings.threads), [&](Runtime const& runtime) {
    LOCKSTEP_THROW_IF((settings.faults || !settings.plant.empty()) && runtime.processes() > 1, ExitCode::usage,
                      "faults planted in " + std::to_string(runtime.processes()) +
                          " processes; expected one, for its devices' shared state");
    if (runtime.is_root()) check_targets({{"--json", settings.json}, {"--junit", settings.junit}}, settings.force);
    return Run(settings, runtime, checks).execute();
  });
}

}  // namespace

Command const verify_command{"verify", "check the kernels, the collectives and training on k devices against one", run};

}  // namespace lockstep
