// SPDX-License-Identifier: Apache-2.0
// A collective as data: steps of transfers of chunks between ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::comm {

enum class Action : std::uint8_t { copy, reduce };
// Where a chunk lies. `data` is the rank's vector. `scratch` is a second buffer, undefined at the start, of
// Schedule::places places, each large enough for any chunk: place p begins at element p * chunk_range(n, chunks,
// 0).size().
enum class Slot : std::uint8_t { data, scratch };
// Which operand of a reduction the arriving chunk is: destination = arriving + own (left) or own + arriving (right).
enum class Side : std::uint8_t { left, right };

// All transfers of a step happen at once: sources are read as they were before the step (snapshot). No two transfers of
// a step write the same place. A transfer of an empty chunk moves nothing and sends no message.
struct Transfer {
  std::int32_t step        = 0;
  std::int32_t source      = 0;
  std::int32_t destination = 0;  // may equal source: a local move
  std::int32_t chunk       = 0;
  std::int32_t count       = 1;
  std::int32_t place       = 0;  // of the scratch slot; 0 without one. At most one end is scratch, and then count is 1.
  Action action            = Action::copy;
  Side side                = Side::right;
  Slot source_slot         = Slot::data;
  Slot destination_slot    = Slot::data;

  bool is_local() const { return source == destination; }
};

struct Schedule {
  std::string algorithm;
  std::int32_t ranks  = 1;
  std::int32_t chunks = 1;  // the vector is cut in this many chunks, see chunk_range
  std::int32_t steps  = 0;
  std::int32_t places = 0;          // of scratch on every rank; 0: no scratch is used
  std::vector<Transfer> transfers;  // sorted by step

  std::uint64_t hash() const;  // of all of the above; compared across ranks before use
};

struct ChunkRange {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t size() const { return end - begin; }
};

// The one partition of n elements into chunks: the first n mod chunks are one element longer; chunks may be empty.
constexpr ChunkRange chunk_range(std::int64_t n, std::int64_t chunks, std::int64_t chunk) {
  std::int64_t const base = n / chunks, longer = n % chunks;
  std::int64_t const begin = chunk * base + (chunk < longer ? chunk : longer);
  return {begin, begin + base + (chunk < longer ? 1 : 0)};
}

// The elements of the n-element vector that a transfer moves.
constexpr ChunkRange element_range(Schedule const& schedule, Transfer const& t, std::int64_t n) {
  return {chunk_range(n, schedule.chunks, t.chunk).begin, chunk_range(n, schedule.chunks, t.chunk + t.count - 1).end};
}

// Elements of scratch that every rank needs, and where in `slot` a transfer's elements begin.
constexpr std::int64_t scratch_elements(Schedule const& schedule, std::int64_t n) {
  return schedule.places * chunk_range(n, schedule.chunks, 0).size();
}
constexpr std::int64_t offset_in(Slot slot, Schedule const& schedule, Transfer const& t, std::int64_t n) {
  return slot == Slot::data ? chunk_range(n, schedule.chunks, t.chunk).begin
                            : t.place * chunk_range(n, schedule.chunks, 0).size();
}

// One flag per transfer: whether another transfer of the same step reads what this one writes. Such a write has to wait
// for those reads (or the arriving chunk has to be staged); the others may write directly.
std::vector<bool> needs_staging(Schedule const& schedule);

}  // namespace lockstep::comm
