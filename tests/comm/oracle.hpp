// SPDX-License-Identifier: Apache-2.0
// Runs a schedule on real numbers, plainly: the independent witness for the prover and for executors. One value per
// chunk.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "comm/schedule.hpp"

namespace lockstep::comm::oracle {

template <class T>
struct Result {
  bool well_formed = true;  // no double write, no read of undefined scratch, no index out of range, no move onto itself
  std::vector<std::vector<T>> vectors;  // [rank][chunk]
};

// input(rank, chunk) gives the contributions; a + b is T's.
template <class T, class Input>
Result<T> run(Schedule const& schedule, Input const& input) {
  using Key = std::tuple<int, Slot, int>;  // rank, slot, chunk or place
  std::map<Key, T> memory;
  for (int rank = 0; rank < schedule.ranks; ++rank)
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) memory[{rank, Slot::data, chunk}] = input(rank, chunk);
  std::map<std::pair<int, int>, int> scratch_holds;  // (rank, place) -> chunk

  Result<T> result;
  auto const& all = schedule.transfers;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    std::map<Key, T> written;
    for (end = begin; end < all.size() && all[end].step == all[begin].step; ++end) {
      for (int part = 0; part < std::max(1, all[end].count); ++part) {
        auto t = all[end];
        t.chunk += part;
        auto const in_range = [](int i, int n) { return i >= 0 && i < n; };
        bool const scratch  = t.source_slot == Slot::scratch || t.destination_slot == Slot::scratch;
        if (!in_range(t.step, schedule.steps) || (end > 0 && t.step < all[end - 1].step) ||
            !in_range(t.source, schedule.ranks) || !in_range(t.destination, schedule.ranks) ||
            !in_range(t.chunk, schedule.chunks) || t.count < 1 || (scratch && !in_range(t.place, schedule.places)) ||
            (scratch && t.count != 1) || (t.source_slot == Slot::scratch && t.destination_slot == Slot::scratch) ||
            (!scratch && t.source == t.destination)) {
          result.well_formed = false;
          continue;
        }
        auto const key  = [&](int rank, Slot slot) { return Key{rank, slot, slot == Slot::data ? t.chunk : t.place}; };
        auto const read = [&](int rank, Slot slot) -> std::optional<T> {
          auto const found = memory.find(key(rank, slot));
          if (found == memory.end()) return std::nullopt;
          if (slot == Slot::scratch && scratch_holds[{rank, t.place}] != t.chunk) return std::nullopt;
          return found->second;
        };
        auto value = read(t.source, t.source_slot);
        if (value && t.action == Action::reduce) {
          auto const own = read(t.destination, t.destination_slot);
          if (!own)
            value.reset();
          else
            value = t.side == Side::left ? *value + *own : *own + *value;
        }
        if (!value || !written.emplace(key(t.destination, t.destination_slot), *value).second) {
          result.well_formed = false;
          continue;
        }
      }
    }
    for (std::size_t i = begin; i < end; ++i)
      if (all[i].destination_slot == Slot::scratch) scratch_holds[{all[i].destination, all[i].place}] = all[i].chunk;
    for (auto const& [key, value] : written) memory[key] = value;
  }
  result.vectors.resize(schedule.ranks);
  for (int rank = 0; rank < schedule.ranks; ++rank)
    for (int chunk = 0; chunk < schedule.chunks; ++chunk)
      result.vectors[rank].push_back(memory[{rank, Slot::data, chunk}]);
  return result;
}

}  // namespace lockstep::comm::oracle
