// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>

#include "comm/algorithms.hpp"
#include "comm/communicator.hpp"
#include "comm/probe.hpp"
#include "comm/transports/reduce.hpp"
#include "kernels/median.hpp"
#include "miniapp/allreduce_benchmark.hpp"
#include "miniapp/commands/command.hpp"
#include "miniapp/commands/quantities.hpp"
#include "miniapp/report.hpp"
#include "miniapp/runtime.hpp"

namespace lockstep {
namespace {

namespace po = boost::program_options;
using Json   = nlohmann::ordered_json;

struct Settings {
  std::string min_bytes, max_bytes, step_bytes, algorithms, types, operations, place, transport, check, registered,
      json;
  std::int64_t factor, samples, warm_up, devices, threads, offset, max_message, nodes_of;
  double timeout;
  bool force = false, check_every_call = false, host_staging = false;
  BenchmarkOptions benchmark;
  comm::CommunicatorOptions communicator;
};

po::options_description describe(Settings& s) {
  po::options_description options("Options");
  auto add = options.add_options();
  add("min-bytes,b", po::value(&s.min_bytes)->default_value("4"), "smallest size per rank");
  add("max-bytes,e", po::value(&s.max_bytes)->default_value("64M"), "largest size per rank");
  add("factor,f", po::value(&s.factor)->default_value(4), "from one size to the next");
  add("step-bytes,i", po::value(&s.step_bytes)->default_value("0"), "instead of a factor: add this");
  add("iters,n", po::value(&s.samples)->default_value(20), "timed samples; short calls are timed many at once");
  add("warmup,w", po::value(&s.warm_up)->default_value(3), "samples before those");
  add("check,c", po::value(&s.check)->default_value("on"), "on: check every sample's result; off");
  add("datatype,d", po::value(&s.types)->default_value("float"), "float, double, int64, a list, or all");
  add("op,o", po::value(&s.operations)->default_value("sum"), "sum, max, min, a list, or all");
  add("place", po::value(&s.place)->default_value("both"), "in, out, or both: in place, out of place");
  add("algorithms,a", po::value(&s.algorithms)->default_value("all"),
      "a list, or all that this world can: the schedules; fused (one pass over shared memory); mpi (MPI_Allreduce); "
      "nccl (ncclAllReduce)");
  add("transport,t", po::value(&s.transport)->default_value("auto"), "auto, messages, shared-memory, or nccl");
  add("devices,k", po::value(&s.devices)->default_value(1), "devices per process");
  add("threads", po::value(&s.threads)->default_value(0), "threads per process (0: as train chooses)");
  add("registered", po::value(&s.registered)->default_value("on"),
      "on: buffers in memory that ranks share where they can; off: elsewhere, as a program's own");
  add("offset,u", po::value(&s.offset)->default_value(0), "elements by which buffers miss their alignment");
  add("timeout", po::value(&s.timeout)->default_value(60), "seconds after which a silent rank ends the job");
  add("check-every-call", po::bool_switch(&s.check_every_call),
      "compare length, type, algorithm ... of ranks before every call");
  add("max-message-bytes", po::value(&s.max_message)->default_value(std::int64_t(1) << 30),
      "longer messages are split");
  add("host-staging", po::bool_switch(&s.host_staging),
      "pass messages through host memory even if MPI could do without");
  add("processes-per-node", po::value(&s.nodes_of)->default_value(0),
      "treat runs of that many processes as nodes (0: as they are)");
  add("json", po::value(&s.json), "write a record to this file (-: standard output)");
  add("force", po::bool_switch(&s.force), "replace an existing record");
  return options;
}

template <class T>
std::vector<T> parse_list(std::string const& option, std::string const& text,
                          std::vector<std::pair<std::string, T>> const& known) {
  std::vector<T> values;
  std::string names;
  for (auto const& [name, value] : known) names += (names.empty() ? "" : ", ") + name;
  std::stringstream list(text);
  for (std::string word; std::getline(list, word, ',');) {
    bool found = false;
    for (auto const& [name, value] : known)
      if (word == name || word == "all") {
        values.push_back(value);
        found = true;
      }
    LOCKSTEP_THROW_IF(!found, ExitCode::usage, option + " " + text + "; expected all, or some of " + names);
  }
  LOCKSTEP_THROW_IF(values.empty(), ExitCode::usage, option + " is empty; expected all, or some of " + names);
  return values;
}

void check(Settings& s) {
  auto& b                = s.benchmark;
  std::int64_t const low = parse_bytes("--min-bytes", s.min_bytes), high = parse_bytes("--max-bytes", s.max_bytes),
                     step = parse_bytes("--step-bytes", s.step_bytes);
  LOCKSTEP_THROW_IF(
      low > high, ExitCode::usage,
      "--min-bytes " + s.min_bytes + " is above --max-bytes " + s.max_bytes + "; expected the smaller first");
  in_range("--factor", s.factor, 2, 1 << 20);
  LOCKSTEP_THROW_IF(step > 0 && (high - low) / step > 10000, ExitCode::usage,
                    "--step-bytes " + s.step_bytes + " makes more than 10000 sizes; expected a larger step");
  LOCKSTEP_THROW_IF(high > most_bytes, ExitCode::usage, "--max-bytes " + s.max_bytes + "; expected at most 1T");
  for (std::int64_t size = low; size <= high;
       size              = step > 0 ? size + step : std::max<std::int64_t>(size, 1) * s.factor)
    b.sizes.push_back(size);
  b.samples    = int(in_range("--iters", s.samples, 1, 1000000));
  b.warm_up    = int(in_range("--warmup", s.warm_up, 1, 1000000));
  b.check      = is_on("--check", s.check);
  b.registered = is_on("--registered", s.registered);
  b.offset     = in_range("--offset", s.offset, 0, 1 << 20);
  b.types      = parse_list<ElementType>(
      "--datatype", s.types,
      {{"float", ElementType::float32}, {"double", ElementType::float64}, {"int64", ElementType::int64}});
  b.operations = parse_list<comm::Op>("--op", s.operations,
                                      {{"sum", comm::Op::sum}, {"max", comm::Op::max}, {"min", comm::Op::min}});
  LOCKSTEP_THROW_IF(s.place != "in" && s.place != "out" && s.place != "both", ExitCode::usage,
                    "--place " + s.place + "; expected in, out or both");
  b.in_place     = s.place != "out";
  b.out_of_place = s.place != "in";
  in_range("--devices", s.devices, 1, 4096);
  in_range("--threads", s.threads, 0, most_threads);
  LOCKSTEP_THROW_IF(!(s.timeout > 0 && s.timeout <= 86400), ExitCode::usage,
                    "--timeout " + std::to_string(s.timeout) + "; expected more than 0, up to 86400 seconds");
  auto& c = s.communicator;
  std::map<std::string, comm::Transport> const transports{{"auto", comm::Transport::automatic},
                                                          {"messages", comm::Transport::messages},
                                                          {"shared-memory", comm::Transport::shared_memory},
                                                          {"nccl", comm::Transport::nccl}};
  LOCKSTEP_THROW_IF(!transports.count(s.transport), ExitCode::usage,
                    "--transport " + s.transport + "; expected auto, messages, shared-memory or nccl");
  c.transport          = transports.at(s.transport);
  c.timeout            = std::chrono::duration<double>(s.timeout);
  c.check_every_call   = s.check_every_call;
  c.host_staging       = s.host_staging;
  c.max_message_bytes  = in_range("--max-message-bytes", s.max_message, 1, (std::int64_t(1) << 31) - 1);
  c.processes_per_node = int(in_range("--processes-per-node", s.nodes_of, 0, 1 << 20));
}

class Run {
 public:
  Run(Settings const& settings, Runtime const& runtime)
      : m_settings(settings),
        m_runtime(runtime),
        m_out(settings.json == "-" ? stderr : stdout),
        m_world(runtime.instances(int(settings.devices)), settings.communicator),
        m_options(settings.benchmark) {
    std::vector<std::pair<std::string, std::string>> known;
    for (auto const& name : m_world.algorithms()) known.emplace_back(name, name);
    m_options.algorithms = parse_list<std::string>("--algorithms", settings.algorithms, known);
  }

  ExitCode execute() {
    comm::Probe const probe(m_world, std::max<std::int64_t>(4096, m_options.sizes.back()));
    header(probe);
    auto const rows = run_benchmark(m_world, probe, m_options, [&](BenchmarkRow const& row) { print(row); });
    return finish(probe, rows);
  }

 private:
  template <class... Values>
  void say(char const* format, Values... values) const {
    if (!m_runtime.is_root()) return;
    std::fprintf(m_out, format, values...);
    std::fflush(m_out);
  }

  double bus_factor() const { return 2.0 * (m_world.size() - 1) / m_world.size(); }

  void header(comm::Probe const& probe) const {
    for (auto const* facts : {&m_build, &m_environment})
      for (auto const& [key, value] : *facts) say("# %-22s: %s\n", key.c_str(), value.c_str());
    say("# %-22s: %d = %d processes x %d devices\n", "ranks", m_world.size(), m_world.processes(),
        m_world.local_size());
    say("# %-22s: %s\n", "transport", m_world.transport().c_str());
    if (!m_world.notes().empty()) say("# %-22s: %s\n", "", m_world.notes().c_str());
    if (m_world.oversubscribed())
      say("# %-22s: yes, more processes than cores: waits yield, times include waiting for a core\n", "oversubscribed");
    say("# %-22s: %s; one rank copies %.1f GB/s, adds %.1f GB/s (read and written)\n", "one step",
        seconds_text(probe.step_seconds()).c_str(), probe.copy_rate() * 1e-9, probe.add_rate() * 1e-9);
    for (auto const& point : probe.points()) {
      if (m_world.size() == 1) continue;  // nobody to exchange with
      if (probe.is_memory())
        say("# %-22s: update %s (fastest %s), add %s, copy %s; one rank adds %s, copies %s\n",
            ("memory at " + bytes_text(double(point.bytes))).c_str(),
            rate(2.0 * double(point.bytes) * m_world.size() / point.update).c_str(),
            rate(2.0 * double(point.bytes) * m_world.size() / point.fastest).c_str(),
            rate(1.5 * double(point.bytes) * m_world.size() / point.add).c_str(),
            rate(1.0 * double(point.bytes) * m_world.size() / point.copy).c_str(),
            rate(3.0 * double(point.bytes) / point.add_alone).c_str(),
            rate(2.0 * double(point.bytes) / point.copy_alone).c_str());
      else
        say("# %-22s: %s each way\n", ("link at " + bytes_text(double(point.bytes))).c_str(),
            rate(1 / std::max(probe.network(point.bytes).link[0].beta, 1e-15)).c_str());
    }
    say("# time: median of %d samples, each from a common start to the last rank's end; buffers %s\n",
        m_options.samples, m_options.registered ? "in shared memory where there is one" : "outside shared memory");
    if (probe.is_memory())
      say("# bound: of memory, the median over the samples of an update of the same memory, timed beside each, and the "
          "call\n");
    say("#\n# %60s %34s\n", "out-of-place", "in-place");
    say("# %10s %12s %6s %5s %4s %10s %7s %7s %6s %10s %7s %7s %6s  %-18s %10s %6s %-7s %5s %4s %10s %10s\n", "size",
        "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong",
        "algorithm", "predicted", "bound", "by", "#wrong", "same", "min", "p99");
    say("# %10s %12s %6s %5s %4s %10s %7s %7s %6s %10s %7s %7s %6s  %-18s %10s %6s %-7s %5s %4s %10s %10s\n", "(B)",
        "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", "", "(us)", "(%)", "",
        "(rnd)", "bits", "(us)", "(us)");
  }

  static std::string rate(double bytes_per_second) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GB/s", bytes_per_second * 1e-9);
    return text;
  }

  std::string timing(BenchmarkRow const& row, Timing const& timing) const {
    char text[80], bus[16] = "-";
    if (!timing.measured) {
      std::snprintf(text, sizeof text, "%10s %7s %7s %6s", "-", "-", "-", "-");
      return text;
    }
    if (m_world.size() > 1) std::snprintf(bus, sizeof bus, "%.2f", row.rate(timing) * bus_factor());
    std::snprintf(text, sizeof text, "%10.2f %7.2f %7s %6s", timing.median, row.rate(timing), bus,
                  m_options.check ? std::to_string(timing.wrong).c_str() : "N/A");
    return text;
  }

  void print(BenchmarkRow const& row) const {
    char predicted[16] = "-", share[16] = "-";
    if (row.has_prediction) std::snprintf(predicted, sizeof predicted, "%.2f", row.predicted.sum() * 1e6);
    if (row.bound.max() > 0)
      std::snprintf(share, sizeof share, "%.0f%s", 100 * row.share_of_bound(), row.bound_over_median() > 1 ? "!" : "");
    say("  %10lld %12lld %6s %5s %4d %s %s  %-18s %10s %6s %-7s %5s %4s %10.2f %10.2f\n",
        static_cast<long long>(row.bytes), static_cast<long long>(row.count), name(row.type), comm::name_of(row.op), -1,
        timing(row, row.out_of_place).c_str(), timing(row, row.in_place).c_str(), row.algorithm.c_str(), predicted,
        share, row.bound.max() > 0 ? comm::name(row.bound.largest()) : "-",
        !m_options.check || row.rounding_wrong < 0 ? "N/A" : std::to_string(row.rounding_wrong).c_str(),
        !m_options.check ? "N/A"
        : row.same_bits  ? "yes"
                         : "NO",
        row.best().min, row.best().p99);
  }

  ExitCode finish(comm::Probe const& probe, std::vector<BenchmarkRow> const& rows) const {
    std::int64_t wrong = 0, damaged = 0, unequal = 0;
    double bus = 0, largest = 0;
    std::map<std::int64_t, BenchmarkRow const*> best;
    std::vector<double> errors;
    for (auto const& row : rows) {
      wrong += row.out_of_place.wrong + row.in_place.wrong + std::max<std::int64_t>(row.rounding_wrong, 0);
      damaged += !row.guards_intact;
      unequal += !row.same_bits;
      bus += row.rate(row.best()) * bus_factor() / double(rows.size());
      largest        = std::max(largest, row.rate(row.best()) * bus_factor());
      auto*& fastest = best[row.bytes];
      if (!fastest || row.best().median < fastest->best().median) fastest = &row;
      if (row.has_prediction && row.bytes >= 65536 && row.best().median > 0)
        errors.push_back(std::abs(row.predicted.sum() * 1e6 / row.best().median - 1));
    }
    bool const right         = wrong == 0 && damaged == 0 && unequal == 0;
    ExitCode const exit_code = right ? ExitCode::success : ExitCode::wrong_result;
    say("#\n# Out of bounds values : %lld %s\n", static_cast<long long>(damaged), damaged ? "FAILED" : "OK");
    say("# Avg bus bandwidth    : %.4f GB/s\n", bus);
    say("# Wrong elements       : %lld\n", static_cast<long long>(wrong));
    say("# Rows of unequal bits : %lld\n", static_cast<long long>(unequal));
    if (!errors.empty())
      say("# Prediction error     : %.0f %% in the median of rows from 64 KiB\n", 100 * median(errors));
    for (auto const& [bytes, row] : best)
      say("# Best at %-12s : %s, %.2f us\n", bytes_text(double(bytes)).c_str(), row->algorithm.c_str(),
          row->best().median);
    say("FOM: %.6g GB/s\n", largest);
    say("VERIFICATION: %s\n", right ? "PASSED" : "FAILED");

    Json record      = new_record("allreduce", m_runtime);
    record["schema"] = "allreduce-bench/1";
    record["host"]   = {{"ranks", m_world.size()},
                        {"processes", m_world.processes()},
                        {"devices_per_process", m_world.local_size()},
                        {"transport", m_world.transport()},
                        {"transport_notes", m_world.notes()},
                        {"cores", m_world.usable_cores()},
                        {"oversubscribed", m_world.oversubscribed()}};
    record["calib"]  = calibration(probe);
    record["rows"]   = Json::array();
    for (auto const& row : rows) record["rows"].push_back(json(row));
    Json fastest = Json::array();
    for (auto const& [bytes, row] : best) fastest.push_back({{"bytes", bytes}, {"algo", row->algorithm}});
    record["summary"] = {{"wrong", wrong},        {"out_of_bounds", damaged},         {"unequal_bits", unequal},
                         {"skipped", 0},          {"average_bus_bandwidth_gbs", bus}, {"best", fastest},
                         {"exit", int(exit_code)}};
    if (m_runtime.is_root()) write_json(m_settings.json, record);
    return exit_code;
  }

  Json calibration(comm::Probe const& probe) const {
    Json points         = Json::array();
    auto const measured = [](double seconds) { return seconds > 0 ? Json(seconds * 1e6) : Json(); };
    // One rank has nobody to add from.
    auto const exchanged = [&](double seconds) { return measured(m_world.size() > 1 ? seconds : 0); };
    for (auto const& point : probe.points())
      points.push_back({{"bytes", point.bytes},
                        {"update_us", measured(point.update)},
                        {"fastest_us", measured(point.fastest)},
                        {"add_us", exchanged(point.add)},
                        {"copy_us", exchanged(point.copy)},
                        {"add_alone_us", exchanged(point.add_alone)},
                        {"copy_alone_us", exchanged(point.copy_alone)}});
    auto const network    = probe.network(probe.points().back().bytes);
    Json calibration      = {{"alpha_us", probe.step_seconds() * 1e6},
                             {"beta_s_per_byte", probe.is_memory() ? Json() : Json(network.link[0].beta)},
                             {"gamma_s_per_byte", network.gamma},
                             {"copy_gbs", probe.copy_rate() * 1e-9},
                             {"add_gbs", probe.add_rate() * 1e-9}};
    calibration["points"] = points;
    return calibration;
  }

  Json json(Timing const& timing, BenchmarkRow const& row) const {
    if (!timing.measured) return Json();
    return {{"time_us",
             {{"min", timing.min},
              {"p50", timing.median},
              {"mean", timing.mean},
              {"p95", timing.p95},
              {"p99", timing.p99},
              {"max", timing.max},
              {"cv", timing.cv},
              {"skew_pct", timing.skew_percent}}},
            {"algbw_gbs", row.rate(timing)},
            {"busbw_gbs", m_world.size() > 1 ? Json(row.rate(timing) * bus_factor()) : Json()},
            {"wrong", m_options.check ? Json(timing.wrong) : Json()}};
  }

  Json json(BenchmarkRow const& row) const {
    Timing const& timing    = row.best();
    Json object             = json(timing, row);
    std::int64_t const item = bytes_of(row.type);
    char hash[24];
    auto const hex = [&](std::uint64_t value) {
      std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(value));
      return std::string(hash);
    };
    Json result = {{"algo", row.algorithm}, {"schedule_hash", row.is_schedule ? Json(hex(row.schedule_hash)) : Json()}};
    result["proof"]            = row.is_schedule ? Json{{"ok", row.proved},
                                             {"steps", row.steps},
                                             {"transfers", row.transfers},
                                             {"order_id", hex(row.order_id)},
                                             {"orders", row.orders}}
                                                 : Json();
    result["transport"]        = m_world.transport();
    result["ranks"]            = m_world.size();
    result["dtype"]            = name(row.type);
    result["op"]               = comm::name_of(row.op);
    result["in_place"]         = row.in_place.measured;
    result["count"]            = row.count;
    result["bytes"]            = row.bytes;
    result["offset_bytes"]     = m_options.offset * item;
    result["chunks"]           = row.is_schedule ? Json(row.chunks) : Json();
    result["iters"]            = m_options.samples;
    result["warmup"]           = m_options.warm_up;
    result["calls_per_sample"] = row.calls_per_sample;
    for (auto const* key : {"time_us", "algbw_gbs", "busbw_gbs"}) result[key] = object[key];
    result["busbw_factor"] = m_world.size() > 1 ? Json(bus_factor()) : Json();
    result["out_of_place"] = json(row.out_of_place, row);
    double const predicted = row.predicted.sum() * 1e6;
    result["model"] =
        row.has_prediction
            ? Json{{"alpha_terms", row.is_schedule ? Json(row.latencies) : Json()},
                   {"bytes_sent_max", row.is_schedule ? Json(row.elements_sent_max * item) : Json()},
                   {"bytes_recv_max", row.is_schedule ? Json(row.elements_received_max * item) : Json()},
                   {"reduced_bytes_max", row.is_schedule ? Json(row.elements_reduced_max * item) : Json()},
                   {"predicted_us", predicted},
                   {"ratio", predicted > 0 ? Json(timing.median / predicted) : Json()}}
            : Json();
    result["bound"]  = {{"kind", row.bound.max() > 0 ? Json(comm::name(row.bound.largest())) : Json()},
                        {"us", row.bound.max() * 1e6},
                        {"efficiency", row.share_of_bound()},
                        {"over_p50", row.bound_over_median()},
                        {"updates_over_calls", row.share_of_updates > 0 ? Json(row.share_of_updates) : Json()},
                        {"applies", row.bound_over_median() <= 1}};
    result["check"]  = m_options.check
                           ? Json{{"wrong", row.out_of_place.wrong + row.in_place.wrong},
                                 {"rounding_wrong", row.rounding_wrong < 0 ? Json() : Json(row.rounding_wrong)},
                                 {"ranks_same_bits", row.same_bits},
                                 {"guard_ok", row.guards_intact},
                                 {"result_hash", hex(row.result_hash)},
                                 {"matches_oracle", row.rounding_wrong < 0 ? Json() : Json(row.rounding_wrong == 0)}}
                           : Json();
    result["status"] = row.right() ? "ok" : "wrong";
    result["reason"] = row.right() ? Json() : Json("results differ from what was expected");
    return result;
  }

  Settings const& m_settings;
  Runtime const& m_runtime;
  std::FILE* m_out;
  comm::Communicator m_world;
  BenchmarkOptions m_options;
  std::vector<Fact> m_build = build_facts(), m_environment = environment_facts(m_runtime);
};

ExitCode run(Arguments const& arguments) {
  Settings settings;
  po::variables_map values;
  if (!parse(allreduce_command, describe(settings), arguments, values)) return ExitCode::success;
  check(settings);
  return with_runtime(
      int(settings.threads),
      [&](Runtime const& runtime) {
        if (runtime.is_root()) check_targets({{"--json", settings.json}}, settings.force);
        return Run(settings, runtime).execute();
      },
      settings.timeout);
}

}  // namespace

Command const allreduce_command{"allreduce", "Measure and check allreduce algorithms and transports", run};

}  // namespace lockstep
