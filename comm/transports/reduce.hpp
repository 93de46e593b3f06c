// SPDX-License-Identifier: Apache-2.0
// Copies and reductions of device memory, enqueued on an instance; the element type is a run-time value here so that
// executors are compiled once.
#pragma once
#include "comm/communicator.hpp"
#include "kernels/types.hpp"

#include <cstdint>
#include <type_traits>

namespace lockstep::comm {

enum class Type : std::uint8_t { float32, float64, int64 };

template <class T>
constexpr Type type_of = std::is_same_v<T, float>    ? Type::float32
                         : std::is_same_v<T, double> ? Type::float64
                                                     : Type::int64;

constexpr std::int64_t size_of(Type type) {
  return type == Type::float32 ? 4 : 8;
}
char const* name_of(Type type);
char const* name_of(Op op);

// Host spaces run kernels before the launch returns; work below `launch_bytes` is then done by the calling thread, and
// all work of a side thread.
constexpr bool runs_on_host         = std::is_same_v<Space, Kokkos::DefaultHostExecutionSpace>;
constexpr std::int64_t launch_bytes = runs_on_host ? 32 * 1024 : 0;

void copy(Space const& space, void* to, void const* from, std::int64_t bytes);
// into[i] = op(into[i], from[i])
void reduce(Space const& space, Type type, Op op, void* into, void const* from, std::int64_t count);
// All outputs[.][i] = inputs[0][i] op inputs[1][i] op ..., from left to right, for i in [first, first + count), in one
// pass over memory. An output may be an input.
void fuse(Space const& space, Type type, Op op, std::vector<char*> const& inputs, std::vector<char*> const& outputs,
          std::int64_t first, std::int64_t count);
// Adds 1 to the 32-bit words [first, first + count) of all vectors, in one pass over memory. What probes time.
void update(Space const& space, std::vector<char*> const& vectors, std::int64_t first, std::int64_t count);

}  // namespace lockstep::comm
