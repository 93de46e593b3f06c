// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "kernels/error.hpp"
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

// merge makes one value of two; settle finishes a chain of merges, so that any NaN becomes the one NaN.
struct Sum {
  template <class T>
  static KOKKOS_INLINE_FUNCTION T merge(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
    } else {
      return a + b;
    }
  }
  template <class T>
  static KOKKOS_INLINE_FUNCTION T settle(T value) {
    if constexpr (std::is_integral_v<T>) {
      return value;
    } else {
      return value == value ? value : quiet_nan<T>();
    }
  }
};

struct Max {
  template <class T>
  static KOKKOS_INLINE_FUNCTION T merge(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a > b ? a : b;
    } else {
      T const zero   = a + b;  // of zeros: +0 unless both are -0
      T const larger = a > b ? a : b;
      T const value  = a == b ? (a == T(0) ? zero : a) : larger;
      return (a == a) & (b == b) ? value : quiet_nan<T>();
    }
  }
  template <class T>
  static KOKKOS_INLINE_FUNCTION T settle(T value) {
    return value;
  }
};

struct Min {
  template <class T>
  static KOKKOS_INLINE_FUNCTION T merge(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a < b ? a : b;
    } else {
      T const zero    = -(-a - b);  // of zeros: -0 unless both are +0
      T const smaller = a < b ? a : b;
      T const value   = a == b ? (a == T(0) ? zero : a) : smaller;
      return (a == a) & (b == b) ? value : quiet_nan<T>();
    }
  }
  template <class T>
  static KOKKOS_INLINE_FUNCTION T settle(T value) {
    return value;
  }
};

template <class Operation, class T>
KOKKOS_INLINE_FUNCTION T apply(T a, T b) {
  return Operation::settle(Operation::merge(a, b));
}

template <class F>
void with_operation(Op op, F const& f) {
  switch (op) {
    case Op::sum:
      return f(Sum{});
    case Op::max:
      return f(Max{});
    case Op::min:
      return f(Min{});
  }
}

// f gets a value of the type.
template <class F>
void with_type(Type type, F const& f) {
  switch (type) {
    case Type::float32:
      return f(float());
    case Type::float64:
      return f(double());
    case Type::int64:
      return f(std::int64_t());
  }
}

// Calls body(begin, end) for runs that cover [0, count).
template <class Body>
void for_runs(Space const& space, char const* label, std::int64_t count, std::int64_t bytes, Body const& body) {
  if (count == 0) return;
  if constexpr (runs_on_host) {
    if (bytes <= launch_bytes || on_side_thread) {
      body(std::int64_t(0), count);
      return;
    }
  }
  using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
  launch(
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
    for (std::int64_t i = begin; i < end; ++i) to[i] = apply<Operation>(to[i], with[i]);
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
  with_operation(op, [&](auto operation) {
    for_runs(space, "lockstep::comm::reduce", count, count * std::int64_t(sizeof(T)),
             ReduceRun<T, decltype(operation)>{static_cast<T*>(into), static_cast<T const*>(from)});
  });
}

// Addresses in a kernel's arguments: as many as fit on a device, any number on a host, where the kernel runs before the
// launch returns.
constexpr int fused_at_once = 64;
struct FixedAddresses {
  char* base[fused_at_once];
  KOKKOS_INLINE_FUNCTION char* operator[](int i) const { return base[i]; }
};
using AddressList = std::conditional_t<runs_on_host, char* const*, FixedAddresses>;

template <class T, class Operation>
struct FuseRun {
  AddressList inputs, outputs;
  int input_count, output_count;
  std::int64_t first;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t begin, std::int64_t end) const {
    begin += first;
    end += first;
#if !defined(__CUDA_ARCH__) && !defined(__HIP_DEVICE_COMPILE__) && !defined(__SYCL_DEVICE_ONLY__)
    if (input_count == output_count) {
      switch (input_count) {
        case 2:
          return pass(begin, end, std::make_index_sequence<2>());
        case 3:
          return pass(begin, end, std::make_index_sequence<3>());
        case 4:
          return pass(begin, end, std::make_index_sequence<4>());
      }
    }
    // The running result stays in the first-level cache.
    constexpr std::int64_t block = 4096 / sizeof(T);
    alignas(64) T sum[block];
    for (; begin < end; begin += block) {
      std::int64_t const n = end - begin < block ? end - begin : block;
      combine(sum, at(inputs, 0) + begin, at(inputs, 1) + begin, n);
      for (int r = 2; r < input_count; ++r) combine(sum, sum, at(inputs, r) + begin, n);
      for (int r = 0; r < output_count; ++r) std::memcpy(at(outputs, r) + begin, sum, std::size_t(n) * sizeof(T));
    }
#else
    for (std::int64_t i = begin; i < end; ++i) {
      T value = at(inputs, 0)[i];
      for (int r = 1; r < input_count; ++r) value = Operation::merge(value, at(inputs, r)[i]);
      value = Operation::settle(value);
      for (int r = 0; r < output_count; ++r) at(outputs, r)[i] = value;
    }
#endif
  }

  // Results stay in registers from the reads to the writes: every cache line is touched once. No loop over vectors,
  // which would keep GCC from vectorising.
  template <std::size_t... R>
  void pass(std::int64_t begin, std::int64_t end, std::index_sequence<R...>) const {
    T* const in[]  = {at(inputs, R)...};
    T* const out[] = {at(outputs, R)...};
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) {
      T value = in[0][i];
      ((value = R == 0 ? value : Operation::merge(value, in[R][i])), ...);
      value = Operation::settle(value);
      ((out[R][i] = value), ...);
    }
  }

  // Not inlined: GCC makes gathers of this loop together with the one over vectors around it.
  __attribute__((noinline)) static void combine(T* result, T const* a, T const* b, std::int64_t n) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) result[i] = apply<Operation>(a[i], b[i]);
  }

  static KOKKOS_INLINE_FUNCTION T* at(AddressList const& list, int i) {
    return reinterpret_cast<T*>(list[i]);
  }
};

struct UpdateRun {
  AddressList vectors;
  int vector_count;
  std::int64_t first;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t begin, std::int64_t end) const {
    switch (vector_count) {
      case 2:
        return pass(first + begin, first + end, std::make_index_sequence<2>());
      case 3:
        return pass(first + begin, first + end, std::make_index_sequence<3>());
      case 4:
        return pass(first + begin, first + end, std::make_index_sequence<4>());
    }
    for (int v = 0; v < vector_count; ++v) {
      auto* const vector = reinterpret_cast<std::uint32_t*>(vectors[v]) + first;
      for (std::int64_t i = begin; i < end; ++i) vector[i] += 1;
    }
  }

  template <std::size_t... V>
  KOKKOS_INLINE_FUNCTION void pass(std::int64_t begin, std::int64_t end, std::index_sequence<V...>) const {
    std::uint32_t* const all[] = {reinterpret_cast<std::uint32_t*>(vectors[V])...};
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) ((all[V][i] += 1), ...);
  }
};

template <class List>
List list_of(std::vector<char*> const& addresses) {
  if constexpr (std::is_pointer_v<List>) {
    return addresses.data();
  } else {
    List list{};
    for (std::size_t i = 0; i < addresses.size(); ++i) list.base[i] = addresses[i];
    return list;
  }
}

void check_fits(std::size_t vectors) {
  LOCKSTEP_THROW_IF(!runs_on_host && vectors > std::size_t(fused_at_once), ExitCode::usage,
                    "one pass over " + std::to_string(vectors) + " vectors; expected at most " +
                        std::to_string(fused_at_once) + " on a device");
}

template <class T>
void fuse_as(Space const& space, Op op, std::vector<char*> const& inputs, std::vector<char*> const& outputs,
             std::int64_t first, std::int64_t count) {
  check_fits(std::max(inputs.size(), outputs.size()));
  with_operation(op, [&](auto operation) {
    FuseRun<T, decltype(operation)> const pass{list_of<AddressList>(inputs), list_of<AddressList>(outputs),
                                               int(inputs.size()), int(outputs.size()), first};
    for_runs(space, "lockstep::comm::fuse", count, count * std::int64_t(sizeof(T)), pass);
  });
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
  with_type(type, [&](auto value) { reduce_as<decltype(value)>(space, op, into, from, count); });
}

void fuse(Space const& space, Type type, Op op, std::vector<char*> const& inputs, std::vector<char*> const& outputs,
          std::int64_t first, std::int64_t count) {
  if (inputs.size() < 2) {
    for (auto* output : outputs)
      copy(space, output + first * size_of(type), inputs[0] + first * size_of(type), count * size_of(type));
    return;
  }
  with_type(type, [&](auto value) { fuse_as<decltype(value)>(space, op, inputs, outputs, first, count); });
}

void update(Space const& space, std::vector<char*> const& vectors, std::int64_t first, std::int64_t count) {
  check_fits(vectors.size());
  for_runs(space, "lockstep::comm::update", count, count * std::int64_t(sizeof(std::uint32_t)),
           UpdateRun{list_of<AddressList>(vectors), int(vectors.size()), first});
}

}  // namespace lockstep::comm
