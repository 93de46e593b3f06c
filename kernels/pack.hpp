// SPDX-License-Identifier: Apache-2.0
// A pack of images: the unit the kernels' bodies compute with. On a host it is one native vector, `width` images of a
// block; on an accelerator a thread holds one image and the pack is a scalar. All operations act lane by lane, so a
// lane's bits do not depend on the others or on the width.
#pragma once
#include <Kokkos_Core.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/types.hpp"

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
#define LOCKSTEP_PACK_BYTES 0  // also where such a compiler compiles for the host
#elif defined(__AVX512F__) || defined(__AVX__)
#include <immintrin.h>
#if defined(__AVX512F__)
#define LOCKSTEP_PACK_BYTES 64
#else
#define LOCKSTEP_PACK_BYTES 32
#endif
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#define LOCKSTEP_PACK_BYTES 16
#elif defined(__SSE2__) || defined(__VSX__)
#define LOCKSTEP_PACK_BYTES 16
#else
#define LOCKSTEP_PACK_BYTES 0
#endif

// Accumulators live in registers only when every loop over them is unrolled.
#if defined(__clang__) || defined(__CUDA_ARCH__)
#define LOCKSTEP_UNROLL _Pragma("unroll")
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // said of kernel sizes known at run time only
#endif
#elif defined(__GNUC__) && !defined(__CUDACC__)  // nvcc knows neither form for the host
#define LOCKSTEP_UNROLL _Pragma("GCC unroll 64")
#else
#define LOCKSTEP_UNROLL
#endif

namespace lockstep {

// One of several workers on a block: of a kernel's tiles, numbered from 0, it does those that are its own. Every
// element belongs to one tile, so that the number of workers changes no bit.
struct Share {
  int part = 0, parts = 1;
  KOKKOS_FORCEINLINE_FUNCTION bool has(std::int64_t tile) const { return parts == 1 || tile % parts == part; }
};

// a * b + c: one rounding where the target has the instruction, else two (a library call would cost a hundred times
// more).
KOKKOS_FORCEINLINE_FUNCTION float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__) || defined(__SYCL_DEVICE_ONLY__) || defined(__FMA__) || \
    defined(__aarch64__) || defined(__VSX__)
  return ::fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// Flags of a pack's lanes: bit j of a lane's byte belongs to the element j of a pooling window.
struct ScalarPack {
  static constexpr int width = 1;
  using Flags                = unsigned;
  float v;

  KOKKOS_FORCEINLINE_FUNCTION ScalarPack() {}
  KOKKOS_FORCEINLINE_FUNCTION explicit ScalarPack(float value) : v(value) {}
  KOKKOS_FORCEINLINE_FUNCTION static ScalarPack load(float const* p) { return ScalarPack(*p); }
  KOKKOS_FORCEINLINE_FUNCTION void store(float* p) const { *p = v; }

  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack operator+(ScalarPack a, ScalarPack b) { return ScalarPack(a.v + b.v); }
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack operator-(ScalarPack a, ScalarPack b) { return ScalarPack(a.v - b.v); }
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack operator*(ScalarPack a, ScalarPack b) { return ScalarPack(a.v * b.v); }
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack operator/(ScalarPack a, ScalarPack b) { return ScalarPack(a.v / b.v); }
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack multiply_add(ScalarPack a, ScalarPack b, ScalarPack c) {
    return ScalarPack(lockstep::multiply_add(a.v, b.v, c.v));
  }
  // The larger one; b when either is not a number.
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack larger(ScalarPack a, ScalarPack b) {
    return ScalarPack(a.v > b.v ? a.v : b.v);
  }
  // x where x <= 0 does not hold (a NaN passes), else zero; with the flag of what passed.
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack rectify(ScalarPack x, Flags& flags, int bit) {
    bool const stops = x.v <= 0.0f;
    flags |= stops ? 0u : 1u << bit;
    return ScalarPack(stops ? 0.0f : x.v);
  }
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack rectify(ScalarPack x) { return ScalarPack(x.v <= 0.0f ? 0.0f : x.v); }
  // The gradient of rectify: gradient where its output y passed.
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack where_passed(ScalarPack y, ScalarPack gradient) {
    return ScalarPack(y.v <= 0.0f ? 0.0f : gradient.v);
  }
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack where_flag(Flags flags, int bit, ScalarPack gradient) {
    return ScalarPack((flags >> bit) & 1u ? gradient.v : 0.0f);
  }
  KOKKOS_FORCEINLINE_FUNCTION static Flags no_flags() { return 0u; }
  KOKKOS_FORCEINLINE_FUNCTION static Flags load_flags(std::uint8_t const* p) { return *p; }
  KOKKOS_FORCEINLINE_FUNCTION static void store_flags(std::uint8_t* p, Flags flags) { *p = std::uint8_t(flags); }

  // Below: for math.hpp. x * 2^n for a whole n given as 1.5 * 2^23 + n, both results normal.
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack times_two_to(ScalarPack x, ScalarPack shifted) {
    std::uint32_t bits, n;
    std::memcpy(&bits, &x.v, 4);
    std::memcpy(&n, &shifted.v, 4);
    bits += n << 23;  // the constant's own bits are shifted out
    std::memcpy(&x.v, &bits, 4);
    return x;
  }
  KOKKOS_FORCEINLINE_FUNCTION friend ScalarPack zero_below(ScalarPack x, float limit, ScalarPack value) {
    return ScalarPack(x.v < limit ? 0.0f : value.v);
  }
  // x = mantissa * 2^exponent with mantissa in [sqrt(1/2), sqrt(2)), for positive normal x.
  KOKKOS_FORCEINLINE_FUNCTION friend void split(ScalarPack x, ScalarPack& mantissa, ScalarPack& exponent) {
    std::uint32_t bits;
    std::memcpy(&bits, &x.v, 4);
    std::int32_t const e = (std::int32_t(bits) - 0x3f3504f3) >> 23;
    bits -= std::uint32_t(e) << 23;
    std::memcpy(&mantissa.v, &bits, 4);
    exponent.v = float(e);
  }
};

#if LOCKSTEP_PACK_BYTES > 0
#define LOCKSTEP_PACK_INLINE inline __attribute__((always_inline))

struct VectorPack {
  static constexpr int width = LOCKSTEP_PACK_BYTES / 4;
  typedef float Vector __attribute__((vector_size(LOCKSTEP_PACK_BYTES)));
  typedef std::int32_t Integers __attribute__((vector_size(LOCKSTEP_PACK_BYTES)));
  typedef std::uint32_t Bits __attribute__((vector_size(LOCKSTEP_PACK_BYTES)));
  typedef std::uint8_t Bytes __attribute__((vector_size(LOCKSTEP_PACK_BYTES / 4)));
  using Flags = Integers;
  Vector v;

  LOCKSTEP_PACK_INLINE VectorPack() {}
  LOCKSTEP_PACK_INLINE explicit VectorPack(float value) : v(value - Vector{}) {}
  LOCKSTEP_PACK_INLINE explicit VectorPack(Vector value) : v(value) {}
  LOCKSTEP_PACK_INLINE static VectorPack load(float const* p) {
    VectorPack x;
    std::memcpy(&x.v, p, sizeof(Vector));
    return x;
  }
  LOCKSTEP_PACK_INLINE void store(float* p) const { std::memcpy(p, &v, sizeof(Vector)); }

  LOCKSTEP_PACK_INLINE friend VectorPack operator+(VectorPack a, VectorPack b) { return VectorPack(a.v + b.v); }
  LOCKSTEP_PACK_INLINE friend VectorPack operator-(VectorPack a, VectorPack b) { return VectorPack(a.v - b.v); }
  LOCKSTEP_PACK_INLINE friend VectorPack operator*(VectorPack a, VectorPack b) { return VectorPack(a.v * b.v); }
  LOCKSTEP_PACK_INLINE friend VectorPack operator/(VectorPack a, VectorPack b) { return VectorPack(a.v / b.v); }
  LOCKSTEP_PACK_INLINE friend VectorPack multiply_add(VectorPack a, VectorPack b, VectorPack c) {
#if defined(__AVX512F__)
    return VectorPack(Vector(_mm512_fmadd_ps(a.v, b.v, c.v)));
#elif defined(__FMA__)
    return VectorPack(Vector(_mm256_fmadd_ps(a.v, b.v, c.v)));
#elif defined(__ARM_NEON)
    return VectorPack(Vector(vfmaq_f32(c.v, a.v, b.v)));
#else
    VectorPack r;
    for (int i = 0; i < width; ++i) r.v[i] = lockstep::multiply_add(a.v[i], b.v[i], c.v[i]);
    return r;
#endif
  }
  LOCKSTEP_PACK_INLINE friend VectorPack larger(VectorPack a, VectorPack b) {
    return VectorPack(a.v > b.v ? a.v : b.v);
  }
  LOCKSTEP_PACK_INLINE friend VectorPack rectify(VectorPack x, Flags& flags, int bit) {
    Integers const stops = x.v <= Vector{};
    flags |= ~stops & (1 << bit);
    return VectorPack(stops ? Vector{} : x.v);
  }
  LOCKSTEP_PACK_INLINE friend VectorPack rectify(VectorPack x) {
    return VectorPack(x.v <= Vector{} ? Vector{} : x.v);
  }
  LOCKSTEP_PACK_INLINE friend VectorPack where_passed(VectorPack y, VectorPack gradient) {
    return VectorPack(y.v <= Vector{} ? Vector{} : gradient.v);
  }
  LOCKSTEP_PACK_INLINE friend VectorPack where_flag(Flags flags, int bit, VectorPack gradient) {
    return VectorPack((flags & (1 << bit)) != 0 ? gradient.v : Vector{});
  }
  LOCKSTEP_PACK_INLINE static Flags no_flags() {
    return Flags{};
  }
  // GCC 12 makes scalar code of these conversions, but for the one to bytes with AVX-512.
  LOCKSTEP_PACK_INLINE static Flags load_flags(std::uint8_t const* p) {
#if defined(__AVX512F__)
    // Masked with all lanes: the plain form warns of an uninitialised variable in the compiler's own header.
    return Flags(_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<__m128i const*>(p))));
#elif defined(__AVX2__)
    return Flags(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<__m128i const*>(p))));
#else
    Bytes bytes;
    std::memcpy(&bytes, p, sizeof(Bytes));
    return __builtin_convertvector(bytes, Integers);
#endif
  }
  LOCKSTEP_PACK_INLINE static void store_flags(std::uint8_t* p, Flags flags) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    __m256i const all   = __m256i(flags);
    __m128i const words = _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
#else
    Bytes const bytes = __builtin_convertvector(flags, Bytes);
    std::memcpy(p, &bytes, sizeof(Bytes));
#endif
  }

  LOCKSTEP_PACK_INLINE friend VectorPack times_two_to(VectorPack x, VectorPack shifted) {
    return VectorPack(Vector(Bits(x.v) + (Bits(shifted.v) << 23)));  // a NaN's bits wrap around
  }
  LOCKSTEP_PACK_INLINE friend VectorPack zero_below(VectorPack x, float limit, VectorPack value) {
    return VectorPack(x.v < limit ? Vector{} : value.v);
  }
  LOCKSTEP_PACK_INLINE friend void split(VectorPack x, VectorPack& mantissa, VectorPack& exponent) {
    Integers const bits = Integers(x.v);
    Integers const e    = (bits - 0x3f3504f3) >> 23;
    mantissa.v          = Vector(bits - (e << 23));
    exponent.v          = __builtin_convertvector(e, Vector);
  }
};

using HostPack = VectorPack;
#else
using HostPack = ScalarPack;
#endif

// True where kernels run on the host's cores.
constexpr bool on_host =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible && std::is_same<Memory, Kokkos::HostSpace>::value;
using Pack = std::conditional_t<on_host, HostPack, ScalarPack>;

static_assert(lanes % Pack::width == 0, "a block holds whole packs");

}  // namespace lockstep
