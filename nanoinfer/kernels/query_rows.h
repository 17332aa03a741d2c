// The query rows that one thread computes attention for, and how far they have come.
//
// Every token brings the heads that share a key head. Rows lie side by side, in groups of GROUP, so that the softmax works on
// vectors of rows, and keys are multiplied as they are in memory. Values would have to be turned for that. It pays when many
// rows use them; for `few` rows, their probabilities are turned instead.
#pragma once
#include "block_products.h"
#include "kv_block.h"
#include "softmax.h"

template <class E>
class QueryRows {
    typedef typename E::T T;
    static constexpr long WORDS = BLOCK / E::STEP;
    float *queries, *sums;     // [group][word][GROUP]; [group][padded][GROUP], or [group][GROUP][padded] of few
    float *base, *total;       // [group][GROUP]: see softmax.h
    float *scores, *turned;    // [BLOCK][GROUP], then probabilities as [WORDS][GROUP]; of few, [LANES][WORDS]

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
        for (long k = 0; k < WORDS; k += LANES) {
            Floats square[LANES];
            for (int i = 0; i < LANES; i++) square[i] = ::load<Floats>(scores + (k + i) * GROUP);
            transpose(square);
            for (int i = 0; i < LANES; i++) store(turned + i * WORDS + k, square[i]);
        }
        long present = uses_tiles<E>() ? LANES : (rows + 7) / 8 * 8;
        multiply<E>({turned, WORDS, 1}, block.values, {sum, padded}, present, WORDS, padded, fresh);
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
