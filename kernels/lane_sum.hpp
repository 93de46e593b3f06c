// SPDX-License-Identifier: Apache-2.0
// From lanes to shards. A block's 16 lanes are 16 / group shards of `group` images each (group a power of two); a
// shard's sum is the tree that joins neighbours: ((l0 + l1) + (l2 + l3)) + ..., so it depends on the shard's lanes
// only.
#pragma once
#include "kernels/pack.hpp"

namespace lockstep {

// Rows of shard gradients that a block adds to.
struct GradientRows {
  float* first;         // row of the block's first shard
  std::int64_t stride;  // floats between rows
  int group;            // lanes of one shard: 1, 2, 4, 8 or 16
  int shards;           // in this block; lanes beyond them are padding
  bool add;             // to what the row holds (a shard's second and further blocks)

  // Entries [at, at + count) of a shard's row.
  KOKKOS_FORCEINLINE_FUNCTION void put(int shard, std::int64_t at, float const* values, int count) const {
    float* to = first + shard * stride + at;
    if (add)
      for (int i = 0; i < count; ++i) to[i] += values[i];
    else
      for (int i = 0; i < count; ++i) to[i] = values[i];
  }
};

// results[shard * pitch + i] = the sum of element i over the shard's lanes, of sixteen elements; sums is [16][lane].
KOKKOS_INLINE_FUNCTION void sum_one_by_one(int group, float const* sums, float* results, int pitch) {
  for (int i = 0; i < 16; ++i) {
    float tree[lanes];
    for (int lane = 0; lane < lanes; ++lane) tree[lane] = sums[i * lanes + lane];
    for (int half = 1; half < group; half *= 2)
      for (int lane = 0; lane < lanes; lane += 2 * half) tree[lane] += tree[lane + half];
    for (int shard = 0; shard < lanes / group; ++shard) results[shard * pitch + i] = tree[shard * group];
  }
}

#if LOCKSTEP_PACK_BYTES > 0
// The same tree for as many elements at once as a vector has floats. A vector has quads of four lanes: join_neighbours
// twice leaves four elements' sums of a quad side by side; join_quads then adds quads.
#define LOCKSTEP_SHUFFLED_SUM(name, ...)                                                     \
  LOCKSTEP_PACK_INLINE VectorPack::Vector name(VectorPack::Vector a, VectorPack::Vector b) { \
    return __VA_ARGS__;                                                                      \
  }
#if LOCKSTEP_PACK_BYTES == 64
LOCKSTEP_SHUFFLED_SUM(join_neighbours,
                      __builtin_shufflevector(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
                          __builtin_shufflevector(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31))
LOCKSTEP_SHUFFLED_SUM(join_quads,
                      __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                          __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31))
#elif LOCKSTEP_PACK_BYTES == 32
LOCKSTEP_SHUFFLED_SUM(join_neighbours, __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
                                           __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15))
LOCKSTEP_SHUFFLED_SUM(join_quads, __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
                                      __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15))
#else
LOCKSTEP_SHUFFLED_SUM(join_neighbours,
                      __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7))
LOCKSTEP_SHUFFLED_SUM(join_quads, a + b)  // not used: a vector is one quad
#endif
#undef LOCKSTEP_SHUFFLED_SUM

// Joins v[0 .. Count) to v[0 .. Left).
template <int Count, int Left, bool Quads>
LOCKSTEP_PACK_INLINE void join(VectorPack::Vector* v) {
  if constexpr (Count > Left) {
    LOCKSTEP_UNROLL
    for (int i = 0; i < Count / 2; ++i)
      v[i] = Quads ? join_quads(v[2 * i], v[2 * i + 1]) : join_neighbours(v[2 * i], v[2 * i + 1]);
    join<Count / 2, Left, Quads>(v);
  }
}

// Shards of four lanes.
inline void sum_quads(float const* sums, float* results, int pitch) {
  constexpr int width = VectorPack::width, in_vector = width / 4;
  for (int first = 0; first < 16; first += width)
    for (int part = 0; part < lanes / width; ++part) {
      VectorPack::Vector v[width];
      LOCKSTEP_UNROLL
      for (int i = 0; i < width; ++i) v[i] = VectorPack::load(sums + (first + i) * lanes + part * width).v;
      join<width, in_vector, false>(v);
      LOCKSTEP_UNROLL
      for (int j = 0; j < in_vector; ++j)
        for (int q = 0; q < in_vector; ++q)
          std::memcpy(results + (part * in_vector + q) * pitch + first + 4 * j,
                      reinterpret_cast<float const*>(&v[j]) + 4 * q, 16);
    }
}

// Shards of sixteen lanes: what adding the quads in pairs gives, with less shuffling.
LOCKSTEP_PACK_INLINE void sum_block(float const* sums, float* results) {
  constexpr int width = VectorPack::width, parts = lanes / width;  // a vector holds one part of an element's lanes
  for (int first = 0; first < 16; first += width) {
    VectorPack totals[parts];
    LOCKSTEP_UNROLL
    for (int part = 0; part < parts; ++part) {
      VectorPack::Vector v[width];
      LOCKSTEP_UNROLL
      for (int i = 0; i < width; ++i) v[i] = VectorPack::load(sums + (first + i) * lanes + part * width).v;
      join<width, width / 4, false>(v);
      join<width / 4, 1, true>(v);
      totals[part].v = v[0];
    }
    if constexpr (parts == 4) totals[0] = (totals[0] + totals[1]) + (totals[2] + totals[3]);
    if constexpr (parts == 2) totals[0] = totals[0] + totals[1];
    totals[0].store(results + first);
  }
}
#endif

KOKKOS_INLINE_FUNCTION int lane_sums_pitch(int count) {
  return (count + 15) / 16 * 16;
}

// results[shard * pitch + i] = the sum of element i over a shard's lanes. sums is [count][lane], readable up to a
// multiple of 16 elements; results has lanes / group * pitch entries, pitch >= lane_sums_pitch(count).
template <class P>
KOKKOS_INLINE_FUNCTION void lane_sums(int group, float const* sums, int count, float* results, int pitch) {
  for (int i = 0; i < count; i += 16, sums += 16 * lanes, results += 16) {
#if LOCKSTEP_PACK_BYTES > 0
    static_assert(lanes == 16, "four quads");
    if constexpr (P::width > 1)
      if (group >= 4) {
        if (group == 16) {
          sum_block(sums, results);
        } else if (group == 4) {
          sum_quads(sums, results, pitch);
        } else {
          float quads[4 * 16];
          sum_quads(sums, quads, 16);
          for (int j = 0; j < 16; ++j) results[j] = quads[j] + quads[16 + j];
          for (int j = 0; j < 16; ++j) results[pitch + j] = quads[32 + j] + quads[48 + j];
        }
        continue;
      }
#endif
    sum_one_by_one(group, sums, results, pitch);
  }
}

// The same into the rows' entries from `at` on.
template <class P>
KOKKOS_INLINE_FUNCTION void add_lane_sums(GradientRows const& rows, float const* sums, std::int64_t count,
                                          std::int64_t at) {
  for (; count > 0; count -= 16, sums += 16 * lanes, at += 16) {
    float results[lanes * 16];
    lane_sums<P>(rows.group, sums, 16, results, 16);
    for (int shard = 0; shard < rows.shards; ++shard)
      rows.put(shard, at, results + shard * 16, count < 16 ? int(count) : 16);
  }
}

}  // namespace lockstep
