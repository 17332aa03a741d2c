// The two products of attention: scores = keys x queries, and sums = values x probabilities or the other way round.
//
//     c[m][n] (+)= sum over k of a[m][k] * b[k][n]          k counts words, and `fresh` says whether c is set or added to
//
// Every sum runs over k in order, whatever is computed beside it.
#pragma once
#include "amx.h"
#include "packing.h"
#include <vector>

constexpr int SUMS = PANELS * 4;  // vectors of sums that stay in registers

struct Left { const float* at; long row, column; };  // how many words its rows and columns are apart
struct Right { const float* at; long row; };
struct Result { float* at; long row; };

// A multiple of M rows, and of WIDTH vectors of columns.
template <class E, int WIDTH, int M = SUMS / WIDTH>
static void multiply_vectors(Left a, Right b, Result c, long rows, long words, long columns, bool fresh) {
    for (long n = 0; n < columns; n += WIDTH * LANES)
        for (long m = 0; m < rows; m += M) {
            float* to = c.at + m * c.row + n;
            Floats sums[M][WIDTH] = {};
            for (int i = 0; i < M && !fresh; i++)
                for (int w = 0; w < WIDTH; w++) sums[i][w] = load<Floats>(to + i * c.row + w * LANES);
            const float *left = a.at + m * a.row, *right = b.at + n;
            for (long k = 0; k < words; k++, left += a.column, right += b.row) {
                Floats column[WIDTH];
#pragma GCC unroll 2
                for (int w = 0; w < WIDTH; w++) column[w] = load<Floats>(right + w * LANES);
#pragma GCC unroll 16
                for (int i = 0; i < M; i++)
#pragma GCC unroll 2
                    for (int w = 0; w < WIDTH; w++)
                        sums[i][w] = E::multiply_add(sums[i][w], column[w], (const typename E::T*)(left + i * a.row));
            }
            for (int i = 0; i < M; i++)
                for (int w = 0; w < WIDTH; w++) store(to + i * c.row + w * LANES, sums[i][w]);
        }
}

#if defined(HAS_AMX)
// The same with tiles, 2 x 2 of them at a time: a multiple of 16 rows, columns and words. Needs `Tiles`.
static void multiply_tiles(Left a, Right b, Result c, long rows, long words, long columns, bool fresh) {
    constexpr int T = 16;  // rows, columns and words of a tile
    long a_bytes = a.row * 4, b_bytes = b.row * 4, c_bytes = c.row * 4;
    asm volatile("" ::: "memory");  // the intrinsics do not tell the compiler that they read memory
    for (long n = 0; n < columns; n += 2 * T)
        for (long m = 0; m < rows; m += 2 * T) {
            bool tall = m + T < rows, wide = n + T < columns;
            float *top = c.at + m * c.row + n, *bottom = top + T * c.row;
            if (fresh) {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            } else {
                _tile_loadd(0, top, c_bytes);
                if (wide) _tile_loadd(1, top + T, c_bytes);
                if (tall) _tile_loadd(2, bottom, c_bytes);
                if (tall && wide) _tile_loadd(3, bottom + T, c_bytes);
            }
            for (long k = 0; k < words; k += T) {
                const float *left = a.at + m * a.row + k, *right = b.at + k * b.row + n;
                _tile_loadd(4, left, a_bytes);
                _tile_loadd(6, right, b_bytes);
                _tile_dpbf16ps(0, 4, 6);
                if (wide) {
                    _tile_loadd(7, right + T, b_bytes);
                    _tile_dpbf16ps(1, 4, 7);
                }
                if (tall) {
                    _tile_loadd(5, left + T * a.row, a_bytes);
                    _tile_dpbf16ps(2, 5, 6);
                    if (wide) _tile_dpbf16ps(3, 5, 7);
                }
            }
            _tile_stored(0, top, c_bytes);
            if (wide) _tile_stored(1, top + T, c_bytes);
            if (tall) _tile_stored(2, bottom, c_bytes);
            if (tall && wide) _tile_stored(3, bottom + T, c_bytes);
        }
}
template <class E> inline bool uses_tiles() { return E::STEP == 2 && amx_allowed(); }
#else
static void multiply_tiles(Left, Right, Result, long, long, long, bool) {}
struct Tiles { Tiles() {} ~Tiles() {} };
template <class E> inline bool uses_tiles() { return false; }
#endif

template <class E>
inline void multiply(Left a, Right b, Result c, long rows, long words, long columns, bool fresh) {
    if (uses_tiles<E>()) multiply_tiles(a, b, c, rows, words, columns, fresh);
    else if (columns <= LANES) multiply_vectors<E, 1>(a, b, c, rows, words, columns, fresh);
    else if (rows % (SUMS / 2)) multiply_vectors<E, 2, 4>(a, b, c, rows, words, columns, fresh);
    else multiply_vectors<E, 2>(a, b, c, rows, words, columns, fresh);
}

// A block of keys and values of one head, read from wherever its slots are, as the products need it.

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

    // Ask memory for what slots[0] .. slots[count - 1] hold of one head, which is needed soon.
    void ask(long head, const int32_t* slots, long count) const {
        long bytes = dim * (scales ? 1 : sizeof(T));
        const char* first = (const char*)at + head * bytes;
        asm volatile("");  // g++ leaves out calls of a function that does nothing but prefetch
        for (long i = 0; i < count; i++) {
            const char* row = first + slots[i] * heads * bytes;
            for (long b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 2);
            if (scales) __builtin_prefetch(scales + slots[i] * heads + head, 0, 2);
        }
    }

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
