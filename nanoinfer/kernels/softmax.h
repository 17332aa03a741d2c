// The softmax over a sequence that is seen a block at a time: a running maximum and a running total, and how much what was
// summed up before has to shrink when the maximum grows (Milakov and Gimelshein, 2018; FlashAttention).
#pragma once
#include "packing.h"
#include <cmath>
#include <limits>

// 2^x: 2^whole * 2^part with 0 <= part < 1, by a polynomial that is exact at 0. 2^-infinity is exactly 0. Its error is 1e-7
// of the result, or 1e-4 where that is rounded to 8 bits anyway.
template <class E>
inline Floats exp2(Floats x) {
#if defined(__AVX512DQ__)
    Floats part = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
#else
    Ints whole = __builtin_convertvector(x, Ints);                 // towards 0
    whole += (Ints)(__builtin_convertvector(whole, Floats) > x);   // a comparison is -1 where it holds
    Floats part = x - __builtin_convertvector(whole, Floats);
#endif
    Floats p;
    if constexpr (E::STEP == 1) {
        p = 1.86713989e-3f * part + 9.01702978e-3f;
        p = p * part + 5.57999127e-2f;
        p = p * part + 2.40164444e-1f;
        p = p * part + 6.93151295e-1f;
    } else {
        p = 7.70670623e-2f * part + 2.27644965e-1f;
        p = p * part + 6.95116818e-1f;
    }
    p = p * part + 1.0f;
#if defined(__AVX512DQ__)
    return _mm512_scalef_ps(p, x);  // times 2^floor(x)
#else
    Ints bits = (Ints)p + (whole << 23);
    return (Floats)(x < -126.0f ? Ints{} : bits);
#endif
}

// scores = cap * tanh(scores * scale / cap), for LANES rows beside each other. tanh(x) = (1 - e^-2x) / (1 + e^-2x) for x >= 0.
static void bend(float* scores, float scale, float cap) {
    for (int key = 0; key < BLOCK; key++) {
        Floats x = load<Floats>(scores + key * GROUP) * (2 * 1.44269504f * scale / cap);
        Floats e = exp2<Float32>(x < 0 ? x : -x), bent = cap * (1.0f - e) / (1.0f + e);
        store(scores + key * GROUP, x < 0 ? -bent : bent);
    }
}

// Which keys of a block each of LANES rows sees: from `first` up to and without `end`.
struct Seen { Ints first, end; };

// Probabilities are relative to `base`, which follows the maximum only when that has grown by more than this: so they are
// at most 2^SLACK, and earlier sums hardly ever have to be multiplied.
constexpr float SLACK = 8;

// The scores of LANES rows (beside each other: scores[key][row]) become their probabilities, not yet divided by their total,
// as words of STEP keys in the same place. Returns by what earlier sums have to be multiplied.
template <class E>
inline Floats soften(float* scores, float scale, const Seen* seen, Floats& base, Floats& total) {
    const Floats none = Floats{} - std::numeric_limits<float>::infinity();
    if (seen)
        for (int key = 0; key < BLOCK; key++) {
            Ints sees = (seen->first <= key) & (key < seen->end);
            store(scores + key * GROUP, sees ? load<Floats>(scores + key * GROUP) : none);
        }
    Floats most[4] = {none, none, none, none};
    for (int key = 0; key < BLOCK; key += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) most[i] = larger(most[i], load<Floats>(scores + (key + i) * GROUP));
    Floats highest = larger(larger(most[0], most[1]), larger(most[2], most[3])) * scale;
    Floats next = highest > base + SLACK ? highest : base;
    Floats from = next > none ? next : Floats{};  // a row that has seen nothing yet
    Floats added[4] = {};
    for (int key = 0; key < BLOCK; key += 4) {
        Floats e[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            e[i] = exp2<E>(load<Floats>(scores + (key + i) * GROUP) * scale - from);
            added[i] += e[i];
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i += E::STEP) store(scores + (key + i) / E::STEP * GROUP, words_of_floats<E>(e + i));
    }
    Floats decay = exp2<E>(base - from);
    total = total * decay + ((added[0] + added[1]) + (added[2] + added[3]));
    base = next;
    return decay;
}
