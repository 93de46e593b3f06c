// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule.hpp"

#include <algorithm>
#include <tuple>

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

struct Location {
  std::int32_t rank, chunk, place;
  Slot slot;
  friend bool operator<(Location const& a, Location const& b) {
    return std::tie(a.rank, a.chunk, a.place, a.slot) < std::tie(b.rank, b.chunk, b.place, b.slot);
  }
};

// A scratch place is the same memory whatever chunk lies in it.
Location location(std::int32_t rank, Slot slot, Transfer const& t) {
  return slot == Slot::data ? Location{rank, t.chunk, 0, slot} : Location{rank, 0, t.place, slot};
}

}  // namespace

std::uint64_t Schedule::hash() const {
  Fnv fnv;
  fnv.add(algorithm.size(), 8);
  for (unsigned char c : algorithm) fnv.add(c, 1);
  for (std::int32_t value : {ranks, chunks, steps, places}) fnv.add(std::uint32_t(value), 4);
  fnv.add(transfers.size(), 8);
  for (Transfer const& t : transfers) {
    for (std::int32_t value : {t.step, t.source, t.destination, t.chunk, t.place}) fnv.add(std::uint32_t(value), 4);
    fnv.add(
        unsigned(t.action) | unsigned(t.side) << 1 | unsigned(t.source_slot) << 2 | unsigned(t.destination_slot) << 3,
        1);
  }
  return fnv.value();
}

std::vector<bool> needs_staging(Schedule const& schedule) {
  auto const& transfers = schedule.transfers;
  std::vector<bool> staged(transfers.size());
  std::vector<std::pair<Location, std::size_t>> reads;
  for (std::size_t begin = 0, end = 0; begin < transfers.size(); begin = end) {
    reads.clear();
    for (end = begin; end < transfers.size() && transfers[end].step == transfers[begin].step; ++end)
      reads.emplace_back(location(transfers[end].source, transfers[end].source_slot, transfers[end]), end);
    std::sort(reads.begin(), reads.end());
    for (std::size_t i = begin; i < end; ++i) {
      Transfer const& t     = transfers[i];
      Location const target = location(t.destination, t.destination_slot, t);
      auto reader           = std::lower_bound(reads.begin(), reads.end(), std::make_pair(target, std::size_t(0)));
      for (; reader != reads.end() && !(target < reader->first); ++reader)
        if (reader->second != i) staged[i] = true;
    }
  }
  return staged;
}

}  // namespace lockstep::comm
