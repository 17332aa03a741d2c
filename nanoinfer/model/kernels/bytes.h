// What products of bytes share: the instructions that multiply them, and whole numbers in vectors.
#pragma once
#include "vectors.h"
#include <algorithm>
#include <immintrin.h>

#if !defined(__AVX512F__) || defined(__AVX512BW__)
#define HAS_BYTES

typedef uint8_t Bytes __attribute__((vector_size(LANES)));

// Weights are asked for so many bytes ahead, into the first-level cache: a row uses them once.
constexpr long AHEAD = 10240;

#if defined(__AVX512F__)
inline Bytes lowest_bytes(Ints v) { return (Bytes)_mm512_cvtepi32_epi8((__m512i)v); }
inline int32_t largest(Ints v) { return _mm512_reduce_max_epi32((__m512i)v); }
inline int32_t sum_of(Ints v) { return _mm512_reduce_add_epi32((__m512i)v); }
#else
inline Bytes lowest_bytes(Ints v) { return __builtin_convertvector(v, Bytes); }
inline int32_t largest(Ints v) { int32_t m = v[0]; for (int i = 1; i < LANES; i++) m = std::max(m, v[i]); return m; }
inline int32_t sum_of(Ints v) { int32_t s = 0; for (int i = 0; i < LANES; i++) s += v[i]; return s; }
#endif

// The magnitudes of floats as bits, whose order is that of the floats
inline Ints magnitude_bits(Floats v) { return (Ints)v & 0x7fffffff; }
constexpr int32_t INFINITE_BITS = 0x7f800000;  // from here on, a magnitude is inf or NaN

// sum + the products of 4 bytes of a (no sign) and 4 of b, in each lane
inline Ints dot(Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#else  // in 16 bits, the even bytes and the odd ones: the instruction for bytes saturates
    typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));
    typedef uint16_t Words __attribute__((vector_size(LANES * 4)));
    auto pairs = [](Words x, Shorts y) {
#if defined(__AVX512BW__)
        return (Ints)_mm512_madd_epi16((__m512i)x, (__m512i)y);
#else
        return (Ints)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#endif
    };
    return sum + pairs((Words)a & 255, (Shorts)b << 8 >> 8) + pairs((Words)a >> 8, (Shorts)b >> 8);
#endif
}
#endif
