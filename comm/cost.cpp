// SPDX-License-Identifier: Apache-2.0
#include "comm/cost.hpp"

#include <algorithm>
#include <cmath>

namespace lockstep::comm {

namespace {

// The time of one side of a rank's messages, as latency and link.
Seconds side(Work::Traffic const (&traffic)[2], int element_bytes, NetworkModel const& model) {
  Seconds time;
  std::int64_t messages = 0;
  for (Link link : {inside, between}) {
    messages += traffic[link].messages;
    time.latency += double(traffic[link].messages) * model.link[link].alpha;
    time.link += double(traffic[link].elements) * element_bytes * model.link[link].beta;
  }
  double const parallel = double(std::clamp<std::int64_t>(messages, 1, model.ports));
  time.latency /= parallel;
  time.link /= parallel;
  return time;
}

Seconds time_of(Work const& work, int element_bytes, NetworkModel const& model) {
  Seconds const out = side(work.out, element_bytes, model), in = side(work.in, element_bytes, model);
  Seconds time = out.sum() > in.sum() ? out : in;
  time.compute = (double(work.reduced) + double(work.local_reduced)) * element_bytes * model.gamma +
                 double(work.local_copied) * element_bytes * model.copy;
  return time;
}

// Elements read and written by a rank. It pulls what it receives, twice what must wait; on a staged path the sender
// copies too.
double memory_traffic(Work const& work, SharedMemoryModel const& model) {
  double const out    = double(work.out[inside].elements) + double(work.out[between].elements);
  double const in     = double(work.in[inside].elements) + double(work.in[between].elements);
  double const added  = double(work.reduced);
  double const direct = model.copy * (in - added + double(work.local_copied) + double(work.staged)) +
                        model.add * (added + double(work.local_reduced));
  switch (model.path) {
    case MemoryPath::direct:
      return direct;
    case MemoryPath::single_copy:
      return direct + model.copy * added;
    case MemoryPath::staged:
      return direct + model.copy * (added + out);
  }
  return direct;
}

// Time of `total` bytes of traffic of which one core moves `busiest`.
double memory_time(double total, double busiest, SharedMemoryModel const& model) {
  double const core = model.core_bandwidth > 0 ? model.core_bandwidth : model.bandwidth;
  double time       = std::max(total / model.bandwidth, busiest / core);
  if (model.cores > 0) time = std::max(time, total / (core * model.cores));
  return time;
}

}  // namespace

char const* name(BoundKind kind) {
  switch (kind) {
    case BoundKind::latency:
      return "latency";
    case BoundKind::link:
      return "link";
    case BoundKind::memory:
      return "memory";
    case BoundKind::compute:
      return "compute";
  }
  return "";
}

double Seconds::max() const {
  return std::max({latency, link, memory, compute});
}

BoundKind Seconds::largest() const {
  double const most = max();
  return most == latency  ? BoundKind::latency
         : most == link   ? BoundKind::link
         : most == memory ? BoundKind::memory
                          : BoundKind::compute;
}

Seconds predict(OutlineSource const& outline, int element_bytes, NetworkModel const& model) {
  Seconds total;
  outline([&](StepClass const& step) {
    Seconds slowest;
    for (auto const& ranks : step.ranks) {
      Seconds const time = time_of(ranks.work, element_bytes, model);
      if (ranks.count > 0 && time.sum() > slowest.sum()) slowest = time;
    }
    total.latency += double(step.repeat) * slowest.latency;
    total.link += double(step.repeat) * slowest.link;
    total.compute += double(step.repeat) * slowest.compute;
  });
  return total;
}

Seconds predict(OutlineSource const& outline, int element_bytes, SharedMemoryModel const& model) {
  Seconds total;
  outline([&](StepClass const& step) {
    double all = 0, busiest = 0;
    bool messages = false;
    for (auto const& ranks : step.ranks) {
      if (ranks.count == 0) continue;
      double const bytes = memory_traffic(ranks.work, model) * element_bytes;
      all += bytes * double(ranks.count);
      busiest  = std::max(busiest, bytes);
      messages = messages || ranks.work.in[inside].messages > 0 || ranks.work.in[between].messages > 0;
    }
    total.memory += double(step.repeat) * memory_time(all, busiest, model);
    if (messages) total.latency += double(step.repeat) * model.sync;
  });
  return total;
}

Seconds predict_fused(ScheduleRequest const& request, int element_bytes, SharedMemoryModel const& model) {
  Seconds time;
  if (request.ranks == 1) return time;
  double const share = model.update * double(request.elements) * element_bytes;  // its n / k elements of k vectors
  time.memory        = memory_time(share * request.ranks, share, model);
  time.latency       = 2 * model.sync;  // before the first read, after the last
  return time;
}

Seconds lower_bounds(ScheduleRequest const& request, int element_bytes, NetworkModel const& model) {
  Seconds bounds;
  double const k = request.ranks, bytes = double(request.elements) * element_bytes;
  if (request.ranks == 1 || request.elements == 0) return bounds;
  int const g = ranks_per_node(request), m = request.ranks / g;
  std::int64_t reached = 1;
  int messages         = 0;
  for (; reached < request.ranks; ++messages) reached *= model.ports + 1;
  double alpha = model.link[inside].alpha, beta = model.link[inside].beta;
  if (m > 1) {
    alpha = g == 1 ? model.link[between].alpha : std::min(alpha, model.link[between].alpha);
    beta  = g == 1 ? model.link[between].beta : std::min(beta, model.link[between].beta);
  }
  bounds.latency = messages * alpha;
  bounds.link    = 2 * (k - 1) / k * bytes * beta / model.ports;
  if (m > 1) {  // at least one message, and a node's share of the bytes over its g ranks, must leave a node
    bounds.latency = std::max(bounds.latency, (messages - 1) * alpha + model.link[between].alpha);
    bounds.link    = std::max(bounds.link, 2.0 * (m - 1) / m * bytes / g * model.link[between].beta / model.ports);
  }
  bounds.compute = (k - 1) / k * bytes * model.gamma;
  return bounds;
}

Seconds lower_bounds(ScheduleRequest const& request, int element_bytes, SharedMemoryModel const& model) {
  Seconds bounds = predict_fused(request, element_bytes, model);
  bounds.latency = request.ranks > 1 && request.elements > 0 ? model.sync : 0;
  return bounds;
}

std::vector<TimelineEvent> timeline(Schedule const& schedule, ScheduleRequest const& request, int element_bytes,
                                    NetworkModel const& model) {
  using Kind      = TimelineEvent::Kind;
  int const g     = ranks_per_node(request);
  auto const& all = schedule.transfers;
  std::vector<TimelineEvent> events;
  std::vector<int> sends(schedule.ranks), receives(schedule.ranks);                              // messages of the step
  std::vector<double> sent(schedule.ranks), received(schedule.ranks), computed(schedule.ranks);  // until when
  double start = 0;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    for (auto* counts : {&sends, &receives}) std::fill(counts->begin(), counts->end(), 0);
    auto const moved = [&](Transfer const& t) {
      return element_range(schedule, t, request.elements).size() * element_bytes;
    };
    for (end = begin; end < all.size() && all[end].step == all[begin].step; ++end) {
      if (all[end].is_local() || moved(all[end]) == 0) continue;
      ++sends[all[end].source];
      ++receives[all[end].destination];
    }
    for (auto* until : {&sent, &received}) std::fill(until->begin(), until->end(), start);
    auto const add = [&](Transfer const& t, Kind kind, std::int32_t rank, std::int32_t peer, double& at,
                         double seconds) {
      if (moved(t) == 0) return;
      events.push_back({kind, rank, peer, t.step, t.chunk, t.count, moved(t), at, at + seconds});
      at += seconds;
    };
    for (std::size_t i = begin; i < end; ++i) {
      Transfer const& t = all[i];
      if (t.is_local()) continue;
      auto const& link     = model.link[t.source / g == t.destination / g ? inside : between];
      double const seconds = link.alpha + double(moved(t)) * link.beta;
      add(t, Kind::send, t.source, t.destination, sent[t.source],
          seconds / std::min(model.ports, std::max(1, sends[t.source])));
      add(t, Kind::receive, t.destination, t.source, received[t.destination],
          seconds / std::min(model.ports, std::max(1, receives[t.destination])));
    }
    for (int rank = 0; rank < schedule.ranks; ++rank) computed[rank] = std::max(sent[rank], received[rank]);
    for (std::size_t i = begin; i < end; ++i) {
      Transfer const& t = all[i];
      if (t.action == Action::reduce)
        add(t, Kind::reduce, t.destination, t.destination, computed[t.destination], double(moved(t)) * model.gamma);
      else if (t.is_local())
        add(t, Kind::copy, t.destination, t.destination, computed[t.destination], double(moved(t)) * model.copy);
    }
    start = *std::max_element(computed.begin(), computed.end());
  }
  return events;
}

}  // namespace lockstep::comm
