// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule_outline.hpp"

#include <algorithm>

namespace lockstep::comm {

void outline(Schedule const& schedule, std::int64_t elements, int ranks_per_node, OutlineVisitor const& visit) {
  auto const& transfers = schedule.transfers;
  std::vector<Work> works(schedule.ranks);
  std::vector<bool> works_in_step(schedule.ranks);
  std::vector<std::int32_t> busy;
  auto const work_of = [&](std::int32_t rank) -> Work& {
    if (!works_in_step[rank]) {
      works_in_step[rank] = true;
      busy.push_back(rank);
    }
    return works[rank];
  };
  // As element_range, without dividing for every transfer.
  std::int64_t const base = elements / schedule.chunks, longer = elements % schedule.chunks;
  auto const size_of = [&](Transfer const& t) {
    return t.count * base + std::clamp<std::int64_t>(longer - t.chunk, 0, t.count);
  };
  auto const staged = needs_staging(schedule);
  StepClass step;
  for (std::size_t begin = 0, end = 0; begin < transfers.size(); begin = end) {
    for (end = begin; end < transfers.size() && transfers[end].step == transfers[begin].step; ++end) {
      Transfer const& t       = transfers[end];
      std::int64_t const size = size_of(t);
      if (staged[end]) work_of(t.destination).staged += size;
      if (t.is_local()) {
        Work& work = work_of(t.source);
        (t.action == Action::reduce ? work.local_reduced : work.local_copied) += size;
        continue;
      }
      Link const link = t.source / ranks_per_node == t.destination / ranks_per_node ? inside : between;
      work_of(t.source).out[link].add(size);
      Work& work = work_of(t.destination);
      work.in[link].add(size);
      if (t.action == Action::reduce) work.reduced += size;
    }
    step.ranks.clear();
    for (std::int32_t rank : busy) {
      // Kinds of ranks are few; where they are not, listing them one by one is as true and quicker.
      auto const recent = step.ranks.size() < 16 ? step.ranks.begin() : step.ranks.end() - 16;
      auto const same   = std::find_if(recent, step.ranks.end(), [&](auto const& r) { return r.work == works[rank]; });
      if (same != step.ranks.end())
        ++same->count;
      else
        step.ranks.push_back({works[rank], 1});
      works[rank]         = Work();
      works_in_step[rank] = false;
    }
    busy.clear();
    visit(step);
  }
}

}  // namespace lockstep::comm
