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

  KOKKOS_FORCEINLINE_FUNCTION void put(int shard, std::int64_t at, float value) const {
    float* to = first + shard * stride + at;
    *to       = add ? *to + value : value;
  }
};

KOKKOS_INLINE_FUNCTION void add_lane_sums_one_by_one(GradientRows const& rows, float const* sums, std::int64_t count,
                                                     std::int64_t at) {
  for (std::int64_t i = 0; i < count; ++i) {
    float tree[lanes];
    for (int lane = 0; lane < lanes; ++lane) tree[lane] = sums[i * lanes + lane];
    for (int half = 1; half < rows.group; half *= 2)
      for (int lane = 0; lane < lanes; lane += 2 * half) tree[lane] += tree[lane + half];
    for (int shard = 0; shard < rows.shards; ++shard) rows.put(shard, at + i, tree[shard * rows.group]);
  }
}

#if LOCKSTEP_PACK_BYTES > 0
// The same tree for as many elements at once as a vector has floats, for a shard that fills the block. A vector's quads
// of four lanes: join_neighbours twice leaves four elements' sums of a quad side by side; join_quads then adds quads.
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

// quads[q][i]: the sum of element i's lanes 4 q .. 4 q + 3, of sixteen elements.
inline void sum_quads(float const* sums, float (*quads)[16]) {
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
          std::memcpy(&quads[part * in_vector + q][first + 4 * j], reinterpret_cast<float const*>(&v[j]) + 4 * q, 16);
    }
}

// Sixteen elements' sums over all lanes: what adding the quads in pairs gives, with less shuffling.
inline void sum_block(float const* sums, float* results) {
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

// sums is [count][lane], readable up to a multiple of 16 elements; element i goes to the rows' entry at + i.
template <class P>
KOKKOS_INLINE_FUNCTION void add_lane_sums(GradientRows const& rows, float const* sums, std::int64_t count,
                                          std::int64_t at) {
#if LOCKSTEP_PACK_BYTES > 0
  if constexpr (P::width > 1)
    if (rows.group >= 4) {
      static_assert(lanes == 16, "four quads");
      for (; count > 0; count -= 16, sums += 16 * lanes, at += 16) {
        float results[4][16];
        if (rows.group == lanes)
          sum_block(sums, results[0]);
        else
          sum_quads(sums, results);
        if (rows.group == 8)
          for (int shard = 0; shard < 2; ++shard)
            for (int j = 0; j < 16; ++j) results[shard][j] = results[2 * shard][j] + results[2 * shard + 1][j];
        int const valid = count < 16 ? int(count) : 16;
        for (int shard = 0; shard < rows.shards; ++shard)
          for (int j = 0; j < valid; ++j) rows.put(shard, at + j, results[shard][j]);
      }
      return;
    }
#endif
  add_lane_sums_one_by_one(rows, sums, count, at);
}

}  // namespace lockstep
