// SPDX-License-Identifier: Apache-2.0
// What the studies have in common: options, the data set, tables, statements about the results, and the record.
#pragma once
#include <boost/program_options.hpp>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "miniapp/commands/command.hpp"
#include "miniapp/data/dataset.hpp"
#include "miniapp/files.hpp"
#include "miniapp/runtime.hpp"

namespace lockstep {

// A study's own options are members of a struct derived from this one, which adds them in its constructor.
class StudyOptions {
 public:
  std::string json, data;
  bool force = false, quick = false;
  std::int64_t threads = 0, train_images = 0, test_images = 1;

  StudyOptions()                               = default;
  StudyOptions(StudyOptions const&)            = delete;  // the table points to members
  StudyOptions& operator=(StudyOptions const&) = delete;

  // Reads the arguments; in the small form options that were not given have their small values. False: --help.
  bool parse(Command const& command, Arguments const& arguments);
  std::vector<Target> targets() const;
  TrainTest load() const { return load_dataset(data, train_images, test_images); }

 protected:
  static constexpr std::int64_t most = std::int64_t(1) << 31;

  // An option, its value, and its value in the small form.
  template <class T>
  void add(std::string const& name, T& option, T const& value, T const& small, char const* text) {
    auto* const semantic = boost::program_options::value(&option);
    if constexpr (std::is_same<T, double>::value)
      semantic->default_value(value, nlohmann::json(value).dump());  // the shortest text that reads as the same number
    else
      semantic->default_value(value);
    m_table.add_options()(name.c_str(), semantic, text);
    m_small.push_back([key = name.substr(0, name.find(',')), &option, small](auto const& given) {
      if (given[key].defaulted()) option = small;
    });
  }
  template <class T>
  void add(std::string const& name, T& option, T const& value, char const* text) {
    add(name, option, value, value, text);
  }
  void add(char const* name, std::string& option, char const* text);  // empty unless given
  // The data set; with 0 small test images one is enough, and there is no option for their number.
  void add_data(std::int64_t small_train, std::int64_t small_test = 0);
  void check() const;  // Error (usage)

 private:
  boost::program_options::options_description m_table{"Options"};
  std::vector<std::function<void(boost::program_options::variables_map const&)>> m_small;
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

  // Printed and among the parameters.
  void describe(TrainTest const& data);
  void describe(comm::Communicator const& world);

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
  bool m_passed = true;
};

// Error (usage) in a job of several processes.
void require_one_process(Command const& command, Runtime const& runtime);

// Options with their own public check(); body(options, runtime) is the study.
template <class Options, class Body>
ExitCode run_study(Command const& command, Arguments const& arguments, Body const& body) {
  Options options;
  if (!options.parse(command, arguments)) return ExitCode::success;
  options.check();
  return with_runtime(int(options.threads), [&](Runtime const& runtime) {
    if (runtime.is_root()) check_targets(options.targets(), options.force);
    return body(options, runtime);
  });
}

}  // namespace lockstep
