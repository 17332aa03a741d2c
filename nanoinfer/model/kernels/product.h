// Products with packed weights, in blocks. A Unit multiplies (the two at the end): it adds to the sums of
// a few rows and COLUMNS columns. A Finish is what becomes of a row's finished sums (finish.h). This file decides who computes
// what, and when.
//
// W [out, in] is packed in groups of COLUMNS outputs, each a stream of words (vectors.h), so that one row's product reads the
// weights from memory front to back. With many rows, the work is done in parts that fit into the caches: a few rows' inputs
// stay in the first-level cache while some groups' weights, which are in the second, are multiplied by them, and meanwhile the
// next weights are asked for. Sums wait in memory between two parts. All this moves the work about, but every sum adds its
// inputs in one order, so a result does not depend on how many rows or threads there are.
#pragma once
#include "amx.h"
#include "team.h"
#include "vectors.h"
#include <cstring>
#include <cstdint>
#include <vector>

// What is done between the steps of a product, while the multipliers are busy: memory is asked for what is needed soon, and
// rows are finished whose sums are complete.
template <class Finish, long COLUMNS>
class Meanwhile {
    const Finish& finish;
    const long first_group, groups;
    const char *line = nullptr, *last_line = nullptr;  // what to ask for
    long lines_per_step = 0;
    bool near = false;
    long row = 0, last_row = 0, rows_per_step = 0, apart = 0;  // what to finish; a row's sums of two groups are so far apart
    const float* sums = nullptr;

  public:
    Meanwhile(const Finish& finish, long first_group, long groups) : finish(finish), first_group(first_group), groups(groups) {}

    // In the next steps, ask for `bytes` from `from` on. `to_first_level`: of the caches; or else to the second.
    void ask_for(const char* from, long bytes, long steps, bool to_first_level) {
        line = from, last_line = from + bytes, lines_per_step = (bytes / 64 + steps - 1) / steps, near = to_first_level;
    }

    // In the next steps, finish `rows` from `first` on, whose sums are at `from`. All earlier ones are finished at once.
    void finish_rows(long first, long rows, long steps, const float* from, long sums_apart) {
        finish_all();
        row = first, last_row = first + rows, rows_per_step = (rows + steps - 1) / steps, sums = from, apart = sums_apart;
    }

    // Once, or OF times a step: memory takes only so many requests at a time.
    template <long OF = 1>
    void ask() {
        const char* end = std::min(last_line, line + (lines_per_step + OF - 1) / OF * 64);
        if (near)
            for (; line < end; line += 64) __builtin_prefetch(line, 0, 3);
        else
            for (; line < end; line += 64) __builtin_prefetch(line, 0, 2);
    }

    void finish_some() {
        for (long end = std::min(last_row, row + rows_per_step); row < end; row++, sums += COLUMNS)
            for (long g = 0; g < groups; g++) finish.template row<COLUMNS>(row, first_group + g, sums + g * apart);
    }

    void finish_all() {
        while (row < last_row) finish_some();
    }
};

struct alignas(64) Line { float sums[16]; };
inline thread_local std::vector<Line> sums_of_item;

// x [rows, in] times `groups` groups of columns. A unit says how much work fits the caches: GROUPS share a block of rows, a part
// has at most depth(rows) steps, and an item MOST_ROWS.
template <class Unit, class Finish>
static void product(const typename Unit::T* x, const float* packed, long rows, long in, long groups, const Finish& finish) {
    if (!rows) return;
    constexpr long COLUMNS = Unit::COLUMNS, NEAR = 8192;
    auto ceil = [](long a, long b) { return (a + b - 1) / b; };
    long steps = ceil(in, Unit::INPUTS), step_bytes = Unit::INPUTS * sizeof *x * COLUMNS, group_bytes = steps * step_bytes;

    // An item: `some_rows` and `some_groups`, whose results are neighbours in memory.
    long chunks = ceil(rows, Unit::MOST_ROWS), some_rows = ceil(ceil(rows, chunks), Unit::ROWS) * Unit::ROWS;
    long threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    long some_groups = rows <= Unit::ROWS ? 1 : std::clamp(groups * chunks / (4 * threads), 1L, Unit::GROUPS);
    long parts = ceil(steps, Unit::depth(rows)), part = ceil(steps, parts), columns_of_items = ceil(groups, some_groups);

    for_each(chunks * columns_of_items, [&](long item) {
        long first_row = item / columns_of_items * some_rows, first_group = item % columns_of_items * some_groups;
        long n_rows = std::min(some_rows, rows - first_row), n_groups = std::min(some_groups, groups - first_group);
        // Blocks of at most `height` rows. If the unit needs exactly so many, the last block begins before the others' end and
        // computes some rows once more.
        long blocks = ceil(n_rows, Unit::ROWS), height = ceil(n_rows, blocks), area = height * COLUMNS;
        auto end_of = [&](long block) {
            return Unit::ANY_HEIGHT ? (block + 1) * n_rows / blocks : std::min((block + 1) * height, n_rows);
        };
        Unit unit(height);
        size_t lines = blocks * n_groups * area / 16;
        if (sums_of_item.size() < lines) sums_of_item.resize(lines);
        auto sums_at = [&](long block, long group) { return sums_of_item[0].sums + (block * n_groups + group) * area; };
        auto words_at = [&](long group, long step) {
            return (const char*)packed + (first_group + group) * group_bytes + step * step_bytes;
        };
        Meanwhile<Finish, COLUMNS> meanwhile(finish, first_group, n_groups);

        for (long step = 0, n_steps; step < steps; step += n_steps) {
            n_steps = std::min(part, steps - step);
            bool last = step + n_steps == steps;
            for (long block = 0; block < blocks; block++) {
                long done = block ? end_of(block - 1) : 0, end = end_of(block), row = Unit::ANY_HEIGHT ? done : end - height;
                for (long group = 0; group < n_groups; group++) {
                    const char* words = words_at(group, step);
                    const char* next = last ? words_at(n_groups + group, 0) : words_at(group, step + part);
                    long bytes = n_steps * step_bytes / blocks;  // every block asks for its share of the next part
                    if (blocks == 1) meanwhile.ask_for(words + NEAR, bytes, n_steps, true);  // words used once: just a stream
                    else meanwhile.ask_for(next + block * bytes, bytes, n_steps, false);
                    unit.add(x + (first_row + row) * in + step * Unit::INPUTS, in, in - step * Unit::INPUTS, n_steps,
                             (const float*)words, sums_at(block, group), end - row, step == 0, meanwhile);
                }
                if (last)
                    meanwhile.finish_rows(first_row + done, end - done, n_groups * n_steps,
                                          sums_at(block, 0) + (done - row) * COLUMNS, area);
            }
        }
        meanwhile.finish_all();
    });
}

// Products of bfloat16 by AMX (amx.h): up to 32 rows and 32 columns at a time, a step of 32 inputs with every instruction.
#if defined(HAS_AMX)

struct BFloat16Tiles {
    typedef uint16_t T;
    static constexpr long COLUMNS = 32, ROWS = 32, INPUTS = 32;
    static constexpr bool ANY_HEIGHT = false;  // it is a part of the tiles' shape
    static constexpr long GROUPS = 4, MOST_ROWS = 256;
    static long depth(long) { return 16; }  // so many steps of a block of x are 32 KiB

    long height;
    Tiles tiles;
    explicit BFloat16Tiles(long height) : height(height), tiles(shape(height)) {}

    // Tiles 0-3 hold sums, 4 and 5 rows of x, 6 and 7 weights.
    static TileRows shape(long height) {
        uint8_t upper = std::min(height, 16L), lower = height > 16 ? height - 16 : 16;
        return {upper, upper, lower, lower, upper, lower, 16, 16};
    }

    // sums [height][COLUMNS] = (fresh ? 0 : sums) + x [height, of which `left` inputs are still there] * words [n_steps][..]
    template <class Meanwhile>
    void add(const T* x, long stride, long left, long n_steps, const float* words, float* sums, long, bool fresh,
             Meanwhile& other) {
        bool both = height > 16;
        if (fresh) { _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3); }
        else {
            _tile_loadd(0, sums, 128); _tile_loadd(1, sums + 16, 128);
            if (both) { _tile_loadd(2, sums + 512, 128); _tile_loadd(3, sums + 528, 128); }
        }
        for (long step = 0; step < n_steps; step++, x += INPUTS, left -= INPUTS, words += 512) {
            T whole[ROWS * INPUTS];
            if (left < INPUTS) {  // the last inputs of all: zeros take the place of those that are not there
                memset(whole, 0, sizeof whole);
                for (long m = 0; m < height; m++) memcpy(whole + m * INPUTS, x + m * stride, left * sizeof(T));
                x = whole, stride = INPUTS;
                asm volatile("" ::: "memory");  // the intrinsics do not tell the compiler that they read memory
            }
            other.ask(), other.finish_some();
            _tile_stream_loadd(6, words, 128);  // a hint that x is needed in the first-level cache more than these
            _tile_loadd(4, x, stride * 2);
            _tile_dpbf16ps(0, 4, 6);
            _tile_stream_loadd(7, words + 16, 128);
            _tile_dpbf16ps(1, 4, 7);
            if (!both) continue;
            _tile_loadd(5, x + 16 * stride, stride * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, sums, 128); _tile_stored(1, sums + 16, 128);
        if (both) { _tile_stored(2, sums + 512, 128); _tile_stored(3, sums + 528, 128); }
    }
};
#endif

// Products by vectors of floats: up to 6 rows and COLUMNS columns at a time, whose sums all stay in registers.

template <class E>
struct Vectors {
    typedef typename E::T T;
    static constexpr long COLUMNS = ::COLUMNS, ROWS = ::ROWS, INPUTS = 16 * E::STEP;
    static constexpr bool ANY_HEIGHT = true;
    static constexpr long GROUPS = 1, MOST_ROWS = 192;

    // Steps whose weights, which all blocks of rows use, are 128 KiB: they stay in the second-level cache. With a few blocks,
    // memory is the limit: 16 KiB, in the first-level cache, leave the way free for what arrives in the second.
    static long depth(long rows) { return (rows > ROWS && rows <= 64 ? 256 : 2048) / COLUMNS; }

    explicit Vectors(long) {}

    // sums [height][COLUMNS] = (fresh ? 0 : sums) + x [height][steps * INPUTS] * words [steps * INPUTS / STEP][COLUMNS], where
    // only `left` inputs may be there. Every sum runs over the inputs in order.
    template <class Meanwhile>
    void add(const T* x, long stride, long left, long steps, const float* words, float* sums, long height, bool fresh,
             Meanwhile& other) const {
        switch (height) {
            case 6: return add<6>(x, stride, left, steps, words, sums, fresh, other);
            case 5: return add<5>(x, stride, left, steps, words, sums, fresh, other);
            case 4: return add<4>(x, stride, left, steps, words, sums, fresh, other);
            case 3: return add<3>(x, stride, left, steps, words, sums, fresh, other);
            case 2: return add<2>(x, stride, left, steps, words, sums, fresh, other);
            default: return add<1>(x, stride, left, steps, words, sums, fresh, other);
        }
    }

  private:
    template <int M, class Meanwhile>
    static void add(const T* x, long stride, long left, long steps, const float* words, float* out, bool fresh, Meanwhile& other) {
        Floats sums[M][PANELS];
#pragma GCC unroll 6
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) sums[m][p] = fresh ? Floats{} : load<Floats>(out + m * COLUMNS + p * LANES);
        auto add_word = [&](long k) __attribute__((always_inline)) {
            Floats column[PANELS];
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) column[p] = load<Floats>(words + p * LANES);
#pragma GCC unroll 6
            for (int m = 0; m < M; m++)
#pragma GCC unroll 4
                for (int p = 0; p < PANELS; p++) sums[m][p] = E::multiply_add(sums[m][p], column[p], x + m * stride + k);
            words += COLUMNS;
        };
        // Rows are finished after the block: here, it would cost registers.
        for (; steps && left >= INPUTS; steps--, left -= INPUTS, x += INPUTS) {
            for (long k = 0; k < INPUTS; k += 4 * E::STEP) {
                if (M > 1) other.template ask<4>();  // for a single row, the processor asks soon enough by itself
#pragma GCC unroll 4
                for (long i = 0; i < 4 * E::STEP; i += E::STEP) add_word(k + i);
            }
        }
        if (steps)
            for (long k = 0; k < left; k += E::STEP) add_word(k);
#pragma GCC unroll 6
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++) store(out + m * COLUMNS + p * LANES, sums[m][p]);
    }
};
