// Rows of queries and values, packed into the layouts that products read, and what vectors of either element type need.
#pragma once
#include "vectors.h"
#include <algorithm>
#include <immintrin.h>

constexpr int BLOCK = 64;         // keys at a time
constexpr int GROUP = 2 * LANES;  // query rows side by side

// The larger of two, number by number; whether any of them differs; LANES bytes as floats.
#if defined(__AVX512F__)
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline bool differ(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
inline Floats floats_of(const int8_t* from) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from))); }
#else
inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline bool differ(Floats a, Floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)); }
inline Floats floats_of(const int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
}
#endif

#if defined(__AVX512BF16__)
// The elements of two halves in turn: 0, 16, 1, 17, 2 ...
inline Floats alternate(__m512i halves) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                           20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (Floats)_mm512_permutexvar_epi16(order, halves);
}
#endif

// STEP vectors of floats become elements, and one vector of words.
template <class E>
inline Floats words_of_floats(const Floats from[E::STEP]) {
    if constexpr (E::STEP == 1) return from[0];
#if defined(__AVX512BF16__)
    else return alternate((__m512i)_mm512_cvtne2ps_pbh(from[1], from[0]));
#else
    else return E::words_of(E::rounded(from[0]), E::rounded(from[1]));
#endif
}

// Stores two vectors of floats as elements that follow each other.
template <class E>
inline void store_two(typename E::T* to, Floats first, Floats second) {
    if constexpr (E::STEP == 1) store(to, first), store(to + LANES, second);
#if defined(__AVX512BF16__)
    else store(to, _mm512_cvtne2ps_pbh(second, first));
#else
    else E::put(to, first), E::put(to + LANES, second);
#endif
}

// Transposes a square in registers: swaps ever larger sub-squares across the diagonal.
template <int STEP = 1>
static inline void transpose(Floats square[LANES]) {
    Ints low, high;
    for (int j = 0; j < LANES; j++) {
        low[j] = j & STEP ? LANES + j - STEP : j;
        high[j] = j & STEP ? LANES + j : j + STEP;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & STEP)) {
            Floats a = square[i], b = square[i + STEP];
            square[i] = __builtin_shuffle(a, b, low);
            square[i + STEP] = __builtin_shuffle(a, b, high);
        }
    if constexpr (2 * STEP < LANES) transpose<2 * STEP>(square);
}

// STEP rows of LANES elements become one vector of words, which hold an element of each row.
template <class E>
inline Floats words_of_rows(const typename E::T* const rows[E::STEP]) {
    if constexpr (E::STEP == 1) return load<Floats>(rows[0]);
#if defined(__AVX512BF16__)
    else return alternate(_mm512_inserti64x4(_mm512_castsi256_si512(load<__m256i>(rows[0])), load<__m256i>(rows[1]), 1));
#else
    else return E::words_of(E::get(rows[0]), E::get(rows[1]));
#endif
}

// packed[word][row] = rows[row][word] for `count` <= LANES query rows of `dim` elements, 0 for the others.
template <class E>
static void pack_queries(const typename E::T* const* rows, int count, long dim, long words, float* packed) {
    for (long w = 0; w < words; w += LANES) {
        Floats square[LANES] = {};
        long width = std::min<long>(LANES * E::STEP, dim - w * E::STEP);
        for (int i = 0; i < count && width > 0; i++) memcpy(&square[i], rows[i] + w * E::STEP, width * sizeof **rows);
        transpose(square);
        for (int i = 0; i < LANES && w + i < words; i++) store(packed + (w + i) * GROUP, square[i]);
    }
}

// Values as words of STEP keys: packed[word][d], or packed[d][word] with TURN.
template <class E, bool TURN>
static void pack_values(const typename E::T* const* rows, long dim, float* packed) {
    constexpr long WORDS = BLOCK / E::STEP;
    for (long word = 0; word < WORDS; word += LANES)
        for (long d = 0; d < dim; d += LANES) {
            Floats square[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                const typename E::T* from[E::STEP];
                for (int j = 0; j < E::STEP; j++) from[j] = rows[(word + i) * E::STEP + j] + d;
                square[i] = words_of_rows<E>(from);
                if (!TURN) store(packed + (word + i) * dim + d, square[i]);
            }
            if (!TURN) continue;
            transpose(square);
            for (int i = 0; i < LANES; i++) store(packed + (d + i) * WORDS + word, square[i]);
        }
}
