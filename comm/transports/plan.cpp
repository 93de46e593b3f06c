// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/plan.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace lockstep::comm {
namespace {

using Location = std::tuple<std::int32_t, Slot, std::int32_t>;  // rank, slot, chunk or place

// A transfer of several chunks reads, and writes, one location for each.
std::vector<Location> locations(std::int32_t rank, Slot slot, Transfer const& t) {
  std::vector<Location> all;
  for (std::int32_t i = 0; i < t.count; ++i) all.emplace_back(rank, slot, (slot == Slot::data ? t.chunk : t.place) + i);
  return all;
}

void need(std::vector<Reader>& readers, Reader reader) {
  for (auto& known : readers)
    if (known.process == reader.process) {
      known.step = std::max(known.step, reader.step);
      return;
    }
  readers.push_back(reader);
}

}  // namespace

Plan make_plan(Schedule const& schedule, std::int64_t elements, Placement const& placement) {
  Plan plan;
  plan.steps.resize(std::size_t(schedule.steps));
  plan.staging.assign(std::size_t(placement.local_size), 0);
  plan.scratch            = scratch_elements(schedule, elements);
  int const me            = placement.process;
  auto const is_mine      = [&](int rank) { return placement.process_of(rank) == me; };
  auto const range_of     = [&](Transfer const& t) { return element_range(schedule, t, elements); };
  auto const reads_remote = [&](int process) { return process != me && placement.readable[std::size_t(process)]; };

  // Other processes that read a location of this one since it was last written, and up to which step.
  std::map<Location, std::vector<Reader>> readers;

  for (auto transfer = schedule.transfers.begin(); transfer != schedule.transfers.end();) {
    std::int32_t const number = transfer->step;
    auto const end =
        std::find_if(transfer, schedule.transfers.end(), [&](Transfer const& t) { return t.step != number; });
    PlanStep& step = plan.steps[std::size_t(number)];

    std::set<Location> read;
    for (auto t = transfer; t != end; ++t)
      if (range_of(*t).size() > 0 && is_mine(t->source)) {
        int const reader = placement.process_of(t->destination);
        for (Location const& location : locations(t->source, t->source_slot, *t)) {
          read.insert(location);
          if (reads_remote(reader)) need(readers[location], {reader, number + 1});
        }
      }

    std::vector<std::int64_t> staged(std::size_t(placement.local_size), 0);
    std::set<Location> written;
    for (auto t = transfer; t != end; ++t) {
      ChunkRange const range = range_of(*t);
      if (range.size() == 0) continue;
      bool const from_me = is_mine(t->source), to_me = is_mine(t->destination);
      if (!from_me && !to_me) continue;
      int const source_process      = placement.process_of(t->source),
                destination_process = placement.process_of(t->destination);
      auto const destinations       = locations(t->destination, t->destination_slot, *t);
      Move move;
      move.source_at        = offset_in(t->source_slot, schedule, *t, elements);
      move.destination_at   = offset_in(t->destination_slot, schedule, *t, elements);
      move.count            = range.size();
      move.source           = t->source;
      move.destination      = t->destination;
      move.reduce           = t->action == Action::reduce;
      move.source_slot      = t->source_slot;
      move.destination_slot = t->destination_slot;
      bool const in_place =
          placement.readable[std::size_t(source_process)] && placement.readable[std::size_t(destination_process)];

      if (from_me && t->source != t->destination) {
        plan.elements_sent += move.count;
        ++plan.messages_sent;
      }
      if (from_me && !to_me && !in_place) step.sends.push_back(move);
      if (!to_me) continue;
      if (move.reduce) plan.elements_reduced += move.count;
      move.late =
          std::any_of(destinations.begin(), destinations.end(), [&](Location const& l) { return read.count(l); });
      bool const copied = !in_place || (!placement.direct && t->source != t->destination);
      if (move.late || (copied && move.reduce)) {
        auto& used   = staged[std::size_t(t->destination % placement.local_size)];
        move.staging = used;
        used += (move.count + 15) / 16 * 16;
      }
      if (in_place && !from_me &&
          std::find(step.sources.begin(), step.sources.end(), source_process) == step.sources.end())
        step.sources.push_back(source_process);
      // Direct receives are written from the moment they are posted.
      for (Location const& destination : destinations) {
        if (auto const known = readers.find(destination); known != readers.end())
          for (Reader const& reader : known->second) need(move.late ? step.before_late : step.before_early, reader);
        written.insert(destination);
      }
      (in_place ? step.pulls : step.receives).push_back(move);
    }
    std::int64_t messages = 0;
    for (auto const* list : {&step.sends, &step.receives})
      for (Move const& move : *list) messages += move.count;
    plan.messages = std::max(plan.messages, messages);
    for (auto const& location : written) readers.erase(location);
    for (std::size_t d = 0; d < staged.size(); ++d) plan.staging[d] = std::max(plan.staging[d], staged[d]);
    transfer = end;
  }
  for (auto const& [location, who] : readers)
    for (Reader const& reader : who) need(plan.before_leaving, reader);
  return plan;
}

}  // namespace lockstep::comm
