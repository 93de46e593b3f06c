// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: every draw is a function of (seed, purpose, stream, position) alone, so that results
// depend neither on threads and devices nor on what else was drawn. Generator: Philox4x32-10 of Salmon, Moraes, Dror,
// Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once
#include <Kokkos_Macros.hpp>
#include <cstdint>
#include <vector>

namespace lockstep {

struct Philox4 {
  std::uint32_t words[4];
};

// The ten-round block function on a 128-bit counter under a 64-bit key.
KOKKOS_INLINE_FUNCTION Philox4 philox4x32(Philox4 counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const product0 = std::uint64_t(0xD2511F53u) * counter.words[0];
    std::uint64_t const product1 = std::uint64_t(0xCD9E8D57u) * counter.words[2];
    counter                      = {{std::uint32_t(product1 >> 32) ^ counter.words[1] ^ key0, std::uint32_t(product1),
                                     std::uint32_t(product0 >> 32) ^ counter.words[3] ^ key1, std::uint32_t(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Keeps the streams of different uses of one seed apart.
enum class RandomPurpose : std::uint32_t { normal = 1, permutation = 2, image = 3 };

// Reads one stream in order. At most 2^34 words.
class RandomStream {
 public:
  KOKKOS_INLINE_FUNCTION RandomStream(std::uint64_t seed, RandomPurpose purpose, std::uint64_t stream)
      : m_seed(seed), m_stream(stream), m_purpose(std::uint32_t(purpose)) {}

  // The next four words; words left over from next() are skipped.
  KOKKOS_INLINE_FUNCTION Philox4 next_block() {
    m_left = 0;
    return philox4x32({{m_block++, std::uint32_t(m_stream), std::uint32_t(m_stream >> 32), m_purpose}},
                      std::uint32_t(m_seed), std::uint32_t(m_seed >> 32));
  }

  KOKKOS_INLINE_FUNCTION std::uint32_t next() {
    if (m_left == 0) {
      m_words = next_block();
      m_left  = 4;
    }
    return m_words.words[4 - m_left--];
  }

  // Uniform in [0, n), n >= 1, without modulo bias (Lemire, "Fast random integer generation in an interval", 2019).
  KOKKOS_INLINE_FUNCTION std::uint32_t below(std::uint32_t n) {
    std::uint64_t product         = std::uint64_t(next()) * n;
    std::uint32_t const threshold = (0u - n) % n;  // 2^32 mod n low results are over-represented
    while (std::uint32_t(product) < threshold) product = std::uint64_t(next()) * n;
    return std::uint32_t(product >> 32);
  }

  // Uniform in [low, high], both included.
  KOKKOS_INLINE_FUNCTION std::int32_t between(std::int32_t low, std::int32_t high) {
    return low + std::int32_t(below(std::uint32_t(high - low) + 1u));
  }

 private:
  std::uint64_t m_seed, m_stream;
  std::uint32_t m_purpose;
  std::uint32_t m_block = 0;
  int m_left            = 0;
  Philox4 m_words{};
};

// Draws from normal(0, stddev), the same bits on every IEEE machine: no library function but the square root is used.
std::vector<float> normal_values(std::uint64_t seed, std::uint64_t stream, std::int64_t count, double stddev);

// A permutation of 0 .. n-1 (n < 2^31) by Fisher and Yates, every order equally likely.
std::vector<std::int32_t> permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch);

}  // namespace lockstep
