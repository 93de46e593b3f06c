// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/nccl.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <map>
#include <memory>

#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"

namespace lockstep::comm {
namespace {

constexpr std::chrono::milliseconds poll_interval{20}, abort_limit{1000};

void grow(Space const& space, Buffer<char>& buffer, std::int64_t bytes, char const* label) {
  if (std::int64_t(buffer.extent(0)) >= bytes) return;
  lockstep::fence(space, "lockstep::comm::grow");  // earlier calls may still use it
  buffer = Buffer<char>();
  buffer = Buffer<char>(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, std::string(label)), std::size_t(bytes));
}

}  // namespace

std::string nccl_version_text(int code) {
  if (code < 10000)
    return std::to_string(code / 1000) + "." + std::to_string(code % 1000 / 100) + "." + std::to_string(code % 100);
  return std::to_string(code / 10000) + "." + std::to_string(code % 10000 / 100) + "." + std::to_string(code % 100);
}

std::string nccl_version() {
  auto* const calls = nccl_calls();
  int code          = 0;
  if (!calls) return "none";
  return calls->version(code) == 0 ? nccl_version_text(code) : "unknown";
}

DeviceSetup device_setup(std::vector<Space> const& spaces) {
  DeviceSetup setup;
  setup.device = device_calls();
  setup.nccl   = nccl_calls();
  for (auto const& space : spaces) {
    setup.gpus.push_back(gpu_of(space));
    setup.streams.push_back(stream_of(space));
  }
  setup.copy = [spaces](int local, void* to, void const* from, std::int64_t bytes) {
    comm::copy(spaces[std::size_t(local)], to, from, bytes);
  };
  setup.reduce = [spaces](int local, Type type, Op op, void* into, void const* from, std::int64_t count) {
    comm::reduce(spaces[std::size_t(local)], type, op, into, from, count);
  };
  return setup;
}

std::string nccl_obstacle(std::vector<std::string> const& gpu_of_rank, bool several_ranks) {
  std::map<std::string, std::size_t> first;
  for (std::size_t r = 0; r < gpu_of_rank.size(); ++r) {
    std::string const& gpu = gpu_of_rank[r];
    if (gpu.empty()) return "rank " + std::to_string(r) + " is not on a GPU";
    auto const [known, is_new] = first.emplace(gpu, r);
    if (!is_new && !several_ranks)
      return "ranks " + std::to_string(known->second) + " and " + std::to_string(r) + " share the GPU " + gpu +
             ", which NCCL refuses (from 2.30 NCCL_MULTI_RANK_GPU_ENABLE=1 permits it)";
  }
  return "";
}

Nccl::Nccl(DeviceSetup const& setup, std::vector<Space> const& spaces, Job job)
    : m_setup(setup),
      m_calls(*setup.nccl),
      m_spaces(spaces),
      m_job(std::move(job)),
      m_exceptions(std::uncaught_exceptions()),
      m_comms(setup.gpus.size(), nullptr),
      m_scratch(setup.gpus.size()),
      m_staging(setup.gpus.size()),
      m_events(setup.gpus.size(), nullptr) {
  int const local = int(m_setup.gpus.size());
  auto& device    = *m_setup.device;
  try {
    auto const deadline = m_job.blocking();
    if (m_job.processes == 1) {
      check(m_calls.init_all(m_comms.data(), local, m_setup.gpus.data()), "ncclCommInitAll", 0);
    } else {
      NcclId id        = {};
      int const result = m_job.process == 0 ? m_calls.unique_id(id) : 0;
      if (result != 0) id = {};
      m_job.broadcast(id);  // also of none: the others wait for it
      check(result, "ncclGetUniqueId", 0);
      LOCKSTEP_THROW_IF(std::all_of(std::begin(id.bytes), std::end(id.bytes), [](char c) { return c == 0; }),
                        ExitCode::environment, "rank 0 has no NCCL id for the others");
      check(m_calls.group_start(), "ncclGroupStart", rank(0));
      int failed = 0, of_rank = 0;
      for (std::size_t d = 0; d < m_comms.size() && failed == 0; ++d) {
        lockstep::check(device, device.use(m_setup.gpus[d]), "choosing a GPU");
        failed  = m_calls.init_rank(m_comms[d], m_job.processes * local, id, rank(d));
        of_rank = rank(d);
      }
      int const ended = m_calls.group_end();  // also after a failure: the program may go on without NCCL
      check(failed, "ncclCommInitRank", of_rank);
      check(ended, "ncclGroupEnd", rank(0));
    }
    for (std::size_t d = 0; d < m_comms.size(); ++d) {
      lockstep::check(device, device.use(m_setup.gpus[d]), "choosing a GPU");
      lockstep::check(device, device.create_event(m_events[d]), "creating an event");
    }
    lockstep::check(device, device.use(m_setup.gpus[0]), "choosing a GPU");
  } catch (...) {
    for (Event const event : m_events)
      if (event) device.destroy_event(event);
    for (NcclComm const comm : m_comms)
      if (comm) m_calls.abort(comm);
    throw;
  }
  m_watcher = std::thread([this] { watch(); });
}

Nccl::~Nccl() {
  m_stop = true;
  m_watcher.join();
  if (std::uncaught_exceptions() > m_exceptions) {
    abort();
  } else if (!m_aborted) {
    auto const deadline = m_job.blocking();
    for (NcclComm const comm : m_comms) m_calls.destroy(comm);
  }
  for (Event const event : m_events) m_setup.device->destroy_event(event);
}

void Nccl::check(int result, char const* call, int rank) const {
  LOCKSTEP_THROW_IF(result != 0, ExitCode::environment,
                    "rank " + std::to_string(rank) + ": " + call + ": " + m_calls.text(result));
}

Nccl::SchedulePlan Nccl::plan(Schedule const& schedule, std::int64_t count, Type type) {
  SchedulePlan plan;
  Placement placement;
  placement.processes = schedule.ranks;
  for (std::size_t d = 0; d < m_comms.size(); ++d) {
    placement.process = rank(d);
    placement.readable.assign(std::size_t(schedule.ranks), false);
    placement.readable[std::size_t(rank(d))] = true;
    plan.of.push_back(make_plan(schedule, count, placement));
    Plan const& part = plan.of.back();
    plan.elements_sent += part.elements_sent;
    plan.messages_sent += part.messages_sent;
    plan.elements_reduced += part.elements_reduced;
    grow(m_spaces[d], m_scratch[d], part.scratch * size_of(type), "lockstep::comm::scratch");
    grow(m_spaces[d], m_staging[d], part.staging[0] * size_of(type), "lockstep::comm::staging");
  }
  return plan;
}

// Order comes from the streams alone: of a device's moves from its own, between devices from the groups. A group's
// sends and receives between two ranks match in the schedule's order, which both sides keep.
void Nccl::run(SchedulePlan const& plan, Type type, Op op, std::int64_t count, std::vector<char*> const& inputs,
               std::vector<char*> const& outputs) {
  std::int64_t const item = size_of(type);
  std::size_t const local = m_comms.size();
  auto const at           = [&](std::size_t d, Slot slot, std::int64_t element) {
    return (slot == Slot::data ? outputs[d] : m_scratch[d].data()) + element * item;
  };
  auto const staged = [&](std::size_t d, Move const& move) { return m_staging[d].data() + move.staging * item; };
  auto const apply  = [&](std::size_t d, Move const& move, char const* from) {
    char* const to = at(d, move.destination_slot, move.destination_at);
    if (move.reduce)
      m_setup.reduce(int(d), type, op, to, from, move.count);
    else
      m_setup.copy(int(d), to, from, move.count * item);
  };
  for (std::size_t d = 0; d < local; ++d)
    if (inputs[d] != outputs[d]) m_setup.copy(int(d), outputs[d], inputs[d], count * item);

  std::size_t const steps = plan.of[0].steps.size();
  for (std::size_t s = 0; s < steps; ++s) {
    bool messages = false;
    for (std::size_t d = 0; d < local; ++d) {
      PlanStep const& step = plan.of[d].steps[s];
      messages             = messages || !step.sends.empty() || !step.receives.empty();
      for (Move const& move : step.pulls)
        if (move.late)
          m_setup.copy(int(d), staged(d, move), at(d, move.source_slot, move.source_at), move.count * item);
      for (Move const& move : step.pulls)
        if (!move.late) apply(d, move, at(d, move.source_slot, move.source_at));
    }
    if (messages) {
      auto const deadline = m_job.blocking();
      check(m_calls.group_start(), "ncclGroupStart", rank(0));
      for (std::size_t d = 0; d < local; ++d) {
        PlanStep const& step = plan.of[d].steps[s];
        for (Move const& move : step.sends)
          check(m_calls.send(at(d, move.source_slot, move.source_at), std::size_t(move.count), type, move.destination,
                             m_comms[d], m_setup.streams[d]),
                "ncclSend", rank(d));
        for (Move const& move : step.receives)
          check(m_calls.recv(move.staging >= 0 ? staged(d, move) : at(d, move.destination_slot, move.destination_at),
                             std::size_t(move.count), type, move.source, m_comms[d], m_setup.streams[d]),
                "ncclRecv", rank(d));
      }
      check(m_calls.group_end(), "ncclGroupEnd", rank(0));
    }
    for (std::size_t d = 0; d < local; ++d) {
      PlanStep const& step = plan.of[d].steps[s];
      for (Move const& move : step.receives)
        if (move.staging >= 0 && !move.late) apply(d, move, staged(d, move));
      for (auto const* moves : {&step.pulls, &step.receives})
        for (Move const& move : *moves)
          if (move.late) apply(d, move, staged(d, move));
    }
  }
  watch_next();
}

void Nccl::allreduce(Type type, Op op, std::int64_t count, std::vector<char*> const& inputs,
                     std::vector<char*> const& outputs) {
  if (count == 0) return;
  {
    auto const deadline = m_job.blocking();
    check(m_calls.group_start(), "ncclGroupStart", rank(0));
    for (std::size_t d = 0; d < m_comms.size(); ++d)
      check(m_calls.allreduce(inputs[d], outputs[d], std::size_t(count), type, op, m_comms[d], m_setup.streams[d]),
            "ncclAllReduce", rank(d));
    check(m_calls.group_end(), "ncclGroupEnd", rank(0));
  }
  watch_next();
}

void Nccl::watch_next() {
  std::lock_guard<std::mutex> const lock(m_mutex);
  ++m_calls_made;
  if (m_pending) return;  // the watching thread goes on with this call when it has seen the end of an earlier one
  for (std::size_t d = 0; d < m_comms.size(); ++d)
    lockstep::check(*m_setup.device, m_setup.device->record(m_events[d], m_setup.streams[d]), "recording an event");
  m_call_watched = m_calls_made;
  m_pending      = true;
  m_since        = std::chrono::steady_clock::now();
}

// What is wrong, if anything is; looks whether the call that is watched has ended.
std::string Nccl::trouble() {
  for (std::size_t d = 0; d < m_comms.size(); ++d) {
    int error        = 0;
    int const result = m_calls.async_error(m_comms[d], error);
    if (result != 0 || error != 0)
      return "rank " + std::to_string(rank(d)) +
             ": ncclCommGetAsyncError: " + m_calls.text(result != 0 ? result : error);
  }
  std::lock_guard<std::mutex> const lock(m_mutex);
  if (!m_pending) return "";
  auto& device = *m_setup.device;
  bool done    = true;
  for (std::size_t d = 0; d < m_comms.size() && done; ++d)
    if (int const result = device.query(m_events[d], done); result != 0)
      return "rank " + std::to_string(rank(d)) + ": " + device.text(result);
  auto const now = std::chrono::steady_clock::now();
  if (!done) return m_job.complaint(std::chrono::nanoseconds(now - m_since).count());
  m_pending = m_call_watched != m_calls_made;
  if (!m_pending) return "";
  m_call_watched = m_calls_made;
  m_since        = now;
  for (std::size_t d = 0; d < m_comms.size(); ++d)
    if (int const result = device.record(m_events[d], m_setup.streams[d]); result != 0)
      return "rank " + std::to_string(rank(d)) + ": " + device.text(result);
  return "";
}

void Nccl::watch() {
  while (!m_stop) {
    std::this_thread::sleep_for(poll_interval);
    std::string const message = trouble();
    if (message.empty()) continue;
    abort();
    m_job.end(message);
    return;
  }
}

// In a thread of its own: an abort may hang as well.
void Nccl::abort() {
  if (m_aborted.exchange(true)) return;
  struct Progress {
    std::mutex mutex;
    std::condition_variable condition;
    bool done = false;
  };
  auto const progress = std::make_shared<Progress>();
  std::thread([progress, comms = m_comms, &calls = m_calls] {
    for (NcclComm const comm : comms) calls.abort(comm);
    std::lock_guard<std::mutex> const lock(progress->mutex);
    progress->done = true;
    progress->condition.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->condition.wait_for(lock, abort_limit, [&] { return progress->done; });
}

}  // namespace lockstep::comm
