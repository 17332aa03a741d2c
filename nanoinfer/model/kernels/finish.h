// What becomes of a product's sums: a Finish gets them row by row, a group of COLUMNS at a time. `bias` is null for none.
//
// made<COLUMNS>(): how many results a group has.
#pragma once
#include "vectors.h"
#include <algorithm>

// The sums LANES from `c` on, with their bias: `first` is the number of the output at c, `n` how many of them there are.
template <class E>
inline Floats with_bias(const float* sums, const typename E::T* bias, long first, long n) {
    Floats v = load<Floats>(sums);
    return bias ? v + get_some<E>(bias + first, n) : v;
}

// y = sums
template <class E>
struct Store {
    const typename E::T* bias;
    typename E::T* y;
    long out;

    template <long COLUMNS> static long made() { return COLUMNS; }
    template <long COLUMNS> void row(long row, long group, const float* sums) const {
        for (long c = 0, n, at = group * COLUMNS; c < COLUMNS && (n = out - at) > 0; c += LANES, at += LANES)
            put_some<E>(y + row * out + at, n, with_bias<E>(sums + c, bias, at, n));
    }
};

// y = activation(gate) * up: half a group is gates, the other half the ups beside them. Where `adapters` [rows] has one for a row,
// `delta` [rows, 2 * out] is added to its gates and ups first; null for both: there are none.
template <class E, class Activation>
struct StoreGated {
    const typename E::T* bias;
    typename E::T* y;
    long out;
    const typename E::T* delta;
    const int32_t* adapters;

    template <long COLUMNS> static long made() { return COLUMNS / 2; }
    template <long COLUMNS> void row(long row, long group, const float* sums) const {
        for (long c = 0, n, at = group * COLUMNS / 2; c < COLUMNS / 2 && (n = out - at) > 0; c += LANES, at += LANES) {
            Floats gate = as_stored<E>(with_bias<E>(sums + c, bias, at, n));
            Floats up = as_stored<E>(with_bias<E>(sums + COLUMNS / 2 + c, bias, out + at, n));
            if (adapters && adapters[row] >= 0) {
                gate = as_stored<E>(gate + get_some<E>(delta + row * 2 * out + at, n));
                up = as_stored<E>(up + get_some<E>(delta + row * 2 * out + out + at, n));
            }
            put_some<E>(y + row * out + at, n, gated<Activation>(gate, up));
        }
    }
};

struct Largest { float value; int32_t number; };

// Whether `a` replaces a maximum `b` found earlier: nothing replaces NaN, and NaN replaces everything else.
inline bool above(float a, float b) { return a > b || (a != a && b == b); }

// All lanes combined, in every lane.
template <int STEP = LANES / 2, class V, class Op>
inline V fold(V v, const Op& op) {
    Ints partner;
    for (int lane = 0; lane < LANES; lane++) partner[lane] = lane ^ STEP;
    v = op(v, __builtin_shuffle(v, partner));
    if constexpr (STEP > 1) return fold<STEP / 2>(v, op);
    else return v;
}

// found [rows][stride] = the largest of each group
template <class E>
struct FindLargest {
    const typename E::T* bias;
    Largest* found;
    long out, stride;

    template <long COLUMNS> static long made() { return COLUMNS; }
    template <long COLUMNS> void row(long row, long group, const float* sums) const {
        Floats v[COLUMNS / LANES], most = Floats{} - __builtin_inff();
        Ints lanes, number, nan = {};
        for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
        number = lanes;
        int first = group * COLUMNS, width = std::min(COLUMNS, out - first);
        for (int c = 0; c < width; c += LANES) {  // each lane finds the first of its own largest
            Floats now = as_stored<E>(with_bias<E>(sums + c, bias, first + c, width - c));
            now = lanes + c < width ? now : Floats{} - __builtin_inff();
            v[c / LANES] = now, nan |= now != now;
            number = now > most ? lanes + c : number;
            most = now > most ? now : most;
        }
        auto larger = [](auto a, auto b) { return a > b ? a : b; };
        Floats value = fold(most, larger);
        number = -fold(-(most == value ? number : Ints{} + INT32_MAX), larger);
        Largest best = {value[0], number[0]};
        if (fold(nan, [](Ints a, Ints b) { return a | b; })[0])
            for (int c = width - 1; c >= 0; c--)
                if (float x = v[c / LANES][c % LANES]; x != x) best = {x, c};
        found[row * stride + group] = {best.value, first + best.number};
    }
};
