// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule.hpp"

#include <gmock/gmock.h>

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
