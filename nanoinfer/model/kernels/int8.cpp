// y = x W^T + bias with both factors in 8 bits. A large number among small ones would take away the bits of its neighbours. So
// each 64 inputs are first turned by a Hadamard matrix H, which spreads every number over all 64 and changes no product, since
// H^T H = 64: x . w = (H x) . (H w) / 64. W is turned when it is packed.
//
//     H x ~ scale * q in each group of 128 inputs;   H w / 64 ~ column_scale * w8;   q and w8 whole in -127 .. 127
//     y = (sum over the groups, from first to last, of float(sum of q * w8) * scale) * column_scale + bias
//
// A group's sum is exact, and all else is done in one order: the same bits whatever multiplies, for any number of rows.
//
// Instructions that multiply bytes want one factor without a sign. So W has w8 + 128, and 128 * (sum of q) is taken off.
//
// W is packed as `linear` packs it, with 4 inputs per word, and each block of COLUMNS is followed by two rows of its own:
// [in / 4][COLUMNS] words, [COLUMNS] scales, [COLUMNS] biases. `in` is padded to multiples of 64.
#pragma once
#include "amx.h"
#include "bytes.h"
#include "team.h"
#include "vectors.h"

#if defined(HAS_BYTES)
constexpr int TURNED = 64, INT8_GROUP = 128;  // inputs that are turned together, and that share a scale
constexpr int INT8_ROWS = 64;                 // rows whose sums stay in the L1 cache, beside a group of W

// Keeps the compiler from making one instruction of a product and a sum, which would round once and not twice.
inline Floats rounded(Floats v) { asm("" : "+v"(v)); return v; }

// A group of a row: q ~ x / scale
struct Int8Group {
    int8_t q[INT8_GROUP];
    float scale;
    int32_t offset;  // 128 * (sum of q)
};

// Replaces TURNED numbers v by H v: in six steps, each pair that is STEP apart becomes its sum and its difference.
template <int STEP = 1>
static inline void turn(Floats* v) {
    constexpr int SIZE = TURNED / LANES, APART = STEP / LANES;
    Ints partner;
    Floats sign;
    for (int lane = 0; lane < LANES; lane++) partner[lane] = lane ^ STEP, sign[lane] = lane & STEP ? -1 : 1;
#pragma GCC unroll 8
    for (int i = 0; i < SIZE; i++)
        if constexpr (STEP < LANES) {
            v[i] = multiply_add(v[i], sign, __builtin_shuffle(v[i], partner));
        } else if (!(i & APART)) {
            Floats a = v[i], b = v[i + APART];
            v[i] = a + b, v[i + APART] = a - b;
        }
    if constexpr (2 * STEP < TURNED) turn<2 * STEP>(v);
}

// A group, or what is left of a row, `size` inputs. With an inf or NaN, its scale is NaN, and its q mean nothing.
template <class E>
static void quantize_group(const typename E::T* x, long size, Int8Group& to) {
    constexpr int SIZE = INT8_GROUP / LANES;
    typename E::T filled[INT8_GROUP];
    if (size < INT8_GROUP) {
        memset(filled, 0, sizeof filled);
        x = (const typename E::T*)memcpy(filled, x, size * sizeof *x);
    }
    Floats v[SIZE];
    Ints most = {}, total = {};
#pragma GCC unroll 16
    for (int i = 0; i < SIZE; i++) v[i] = E::get(x + i * LANES);
#pragma GCC unroll 2
    for (int i = 0; i < SIZE; i += TURNED / LANES) turn(v + i);
#pragma GCC unroll 16
    for (int i = 0; i < SIZE; i++) { Ints bits = magnitude_bits(v[i]); most = bits > most ? bits : most; }
    int32_t bits = largest(most);
    float max, inverse = 0;
    memcpy(&max, &bits, sizeof max);
    if (bits >= INFINITE_BITS) max = __builtin_nanf("");
    else if (max >= 1e-30f) inverse = 127 / max;  // nothing below it matters, and 127 / max stays finite
#pragma GCC unroll 16
    for (int i = 0; i < SIZE; i++) {  // adding 1.5 * 2^23 leaves the nearest whole number in the lowest bits
        Ints q = (Ints)(rounded(v[i] * inverse) + 12582912.0f) - (Ints)(12582912.0f - Floats{});
        store((uint8_t*)to.q + i * LANES, lowest_bytes(q));
        total += q;
    }
    to.scale = max / 127, to.offset = 128 * sum_of(total);
}

// sums[m] [COLUMNS] += a group of M rows, for `steps` words of 4 inputs
template <int M>
static void int8_tile(const Int8Group* x, const int32_t* words, long steps, float* sums) {
    Ints whole[M][PANELS];
    for (int m = 0; m < M; m++)
        for (int p = 0; p < PANELS; p++) whole[m][p] = Ints{} - x[m].offset;
#pragma GCC unroll 4
    for (long k = 0; k < steps; k++, words += COLUMNS) {
        for (int line = 0; line < COLUMNS; line += 16) __builtin_prefetch(words + AHEAD / 4 + line, 0, 3);
        Ints column[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) column[p] = load<Ints>(words + p * LANES);
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            Ints four = load<int32_t>(x[m].q + 4 * k) - Ints{};
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) whole[m][p] = dot(whole[m][p], column[p], four);
        }
    }
#pragma GCC unroll 6
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            float* sum = sums + m * COLUMNS + p * LANES;
            Floats products = rounded(__builtin_convertvector(whole[m][p], Floats) * x[m].scale);
            store(sum, load<Floats>(sum) + products);
        }
}

// sums [rows][COLUMNS] += all groups, in order. A group of all rows lies together, and the next one `stride` rows behind it;
// `steps` words of W.
static void int8_tiles(const Int8Group* x, long rows, long stride, const int32_t* words, long steps, float* sums) {
    constexpr long WORDS = INT8_GROUP / 4;
    for (; steps > 0; x += stride, words += WORDS * COLUMNS, steps -= WORDS)
        for (long row = 0, n; row < rows; row += n) {
            n = share(rows - row);
            const Int8Group* from = x + row;
            float* to = sums + row * COLUMNS;
            long now = std::min(steps, WORDS);
            switch (n) {
                case 6: int8_tile<6>(from, words, now, to); break;
                case 5: int8_tile<5>(from, words, now, to); break;
                case 4: int8_tile<4>(from, words, now, to); break;
                case 3: int8_tile<3>(from, words, now, to); break;
                case 2: int8_tile<2>(from, words, now, to); break;
                default: int8_tile<1>(from, words, now, to);
            }
        }
}

#if defined(HAS_AMX)
constexpr int INT8_AMX_ROWS = 5;  // from so many rows on, tiles are faster

// The same with AMX: a tile of x by one of W, for TOGETHER groups, whose sums then become floats while the next tiles multiply.
static void int8_amx(const Int8Group* x, long rows, long stride, const int32_t* words, long steps, float* sums) {
    constexpr int TOGETHER = 4;
    constexpr long WORDS = INT8_GROUP / 4;
    alignas(64) int32_t products[TOGETHER][TILE_ROWS * LANES];
    uint8_t height = std::min<long>(rows, TILE_ROWS);  // a last tile that is not full has room below it
    Tiles tiles({height, height, 16, 16, 16, 16, 16, 16});
    for (long count; steps > 0; x += count * stride, words += count * WORDS * COLUMNS, steps -= count * WORDS) {
        count = std::min<long>(TOGETHER, (steps + WORDS - 1) / WORDS);
        for (int p = 0; p < COLUMNS; p += LANES)
            for (long row = 0; row < rows; row += TILE_ROWS) {
                const Int8Group* from = x + row;
                for (long i = 0; i < count; i++) {
                    _tile_zero(0);
                    for (long k = i * WORDS; k < std::min((i + 1) * WORDS, steps); k += TILE_WORDS) {
                        _tile_loadd(1, from[i * stride].q + 4 * (k - i * WORDS), sizeof *x);
                        _tile_loadd(2, words + k * COLUMNS + p, 4 * COLUMNS);
                        _tile_dpbsud(0, 1, 2);
                    }
                    _tile_stored(0, products[i], 4 * LANES);
                }
                for (int m = 0; m < height; m++) {
                    float* sum = sums + (row + m) * COLUMNS + p;
                    Floats all = load<Floats>(sum);
                    for (long i = 0; i < count; i++) {
                        const Int8Group& group = from[i * stride + m];
                        Ints whole = load<Ints>(products[i] + m * LANES) - group.offset;
                        all = all + rounded(__builtin_convertvector(whole, Floats) * group.scale);
                    }
                    store(sum, all);
                }
            }
    }
}
#endif

// x [rows, in], y [rows, out]. `room` [groups, rows up to whole tiles of 16] Int8Group: to work in.
template <class E>
static void int8_linear(const typename E::T* x, Int8Group* room, const int32_t* packed, typename E::T* y, long rows, long in,
                        long out) {
    long steps = (in + TURNED - 1) / TURNED * TURNED / 4, stride = (rows + 15) / 16 * 16;
    for_each_row(rows, in, [&](long row) {
        Int8Group* to = room + row;
        for (long first = 0; first < in; first += INT8_GROUP, to += stride) quantize_group<E>(x + row * in + first, in - first, *to);
    });
    long blocks = (out + COLUMNS - 1) / COLUMNS, chunks = (rows + INT8_ROWS - 1) / INT8_ROWS;
    for_each(blocks * chunks, [&](long item) {
        long block = item / chunks, first = item % chunks * INT8_ROWS, column = block * COLUMNS;
        long n = std::min<long>(INT8_ROWS, rows - first), width = std::min<long>(COLUMNS, out - column);
        const int32_t *words = packed + block * (steps + 2) * COLUMNS, *after = words + steps * COLUMNS;
        const Int8Group* from = room + first;
        alignas(64) float sums[INT8_ROWS * COLUMNS];
        memset(sums, 0, (n + 15) / 16 * 16 * COLUMNS * sizeof *sums);
#if defined(HAS_AMX)
        if (n >= INT8_AMX_ROWS && amx_allowed()) int8_amx(from, n, stride, words, steps, sums);
        else
#endif
            int8_tiles(from, n, stride, words, steps, sums);
        for (long m = 0; m < n; m++) {
            typename E::T *to = y + (first + m) * out + column, part[COLUMNS];
            for (int p = 0; p < COLUMNS; p += LANES) {
                Floats product = rounded(load<Floats>(sums + m * COLUMNS + p) * load<Floats>(after + p));
                E::put((width == COLUMNS ? to : part) + p, product + load<Floats>(after + COLUMNS + p));
            }
            if (width < COLUMNS) memcpy(to, part, width * sizeof *to);
        }
    });
}
#endif
