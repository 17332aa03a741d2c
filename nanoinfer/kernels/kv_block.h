// A block of keys and values of one head, read from wherever its slots are, as the products need it.
#pragma once
#include "block_products.h"
#include "packing.h"
#include <vector>

// Memory that a thread keeps from call to call.
struct Kept {
    std::vector<Floats> memory;
    float* floats(long count) {
        if (memory.size() * LANES < (size_t)count) memory.resize((count + LANES - 1) / LANES);
        return (float*)memory.data();
    }
};

// K or V of all slots and heads: elements [N, heads, dim]; or int8 numbers and, for each slot and head, what to multiply them
// by: `scales` [N, heads]. Such a product is rounded to an element, as Int8KVStorage.read does.
template <class E>
struct Stored {
    typedef typename E::T T;
    const void* at;
    const float* scales;
    long heads, dim;

    const T* element(long slot, long head) const { return (const T*)at + (slot * heads + head) * dim; }

    // A slot's elements, with zeros from `dim` to `padded`, which is a multiple of 2 LANES.
    void copy(long slot, long head, long padded, T* to) const {
        constexpr long TWO = 2 * LANES;
        long d = 0, row = slot * heads + head, whole = dim / TWO * TWO;
        if (scales) {
            const int8_t* numbers = (const int8_t*)at + row * dim;
            auto decode = [&](const int8_t* two) {
                store_two<E>(to + d, floats_of(two) * scales[row], floats_of(two + LANES) * scales[row]);
            };
            for (; d < whole; d += TWO) decode(numbers + d);
            if (d < dim) {
                int8_t last[TWO] = {};
                memcpy(last, numbers + d, dim - d);
                decode(last);
                d += TWO;
            }
        } else {
            for (const T* from = element(slot, head); d < whole; d += TWO) memcpy(to + d, from + d, TWO * sizeof(T));
            if (d < dim) memcpy(to + d, element(slot, head) + d, (dim - d) * sizeof(T));
            d = dim;
        }
        if (d < padded) memset(to + d, 0, (padded - d) * sizeof(T));
    }
};

template <class E>
class KVBlock {
    typedef typename E::T T;
    static constexpr long WORDS = BLOCK / E::STEP;
    const long padded;
    T *key_copies, *value_copies;  // [BLOCK][padded]
    float* packed;

    // The addresses of `padded` elements of each key: where they are stored, or those of copies. Keys that there are not are 0.
    void find(const Stored<E>& stored, long head, const int32_t* slots, int present, bool copy, T* copies, const T** rows) {
        const T* first = stored.element(0, head);
        long distance = stored.heads * stored.dim;
        if (!copy)
            for (int i = 0; i < present; i++) rows[i] = first + slots[i] * distance;
        for (int i = copy ? 0 : present; i < BLOCK; i++) {
            T* to = copies + i * padded;
            rows[i] = to;
            if (i < present) stored.copy(slots[i], head, padded, to);
            else memset(to, 0, padded * sizeof(T));
        }
    }

  public:
    Left keys;            // [BLOCK][words of a key]
    Left turned_values;   // [padded][WORDS], or
    Right values;         // [WORDS][padded]: words of STEP keys

    explicit KVBlock(long padded) : padded(padded) {
        static thread_local Kept keys, values, all;
        key_copies = (T*)keys.floats(BLOCK * padded / E::STEP);
        value_copies = (T*)values.floats(BLOCK * padded / E::STEP);
        packed = all.floats(WORDS * padded);
        turned_values = {packed, WORDS, 1}, this->values = {packed, padded};
    }

    // Of one head: slots[0] .. slots[present - 1].
    void load(const Stored<E>& k, const Stored<E>& v, long head, const int32_t* slots, int present, bool turn) {
        const T* rows[BLOCK];
        bool apart = present < BLOCK;  // keys that do not follow each other in memory are copied together
        for (int i = 1; i < present; i++) apart |= slots[i] != slots[0] + i;
        bool copy = k.scales || k.dim != padded;
        find(k, head, slots, present, copy || apart, key_copies, rows);
        keys = {(const float*)rows[0], (rows[1] - rows[0]) / E::STEP, 1};
        find(v, head, slots, present, copy, value_copies, rows);
        if (turn) pack_values<E, true>(rows, padded, packed);
        else pack_values<E, false>(rows, padded, packed);
    }
};
