// The query rows that one thread computes attention for, and how far they have come.
//
// Every token brings the heads that share a key head. Rows lie side by side, in groups of GROUP, so that the softmax works on
// vectors of rows, and keys are multiplied as they are in memory. Values would have to be turned for that. It pays when many
// rows use them; for `few` rows, their probabilities are read across instead, or turned for tiles.
#pragma once
#include "kv_block.h"
#include <cmath>
#include <limits>

// The softmax over a sequence that is seen a block at a time: a running maximum and a running total, and how much what was
// summed up before has to shrink when the maximum grows (Milakov and Gimelshein, 2018; FlashAttention).

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

template <class E>
class QueryRows {
    typedef typename E::T T;
    static constexpr long WORDS = BLOCK / E::STEP;
    float *queries, *sums;     // [group][word][GROUP]; [group][padded][GROUP], or [group][GROUP][padded] of few
    float *base, *total;       // [group][GROUP]: of the softmax above
    float *scores, *turned;    // [BLOCK][GROUP], then probabilities as [WORDS][GROUP]; for tiles of few, [LANES][WORDS]

  public:
    const long dim, padded, words;  // of a head: elements, with zeros for whole tiles, these in words
    const long rows;                // of each key head
    const bool few;
    const long groups;  // of each key head

    QueryRows(long dim, long rows, long heads)
        : dim(dim), padded((dim + 31) / 32 * 32), words(padded / E::STEP), rows(rows), few(rows <= LANES),
          groups((rows + GROUP - 1) / GROUP) {
        static thread_local Kept kept[6];
        long all = heads * groups * GROUP;
        queries = kept[0].floats(all * words), sums = kept[1].floats(all * padded);
        base = kept[2].floats(all), total = kept[3].floats(all);
        scores = kept[4].floats(BLOCK * GROUP), turned = kept[5].floats(LANES * WORDS);
        std::fill(base, base + all, -INFINITY);
        std::fill(total, total + all, 0.0f);
    }

    // The rows of one key head, from their addresses.
    template <class Address>
    void load(long head, const Address& address_of) {
        for (long row = 0; row < rows; row += LANES) {
            const T* from[LANES];
            int present = (int)std::min<long>(LANES, rows - row);
            for (int i = 0; i < present; i++) from[i] = address_of(row + i);
            float* to = queries + (head * groups + row / GROUP) * words * GROUP + row % GROUP;
            pack_queries<E>(from, present, dim, words, to);
        }
    }

    // A group's part in a block. `seen`: of each LANES rows; null: they see all of it. `fresh`: it is their first.
    void attend(long head, long group, const KVBlock<E>& block, float scale, float cap, const Seen* seen, bool fresh) {
        long first = (head * groups + group) * GROUP, width = rows - group * GROUP > LANES ? GROUP : LANES;
        float* sum = sums + first * padded;
        multiply<E>(block.keys, {queries + first * words, GROUP}, {scores, GROUP}, BLOCK, words, width, true);
        for (long w = 0; w < width; w += LANES) {
            if (cap) bend(scores + w, scale, cap);
            Floats &b = *(Floats*)(base + first + w), &t = *(Floats*)(total + first + w);
            float log2_scale = (cap ? 1 : scale) * 1.44269504f;
            Floats decay = soften<E>(scores + w, log2_scale, seen ? seen + w / LANES : nullptr, b, t);
            if (!fresh && differ(decay, Floats{} + 1.0f)) shrink(sum, w, decay);
        }
        if (!few) return multiply<E>(block.turned_values, {scores, GROUP}, {sum, GROUP}, padded, WORDS, width, fresh);
        if (!uses_tiles<E>())
            return multiply<E>({scores, 1, GROUP}, block.values, {sum, padded}, (rows + 3) / 4 * 4, WORDS, padded, fresh);
        for (long k = 0; k < WORDS; k += LANES) {
            Floats square[LANES];
            for (int i = 0; i < LANES; i++) square[i] = ::load<Floats>(scores + (k + i) * GROUP);
            transpose(square);
            for (int i = 0; i < LANES; i++) store(turned + i * WORDS + k, square[i]);
        }
        multiply<E>({turned, WORDS, 1}, block.values, {sum, padded}, LANES, WORDS, padded, fresh);
    }

    // The results of one key head's rows, to their addresses. Returns whether they are finite.
    template <class Address>
    bool write(long head, const Address& address_of) {
        Floats zero = {};
        for (long row = 0; row < rows; row += LANES) {
            long at = (head * groups + row / GROUP) * GROUP;
            for (long d = 0; d < dim; d += LANES) {
                Floats square[LANES];
                const float* from = sums + at * padded + (few ? d : d * GROUP + row % GROUP);
                for (int i = 0; i < LANES; i++) square[i] = ::load<Floats>(from + i * (few ? padded : GROUP));
                if (!few) transpose(square);
                for (int i = 0; i < LANES && row + i < rows; i++) {
                    T part[LANES];
                    Floats result = square[i] / total[at + row % GROUP + i];
                    zero += result - result;
                    E::put(part, result);
                    memcpy(address_of(row + i) + d, part, std::min<long>(LANES, dim - d) * sizeof(T));
                }
            }
        }
        return !differ(zero, Floats{});
    }

  private:
    // Multiply the sums of LANES rows, from row `w` of their group.
    void shrink(float* sum, long w, Floats decay) {
        for (long d = 0; d < padded && !few; d++) store(sum + d * GROUP + w, ::load<Floats>(sum + d * GROUP + w) * decay);
        for (long row = 0; row < rows && few; row++)
            for (float *at = sum + row * padded; at < sum + (row + 1) * padded; at += LANES)
                store(at, ::load<Floats>(at) * decay[row]);
    }
};
