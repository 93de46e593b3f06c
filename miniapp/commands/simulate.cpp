// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>

#include "miniapp/commands/command.hpp"
#include "miniapp/commands/cost_options.hpp"
#include "miniapp/commands/quantities.hpp"
#include "miniapp/report.hpp"
#include "miniapp/runtime.hpp"

namespace lockstep {
namespace {

namespace po = boost::program_options;
using Json   = nlohmann::ordered_json;

constexpr char const* fused = "fused";  // the one pass of the shared-memory model, which is no schedule

constexpr std::int64_t fitted_bytes = std::int64_t(64) << 20;  // longest vector of --fit; longer ones have its rates

class Simulation {
 public:
  Simulation(CostOptions const& options, std::int64_t ranks, std::vector<std::string> const& algorithms)
      : m_options(options), m_ranks(ranks), m_names(algorithms) {
    if (!options.is_network()) m_names.push_back(fused);
  }

  std::vector<std::string> const& names() const { return m_names; }

  comm::ScheduleRequest request(std::int64_t elements) const { return m_options.request(m_ranks, elements); }

  comm::Seconds time(std::size_t algorithm, std::int64_t elements) const {
    std::string const& name = m_names[algorithm];
    return name == fused ? m_options.predict_fused(request(elements)) : m_options.predict(name, request(elements));
  }

  struct Row {
    std::int64_t elements;
    std::vector<comm::Seconds> times;  // by algorithm
    comm::Seconds bounds;
    std::size_t best;  // the first of the fastest
  };
  Row row(std::int64_t elements) const {
    Row row{elements, {}, m_options.lower_bounds(request(elements)), 0};
    for (std::size_t a = 0; a < m_names.size(); ++a) row.times.push_back(time(a, elements));
    row.best = std::size_t(std::min_element(row.times.begin(), row.times.end(),
                                            [](auto const& a, auto const& b) { return a.sum() < b.sum(); }) -
                           row.times.begin());
    return row;
  }

  // From `elements` on, `to` is the fastest, where `from` was.
  struct Crossover {
    std::int64_t elements;
    std::size_t from, to;
  };
  // Between two rows whose fastest algorithms differ, to 1 %. Where a third is the fastest in between, it is found too.
  void crossovers(Row const& low, Row const& high, std::vector<Crossover>& found) const {
    if (low.best == high.best) return;
    std::int64_t below = low.elements, above = high.elements;
    while (above - below > 1 && double(above) > 1.01 * double(below)) {
      std::int64_t const middle                                                       = below + (above - below) / 2;
      (time(low.best, middle).sum() <= time(high.best, middle).sum() ? below : above) = middle;
    }
    Row const there  = row(above);
    double const tie = there.times[high.best].sum() * (1 - 1e-3);
    bool const third = there.best != low.best && there.best != high.best && there.times[there.best].sum() < tie &&
                       above > low.elements && above < high.elements;
    if (third) {
      crossovers(low, there, found);
      crossovers(there, high, found);
    } else {
      found.push_back({above, low.best, high.best});
    }
  }

 private:
  CostOptions const& m_options;
  std::int64_t m_ranks;
  std::vector<std::string> m_names;
};

// "recursive_doubling" as the lines of a column's head.
std::vector<std::string> head(std::string const& name) {
  std::size_t const cut = name.find('_');
  if (cut == std::string::npos) return {"", name};
  return {name.substr(0, cut), name.substr(cut + 1)};
}

void print(std::FILE* out, Simulation const& simulation, std::vector<Simulation::Row> const& rows, int element_bytes) {
  auto const& names = simulation.names();
  std::vector<int> widths;
  for (auto const& name : names)
    widths.push_back(std::max<int>({8, int(head(name)[0].size()), int(head(name)[1].size())}));
  for (int line : {0, 1}) {
    std::fprintf(out, "%10s", line ? "bytes" : "");
    for (std::size_t a = 0; a < names.size(); ++a) std::fprintf(out, "  %*s", widths[a], head(names[a])[line].c_str());
    std::fprintf(out, "  %8s  %7s  %4s\n", line ? "bound" : "lower", line ? "by" : "bound", line ? "best" : "% of");
  }
  for (auto const& row : rows) {
    std::fprintf(out, "%10s", bytes_text(double(row.elements) * element_bytes).c_str());
    for (std::size_t a = 0; a < names.size(); ++a)
      std::fprintf(out, "%s%*s", a == row.best ? " *" : "  ", widths[a], seconds_text(row.times[a].sum()).c_str());
    double const best = row.times[row.best].sum();
    if (best > 0)
      std::fprintf(out, "  %8s  %7s  %4.0f\n", seconds_text(row.bounds.max()).c_str(), comm::name(row.bounds.largest()),
                   100 * row.bounds.max() / best);
    else
      std::fprintf(out, "  %8s  %7s  %4s\n", "-", "-", "-");
  }
}

ExitCode run(Arguments const& arguments) {
  std::int64_t ranks, devices;
  double factor;
  std::string bytes, algorithm, json;
  bool force = false, fit = false;
  CostOptions cost;
  po::options_description options("Options");
  auto add = options.add_options();
  add("ranks,k", po::value(&ranks)->required(), "number of ranks, up to 65536");
  add("bytes", po::value(&bytes)->default_value("4:16G"), "lengths LOW:HIGH of the vector");
  add("factor", po::value(&factor)->default_value(4), "between one length and the next");
  add("algorithm,a", po::value(&algorithm)->default_value("all"), "all, or names separated by commas");
  add("fit", po::bool_switch(&fit), "measure this machine, with the ranks of this run, instead of --alpha and so on");
  add("devices", po::value(&devices)->default_value(0), "of each process, for --fit (0: 2 without a launcher, else 1)");
  add("json", po::value(&json), "write a record to this file (-: standard output)");
  add("force", po::bool_switch(&force), "replace an existing record");
  cost.add_to(options);
  po::variables_map values;
  if (!parse(simulate_command, options, arguments, values)) return ExitCode::success;
  cost.check();
  if (fit) CostOptions::check_none_given(values);
  in_range("--ranks", ranks, 1, 65536);
  ByteRange const range  = parse_byte_range("--bytes", bytes);
  auto const algorithms  = parse_algorithms("--algorithm", algorithm);
  int const element_size = cost.element_bytes();
  LOCKSTEP_THROW_IF(range.high > most_bytes, ExitCode::usage, "--bytes " + bytes + "; expected at most 1T");
  LOCKSTEP_THROW_IF(range.high < element_size, ExitCode::usage,
                    "--bytes " + bytes + "; expected at least an element, " + std::to_string(element_size) + " bytes");
  LOCKSTEP_THROW_IF(!(factor >= 1.01 && factor <= 1e12), ExitCode::usage,
                    "--factor " + std::to_string(factor) + "; expected 1.01 to 1e12");
  in_range("--devices", devices, 0, 64);
  cost.request(ranks, 0);

  Runtime const runtime;
  if (runtime.is_root()) check_targets({{"--json", json}}, force);
  std::optional<comm::Probe> probe;
  std::string measured;
  if (fit) {
    if (devices == 0) devices = runtime.processes() > 1 ? 1 : 2;
    comm::Communicator world(runtime.instances(int(devices)));
    LOCKSTEP_THROW_IF(world.size() < 2, ExitCode::usage,
                      "--fit with 1 rank; expected at least 2: --devices, or a launcher");
    measured = ", " + std::to_string(world.size()) + " ranks, " + world.transport();
    cost.fit(probe.emplace(world, std::clamp<std::int64_t>(range.high, 4096, fitted_bytes)));
  }
  if (!runtime.is_root()) return ExitCode::success;
  std::FILE* const out = json == "-" ? stderr : stdout;
  std::fprintf(out, "allreduce over %lld ranks, predicted\nmachine : %s\n\n", static_cast<long long>(ranks),
               (cost.text() + measured).c_str());

  Simulation const simulation(cost, ranks, algorithms);
  std::vector<Simulation::Row> rows;
  double const highest = double(range.high / element_size);
  for (double elements = std::max<double>(1, double(range.low / element_size));; elements *= factor) {
    auto const whole = std::int64_t(std::min(elements, highest));
    if (rows.empty() || whole > rows.back().elements) rows.push_back(simulation.row(whole));
    if (elements >= highest) break;
  }
  print(out, simulation, rows, element_size);

  std::vector<Simulation::Crossover> crossovers;
  for (std::size_t i = 1; i < rows.size(); ++i) simulation.crossovers(rows[i - 1], rows[i], crossovers);
  std::fprintf(out, "\nfastest : %s", simulation.names()[rows.front().best].c_str());
  for (auto const& c : crossovers)
    std::fprintf(out, ", from %s %s", bytes_text(double(c.elements) * element_size).c_str(),
                 simulation.names()[c.to].c_str());
  std::fprintf(out, "\n");

  if (!json.empty()) {
    Json record       = new_record("simulate", runtime);
    record["ranks"]   = ranks;
    record["machine"] = cost.json();
    record["rows"] = record["crossovers"] = Json::array();
    for (auto const& row : rows)
      for (std::size_t a = 0; a < simulation.names().size(); ++a) {
        Json entry{{"algo", simulation.names()[a]},
                   {"ranks", ranks},
                   {"count", row.elements},
                   {"bytes", row.elements * element_size},
                   {"best", a == row.best}};
        entry.update(cost_json(row.times[a], row.bounds));
        record["rows"].push_back(entry);
      }
    for (auto const& c : crossovers)
      record["crossovers"].push_back({{"bytes", c.elements * element_size},
                                      {"from", simulation.names()[c.from]},
                                      {"to", simulation.names()[c.to]}});
    write_json(json, record);
  }
  return ExitCode::success;
}

}  // namespace

Command const simulate_command{"simulate", "predict allreduce times and crossovers for up to 65536 ranks", run};

}  // namespace lockstep
