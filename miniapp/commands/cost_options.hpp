// SPDX-License-Identifier: Apache-2.0
// What the commands that predict have in common: the options that describe a machine, and how predictions are shown.
#pragma once
#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/algorithms.hpp"
#include "comm/cost.hpp"
#include "comm/probe.hpp"

namespace lockstep {

class CostOptions {
 public:
  void add_to(boost::program_options::options_description& options);
  void check();  // Error (usage) for values that describe no machine; call after parsing

  int element_bytes() const { return int(m_element_bytes); }
  bool is_network() const { return m_model == "network"; }
  // Instead of the options' rates, those of this machine: for each length its own. The probe is used as long as this
  // object.
  void fit(comm::Probe const& probe);
  static void check_none_given(boost::program_options::variables_map const& values);  // beside --fit: Error (usage)

  comm::ScheduleRequest request(std::int64_t ranks, std::int64_t elements) const;

  comm::Seconds predict(std::string_view algorithm, comm::ScheduleRequest const& request) const;
  comm::Seconds predict(comm::Schedule const& schedule, comm::ScheduleRequest const& request) const;
  comm::Seconds predict_fused(comm::ScheduleRequest const& request) const;  // shared memory only
  comm::Seconds lower_bounds(comm::ScheduleRequest const& request) const;
  comm::NetworkModel const& network() const { return m_network; }

  std::string text() const;  // one line
  nlohmann::ordered_json json() const;

 private:
  std::string m_model, m_path;
  double m_alpha, m_beta, m_alpha_between, m_beta_between, m_gamma, m_copy;
  double m_bandwidth, m_core_bandwidth, m_sync;
  std::int64_t m_ports, m_cores, m_ranks_per_node, m_pipeline, m_element_bytes;
  comm::NetworkModel m_network;
  comm::SharedMemoryModel m_memory;
  comm::Probe const* m_probe = nullptr;

  comm::NetworkModel network(comm::ScheduleRequest const& request) const;
  comm::SharedMemoryModel memory(comm::ScheduleRequest const& request) const;
};

// {"predicted_s", "latency_s", "link_s", "memory_s", "compute_s", "bound_s", "bound", "share_of_bound"}
nlohmann::ordered_json cost_json(comm::Seconds const& time, comm::Seconds const& bounds);

// The names asked for ("a,b" or "all"); Error (usage) that lists the known ones.
std::vector<std::string> parse_algorithms(std::string const& option, std::string const& text);

}  // namespace lockstep
