// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/kokkos_compat.hpp"

namespace lockstep::comm {
namespace {

// Elements that one iteration of a parallel loop handles: a GPU thread takes one, a CPU thread a run that fills
// vectors.
constexpr std::int64_t grain = runs_on_host ? 4096 : 1;

template <class T>
KOKKOS_INLINE_FUNCTION T quiet_nan() {
  return T(__builtin_nan(""));
}

struct Sum {
  template <class T>
  static KOKKOS_INLINE_FUNCTION T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
    } else {
      T const sum = a + b;
      return sum == sum ? sum : quiet_nan<T>();
    }
  }
};

struct Max {
  template <class T>
  static KOKKOS_INLINE_FUNCTION T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a > b ? a : b;
    } else {
      T const zero   = a + b;  // of zeros: +0 unless both are -0
      T const larger = a > b ? a : b;
      T const value  = a == b ? (a == T(0) ? zero : a) : larger;
      return (a == a) & (b == b) ? value : quiet_nan<T>();
    }
  }
};

struct Min {
  template <class T>
  static KOKKOS_INLINE_FUNCTION T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a < b ? a : b;
    } else {
      T const zero    = -(-a - b);  // of zeros: -0 unless both are +0
      T const smaller = a < b ? a : b;
      T const value   = a == b ? (a == T(0) ? zero : a) : smaller;
      return (a == a) & (b == b) ? value : quiet_nan<T>();
    }
  }
};

// Calls body(begin, end) for runs that cover [0, count).
template <class Body>
void for_runs(Space const& space, char const* label, std::int64_t count, std::int64_t bytes, Body const& body) {
  if (count == 0) return;
  if (bytes <= launch_bytes) {
    body(std::int64_t(0), count);
    return;
  }
  using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for(
      label, Policy(space, 0, (count + grain - 1) / grain), KOKKOS_LAMBDA(std::int64_t run) {
        std::int64_t const begin = run * grain;
        body(begin, begin + grain < count ? begin + grain : count);
      });
}

template <class T, class Operation>
struct ReduceRun {
  T* into;
  T const* from;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t begin, std::int64_t end) const {
    T* __restrict__ const to         = into;
    T const* __restrict__ const with = from;
    for (std::int64_t i = begin; i < end; ++i) to[i] = Operation::apply(to[i], with[i]);
  }
};

template <class T>
struct CopyRun {
  T* to;
  T const* from;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t begin, std::int64_t end) const {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__) || defined(__SYCL_DEVICE_ONLY__)
    for (std::int64_t i = begin; i < end; ++i) to[i] = from[i];
#else
    std::memcpy(to + begin, from + begin, std::size_t(end - begin) * sizeof(T));
#endif
  }
};

template <class T>
void reduce_as(Space const& space, Op op, void* into, void const* from, std::int64_t count) {
  auto const run = [&](auto operation) {
    for_runs(space, "lockstep::comm::reduce", count, count * std::int64_t(sizeof(T)),
             ReduceRun<T, decltype(operation)>{static_cast<T*>(into), static_cast<T const*>(from)});
  };
  switch (op) {
    case Op::sum:
      return run(Sum{});
    case Op::max:
      return run(Max{});
    case Op::min:
      return run(Min{});
  }
}

}  // namespace

char const* name_of(Type type) {
  return type == Type::float32 ? "float" : type == Type::float64 ? "double" : "int64";
}

char const* name_of(Op op) {
  return op == Op::sum ? "sum" : op == Op::max ? "max" : "min";
}

void copy(Space const& space, void* to, void const* from, std::int64_t bytes) {
  if (to == from) return;
  for_runs(space, "lockstep::comm::copy", bytes / 4, bytes,
           CopyRun<std::uint32_t>{static_cast<std::uint32_t*>(to), static_cast<std::uint32_t const*>(from)});
}

void reduce(Space const& space, Type type, Op op, void* into, void const* from, std::int64_t count) {
  switch (type) {
    case Type::float32:
      return reduce_as<float>(space, op, into, from, count);
    case Type::float64:
      return reduce_as<double>(space, op, into, from, count);
    case Type::int64:
      return reduce_as<std::int64_t>(space, op, into, from, count);
  }
}

}  // namespace lockstep::comm
