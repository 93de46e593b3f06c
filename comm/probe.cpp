// SPDX-License-Identifier: Apache-2.0
#include "comm/probe.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "comm/transports/reduce.hpp"
#include "kernels/kokkos_compat.hpp"

namespace lockstep::comm {
namespace {

// Up to here the one-pass sum takes one exchange, see Communicator.
constexpr std::int64_t one_exchange_bytes = 8192;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::size_t const n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void start_together(Communicator& world) {
  world.barrier();
  world.align();
}

double longest(Communicator& world, double start, double end, double* skew) {
  if (world.processes() == 1) return end - start;
  bool const one_clock = world.ranks_per_node() == world.size();
  auto const ends = world.gather(one_clock ? end : end - start), starts = world.gather(one_clock ? start : 0.0);
  auto const [first, last] = std::minmax_element(starts.begin(), starts.end());
  if (skew) *skew = *last - *first;
  return *std::max_element(ends.begin(), ends.end()) - *first;
}

Probe::Probe(Communicator& world, std::int64_t most_bytes, int repeats)
    : m_ranks(world.size()),
      m_cores(world.usable_cores()),
      m_memory(world.transport() != "messages" && world.transport() != "NCCL") {
  std::int64_t const longest_count = std::max<std::int64_t>(most_bytes / 4, 2);
  auto const whole                 = world.allocate<float>("lockstep::comm::probe", longest_count);
  for (int d = 0; d < world.local_size(); ++d) Kokkos::deep_copy(world.instance(d), whole[std::size_t(d)], 0.0f);
  auto const measure = [&](std::int64_t count, bool everyone, double& fastest) {
    std::vector<Buffer<float>> buffers;
    for (auto const& buffer : whole) buffers.push_back(Kokkos::subview(buffer, std::make_pair(std::int64_t(0), count)));
    auto const run           = [&] { world.exchange(buffers, everyone); };
    double const one         = time_together(world, 1, run);
    std::int64_t const calls = std::clamp<std::int64_t>(std::int64_t(50e-6 / std::max(one, 1e-9)), 1, 100);
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) times.push_back(time_together(world, calls, run) / double(calls));
    fastest = *std::min_element(times.begin(), times.end());
    return median(times);
  };
  double ignored = 0;
  {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) times.push_back(time_together(world, 100, [&] { world.align(); }) / 100);
    m_signal = median(times);
  }
  m_step = measure(2, true, ignored);
  for (std::int64_t bytes = 4096;; bytes *= 4) {
    bytes = std::min(bytes, longest_count * 4);
    Point point{bytes, 0, 0, 0};
    point.everyone = measure(bytes / 4, true, point.fastest);
    point.alone    = measure(bytes / 4, false, ignored);
    m_points.push_back(point);
    if (bytes == longest_count * 4) break;
  }

  // One rank's own rates, without another rank: half of the longest vector against the other half.
  double rates[2] = {0, 0};
  if (world.process() == 0) {
    auto const& space       = world.instance(0);
    auto const& buffer      = whole[0];
    std::int64_t const half = longest_count / 2;
    for (int add = 0; add < 2; ++add) {
      std::vector<double> times;
      for (int i = 0; i < repeats; ++i) {
        double const start = clock_seconds();
        if (add)
          reduce(space, Type::float32, Op::sum, buffer.data(), buffer.data() + half, half);
        else
          copy(space, buffer.data(), buffer.data() + half, half * 4);
        fence(space, "lockstep::comm::probe");
        times.push_back(clock_seconds() - start);
      }
      rates[add] = double(half) * 4 * (add ? 3 : 2) / std::max(median(times), 1e-9);
    }
  }
  m_copy = world.gather(rates[0])[0];
  m_add  = world.gather(rates[1])[0];
}

// Between the two nearest probes, on logarithmic scales.
Probe::Point Probe::at(std::int64_t bytes) const {
  if (bytes <= m_points.front().bytes) return m_points.front();
  for (std::size_t i = 1; i < m_points.size(); ++i) {
    Point const &low = m_points[i - 1], &high = m_points[i];
    if (bytes > high.bytes) continue;
    double const part = std::log(double(bytes) / double(low.bytes)) / std::log(double(high.bytes) / double(low.bytes));
    auto const mix    = [&](double a, double b) { return std::exp((1 - part) * std::log(a) + part * std::log(b)); };
    return {bytes, mix(low.everyone, high.everyone), mix(low.alone, high.alone), mix(low.fastest, high.fastest)};
  }
  return m_points.back();
}

SharedMemoryModel Probe::memory(std::int64_t bytes, bool fastest) const {
  Point const point = at(bytes);
  // Additions read two and write one; what a step costs without data is not memory's.
  auto const rate = [&](double traffic, double seconds) { return traffic / std::max(seconds - m_step, 0.2 * seconds); };
  SharedMemoryModel model;
  model.bandwidth      = rate(3.0 * double(point.bytes) / 2 * m_ranks, fastest ? point.fastest : point.everyone);
  model.core_bandwidth = std::min(model.bandwidth, rate(3.0 * double(point.bytes), point.alone));
  if (fastest) model.core_bandwidth = model.bandwidth;
  model.cores = fastest ? 0 : std::min(m_cores, m_ranks);
  model.sync  = m_step;
  return model;
}

NetworkModel Probe::network(std::int64_t bytes, bool fastest) const {
  Point const point = at(bytes);
  NetworkModel model;
  model.gamma       = 3 / m_add;
  model.copy        = 2 / m_copy;
  double const both = std::max((fastest ? point.fastest : point.everyone) - m_step, 0.0) / (double(point.bytes) / 2);
  model.link[inside].alpha = model.link[between].alpha = m_step;
  model.link[inside].beta = model.link[between].beta = std::max(both - model.gamma, 0.0);
  return model;
}

Seconds Probe::predict(std::string_view algorithm, ScheduleRequest const& request, int element_bytes) const {
  std::int64_t const bytes = request.elements * element_bytes;
  if (!m_memory) return comm::predict(algorithm, request, element_bytes, network(bytes));
  if (algorithm == "fused") {
    Seconds time = predict_fused(request, element_bytes, memory(bytes));
    time.latency = m_signal * (bytes <= one_exchange_bytes ? 1 : 2);
    return time;
  }
  return comm::predict(algorithm, request, element_bytes, memory(bytes));
}

Seconds Probe::bounds(ScheduleRequest const& request, int element_bytes) const {
  std::int64_t const bytes = request.elements * element_bytes;
  if (!m_memory) return lower_bounds(request, element_bytes, network(bytes, true));
  Seconds bounds = lower_bounds(request, element_bytes, memory(bytes, true));
  if (bounds.latency > 0) bounds.latency = m_signal;
  return bounds;
}

}  // namespace lockstep::comm
