// y = x W^T + bias with weights in 4 bits: w = scale * q, q whole in -8 .. 7, one scale for each column and group of 32 inputs.
//
// One arithmetic for every element type, number of rows and processor. In each group, the products x * q of the inputs 0, 2, ..,
// 30 are added up in this order, and those of 1, 3, .., 31; then, from the first group to the last,
//
//     sum = sum + scale * (even + odd)            in float32, every product and sum in one instruction that rounds once
//
// An AMX tile of bfloat16 adds up 32 products in just this way, so that tiles and vectors give the same bits.
//
// W is one stream: for every COLUMNS outputs, for every group, [4][COLUMNS] words of 8 q each, then [COLUMNS] scales in bfloat16.
// The inputs 0, 2, 4, 6 of 8 are in the low half of a word, 1, 3, 5, 7 in the high half. A group is unpacked once for all rows of
// an item of work, into a panel that stays in the L1 cache.
#pragma once
#include "amx.h"
#include "team.h"
#include "vectors.h"
#include <immintrin.h>
#include <type_traits>

constexpr int INT4_GROUP = 32, EIGHTS = INT4_GROUP / 8;
constexpr long INT4_WORDS = EIGHTS * COLUMNS + COLUMNS / 2;  // of 4 bytes, scales included
constexpr int INT4_ROWS = 64;                                 // rows that share what was unpacked; their sums stay in L1

inline Floats multiply_add(Floats a, Floats b, Floats sum) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, sum);
#else
    return _mm256_fmadd_ps(a, b, sum);
#endif
}

static Floats scale_of(const uint16_t* bf16) {
    __builtin_prefetch((const int32_t*)bf16 + 8 * INT4_WORDS, 0, 2);
#if defined(__AVX512F__)
    return (Floats)((Ints)_mm512_cvtepu16_epi32(load<__m256i>(bf16)) << 16);
#else
    return (Floats)((Ints)_mm256_cvtepu16_epi32(load<__m128i>(bf16)) << 16);
#endif
}

// Words of a group. Those of a later one are asked for at the same time, so that they have arrived when it is their turn.
inline Ints words_at(const int32_t* at) {
    __builtin_prefetch(at + 8 * INT4_WORDS, 0, 2);
    return load<Ints>(at);
}

// The q at `low_bit` of each word
inline Floats float_of(Ints words, int low_bit) {
#if defined(__AVX512F__)  // a table, read by the lowest 4 bits
    const Floats values = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    return _mm512_permutexvar_ps((__m512i)(words >> low_bit), values);
#else  // the sign bit to the top, and back again
    return __builtin_convertvector(words << (28 - low_bit) >> 28, Floats);
#endif
}
constexpr int LOW_BIT[8] = {0, 16, 4, 20, 8, 24, 12, 28};

// panel [32][COLUMNS] floats: the q of a group
static void unpack_group(const int32_t* packed, float* panel) {
    for (int eight = 0; eight < EIGHTS; eight++)
        for (int c = 0; c < COLUMNS; c += LANES) {
            Ints words = words_at(packed + eight * COLUMNS + c);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) store(panel + (8 * eight + i) * COLUMNS + c, float_of(words, LOW_BIT[i]));
        }
}

// sums += scales * (x times a group), for one row: nothing is unpacked but in registers
static void add_group_of_row(const float* x, const int32_t* packed, const uint16_t* scales, float* sums) {
    Floats products[2][PANELS] = {};
#pragma GCC unroll 4
    for (int eight = 0; eight < EIGHTS; eight++) {
        Ints words[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) words[p] = words_at(packed + eight * COLUMNS + p * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++)
                products[i % 2][p] = multiply_add(float_of(words[p], LOW_BIT[i]), x[8 * eight + i] - Floats{}, products[i % 2][p]);
    }
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
        Floats scale = scale_of(scales + p * LANES), sum = load<Floats>(sums + p * LANES);
        store(sums + p * LANES, multiply_add(products[0][p] + products[1][p], scale, sum));
    }
}

// sums[m] += scales * (x[m] times the panel) for M rows
template <int M>
static void add_group(const float* x, long stride, const float* panel, const uint16_t* scales, float* sums) {
    auto add_every_second = [&](int first, Floats products[M][PANELS]) {
#pragma GCC unroll 16
        for (int k = first; k < INT4_GROUP; k += 2) {
            Floats column[PANELS];
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) column[p] = load<Floats>(panel + k * COLUMNS + p * LANES);
#pragma GCC unroll 6
            for (int m = 0; m < M; m++)
#pragma GCC unroll 4
                for (int p = 0; p < PANELS; p++)
                    products[m][p] = multiply_add(column[p], x[m * stride + k] - Floats{}, products[m][p]);
        }
    };
    Floats even[M][PANELS] = {}, odd[M][PANELS] = {};
    add_every_second(0, even);
    add_every_second(1, odd);
    for (int p = 0; p < PANELS; p++)
        for (int m = 0; m < M; m++) {
            float* sum = sums + m * COLUMNS + p * LANES;
            store(sum, multiply_add(even[m][p] + odd[m][p], scale_of(scales + p * LANES), load<Floats>(sum)));
        }
}

// sums [rows][COLUMNS] += all groups, in order
static void add_all(long rows, long groups, const float* x, long stride, const int32_t* words, float* sums) {
    alignas(64) float panel[INT4_GROUP * COLUMNS];
    for (long g = 0; g < groups; g++, x += INT4_GROUP, words += INT4_WORDS) {
        const uint16_t* scales = (const uint16_t*)(words + EIGHTS * COLUMNS);
        if (rows > 1) unpack_group(words, panel);
        else add_group_of_row(x, words, scales, sums);
        for (long row = 0, n; row < rows && rows > 1; row += n) {
            n = share(rows - row);
            const float* from = x + row * stride;
            float* to = sums + row * COLUMNS;
            switch (n) {
                case 6: add_group<6>(from, stride, panel, scales, to); break;
                case 5: add_group<5>(from, stride, panel, scales, to); break;
                case 4: add_group<4>(from, stride, panel, scales, to); break;
                case 3: add_group<3>(from, stride, panel, scales, to); break;
                case 2: add_group<2>(from, stride, panel, scales, to); break;
                default: add_group<1>(from, stride, panel, scales, to);
            }
        }
    }
}

#if defined(HAS_AMX)
// panel [16][COLUMNS] pairs of bfloat16: the q of a group, for a tile. An instruction looks up all halves of words at once, by
// their lowest 5 bits. The fifth belongs to the next q: whatever it is, the table says the same.
static void unpack_pairs(const int32_t* packed, uint32_t* panel) {
    alignas(64) static const uint16_t TABLE[32] = {
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
    __m512i values = load<__m512i>(TABLE);
    for (int eight = 0; eight < EIGHTS; eight++)
        for (int c = 0; c < COLUMNS; c += LANES) {
            Ints words = words_at(packed + eight * COLUMNS + c);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                store(panel + (4 * eight + i) * COLUMNS + c, _mm512_permutexvar_epi16((__m512i)(words >> 4 * i), values));
        }
}

// The same as `add_all`, a few groups at a time, so that a tile's sums stay in registers meanwhile.
static void add_all_amx(long rows, long groups, const uint16_t* x, long stride, const int32_t* words, float* sums) {
    constexpr int TOGETHER = 4;
    alignas(64) uint32_t panels[TOGETHER][TILE_WORDS * COLUMNS];
    alignas(64) float products[TOGETHER][TILE_ROWS * LANES];
    uint8_t height = std::min<long>(rows, TILE_ROWS);  // a last tile that is not full has room below it
    Tiles tiles({height, height, 16, 16, 16, 16, 16, 16});
    for (long g = 0, count; g < groups; g += count, x += count * INT4_GROUP, words += count * INT4_WORDS) {
        count = std::min<long>(TOGETHER, groups - g);
        for (int i = 0; i < count; i++) unpack_pairs(words + i * INT4_WORDS, panels[i]);
        asm volatile("" ::: "memory");  // the intrinsics do not tell the compiler that they read memory
        for (int p = 0; p < COLUMNS; p += LANES)
            for (long row = 0; row < rows; row += TILE_ROWS) {
                for (int i = 0; i < count; i++) {
                    _tile_zero(0);
                    _tile_loadd(1, x + row * stride + i * INT4_GROUP, 2 * stride);
                    _tile_loadd(2, panels[i] + p, 4 * COLUMNS);
                    _tile_dpbf16ps(0, 1, 2);
                    _tile_stored(0, products[i], 4 * LANES);
                }
                Floats all[TILE_ROWS];
                for (int m = 0; m < height; m++) all[m] = load<Floats>(sums + (row + m) * COLUMNS + p);
                for (int i = 0; i < count; i++) {
                    Floats scale = scale_of((const uint16_t*)(words + i * INT4_WORDS + EIGHTS * COLUMNS) + p);
                    for (int m = 0; m < height; m++)
                        all[m] = multiply_add(load<Floats>(products[i] + m * LANES), scale, all[m]);
                }
                for (int m = 0; m < height; m++) store(sums + (row + m) * COLUMNS + p, all[m]);
            }
    }
}
#endif

// to = from, as floats or as it is, and 0 up to `padded` elements. What is below 1e-30 becomes 0: tiles take the smallest numbers
// of all for 0, vectors do not, and so none ever appear.
template <class E, class To>
static void copy_row(const typename E::T* from, To* to, long size, long padded) {
    for (long i = 0; i < padded; i += LANES) {
        typename E::T part[LANES] = {};
        if (i < size) memcpy(part, from + i, std::min<long>(LANES, size - i) * sizeof *from);
        Floats x = E::get(i + LANES <= size ? from + i : part), magnitude = (Floats)((Ints)x & 0x7fffffff);
        x = magnitude < 1e-30f ? Floats{} : x;
        if constexpr (std::is_same_v<To, float>) store(to + i, x);
        else E::put(to + i, x);
    }
}

// x [rows, in], y [rows, out], bias [out up to whole COLUMNS] float32; `room` [rows up to whole tiles, in up to whole groups]
// floats: where x is copied to, as floats or, for tiles, as it is.
template <class E>
static void int4_linear(const typename E::T* x, float* room, const int32_t* packed, const float* bias, typename E::T* y, long rows,
                        long in, long out) {
    typedef typename E::T T;
    long groups = (in + INT4_GROUP - 1) / INT4_GROUP, stride = groups * INT4_GROUP, blocks = (out + COLUMNS - 1) / COLUMNS;
    bool tiles = false;
#if defined(HAS_AMX)
    tiles = std::is_same_v<E, BFloat16> && rows > 1 && amx_allowed();
#endif
    for_each_row(rows, in, [&](long row) {
        if (tiles) copy_row<E>(x + row * in, (T*)room + row * stride, in, stride);
        else copy_row<E>(x + row * in, room + row * stride, in, stride);
    });
    for_each(blocks * ((rows + INT4_ROWS - 1) / INT4_ROWS), [&](long item) {
        long block = item % blocks, first = item / blocks * INT4_ROWS, column = block * COLUMNS;
        long n = std::min<long>(INT4_ROWS, rows - first), width = std::min<long>(COLUMNS, out - column);
        const int32_t* words = packed + block * groups * INT4_WORDS;
        alignas(64) float sums[INT4_ROWS * COLUMNS];
        memset(sums, 0, (n + 15) / 16 * 16 * COLUMNS * sizeof *sums);
#if defined(HAS_AMX)
        if (tiles) add_all_amx(n, groups, (const uint16_t*)room + first * stride, stride, words, sums);
        else
#endif
        add_all(n, groups, room + first * stride, stride, words, sums);
        for (long m = 0; m < n; m++) {
            T *to = y + (first + m) * out + column, part[COLUMNS];
            for (int p = 0; p < COLUMNS; p += LANES)
                E::put((width == COLUMNS ? to : part) + p, load<Floats>(sums + m * COLUMNS + p) + load<Floats>(bias + column + p));
            if (width < COLUMNS) memcpy(to, part, width * sizeof *to);
        }
    });
}
