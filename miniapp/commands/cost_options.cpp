// SPDX-License-Identifier: Apache-2.0
#include "miniapp/commands/cost_options.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "kernels/error.hpp"
#include "miniapp/commands/command.hpp"
#include "miniapp/commands/quantities.hpp"

namespace lockstep {

namespace po = boost::program_options;

void CostOptions::add_to(po::options_description& options) {
  po::options_description machine("Machine (seconds, seconds per byte, bytes per second)");
  auto add = machine.add_options();
  add("model", po::value(&m_model)->default_value("network"),
      "network: every rank has its own links; shared-memory: one host's memory, that all ranks share");
  add("alpha", po::value(&m_alpha)->default_value(2e-6, "2e-6"), "network: time of a message");
  add("beta", po::value(&m_beta)->default_value(4e-11, "4e-11"), "network: time of a byte on a link");
  add("gamma", po::value(&m_gamma)->default_value(1e-11, "1e-11"), "network: time to add a byte");
  add("copy", po::value(&m_copy)->default_value(-1, "2/3 gamma"), "network: time to copy a byte inside a rank");
  add("ports", po::value(&m_ports)->default_value(1), "network: messages that a rank sends, and receives, at a time");
  add("ranks-per-node", po::value(&m_ranks_per_node)->default_value(0),
      "ranks that are numbered node by node, a divisor of their number (0: all on one node); of hierarchical, its "
      "inner level");
  add("alpha-between", po::value(&m_alpha_between)->default_value(-1, "alpha"), "network: alpha between nodes");
  add("beta-between", po::value(&m_beta_between)->default_value(-1, "beta"), "network: beta between nodes");
  add("memory-bandwidth", po::value(&m_bandwidth)->default_value(2e10, "2e10"),
      "shared-memory: reads and writes of all cores together");
  add("core-bandwidth", po::value(&m_core_bandwidth)->default_value(0, "all of it"), "shared-memory: of one core");
  add("cores", po::value(&m_cores)->default_value(0), "shared-memory: cores for the ranks (0: one each)");
  add("sync", po::value(&m_sync)->default_value(1e-6, "1e-6"), "shared-memory: time of a step's synchronisation");
  add("path", po::value(&m_path)->default_value("direct"),
      "shared-memory: direct (ranks read each other's vectors), single-copy, or staged (copied in and out)");
  add("pipeline", po::value(&m_pipeline)->default_value(0),
      "chunks per tree of double_tree (0: chosen from the length)");
  add("element-bytes", po::value(&m_element_bytes)->default_value(4), "size of an element");
  options.add(machine);
}

void CostOptions::check() {
  auto const time = [](char const* option, double value) {
    std::ostringstream found;
    found << option << ' ' << value << "; expected 0 to 1000 seconds";
    LOCKSTEP_THROW_IF(!(value >= 0 && value <= 1000), ExitCode::usage, found.str());
  };
  if (m_copy == -1) m_copy = m_gamma * 2 / 3;
  if (m_alpha_between == -1) m_alpha_between = m_alpha;
  if (m_beta_between == -1) m_beta_between = m_beta;
  time("--alpha", m_alpha);
  time("--beta", m_beta);
  time("--gamma", m_gamma);
  time("--copy", m_copy);
  time("--alpha-between", m_alpha_between);
  time("--beta-between", m_beta_between);
  time("--sync", m_sync);
  LOCKSTEP_THROW_IF(!(m_bandwidth > 0) || !std::isfinite(m_bandwidth), ExitCode::usage,
                    "--memory-bandwidth " + std::to_string(m_bandwidth) + "; expected a finite rate above 0");
  LOCKSTEP_THROW_IF(!(m_core_bandwidth >= 0) || !std::isfinite(m_core_bandwidth), ExitCode::usage,
                    "--core-bandwidth " + std::to_string(m_core_bandwidth) + "; expected a finite rate, 0 or more");
  LOCKSTEP_THROW_IF(m_model != "network" && m_model != "shared-memory", ExitCode::usage,
                    "--model " + m_model + "; expected network or shared-memory");
  std::vector<std::string> const paths{"direct", "single-copy", "staged"};
  auto const path = std::find(paths.begin(), paths.end(), m_path);
  LOCKSTEP_THROW_IF(path == paths.end(), ExitCode::usage,
                    "--path " + m_path + "; expected direct, single-copy or staged");
  in_range("--ports", m_ports, 1, 65536);
  in_range("--cores", m_cores, 0, 1 << 20);
  in_range("--ranks-per-node", m_ranks_per_node, 0, 65536);
  in_range("--pipeline", m_pipeline, 0, 1 << 16);
  in_range("--element-bytes", m_element_bytes, 1, 1024);

  m_network.link[comm::inside]  = {m_alpha, m_beta};
  m_network.link[comm::between] = {m_alpha_between, m_beta_between};
  m_network.gamma               = m_gamma;
  m_network.copy                = m_copy;
  m_network.ports               = int(m_ports);
  m_memory.bandwidth            = m_bandwidth;
  m_memory.core_bandwidth       = m_core_bandwidth;
  m_memory.cores                = int(m_cores);
  m_memory.sync                 = m_sync;
  m_memory.path                 = comm::MemoryPath(path - paths.begin());
}

comm::ScheduleRequest CostOptions::request(std::int64_t ranks, std::int64_t elements) const {
  LOCKSTEP_THROW_IF(m_ranks_per_node > 0 && ranks % m_ranks_per_node != 0, ExitCode::usage,
                    "--ranks-per-node " + std::to_string(m_ranks_per_node) + "; expected a divisor of the " +
                        std::to_string(ranks) + " ranks");
  comm::ScheduleRequest request;
  request.ranks          = int(ranks);
  request.elements       = elements;
  request.ranks_per_node = int(m_ranks_per_node);
  request.pipeline       = int(m_pipeline);
  return request;
}

void CostOptions::check_none_given(po::variables_map const& values) {
  for (char const* name : {"model", "alpha", "beta", "gamma", "copy", "ports", "alpha-between", "beta-between",
                           "memory-bandwidth", "core-bandwidth", "cores", "sync", "path"})
    LOCKSTEP_THROW_IF(!values[name].defaulted(), ExitCode::usage,
                      std::string("--fit and --") + name + "; expected one of them: --fit measures the machine");
}

void CostOptions::fit(comm::Probe const& probe) {
  m_probe = &probe;
  m_model = probe.is_memory() ? "shared-memory" : "network";
}

comm::NetworkModel CostOptions::network(comm::ScheduleRequest const& request) const {
  return m_probe ? m_probe->network(request.elements * element_bytes()) : m_network;
}

comm::SharedMemoryModel CostOptions::memory(comm::ScheduleRequest const& request) const {
  return m_probe ? m_probe->memory(request.elements * element_bytes()) : m_memory;
}

comm::Seconds CostOptions::predict(std::string_view algorithm, comm::ScheduleRequest const& request) const {
  if (m_probe) return m_probe->predict(algorithm, request, element_bytes());
  return is_network() ? comm::predict(algorithm, request, element_bytes(), m_network)
                      : comm::predict(algorithm, request, element_bytes(), m_memory);
}

comm::Seconds CostOptions::predict(comm::Schedule const& schedule, comm::ScheduleRequest const& request) const {
  return is_network() ? comm::predict(schedule, request, element_bytes(), network(request))
                      : comm::predict(schedule, request, element_bytes(), memory(request));
}

comm::Seconds CostOptions::predict_fused(comm::ScheduleRequest const& request) const {
  if (m_probe) return m_probe->predict("fused", request, element_bytes());
  return comm::predict_fused(request, element_bytes(), m_memory);
}

comm::Seconds CostOptions::lower_bounds(comm::ScheduleRequest const& request) const {
  if (m_probe) return m_probe->bounds(request, element_bytes());
  return is_network() ? comm::lower_bounds(request, element_bytes(), m_network)
                      : comm::lower_bounds(request, element_bytes(), m_memory);
}

std::string CostOptions::text() const {
  auto const rate = [](double per_second) { return bytes_text(per_second) + "/s"; };
  if (m_probe) {
    auto const& point    = m_probe->points().back();
    std::string const at = " at " + bytes_text(double(point.bytes));
    return "measured here, step " + seconds_text(m_probe->step_seconds()) + ", " +
           (is_network() ? "link " + rate(1 / std::max(m_probe->network(point.bytes).link[comm::inside].beta, 1e-15))
                         : "memory " + rate(m_probe->memory(point.bytes).bandwidth)) +
           at;
  }
  if (!is_network())
    return "shared memory, " + rate(m_bandwidth) + (m_core_bandwidth > 0 ? ", a core " + rate(m_core_bandwidth) : "") +
           (m_cores > 0 ? ", " + std::to_string(m_cores) + " cores" : "") + ", step " + seconds_text(m_sync) + ", " +
           m_path;
  std::ostringstream text;
  text << "network, alpha " << m_alpha << " s, beta " << m_beta << " s/byte, gamma " << m_gamma << " s/byte";
  if (m_ranks_per_node > 0)
    text << ", " << m_ranks_per_node << " ranks a node, between nodes alpha " << m_alpha_between << " s, beta "
         << m_beta_between << " s/byte";
  if (m_ports > 1) text << ", " << m_ports << " ports";
  return text.str();
}

nlohmann::ordered_json CostOptions::json() const {
  nlohmann::ordered_json machine{{"model", m_model}, {"ranks_per_node", m_ranks_per_node}};
  if (m_probe) {
    machine["fitted"] = nlohmann::ordered_json::array();
    for (auto const& point : m_probe->points()) {
      auto const network = m_probe->network(point.bytes);
      auto const memory  = m_probe->memory(point.bytes);
      if (is_network())
        machine["fitted"].push_back({{"bytes", point.bytes},
                                     {"alpha_s", network.link[comm::inside].alpha},
                                     {"beta_s_per_byte", network.link[comm::inside].beta},
                                     {"gamma_s_per_byte", network.gamma},
                                     {"copy_s_per_byte", network.copy}});
      else
        machine["fitted"].push_back({{"bytes", point.bytes},
                                     {"memory_bandwidth", memory.bandwidth},
                                     {"core_bandwidth", memory.core_bandwidth},
                                     {"cores", memory.cores},
                                     {"copy_traffic", memory.copy},
                                     {"add_traffic", memory.add},
                                     {"update_traffic", memory.update},
                                     {"sync_s", memory.sync}});
    }
  } else if (is_network()) {
    machine.update({{"alpha_s", m_alpha},
                    {"beta_s_per_byte", m_beta},
                    {"gamma_s_per_byte", m_gamma},
                    {"copy_s_per_byte", m_copy},
                    {"alpha_between_s", m_alpha_between},
                    {"beta_between_s_per_byte", m_beta_between},
                    {"ports", m_ports}});
  } else {
    machine.update({{"memory_bandwidth", m_bandwidth},
                    {"core_bandwidth", m_core_bandwidth > 0 ? nlohmann::ordered_json(m_core_bandwidth) : nullptr},
                    {"cores", m_cores > 0 ? nlohmann::ordered_json(m_cores) : nullptr},
                    {"sync_s", m_sync},
                    {"path", m_path}});
  }
  return machine;
}

nlohmann::ordered_json cost_json(comm::Seconds const& time, comm::Seconds const& bounds) {
  bool const moves = time.sum() > 0;  // one rank, or no elements: no time, no share
  return {{"predicted_s", time.sum()},
          {"latency_s", time.latency},
          {"link_s", time.link},
          {"memory_s", time.memory},
          {"compute_s", time.compute},
          {"bound_s", bounds.max()},
          {"bound", moves ? nlohmann::ordered_json(comm::name(bounds.largest())) : nullptr},
          {"share_of_bound", moves ? nlohmann::ordered_json(bounds.max() / time.sum()) : nullptr}};
}

std::vector<std::string> parse_algorithms(std::string const& option, std::string const& text) {
  auto const known = comm::algorithm_names();
  if (text == "all") return known;
  std::vector<std::string> names;
  std::string list;
  for (auto const& name : known) list += (list.empty() ? "" : ", ") + name;
  std::istringstream stream(text + ',');
  for (std::string name; std::getline(stream, name, ',');) {
    LOCKSTEP_THROW_IF(std::find(known.begin(), known.end(), name) == known.end(), ExitCode::usage,
                      option + " " + name + "; expected one of " + list);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace lockstep
