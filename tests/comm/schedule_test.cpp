// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>

#include "comm/algorithms.hpp"
#include "kernels/error.hpp"
#include "tests/comm/oracle.hpp"

namespace {

using namespace lockstep::comm;
using testing::HasSubstr;

TEST(ChunkRange, CoversEveryElementOnceInOrder) {
  for (std::int64_t chunks : {1, 2, 3, 7, 64})
    for (std::int64_t n :
         {std::int64_t(0), std::int64_t(1), chunks - 1, chunks, 3 * chunks + 2, (std::int64_t(1) << 40) + 5}) {
      std::int64_t at = 0;
      for (std::int64_t c = 0; c < chunks; ++c) {
        auto const range = chunk_range(n, chunks, c);
        EXPECT_EQ(range.begin, at);
        EXPECT_LE(range.size(), chunk_range(n, chunks, 0).size());
        EXPECT_GE(range.size() + 1, chunk_range(n, chunks, 0).size());
        at = range.end;
      }
      EXPECT_EQ(at, n);
    }
}

TEST(Schedule, HashSeesEveryField) {
  Schedule base;
  base.algorithm = "a";
  base.ranks     = 2;
  base.transfers = {Transfer{}, Transfer{}};
  std::vector<Schedule> variants(16, base);
  variants[1].algorithm                 = "b";
  variants[2].ranks                     = 3;
  variants[3].chunks                    = 2;
  variants[4].steps                     = 1;
  variants[5].places                    = 1;
  variants[6].transfers[1].step         = 1;
  variants[7].transfers[1].source       = 1;
  variants[8].transfers[1].destination  = 1;
  variants[9].transfers[1].chunk        = 1;
  variants[10].transfers[1].place       = 1;
  variants[11].transfers[1].action      = Action::reduce;
  variants[12].transfers[1].side        = Side::left;
  variants[13].transfers[1].source_slot = Slot::scratch;

  variants[14].transfers[1].destination_slot = Slot::scratch;
  variants[15].transfers[1].count            = 2;
  for (std::size_t i = 0; i < variants.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(variants[i].hash(), variants[j].hash()) << i << ' ' << j;
  EXPECT_EQ(base.hash(), Schedule(base).hash());
}

TEST(Schedule, StagingIsNeededWhereAStepReadsWhatItWrites) {
  Schedule exchange;
  exchange.ranks  = 2;
  exchange.chunks = 2;
  exchange.steps  = 2;
  Transfer there, back;
  there.destination = back.source = 1;
  there.action = back.action = Action::reduce;
  exchange.transfers         = {there, back};
  EXPECT_EQ(needs_staging(exchange), (std::vector<bool>{true, true}));
  exchange.transfers[1].chunk = 1;
  EXPECT_EQ(needs_staging(exchange), (std::vector<bool>{false, false}));
  exchange.transfers[0].count = 2;
  EXPECT_EQ(needs_staging(exchange), (std::vector<bool>{true, true}));
  exchange.transfers[0]      = there;
  exchange.transfers[1]      = back;
  exchange.transfers[1].step = 1;
  EXPECT_EQ(needs_staging(exchange), (std::vector<bool>{false, false}));
}

// An executor without snapshots: transfers of a step that need no staging write at once, one after the other; what the
// others move is read first and written last.
std::map<std::array<int, 3>, std::uint64_t> run_in_place(Schedule const& schedule, bool backwards) {
  std::map<std::array<int, 3>, std::uint64_t> memory;  // (rank, slot, chunk or place)
  auto const at = [&](int rank, Slot slot, Transfer const& t, int part) -> std::uint64_t& {
    return memory[{rank, int(slot), (slot == Slot::data ? t.chunk : t.place) + part}];
  };
  for (int rank = 0; rank < schedule.ranks; ++rank)
    for (int chunk = 0; chunk < schedule.chunks; ++chunk)
      memory[{rank, 0, chunk}] = std::uint64_t(rank + 1) << chunk % 40;
  auto const staged = needs_staging(schedule);
  auto const write  = [&](Transfer const& t, int part, std::uint64_t value) {
    auto& target = at(t.destination, t.destination_slot, t, part);
    target       = t.action == Action::copy ? value : target + value;
  };
  auto const& all = schedule.transfers;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    std::vector<std::pair<std::size_t, std::vector<std::uint64_t>>> late;
    std::vector<std::size_t> order;
    for (end = begin; end < all.size() && all[end].step == all[begin].step; ++end) {
      order.push_back(end);
      if (!staged[end]) continue;
      late.emplace_back(end, std::vector<std::uint64_t>());
      for (int part = 0; part < all[end].count; ++part)
        late.back().second.push_back(at(all[end].source, all[end].source_slot, all[end], part));
    }
    if (backwards) std::reverse(order.begin(), order.end());
    for (std::size_t i : order)
      for (int part = 0; !staged[i] && part < all[i].count; ++part)
        write(all[i], part, at(all[i].source, all[i].source_slot, all[i], part));
    for (auto const& [i, values] : late)
      for (int part = 0; part < all[i].count; ++part) write(all[i], part, values[part]);
  }
  return memory;
}

TEST(Schedule, StagingReplacesSnapshots) {
  for (auto const& name : algorithm_names())
    for (int k = 1; k <= 17; ++k)
      for (bool backwards : {false, true}) {
        auto const schedule = make_schedule(name, {k, 1000});
        auto const memory   = run_in_place(schedule, backwards);
        for (int rank = 0; rank < k; ++rank)
          for (int chunk = 0; chunk < schedule.chunks; ++chunk)
            ASSERT_EQ(memory.at({rank, 0, chunk}), std::uint64_t(k) * (k + 1) / 2 << chunk % 40) << name << ' ' << k;
      }
}

TEST(Algorithms, UnknownNamesAndBadRequestsAreRefused) {
  auto const message = [](std::string const& name, ScheduleRequest const& request) -> std::string {
    try {
      make_schedule(name, request);
    } catch (lockstep::Error const& error) {
      EXPECT_EQ(error.code(), lockstep::ExitCode::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("rign", {2, 1}), HasSubstr("'rign', expected one of: naive, tree, double_tree, ring"));
  EXPECT_THAT(message("ring", {0, 1}), HasSubstr("ranks is 0"));
  EXPECT_THAT(message("ring", {2, -1}), HasSubstr("elements is -1"));
}

TEST(Algorithms, SumOnEveryRank) {
  for (auto const& name : algorithm_names())
    for (int k = 1; k <= 17; ++k) {
      auto const schedule = make_schedule(name, {k, 1000});
      auto const input    = [](int rank, int chunk) {
        return std::uint64_t(rank + 1) * 0x9e3779b97f4a7c15u + unsigned(chunk);
      };
      auto const result = oracle::run<std::uint64_t>(schedule, input);
      EXPECT_TRUE(result.well_formed) << name << ' ' << k;
      for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
        std::uint64_t sum = 0;
        for (int rank = 0; rank < k; ++rank) sum += input(rank, chunk);
        for (int rank = 0; rank < k; ++rank)
          EXPECT_EQ(result.vectors[rank][chunk], sum) << name << ' ' << k << ' ' << rank;
      }
    }
}

}  // namespace
