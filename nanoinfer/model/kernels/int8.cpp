// y = x W^T + bias with both factors in 8 bits: every sum is exact, so whatever adds it up in whatever order gives the same bits.
//
//     x[row] ~ row_scale * q, q whole in -127 .. 127;   w[column] ~ column_scale * w8, the same
//     y = float(sum of q * w8) * (column_scale * row_scale) + bias
//
// Instructions that multiply bytes want one factor without a sign. So x is kept as q + 128, and 128 * (sum of w8), which depends
// on the column alone, is taken off at the end.
//
// W is packed as `linear` packs it, with 4 inputs per word, and each group of COLUMNS is followed by three rows of its own:
// [in / 4][COLUMNS] words, [COLUMNS] scales, [COLUMNS] offsets to take off, [COLUMNS] biases. `in` is padded to whole AMX tiles.
#pragma once
#include "amx.h"
#include "bytes.h"
#include "team.h"
#include "vectors.h"

#if defined(HAS_BYTES)
constexpr int INT8_STEP = 64;         // inputs of a tile, to which a row is padded
constexpr int INT8_BLOCK_ROWS = 256;  // rows that one item of work takes: their x stays in the cache

// Keeps the compiler from making one instruction of a product and a sum, which would round once and not twice.
inline Floats rounded(Floats v) { asm("" : "+v"(v)); return v; }

// q = round(x / scale) + 128, scale = max |x| / 127. A row with an inf or NaN gets the scale NaN. One read from memory: the
// second loop finds x in the cache.
template <class E>
static float quantize_row(const typename E::T* x, uint8_t* q, long size) {
    Ints most = {};
    long i = 0;
    auto larger = [&](Floats v) { Ints bits = magnitude_bits(v); most = bits > most ? bits : most; };
    typename E::T rest[LANES] = {};
    for (; i + LANES <= size; i += LANES) larger(E::get(x + i));
    if (i < size) memcpy(rest, x + i, (size - i) * sizeof *x);
    larger(E::get(rest));
    int32_t bits = largest(most);
    if (bits >= INFINITE_BITS) return memset(q, 128, size), __builtin_nanf("");
    float max;
    memcpy(&max, &bits, sizeof max);
    float inverse = max < 1e-30f ? 0 : 127 / max;  // nothing below it matters, and 127 / max stays finite
    auto to_bytes = [&](Floats v) {  // adding 1.5 * 2^23 leaves the nearest whole number in a float's lowest bits
        return lowest_bytes((Ints)(rounded(v * inverse) + (12582912.0f + 128)));
    };
    for (i = 0; i + LANES <= size; i += LANES) store(q + i, to_bytes(E::get(x + i)));
    Bytes last = to_bytes(E::get(rest));
    if (i < size) memcpy(q + i, &last, size - i);
    return max / 127;
}

// sums[m] = the products of row x[m] with COLUMNS columns, for M rows: `tile` of vectors.h, for bytes
template <int M>
static void int8_tile(const uint8_t* x, long stride, const int32_t* words, long steps, int32_t* out) {
    Ints sums[M][PANELS] = {};
#pragma GCC unroll 4
    for (long k = 0; k < steps; k++, words += COLUMNS) {
        if (M <= 4)
            for (int line = 0; line < COLUMNS; line += 16) __builtin_prefetch(words + 32 * COLUMNS + line, 0, 2);
        Ints column[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) column[p] = load<Ints>(words + p * LANES);
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            Ints four = load<int32_t>(x + m * stride + 4 * k) - Ints{};
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) sums[m][p] = dot(sums[m][p], four, column[p]);
        }
    }
    memcpy(out, sums, sizeof sums);
}

// The same for any number of rows, a few at a time.
static void int8_tiles(const uint8_t* x, long stride, long rows, const int32_t* words, long steps, int32_t* out) {
    for (long row = 0, n; row < rows; row += n) {
        n = share(rows - row);
        const uint8_t* from = x + row * stride;
        int32_t* to = out + row * COLUMNS;
        switch (n) {
            case 6: int8_tile<6>(from, stride, words, steps, to); break;
            case 5: int8_tile<5>(from, stride, words, steps, to); break;
            case 4: int8_tile<4>(from, stride, words, steps, to); break;
            case 3: int8_tile<3>(from, stride, words, steps, to); break;
            case 2: int8_tile<2>(from, stride, words, steps, to); break;
            default: int8_tile<1>(from, stride, words, steps, to);
        }
    }
}

#if defined(HAS_AMX)
constexpr int AMX_ROWS = 5;  // from so many rows on, tiles are faster

// The same with AMX for at most TILE_ROWS rows: one tile of x, and four of W side by side.
static void int8_amx_few(const uint8_t* x, long stride, const int32_t* words, long steps, int32_t* out) {
    Tiles tiles;
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (long k = 0; k < steps; k += TILE_WORDS, words += TILE_WORDS * COLUMNS) {
        _tile_loadd(4, x + 4 * k, stride);
        _tile_loadd(5, words, 4 * COLUMNS);
        _tile_dpbusd(0, 4, 5);
        _tile_loadd(6, words + 16, 4 * COLUMNS);
        _tile_dpbusd(1, 4, 6);
        _tile_loadd(7, words + 32, 4 * COLUMNS);
        _tile_dpbusd(2, 4, 7);
        _tile_loadd(5, words + 48, 4 * COLUMNS);
        _tile_dpbusd(3, 4, 5);
    }
    _tile_stored(0, out, 4 * COLUMNS); _tile_stored(1, out + 16, 4 * COLUMNS);
    _tile_stored(2, out + 32, 4 * COLUMNS); _tile_stored(3, out + 48, 4 * COLUMNS);
}

// The same for many rows: two tiles of x by two of W, along so many words that those of W stay in the L1 cache.
static void int8_amx_many(const uint8_t* x, long stride, long rows, const int32_t* words, long steps, int32_t* out) {
    constexpr long PART = 16 * TILE_WORDS;
    Tiles tiles;
    for (long start = 0; start < steps; start += PART)
        for (int column = 0; column < COLUMNS; column += 32)
            for (long row = 0; row < rows; row += 2 * TILE_ROWS) {
                bool both = rows - row > TILE_ROWS;
                int32_t *sums = out + row * COLUMNS + column, *below = sums + TILE_ROWS * COLUMNS;
                _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
                if (start) {
                    _tile_loadd(0, sums, 4 * COLUMNS); _tile_loadd(1, sums + 16, 4 * COLUMNS);
                    if (both) { _tile_loadd(2, below, 4 * COLUMNS); _tile_loadd(3, below + 16, 4 * COLUMNS); }
                }
                for (long k = start; k < std::min(start + PART, steps); k += TILE_WORDS) {
                    const int32_t* w = words + k * COLUMNS + column;
                    _tile_loadd(4, x + row * stride + 4 * k, stride);
                    _tile_loadd(6, w, 4 * COLUMNS);
                    _tile_dpbusd(0, 4, 6);
                    _tile_loadd(7, w + 16, 4 * COLUMNS);
                    _tile_dpbusd(1, 4, 7);
                    if (both) {
                        _tile_loadd(5, x + (row + TILE_ROWS) * stride + 4 * k, stride);
                        _tile_dpbusd(2, 5, 6);
                        _tile_dpbusd(3, 5, 7);
                    }
                }
                _tile_stored(0, sums, 4 * COLUMNS); _tile_stored(1, sums + 16, 4 * COLUMNS);
                if (both) { _tile_stored(2, below, 4 * COLUMNS); _tile_stored(3, below + 16, 4 * COLUMNS); }
            }
}
#endif

// x [rows, in], y [rows, out]. `q` [rows up to whole tiles, in up to whole tiles] and `row_scales` [rows]: room to work in.
template <class E>
static void int8_linear(const typename E::T* x, uint8_t* q, float* row_scales, const int32_t* packed, typename E::T* y,
                        long rows, long in, long out) {
    long stride = (in + INT8_STEP - 1) / INT8_STEP * INT8_STEP, steps = stride / 4;
    for_each_row(rows, in, [&](long row) {
        row_scales[row] = quantize_row<E>(x + row * in, q + row * stride, in);
        memset(q + row * stride + in, 128, stride - in);
    });
    long groups = (out + COLUMNS - 1) / COLUMNS;
    for_each(groups * ((rows + INT8_BLOCK_ROWS - 1) / INT8_BLOCK_ROWS), [&](long item) {
        long group = item % groups, first = item / groups * INT8_BLOCK_ROWS, column = group * COLUMNS;
        long n = std::min<long>(INT8_BLOCK_ROWS, rows - first), width = std::min<long>(COLUMNS, out - column);
        const int32_t *words = packed + group * (steps + 3) * COLUMNS, *after = words + steps * COLUMNS;
        const uint8_t* from = q + first * stride;
        alignas(64) int32_t sums[INT8_BLOCK_ROWS * COLUMNS];
#if defined(HAS_AMX)
        if (n >= AMX_ROWS && amx_allowed()) {
            if (n <= TILE_ROWS) int8_amx_few(from, stride, words, steps, sums);
            else int8_amx_many(from, stride, n, words, steps, sums);
        } else
#endif
            int8_tiles(from, stride, n, words, steps, sums);
        for (long m = 0; m < n; m++) {
            typename E::T *to = y + (first + m) * out + column, part[COLUMNS];
            for (int p = 0; p < COLUMNS; p += LANES) {
                Floats scale = load<Floats>(after + p), bias = load<Floats>(after + 2 * COLUMNS + p);
                Ints sum = load<Ints>(sums + m * COLUMNS + p) - load<Ints>(after + COLUMNS + p);
                Floats product = __builtin_convertvector(sum, Floats) * (scale * row_scales[first + m]);
                E::put((width == COLUMNS ? to : part) + p, rounded(product) + bias);
            }
            if (width < COLUMNS) memcpy(to, part, width * sizeof *to);
        }
    });
}
#endif
