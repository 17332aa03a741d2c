// Keys and values of one head, copied together from wherever their slots are into the layout that `tile` reads.
#pragma once
#include "vectors.h"
#include <algorithm>

constexpr int BLOCK = 64;  // keys at a time
static_assert(BLOCK % COLUMNS == 0, "whole tiles");

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

// Ask memory for one head's K or V of a block, so that it has arrived when it is packed: the slots may lie anywhere.
template <class T>
static void prefetch(const T* from, long slot_stride, const int32_t* slots, int count, long dim) {
    for (int i = 0; i < count; i++)
        for (long d = 0; d < dim; d += 64 / sizeof(T)) __builtin_prefetch(from + slots[i] * slot_stride + d, 0, 2);
}

// packed[word][key] = keys[slot of the key][word] for `count` keys of a block, 0 for the others; COLUMNS keys side by side.
static void pack_keys(const float* keys, long slot_stride, const int32_t* slots, int count, long words, float* packed) {
    for (int first = 0; first < BLOCK; first += LANES)
        for (long w = 0; w < words; w += LANES) {
            Floats square[LANES] = {};
            int present = std::min(LANES, count - first), width = std::min<long>(LANES, words - w);
            for (int i = 0; i < present; i++) {
                const float* from = keys + slots[first + i] * slot_stride + w;
                if (width == LANES) square[i] = load<Floats>(from);
                else memcpy(&square[i], from, width * 4);
            }
            transpose(square);
            float* to = packed + first / COLUMNS * words * COLUMNS + first % COLUMNS;
            for (int i = 0; i < width; i++) store(to + (w + i) * COLUMNS, square[i]);
        }
}

// packed[key][d] = values[slot of the key][d], STEP keys in each word, COLUMNS dims side by side; 0 where there is no key.
template <class E>
static void pack_values(const typename E::T* values, long slot_stride, const int32_t* slots, int count, long dim,
                        float* packed) {
    static const typename E::T zeros[COLUMNS] = {};
    for (int key = 0; key < count; key += E::STEP)
        for (long d = 0; d < dim; d += LANES) {
            typename E::T part[E::STEP][LANES] = {};  // a head's last dims, where they are fewer than a vector
            const typename E::T* rows[E::STEP];
            for (int i = 0; i < E::STEP; i++) {
                rows[i] = key + i < count ? values + slots[key + i] * slot_stride + d : zeros;
                if (dim - d < LANES) rows[i] = (typename E::T*)memcpy(part[i], rows[i], (dim - d) * sizeof *values);
            }
            store(packed + (d / COLUMNS * BLOCK + key) / E::STEP * COLUMNS + d % COLUMNS, E::words_of(rows, 0));
        }
}
