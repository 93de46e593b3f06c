// SPDX-License-Identifier: Apache-2.0
#include "comm/device_graph.hpp"

#include <exception>
#include <string>

#include "kernels/error.hpp"

namespace lockstep {

StreamOrder::StreamOrder(DeviceCalls& calls, std::vector<int> const& gpus, std::vector<Stream> streams)
    : m_calls(calls), m_streams(std::move(streams)) {
  if (m_streams.size() < 2) return;
  for (int const gpu : gpus) {
    check(calls, calls.use(gpu), "choosing a GPU");
    m_events.push_back(nullptr);
    check(calls, calls.create_event(m_events.back()), "creating an event");
  }
  check(calls, calls.use(gpus.front()), "choosing a GPU");
}

StreamOrder::~StreamOrder() {
  for (Event const event : m_events) m_calls.destroy_event(event);
}

void StreamOrder::record(std::size_t device) {
  check(m_calls, m_calls.record(m_events[device], m_streams[device]), "recording an event");
}

void StreamOrder::wait(std::size_t device, std::size_t for_device) {
  check(m_calls, m_calls.wait(m_streams[device], m_events[for_device]), "waiting for an event");
}

void StreamOrder::gather() {
  for (std::size_t d = 1; d < m_streams.size(); ++d) {
    record(d);
    wait(0, d);
  }
}

void StreamOrder::scatter() {
  if (m_streams.size() > 1) record(0);
  for (std::size_t d = 1; d < m_streams.size(); ++d) wait(d, 0);
}

DeviceGraph::DeviceGraph(DeviceCalls& calls, std::vector<int> const& gpus, std::vector<Stream> streams)
    : m_calls(calls), m_order(calls, gpus, std::move(streams)) {}

DeviceGraph::~DeviceGraph() {
  if (m_program) m_calls.destroy_program(m_program);
}

void DeviceGraph::capture(std::function<void()> const& enqueue) {
  check(m_calls, m_calls.begin_capture(m_order.first()), "beginning a capture");
  std::string problem;
  try {
    m_order.scatter();  // the other streams come into the capture
    m_calls.capture(enqueue);
    m_order.gather();
  } catch (std::exception const& error) {
    problem = error.what();
  }
  // Whatever happened: this is what gives the streams back.
  Graph graph    = nullptr;
  int result     = m_calls.end_capture(m_order.first(), graph);
  char const* at = "ending a capture: ";
  if (problem.empty() && result == 0) {
    result = m_calls.instantiate(graph, m_program);
    at     = "making a graph ready: ";
    if (result != 0) m_program = nullptr;
  }
  if (graph) m_calls.destroy_graph(graph);
  if (problem.empty() && result != 0) problem = at + m_calls.text(result);
  LOCKSTEP_THROW_IF(
      !problem.empty(), ExitCode::environment,
      "found devices' work that cannot be made a graph (" + problem + "); expected work that needs no host in between");
}

void DeviceGraph::launch() {
  m_order.gather();
  check(m_calls, m_calls.launch(m_program, m_order.first()), "launching a graph");
  m_order.scatter();
}

}  // namespace lockstep
