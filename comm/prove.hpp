// SPDX-License-Identifier: Apache-2.0
// Runs a schedule on symbols instead of numbers. Every chunk of every rank ends as an expression over the ranks'
// contributions, from which follows whether it is their sum, in which association, and whether all ranks hold equal
// bits.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/schedule.hpp"

namespace lockstep::comm {

struct Expression {
  std::int32_t left = -1, right = -1;  // indices of earlier expressions; -1: the contribution of `rank`
  std::int32_t rank = -1;
  std::uint64_t order;  // equal for expressions that differ only by a + b = b + a
};

struct RankTraffic {  // elements; messages are transfers with elements to (from) other ranks
  std::int64_t sent = 0, received = 0, reduced = 0, messages_sent = 0, messages_received = 0;
};

struct Proof {
  bool correct =
      false;  // every rank ends with every contribution exactly once in every chunk, and the schedule is well formed
  std::string fault;  // else the first fault, in words: step, rank, chunk
  std::int32_t ranks = 0, chunks = 0, steps = 0;

  // All below only when correct.
  std::vector<Expression> expressions;
  std::vector<std::int32_t> results;  // [rank * chunks + chunk]: the expression that the rank's chunk ends as
  // IEEE addition commutes but does not associate: equal bits for all inputs (NaN payloads aside) if and only if the
  // expressions are equal up to the order of operands.
  bool equal_bits        = false;  // all ranks hold equal bits
  std::int32_t orders    = 0;      // different associations over all ranks and chunks; 1: the same for every element
  std::uint64_t order_id = 0;  // of the sequence of associations over the chunks of rank 0, repetitions counted once

  std::vector<RankTraffic> traffic;        // for the number of elements given to prove()
  RankTraffic busiest;                     // maximum over ranks, field by field
  std::int64_t most_messages_in_step = 0;  // that one rank sends or receives

  // An executor that posts all transfers of a step without blocking and waits for them before the next step never
  // deadlocks on a well-formed schedule: take the earliest unfinished step, all its ranks have posted it. One that
  // sends with blocking rendezvous (first all of a step's sends, in listed order, then its receives) may: then this is
  // the step.
  std::int32_t blocking_deadlock_step = -1;
  std::int32_t staged_transfers       = 0;  // whose destination another transfer of the step reads

  std::int32_t result(std::int32_t rank, std::int32_t chunk) const {
    return results[rank * std::int64_t(chunks) + chunk];
  }
  // "((0 + 1) + 2)": ranks stand for their contributions.
  std::string text(std::int32_t expression) const;
};

// elements is for the traffic only: correctness is shown for chunks of any size.
Proof prove(Schedule const& schedule, std::int64_t elements);

// Whether `smaller`, a proof for fewer ranks, has the association that `larger` has once contributions of ranks that
// `smaller` lacks are left out: then adding nothing for absent ranks gives the same bits. False unless both have one
// order.
bool extends(Proof const& larger, Proof const& smaller);

// out[i] = the expression's value in T's arithmetic, with inputs[rank][i] as contributions, for i in [0, count).
template <class T>
void evaluate(Proof const& proof, std::int32_t expression, std::vector<T const*> const& inputs, std::int64_t count,
              T* out);

}  // namespace lockstep::comm
