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

// sums is [count][lane]; element i goes to rows' entry at + i.
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
// Sixteen elements at once for a shard that fills the block: the tree and a transposition in one.
inline void sum_sixteen(float const* sums, float* results) {
  typedef float Vector __attribute__((vector_size(64)));
  Vector v[16];
  LOCKSTEP_UNROLL for (int i = 0; i < 16; ++i) std::memcpy(&v[i], sums + i * lanes, sizeof(Vector));
  LOCKSTEP_UNROLL for (int i = 0; i < 8; ++i) v[i] =
      __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
      __builtin_shufflevector(v[2 * i], v[2 * i + 1], 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
  LOCKSTEP_UNROLL for (int i = 0; i < 4; ++i) v[i] =
      __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
      __builtin_shufflevector(v[2 * i], v[2 * i + 1], 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
  LOCKSTEP_UNROLL for (int i = 0; i < 2; ++i) v[i] =
      __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
      __builtin_shufflevector(v[2 * i], v[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  v[0] = __builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(v[0], v[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  std::memcpy(results, &v[0], sizeof(Vector));
}
#endif

template <class P>
KOKKOS_INLINE_FUNCTION void add_lane_sums(GradientRows const& rows, float const* sums, std::int64_t count,
                                          std::int64_t at) {
#if LOCKSTEP_PACK_BYTES > 0
  if constexpr (P::width > 1) {
    static_assert(lanes == 16, "sum_sixteen");
    if (rows.group == lanes) {
      std::int64_t i = 0;
      for (; i + 16 <= count; i += 16) {
        float results[16];
        sum_sixteen(sums + i * lanes, results);
        float* to = rows.first + at + i;
        for (int j = 0; j < 16; ++j) to[j] = rows.add ? to[j] + results[j] : results[j];
      }
      add_lane_sums_one_by_one(rows, sums + i * lanes, count - i, at + i);
      return;
    }
  }
#endif
  add_lane_sums_one_by_one(rows, sums, count, at);
}

}  // namespace lockstep
