// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule.hpp"

#include <cstddef>

namespace lockstep::comm {

namespace {

// FNV-1a, byte by byte from the low end, so that ranks of different endianness agree.
class Fnv {
 public:
  void add(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i, value >>= 8) m_state = (m_state ^ (value & 0xff)) * 0x100000001b3u;
  }
  std::uint64_t value() const { return m_state; }

 private:
  std::uint64_t m_state = 0xcbf29ce484222325u;
};

// Chunks [begin, end) of a rank's data, or places of its scratch: a place is the same memory whatever chunk lies in it.
struct Region {
  std::int32_t rank;
  Slot slot;
  std::int32_t begin, end;
};

Region region(std::int32_t rank, Slot slot, Transfer const& t) {
  std::int32_t const begin = slot == Slot::data ? t.chunk : t.place;
  return {rank, slot, begin, begin + t.count};
}

}  // namespace

std::uint64_t Schedule::hash() const {
  Fnv fnv;
  fnv.add(algorithm.size(), 8);
  for (unsigned char c : algorithm) fnv.add(c, 1);
  for (std::int32_t value : {ranks, chunks, steps, places}) fnv.add(std::uint32_t(value), 4);
  fnv.add(transfers.size(), 8);
  for (Transfer const& t : transfers) {
    for (std::int32_t value : {t.step, t.source, t.destination, t.chunk, t.count, t.place})
      fnv.add(std::uint32_t(value), 4);
    fnv.add(
        unsigned(t.action) | unsigned(t.side) << 1 | unsigned(t.source_slot) << 2 | unsigned(t.destination_slot) << 3,
        1);
  }
  return fnv.value();
}

std::vector<bool> needs_staging(Schedule const& schedule) {
  auto const& transfers = schedule.transfers;
  std::vector<bool> staged(transfers.size());
  // The step's reads of a (rank, slot): a list through transfers. Vectors, as this is done for a million transfers.
  constexpr std::size_t none = SIZE_MAX;
  auto const list_of         = [](Region const& r) { return 2 * std::size_t(r.rank) + (r.slot == Slot::scratch); };
  std::vector<std::size_t> last(2 * std::size_t(schedule.ranks), none), previous(transfers.size(), none);
  auto const source = [](Transfer const& t) { return region(t.source, t.source_slot, t); };
  for (std::size_t begin = 0, end = 0; begin < transfers.size(); begin = end) {
    for (end = begin; end < transfers.size() && transfers[end].step == transfers[begin].step; ++end) {
      auto& list    = last[list_of(source(transfers[end]))];
      previous[end] = list;
      list          = end;
    }
    for (std::size_t i = begin; i < end; ++i) {
      Region const to = region(transfers[i].destination, transfers[i].destination_slot, transfers[i]);
      for (std::size_t read = last[list_of(to)]; read != none; read = previous[read]) {
        Region const from = source(transfers[read]);
        if (from.begin < to.end && to.begin < from.end) staged[i] = true;
      }
    }
    for (std::size_t i = begin; i < end; ++i) last[list_of(source(transfers[i]))] = none;
  }
  return staged;
}

}  // namespace lockstep::comm
