// SPDX-License-Identifier: Apache-2.0
// What the studies have in common: options, tables, statements about the results, and the record.
#pragma once
#include <boost/program_options.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "miniapp/commands/command.hpp"
#include "miniapp/runtime.hpp"

namespace lockstep {

struct StudyOptions {
  std::string json;
  bool force = false, quick = false;
  std::int64_t threads = 0;

  void add_to(boost::program_options::options_description& options);
  void check() const;  // Error (usage)
};

// Columns as wide as their widest cell; the first one to the left, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> heads) : m_rows{std::move(heads)} {}
  void row(std::vector<std::string> cells) { m_rows.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> m_rows;
};

std::string format(char const* printf_format, double value);

class Study {
 public:
  // The record's file, if it exists already, is replaced by write() only when `options` allow it.
  Study(Command const& command, StudyOptions const& options, Runtime const& runtime);

  template <class... Values>
  void say(char const* printf_format, Values... values) const {
    if (!m_runtime.is_root()) return;
    std::fprintf(m_out, printf_format, values...);
    std::fflush(m_out);
  }
  void say(std::string const& text) const { say("%s", text.c_str()); }

  nlohmann::ordered_json& parameters() { return m_record["parameters"]; }
  nlohmann::ordered_json& result() { return m_record["result"]; }

  // What must be equal: the study fails if it is not.
  void equality(std::string const& claim, bool holds);
  // What is expected to be larger, faster, better: noted, for noise and machines may have it otherwise.
  void order(std::string const& claim, bool holds);

  void write();       // the record so far
  ExitCode finish();  // prints the claims and the verdict, writes the record

 private:
  void add(std::string const& kind, std::string const& claim, bool holds);

  StudyOptions const& m_options;
  Runtime const& m_runtime;
  std::FILE* m_out;
  nlohmann::ordered_json m_record;
  bool m_written = false, m_passed = true;
};

// Error (usage) in a job of several processes.
void require_one_process(Command const& command, Runtime const& runtime);

}  // namespace lockstep
