// What adapters add to a linear layer: to = from + scale * (x A^T) B^T, where every row of x has an adapter of its own, or none.
//
// A is [rank, in] and B [out, rank]; with a small rank, that is little to read and to compute. A fused layer has such a pair for
// each of its parts; their A lie one below the other, so that x is read once.
//
// A row's sums run in the same order whatever rows are beside it: over the inputs LANES apart, then over the lanes, then over the
// ranks. So a request gets the same bits in any company.
#pragma once
#include "finish.h"
#include "team.h"
#include "vectors.h"

constexpr int LOW_RANK_WORDS = 16;     // a row of A is filled up with zeros to a multiple, whatever the vectors' size
constexpr int LOW_RANKS = 8;           // rows of A that are computed side by side; A is filled up with zeros to a multiple
constexpr int LOW_RANK_CHUNK = 512;    // outputs of an item of work
constexpr long MOST_PARTS = 3;
constexpr long MANY_TILES = 7;         // more than this are enough work for all threads

// An adapter's part of a layer. `b` [columns up to whole COLUMNS / COLUMNS][rank / STEP][COLUMNS] words: as `linear` packs W.
struct LowRankPart {
    const float* b;
    int64_t first, columns;       // its outputs
    int64_t first_rank, rank;     // its ranks, in whole words
    double scale;
};

// What an adapter adds to a layer, as Python fills it in. No parts: nothing.
struct LowRank {
    const void* a;  // [ranks][in up to whole LOW_RANK_WORDS]
    int64_t ranks, num_parts;
    LowRankPart parts[MOST_PARTS];
};

// Rows with the same adapter, at most ROWS of them: rows[first], rows[first + 1], ..
struct RowTile { int32_t adapter, first, count; };

// hidden[m][LOW_RANKS] = rows m of x times so many rows of A
template <class E, int M>
static void shrink(const typename E::T* const* x, const typename E::T* a, long in, long stride, typename E::T* const* hidden) {
    typedef typename E::T T;
    constexpr long STEP = LANES * E::STEP;
    Floats sums[M][LOW_RANKS] = {};
    auto add = [&](const T* const* rows, long at, long k) __attribute__((always_inline)) {
        Floats words[M];
#pragma GCC unroll 3
        for (int m = 0; m < M; m++) words[m] = load<Floats>((const float*)(rows[m] + at));
#pragma GCC unroll 8
        for (int r = 0; r < LOW_RANKS; r++)
#pragma GCC unroll 3
            for (int m = 0; m < M; m++)
                sums[m][r] = E::multiply_add(sums[m][r], words[m], load<Floats>((const float*)(a + r * stride + k)));
    };
    long k = 0;
    for (; k + STEP <= in; k += STEP) add(x, k, k);
    if (k < in) {
        T rest[M][STEP] = {};
        const T* rows[M];
        for (int m = 0; m < M; m++) memcpy(rest[m], x[m] + k, (in - k) * sizeof(T)), rows[m] = rest[m];
        add(rows, 0, k);
    }
    for (int m = 0; m < M; m++)
        for (int r = 0; r < LOW_RANKS; r++)
            hidden[m][r] = E::put1(fold(sums[m][r], [](Floats v, Floats w) { return v + w; })[0]);
}

// to[m] = from[m] + scale * (hidden[m] times the part), for the outputs first .. end of the part
template <class E, int M>
static void expand(const typename E::T* const* hidden, const LowRankPart& part, long first, long end,
                   const typename E::T* const* from, typename E::T* const* to) {
    Floats scale = (float)part.scale - Floats{};
    for (long block = first / COLUMNS; block * COLUMNS < end; block++) {
        const float* words = part.b + block * (part.rank / E::STEP) * COLUMNS;
        Floats sums[M][PANELS] = {};
        for (long r = 0; r < part.rank; r += E::STEP, words += COLUMNS)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) {
                Floats column = load<Floats>(words + p * LANES);
#pragma GCC unroll 6
                for (int m = 0; m < M; m++) sums[m][p] = E::multiply_add(sums[m][p], column, hidden[m] + part.first_rank + r);
            }
        for (long p = 0, at = block * COLUMNS, n; p < PANELS && (n = end - at) > 0; p++, at += LANES)
            for (int m = 0; m < M; m++) {
                Floats before = from[m] ? get_some<E>(from[m] + part.first + at, n) : Floats{};
                put_some<E>(to[m] + part.first + at, n, multiply_add(sums[m][p], scale, before));
            }
    }
}

// A tile's rows of x, of the results so far (null for none), of the room between A and B, and of the results.
template <class T>
struct TileRowsOf {
    const T *x[ROWS], *from[ROWS];
    T *hidden[ROWS], *to[ROWS];
};

// `hidden` of a tile: LOW_RANKS rows of A from `rank` on
template <class E>
static void shrink_tile(const LowRank& adapter, const TileRowsOf<typename E::T>& rows, int count, long rank, long in) {
    typedef typename E::T T;
    constexpr long STEP = LOW_RANK_WORDS * E::STEP;
    long stride = (in + STEP - 1) / STEP * STEP;
    const T* a = (const T*)adapter.a + rank * stride;
    for (int m = 0; m < count; m += 3) {
        T* to[3];
        for (int i = 0; i < std::min(3, count - m); i++) to[i] = rows.hidden[m + i] + rank;
        if (count - m >= 3) shrink<E, 3>(rows.x + m, a, in, stride, to);
        else if (count - m == 2) shrink<E, 2>(rows.x + m, a, in, stride, to);
        else shrink<E, 1>(rows.x + m, a, in, stride, to);
    }
}

// Outputs `first` .. `end` of a part, for a tile whose `hidden` is there
template <class E>
static void expand_tile(const LowRankPart& part, const TileRowsOf<typename E::T>& rows, int count, long first, long end) {
    switch (count) {
        case 6: return expand<E, 6>(rows.hidden, part, first, end, rows.from, rows.to);
        case 5: return expand<E, 5>(rows.hidden, part, first, end, rows.from, rows.to);
        case 4: return expand<E, 4>(rows.hidden, part, first, end, rows.from, rows.to);
        case 3: return expand<E, 3>(rows.hidden, part, first, end, rows.from, rows.to);
        case 2: return expand<E, 2>(rows.hidden, part, first, end, rows.from, rows.to);
        default: return expand<E, 1>(rows.hidden, part, first, end, rows.from, rows.to);
    }
}

// `x` [rows, in], `from` and `to` [rows, out]: only rows of a tile are read and written, and of these only the outputs of their
// adapter's parts. Without `from`, it counts as zeros, and the other outputs become 0. `table`: the adapters, of which the
// largest has `most_ranks`. `plan`: the number of tiles, and the tiles; `rows`: what these refer to. `hidden` [rows, most_ranks]:
// room.
template <class E>
static void low_rank(const typename E::T* x, const typename E::T* from, typename E::T* to, typename E::T* hidden,
                     const LowRank* table, const int32_t* plan, const int32_t* rows, long in, long out, long most_ranks) {
    typedef typename E::T T;
    const RowTile* tiles = (const RowTile*)(plan + 1);
    long num_tiles = plan[0];
    auto rows_of = [&](RowTile tile) {
        TileRowsOf<T> found;
        for (int m = 0; m < tile.count; m++) {
            long row = rows[tile.first + m];
            found.x[m] = x + row * in, found.from[m] = from ? from + row * out : nullptr;
            found.hidden[m] = hidden + row * most_ranks, found.to[m] = to + row * out;
        }
        return found;
    };
    auto clear = [&](const LowRank& adapter, const TileRowsOf<T>& of, int count) {
        long covered = 0;
        for (long p = 0; p < adapter.num_parts; p++) covered += adapter.parts[p].columns;
        if (!from && covered < out)
            for (int m = 0; m < count; m++) memset(of.to[m], 0, out * sizeof(T));
    };
    if (num_tiles > MANY_TILES) {  // a thread does all of a tile: no thread waits for another between A and B
        for_each(num_tiles, [&](long item) {
            RowTile tile = tiles[item];
            const LowRank& adapter = table[tile.adapter];
            TileRowsOf<T> of = rows_of(tile);
            clear(adapter, of, tile.count);
            for (long rank = 0; rank < adapter.ranks; rank += LOW_RANKS) shrink_tile<E>(adapter, of, tile.count, rank, in);
            for (long p = 0; p < adapter.num_parts; p++)
                expand_tile<E>(adapter.parts[p], of, tile.count, 0, adapter.parts[p].columns);
        });
        return;
    }
    long blocks = most_ranks / LOW_RANKS;
    for_each(num_tiles * blocks, [&](long item) {
        RowTile tile = tiles[item / blocks];
        const LowRank& adapter = table[tile.adapter];
        TileRowsOf<T> of = rows_of(tile);
        long rank = item % blocks * LOW_RANKS;
        if (!rank) clear(adapter, of, tile.count);
        if (rank < adapter.ranks) shrink_tile<E>(adapter, of, tile.count, rank, in);
    });
    long chunks = (out + LOW_RANK_CHUNK - 1) / LOW_RANK_CHUNK;  // of a part, at most
    for_each(num_tiles * MOST_PARTS * chunks, [&](long item) {
        RowTile tile = tiles[item / (MOST_PARTS * chunks)];
        const LowRank& adapter = table[tile.adapter];
        long number = item / chunks % MOST_PARTS, first = item % chunks * LOW_RANK_CHUNK;
        if (number >= adapter.num_parts || first >= adapter.parts[number].columns) return;
        long end = std::min<long>(adapter.parts[number].columns, first + LOW_RANK_CHUNK);
        expand_tile<E>(adapter.parts[number], rows_of(tile), tile.count, first, end);
    });
}
