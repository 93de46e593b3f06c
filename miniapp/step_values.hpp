// SPDX-License-Identifier: Apache-2.0
// Small kernels around a step: what it takes from device memory and leaves there. Hosts do them at once.
#pragma once
#include "kernels/types.hpp"

namespace lockstep {

// The kernels of a step that is a graph keep the arguments of its capture, so that what differs from step to step lies
// at fixed places: numbers[i] = order[first + i] for all of `numbers`, rate[0] = value.
void set_step(Space const& space, Buffer<const std::int32_t> const& order, std::int64_t first, float value,
              Buffer<std::int32_t> const& numbers, Buffer<float> const& rate);

// prints is [n], both [2n]: x and, n entries on, ~x. The largest of both over all devices give the largest and the
// smallest x.
void both_ways(Space const& space, Buffer<const std::uint64_t> const& prints, Buffer<std::int64_t> const& both);

// all[] = the exponents, both, the bits of the loss, one behind the other: what the host reads of a step, in one go.
void collect(Space const& space, Buffer<const std::int64_t> const& exponents, Buffer<const std::int64_t> const& both,
             Buffer<const float> const& loss, Buffer<std::int64_t> const& all);

}  // namespace lockstep
