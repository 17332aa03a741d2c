// y = x W^T + bias with weights in 4 bits, or 8. Each column has a scale for every group of 32 inputs, and may have a minimum:
//
//     w = scale * q, q whole in -8 .. 7 or -128 .. 127          w = scale * q + minimum, q whole in 0 .. 15
//
// x keeps its precision: in each group it is rounded to whole multiples n of a power of two, the largest of which has 14 bits
// (float32: 22, or 18 for W in 8 bits) and a sign. That is finer than what bfloat16 (and nearly what float32) tells apart beside
// the group's largest number. The n are cut into bytes, because processors multiply bytes many at a time, and exactly. So their
// sums are the same bits whatever adds them up, for any number of rows, and
//
//     y = sum over the groups, from first to last, of float(sum of q * n) * power * scale (+ (sum of x) * minimum) + bias
//
// with x ~ power * n rounds when a group's sum becomes a float, and at each addition.
//
// Instructions that multiply bytes want one factor without a sign. So W has q + 8 (or 128) where q has one, and 8 (or 128) times
// the sum of n is taken off.
//
// W is one stream: for every COLUMNS outputs, for every group, [BITS][COLUMNS] words, then [COLUMNS] scales in float16, then as
// many minimums. A word has 4 inputs of 8 bits, or 8 of 4: the low halves of its bytes are 0, 1, 2, 3, the high ones 4, 5, 6, 7.
#pragma once
#include "amx.h"
#include "bytes.h"
#include "team.h"
#include "vectors.h"
#include <type_traits>

#if defined(HAS_BYTES)
constexpr int INT4_GROUP = 32, EIGHTS = INT4_GROUP / 8, QUADS = INT4_GROUP / 4;
constexpr int INT4_ROWS = 64;  // rows that share what was unpacked; their sums stay in L1

// A group's words of 4 bytes, with scales and minimums
template <int BITS, bool MINIMUM> constexpr long WORDS_OF = BITS * COLUMNS + (MINIMUM ? 2 : 1) * COLUMNS / 2;

template <class V> inline V ahead(const void* at) {
    __builtin_prefetch((const char*)at + AHEAD, 0, 3);
    return load<V>((const V*)at);
}

inline Floats from_float16(const uint16_t* halves) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(ahead<__m256i>(halves));
#else
    return (Floats)_mm256_cvtph_ps(ahead<__m128i>(halves));
#endif
}

// A group of one row of x: the numbers' lowest bytes, the next ones, and the highest, all with a sign; the power of two; what
// to take off W's sums for a q with a sign; and the sum of power * number.
template <int PARTS>
struct Group {
    int32_t parts[PARTS][QUADS];
    float power;
    int32_t offset;
    float total;
};

template <class E> constexpr int PARTS_OF = sizeof(typename E::T) == 2 ? 2 : 3;

// n + MAGIC has the whole number n, which is below 2^22, in its lowest bits; rounding to it is rounding to a whole number.
constexpr float MAGIC = 12582912;  // 1.5 * 2^23

// A group of a row, at most `size` of it, to be written as power * n. An inf or a NaN makes all of it NaN.
template <class E, int BITS>
struct Rounding {
    typename E::T all[INT4_GROUP] = {};
    float power, inverse;

    Rounding(const typename E::T* x, long size) {
        constexpr float RANGE = 1 << std::min(8 * PARTS_OF<E> - 3, 26 - BITS);  // n stays below it, and the sums below 2^31
        memcpy(all, x, std::min<long>(size, INT4_GROUP) * sizeof *x);
        Ints most = {};
        for (int i = 0; i < INT4_GROUP; i += LANES) {
            Ints bits = magnitude_bits(E::get(all + i));
            most = bits > most ? bits : most;
        }
        int32_t bits = largest(most), top_bits = bits & INFINITE_BITS;
        float top;  // the power of two up to the largest
        memcpy(&top, &top_bits, sizeof top);
        power = inverse = 0;
        if (bits >= INFINITE_BITS) {
            power = __builtin_nanf("");
            memset(all, 0, sizeof all);
        } else if (top >= 1e-30f) {  // nothing below it matters, and RANGE / top stays finite
            power = top / (RANGE / 2);
            inverse = RANGE / 2 / top;
        }
    }
    Floats plus_magic(int i) const { return E::get(all + i) * inverse + MAGIC; }
};

template <class E, int BITS, int PARTS>
static void write_group(const typename E::T* x, long size, Group<PARTS>& to) {
    Rounding<E, BITS> rounding(x, size);
    Ints total = {};
    for (int i = 0; i < INT4_GROUP; i += LANES) {
        Ints n = (Ints)rounding.plus_magic(i) - (Ints)(MAGIC - Floats{});
        total += n;
        for (int part = 0; part < PARTS; part++, n = (n + 128) >> 8) store((uint8_t*)to.parts[part] + i, lowest_bytes(n));
    }
    int32_t of_all = sum_of(total);
    to.offset = of_all << (BITS - 1), to.power = rounding.power, to.total = of_all * rounding.power;
}

typedef uint32_t Unsigned __attribute__((vector_size(LANES * 4)));  // the parts' sums may wrap around on their way to the whole

// sum + scale * (power * the whole sum of a group, from those of its parts), less what is too much for a q with a sign
template <bool SIGNED, int PARTS>
inline Floats add_products(Floats sum, Floats scale, const Ints* of_parts, const Group<PARTS>& x) {
    Unsigned whole = (Unsigned)of_parts[PARTS - 1];
#pragma GCC unroll 2
    for (int part = PARTS - 2; part >= 0; part--) whole = (whole << 8) + (Unsigned)of_parts[part];
    if (SIGNED) whole -= (uint32_t)x.offset;
    return multiply_add(__builtin_convertvector((Ints)whole, Floats) * x.power, scale, sum);
}

// sums[m] [COLUMNS] += a group of M rows, which lie `stride` groups apart. Nothing is unpacked but in registers.
template <int BITS, bool MINIMUM, int M, int PARTS>
static void add_group(const Group<PARTS>* x, long stride, const int32_t* words, float* sums) {
    constexpr int SIDE = LANES == 16 && M > 1 ? 2 : 1;  // panels that share what is read of x
#pragma GCC unroll 4
    for (int p = 0; p < COLUMNS; p += SIDE * LANES) {
        Ints of_parts[M][SIDE][PARTS] = {};
#pragma GCC unroll 4
        for (int eight = 0; eight < EIGHTS; eight++) {
            Ints low[SIDE], high[SIDE];
#pragma GCC unroll 2
            for (int side = 0; side < SIDE; side++) {
                const int32_t* from = words + eight * BITS / 4 * COLUMNS + p + side * LANES;
                Ints both = ahead<Ints>(from);
                low[side] = BITS == 4 ? both & 0x0f0f0f0f : both;
                high[side] = BITS == 4 ? both >> 4 & 0x0f0f0f0f : ahead<Ints>(from + COLUMNS);
            }
#pragma GCC unroll 4
            for (int m = 0; m < M; m++)
#pragma GCC unroll 3
                for (int part = 0; part < PARTS; part++) {
                    const int32_t* quads = x[m * stride].parts[part] + 2 * eight;
                    Ints first = quads[0] - Ints{}, second = quads[1] - Ints{};
#pragma GCC unroll 2
                    for (int side = 0; side < SIDE; side++) {
                        Ints& sum = of_parts[m][side][part];
                        sum = dot(dot(sum, low[side], first), high[side], second);
                    }
                }
        }
#pragma GCC unroll 2
        for (int side = 0; side < SIDE; side++) {
            const uint16_t* after = (const uint16_t*)(words + BITS * COLUMNS) + p + side * LANES;
            Floats scale = from_float16(after), minimum = MINIMUM ? from_float16(after + COLUMNS) : Floats{};
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                const Group<PARTS>& group = x[m * stride];
                float* to = sums + m * COLUMNS + p + side * LANES;
                Floats sum = add_products<!MINIMUM>(load<Floats>(to), scale, of_parts[m][side], group);
                if (MINIMUM) sum = multiply_add(minimum, group.total - Floats{}, sum);
                store(to, sum);
            }
        }
    }
}

// sums [rows][COLUMNS] += all groups, in order
template <int BITS, bool MINIMUM, int PARTS>
static void add_all(long rows, long groups, const Group<PARTS>* x, const int32_t* words, float* sums) {
    for (long g = 0; g < groups; g++, x++, words += WORDS_OF<BITS, MINIMUM>)
        for (long row = 0, n; row < rows; row += n) {
            n = std::min<long>(4, rows - row);
            const Group<PARTS>* from = x + row * groups;
            float* to = sums + row * COLUMNS;
            switch (n) {
                case 4: add_group<BITS, MINIMUM, 4>(from, groups, words, to); break;
                case 3: add_group<BITS, MINIMUM, 3>(from, groups, words, to); break;
                case 2: add_group<BITS, MINIMUM, 2>(from, groups, words, to); break;
                default: add_group<BITS, MINIMUM, 1>(from, groups, words, to);
            }
        }
}

#if defined(HAS_AMX)
constexpr int INT4_AMX_ROWS = 4;  // from so many rows on, tiles of bfloat16 are faster

// In bfloat16, n has at most 8 bits that are not 0 from first to last, as x has, so that bfloat16 holds power * n. All sums of
// products in a group have at most 24 bits. So tiles of bfloat16 compute exactly what bytes do. The inputs are put in the order
// in which `unpack_pairs` finds those of W. Returns the sum of power * n.
static float write_group(const uint16_t* x, long size, uint16_t* to) {
    const Ints order = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    Rounding<BFloat16, 4> rounding(x, size);
    Floats total = {};
    for (int i = 0; i < INT4_GROUP; i += LANES) {
        Floats n = rounding.plus_magic(i) - MAGIC;
        total += n;
        BFloat16::put(to + i, _mm512_permutexvar_ps((__m512i)order, n * rounding.power));
    }
    return sum(total) * rounding.power;
}

// panel [16][COLUMNS] pairs of bfloat16: the q of a group, for a tile. A table, read by the lowest 5 bits of all halves of words
// at once, makes them bfloat16. The fifth belongs to another q: whatever it is, the table says the same.
template <bool SIGNED>
static void unpack_pairs(const int32_t* packed, uint32_t* panel) {
    alignas(64) static const uint16_t TABLE[] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                                 0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                                 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};  // -8 .. 15
    __m512i values = _mm512_broadcast_i64x4(load<__m256i>(TABLE + (SIGNED ? 0 : 8)));
    for (int eight = 0; eight < EIGHTS; eight++)
        for (int c = 0; c < COLUMNS; c += LANES) {
            Ints words = ahead<Ints>(packed + eight * COLUMNS + c);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                store(panel + (4 * eight + i) * COLUMNS + c, _mm512_permutexvar_epi16((__m512i)(words >> 4 * i), values));
        }
}

// The same as `add_all`, a few groups at a time, so that a tile's sums stay in registers meanwhile.
template <bool MINIMUM>
static void add_all_amx(long rows, long groups, const uint16_t* x, const float* totals, long stride, const int32_t* words,
                        float* sums) {
    constexpr long WORDS = WORDS_OF<4, MINIMUM>;
    constexpr int TOGETHER = 4;
    alignas(64) uint32_t panels[TOGETHER][TILE_WORDS * COLUMNS];
    alignas(64) float products[TOGETHER][TILE_ROWS * LANES];
    uint8_t height = std::min<long>(rows, TILE_ROWS);  // a last tile that is not full has room below it
    Tiles tiles({height, height, 16, 16, 16, 16, 16, 16});
    for (long g = 0, count; g < groups; g += count, x += count * INT4_GROUP, words += count * WORDS) {
        count = std::min<long>(TOGETHER, groups - g);
        for (int i = 0; i < count; i++) unpack_pairs<!MINIMUM>(words + i * WORDS, panels[i]);
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
                    const uint16_t* after = (const uint16_t*)(words + i * WORDS + EIGHTS * COLUMNS) + p;
                    Floats scale = from_float16(after), minimum = MINIMUM ? from_float16(after + COLUMNS) : Floats{};
                    for (int m = 0; m < height; m++) {
                        all[m] = multiply_add(load<Floats>(products[i] + m * LANES), scale, all[m]);
                        if (MINIMUM) all[m] = multiply_add(minimum, totals[(row + m) * groups + g + i] - Floats{}, all[m]);
                    }
                }
                for (int m = 0; m < height; m++) store(sums + (row + m) * COLUMNS + p, all[m]);
            }
    }
}
#endif

// x [rows, in], y [rows, out], bias [out up to whole COLUMNS] float32; `room` [rows up to whole tiles, in up to whole groups]
// words of 4 bytes: where x is written as `add_all` or tiles read it.
template <class E, int BITS, bool MINIMUM>
static void groups_linear(const typename E::T* x, int32_t* room, const int32_t* packed, const float* bias, typename E::T* y, long rows,
                        long in, long out) {
    typedef typename E::T T;
    typedef Group<PARTS_OF<E>> G;
    static_assert(sizeof(G) <= INT4_GROUP * sizeof *room, "`room` is too small");
    long groups = (in + INT4_GROUP - 1) / INT4_GROUP, blocks = (out + COLUMNS - 1) / COLUMNS;
    G* numbers = (G*)room;
    long stride = groups * INT4_GROUP;
    float* totals = (float*)((T*)room + (rows + 15) / 16 * 16 * stride);  // for tiles: behind the rows
    bool tiles = false;
#if defined(HAS_AMX)
    tiles = BITS == 4 && std::is_same_v<E, BFloat16> && rows >= INT4_AMX_ROWS && amx_allowed();
#endif
    for_each_row(rows, in, [&](long row) {
        for (long g = 0; g < groups; g++) {
            const T* from = x + row * in + g * INT4_GROUP;
            long left = in - g * INT4_GROUP;
#if defined(HAS_AMX)
            if constexpr (std::is_same_v<E, BFloat16>)
                if (tiles) totals[row * groups + g] = write_group(from, left, (T*)room + row * stride + g * INT4_GROUP);
#endif
            if (!tiles) write_group<E, BITS>(from, left, numbers[row * groups + g]);
        }
    });
    for_each(blocks * ((rows + INT4_ROWS - 1) / INT4_ROWS), [&](long item) {
        long block = item % blocks, first = item / blocks * INT4_ROWS, column = block * COLUMNS;
        long n = std::min<long>(INT4_ROWS, rows - first), width = std::min<long>(COLUMNS, out - column);
        const int32_t* words = packed + block * groups * WORDS_OF<BITS, MINIMUM>;
        alignas(64) float sums[INT4_ROWS * COLUMNS];
        memset(sums, 0, (n + 15) / 16 * 16 * COLUMNS * sizeof *sums);
#if defined(HAS_AMX)
        if (tiles)
            add_all_amx<MINIMUM>(n, groups, (const uint16_t*)room + first * stride, totals + first * groups, stride, words, sums);
        else
#endif
            add_all<BITS, MINIMUM>(n, groups, numbers + first * groups, words, sums);
        for (long m = 0; m < n; m++) {
            T *to = y + (first + m) * out + column, part[COLUMNS];
            for (int p = 0; p < COLUMNS; p += LANES)
                E::put((width == COLUMNS ? to : part) + p, load<Floats>(sums + m * COLUMNS + p) + load<Floats>(bias + column + p));
            if (width < COLUMNS) memcpy(to, part, width * sizeof *to);
        }
    });
}
#endif
