// SPDX-License-Identifier: Apache-2.0
// Where the verifier can reach into training to plant faults. Production runs have no hook.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/gradient_sum.hpp"
#include "kernels/types.hpp"
#include "miniapp/shards.hpp"

namespace lockstep {

// In the order of a step. In brackets: what has just been decided or written, and may be changed.
enum class Stage {
  allocated,         // [any buffer: may be exchanged for another of its length]
  started,           // [parameters] given to all devices, not yet compared
  shuffled,          // [order] of the epoch, on its way to the device
  planned,           // [interval] of the shards that the device computes
  bucketed,          // [buckets] of the row that are summed one after the other; asked for before each step
  computed,          // [rows] of gradients and losses; [count] of rows that will be summed
  exponents_found,   // [exponents] of the device's own rows; exact reduction only, as the next three
  exponents_agreed,  // [exponents] of all devices' rows
  summed,            // [fixed] over the device's own rows
  reduced,           // [fixed] over all rows; [count] that it will be divided by
  divided,           // [gradient] and mean loss of the whole minibatch
  updated,           // [parameters]
  evaluating,        // [interval] of the test images that the device counts
  counted            // [correct] predictions of the device
};

// With overlap the stages from `computed` to `summed` come once a bucket; the other tensors are then not to be touched.
// One local device. Buffers are the trainer's own; work on them goes through `space`.
struct StepState {
  Stage stage;
  std::int64_t step;  // being done, from 1; 0 before the first
  int rank, ranks;
  Space const& space;
  Buffer<float>&parameters, &rows, &gradient;
  Buffer<std::int64_t>&exponents, &fixed, &correct;
  std::int64_t images;                         // of this minibatch; of the test set when evaluating
  TensorRange tensors;                         // that the stage is about; more than all: all
  std::vector<std::int32_t>* order = nullptr;  // these four where the stage names them
  Interval* interval               = nullptr;
  std::int64_t* count              = nullptr;
  std::vector<Interval>* buckets   = nullptr;
};

using StepHook = std::function<void(StepState&)>;

}  // namespace lockstep
