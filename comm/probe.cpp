// SPDX-License-Identifier: Apache-2.0
#include "comm/probe.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "comm/transports/reduce.hpp"
#include "kernels/kokkos_compat.hpp"
#include "kernels/median.hpp"

namespace lockstep::comm {
namespace {

// Up to here the one-pass sum takes one exchange, see Communicator.
constexpr std::int64_t one_exchange_bytes = 8192;

// As data comes to an allreduce: just written, by its owner.
void write(Space const& space, float* vector, std::int64_t count) {
  Kokkos::parallel_for(
      "lockstep::comm::probe_write", Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(space, 0, count),
      KOKKOS_LAMBDA(std::int64_t i) { vector[i] = 1.0f; });
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

void update_shares(Communicator& world, std::vector<char*> const& vectors, std::int64_t bytes) {
  auto const mine = chunk_range(bytes / 4, world.processes(), world.process());
  int const parts = runs_on_host ? 1 : world.local_size();
  for (int d = 0; d < parts; ++d) {
    auto const range = chunk_range(mine.size(), parts, d);
    update(world.instance(d), vectors, mine.begin + range.begin, range.size());
  }
}

PointSampler::PointSampler(Communicator& world, std::vector<char*> vectors, std::int64_t bytes,
                           std::function<void()> prepare)
    : m_world(world), m_vectors(std::move(vectors)), m_bytes(bytes), m_prepare(std::move(prepare)) {}

void PointSampler::sample(What what) {
  auto const measure = [&](std::vector<double>& times, auto const& run) {
    m_prepare();
    times.push_back(time_together(m_world, 1, run));
    m_world.barrier();  // nobody prepares what others may still read
  };
  measure(m_update, [&] { update_shares(m_world, m_vectors, m_bytes); });
  if (what == What::update) return;
  measure(m_add, [&] { work_on_neighbour(true, true); });
  measure(m_copy, [&] { work_on_neighbour(true, false); });
  measure(m_add_alone, [&] { work_on_neighbour(false, true); });
  measure(m_copy_alone, [&] { work_on_neighbour(false, false); });
}

void PointSampler::forget() {
  for (auto* times : {&m_update, &m_add, &m_copy, &m_add_alone, &m_copy_alone}) times->clear();
}

Probe::Point PointSampler::point() const {
  return {m_bytes,
          median(m_update),
          *std::min_element(m_update.begin(), m_update.end()),
          median(m_add),
          median(m_copy),
          median(m_add_alone),
          median(m_copy_alone)};
}

// As an executor's step: rank r works on the half that its neighbour leaves alone.
void PointSampler::work_on_neighbour(bool everyone, bool add) const {
  std::int64_t const count = m_bytes / 4;
  for (int d = 0; d < m_world.local_size(); ++d) {
    int const r = m_world.rank(d), neighbour = (r ^ 1) < m_world.size() ? r ^ 1 : r - 1;
    if (neighbour < 0 || (!everyone && r != 1)) continue;
    std::int64_t const half = everyone ? count / 2 : count, first = everyone && r % 2 == 0 ? count - half : 0;
    char *const to = m_vectors[std::size_t(r)] + 4 * first, *const from = m_vectors[std::size_t(neighbour)] + 4 * first;
    if (add)
      reduce(m_world.instance(d), Type::float32, Op::sum, to, from, half);
    else
      copy(m_world.instance(d), to, from, half * 4);
  }
}

Probe::Probe(Communicator& world, std::int64_t most_bytes, int repeats)
    : m_ranks(world.size()), m_cores(world.usable_cores()) {
  std::int64_t const longest_count = std::max<std::int64_t>(most_bytes / 4, 2);
  auto const whole                 = world.allocate<float>("lockstep::comm::probe", longest_count);
  auto const others                = world.allocate<float>("lockstep::comm::probe_other", longest_count);
  auto const everywhere            = world.everywhere(whole);
  m_memory                         = !everywhere.empty() && world.transport() != "NCCL";
  std::vector<char*> vectors;
  for (auto* vector : everywhere) vectors.push_back(reinterpret_cast<char*>(vector));
  for (int d = 0; d < world.local_size(); ++d) Kokkos::deep_copy(world.instance(d), whole[std::size_t(d)], 0.0f);
  auto const many = [&](auto const& run) {  // calls that take next to no time
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) times.push_back(time_together(world, 100, run) / 100);
    return median(times);
  };
  auto const part = [&](std::int64_t count) {
    std::vector<Buffer<float>> buffers;
    for (auto const& buffer : whole) buffers.push_back(Kokkos::subview(buffer, std::make_pair(std::int64_t(0), count)));
    return buffers;
  };
  m_signal = many([&] { world.align(); });
  m_step   = many([&, two = part(2)] { world.exchange(two); });
  for (std::int64_t bytes = 4096;; bytes *= 4) {
    bytes = std::min(bytes, longest_count * 4);
    // Short ones are cheap, and easily disturbed.
    int const times = bytes <= 1 << 20 ? 3 * repeats : repeats;
    if (m_memory) {
      PointSampler sampler(world, vectors, bytes, [&] {
        for (int d = 0; d < world.local_size(); ++d) {
          write(world.instance(d), others[std::size_t(d)].data(), bytes / 4);
          write(world.instance(d), whole[std::size_t(d)].data(), bytes / 4);
        }
        world.fence();
      });
      sampler.sample(PointSampler::What::everything);
      sampler.forget();
      for (int i = 0; i < times; ++i) sampler.sample(PointSampler::What::everything);
      m_points.push_back(sampler.point());
    } else {
      m_points.push_back(probe_messages(world, part(bytes / 4), times));
    }
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

Probe::Point Probe::probe_messages(Communicator& world, std::vector<Buffer<float>> const& buffers, int repeats) const {
  Point point;
  point.bytes              = std::int64_t(buffers[0].extent(0)) * 4;
  auto const run           = [&] { world.exchange(buffers); };
  double const one         = time_together(world, 1, run);
  std::int64_t const calls = std::clamp<std::int64_t>(std::int64_t(50e-6 / std::max(one, 1e-9)), 1, 100);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(time_together(world, calls, run) / double(calls));
  point.add     = median(times);
  point.fastest = *std::min_element(times.begin(), times.end());
  return point;
}

void Probe::set(Point const& point) {
  auto const place =
      std::find_if(m_points.begin(), m_points.end(), [&](Point const& other) { return other.bytes >= point.bytes; });
  if (place != m_points.end() && place->bytes == point.bytes)
    *place = point;
  else
    m_points.insert(place, point);
}

// Between the two nearest probes, on logarithmic scales.
Probe::Point Probe::at(std::int64_t bytes) const {
  if (bytes <= m_points.front().bytes) return m_points.front();
  for (std::size_t i = 1; i < m_points.size(); ++i) {
    Point const &low = m_points[i - 1], &high = m_points[i];
    if (bytes > high.bytes) continue;
    double const part = std::log(double(bytes) / double(low.bytes)) / std::log(double(high.bytes) / double(low.bytes));
    Point point;
    point.bytes = bytes;
    for (auto member :
         {&Point::update, &Point::fastest, &Point::add, &Point::copy, &Point::add_alone, &Point::copy_alone})
      if (low.*member > 0 && high.*member > 0)
        point.*member = std::exp((1 - part) * std::log(low.*member) + part * std::log(high.*member));
    return point;
  }
  return m_points.back();
}

SharedMemoryModel Probe::memory(std::int64_t bytes) const {
  Point const point = at(bytes);
  SharedMemoryModel model;
  model.add            = 3;
  model.bandwidth      = model.add * double(point.bytes) / 2 * m_ranks / point.add;
  model.core_bandwidth = std::min(model.bandwidth, model.add * double(point.bytes) / point.add_alone);
  model.copy           = model.add * std::sqrt(point.copy / point.add * point.copy_alone / point.add_alone);
  model.update         = model.bandwidth * point.update / (double(point.bytes) * m_ranks);
  model.cores          = std::min(m_cores, m_ranks);
  model.sync           = m_step;
  return model;
}

// All ranks together, as fast as they update.
SharedMemoryModel Probe::updates(Point const& point, bool fastest) const {
  SharedMemoryModel model;
  model.bandwidth = model.update * double(point.bytes) * m_ranks / (fastest ? point.fastest : point.update);
  model.sync      = m_signal;
  return model;
}

NetworkModel Probe::network(std::int64_t bytes, bool fastest) const {
  Point const point = at(bytes);
  NetworkModel model;
  model.gamma              = 3 / m_add;
  model.copy               = 2 / m_copy;
  double const both        = std::max((fastest ? point.fastest : point.add) - m_step, 0.0) / (double(point.bytes) / 2);
  model.link[inside].alpha = model.link[between].alpha = m_step;
  model.link[inside].beta = model.link[between].beta = std::max(both - model.gamma, 0.0);
  return model;
}

Seconds Probe::predict(std::string_view algorithm, ScheduleRequest const& request, int element_bytes) const {
  std::int64_t const bytes = request.elements * element_bytes;
  if (!m_memory) return comm::predict(algorithm, request, element_bytes, network(bytes));
  if (algorithm == "fused") {
    Seconds time = predict_fused(request, element_bytes, updates(at(bytes), false));
    time.latency = m_signal * (bytes <= one_exchange_bytes ? 1 : 2);
    return time;
  }
  return comm::predict(algorithm, request, element_bytes, memory(bytes));
}

Seconds Probe::bounds(ScheduleRequest const& request, int element_bytes) const {
  std::int64_t const bytes = request.elements * element_bytes;
  if (!m_memory) return lower_bounds(request, element_bytes, network(bytes, true));
  return lower_bounds(request, element_bytes, updates(at(bytes), true));
}

}  // namespace lockstep::comm
