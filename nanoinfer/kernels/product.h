// Products with packed weights, in blocks. A Unit multiplies (product_vectors.h, product_tiles.h): it adds to the sums of
// a few rows and COLUMNS columns. A Finish is what becomes of a row's finished sums (finish.h). This file decides who computes
// what, and when.
//
// W [out, in] is packed in groups of COLUMNS outputs, each a stream of words (vectors.h), so that one row's product reads the
// weights from memory front to back. With many rows, a part of a group stays in the first-level cache while all rows use it,
// and meanwhile the next part is asked for. Sums wait in memory between two parts. All this moves the work about, but every
// sum adds its inputs in one order, so a result does not depend on how many rows or threads there are.
#pragma once
#include "team.h"
#include <cstdint>
#include <vector>

// What is asked for from memory long before it is needed: `each` time some cache lines, until `end`. `near`: into the
// first-level cache.
struct Ahead {
    const char *next, *end;
    long each;
    bool near;
    void ask() {
        const char* stop = std::min(end, next + each * 64);
        if (near)
            for (; next < stop; next += 64) __builtin_prefetch(next, 0, 3);
        else
            for (; next < stop; next += 64) __builtin_prefetch(next, 0, 2);
    }
};

struct alignas(64) Line { float sums[16]; };
inline thread_local std::vector<Line> sums_of_item;

// x [rows, in] times `groups` groups of columns. DEPTH: how many steps of a group make a part.
template <class Unit, class Finish>
static void product(const typename Unit::T* x, const float* packed, long rows, long in, long groups, const Finish& finish) {
    if (!rows) return;
    constexpr long COLUMNS = Unit::COLUMNS, NEAR = 8192;
    auto ceil = [](long a, long b) { return (a + b - 1) / b; };
    long steps = ceil(in, Unit::INPUTS), step_bytes = Unit::INPUTS * sizeof *x * COLUMNS, group_bytes = steps * step_bytes;

    // An item: `some_rows` and `some_groups`. Several groups share a part of x while it is in the second-level cache, and their
    // results are neighbours in memory.
    long chunks = ceil(rows, Unit::MOST_ROWS), some_rows = ceil(ceil(rows, chunks), Unit::ROWS) * Unit::ROWS;
    long threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    long some_groups = rows <= Unit::ROWS ? 1 : std::clamp(groups * chunks / (4 * threads), 1L, 4L);
    long parts = ceil(steps, Unit::DEPTH), part = ceil(steps, parts), columns_of_items = ceil(groups, some_groups);

    for_each(chunks * columns_of_items, [&](long item) {
        long first_row = item / columns_of_items * some_rows, first_group = item % columns_of_items * some_groups;
        long n_rows = std::min(some_rows, rows - first_row), n_groups = std::min(some_groups, groups - first_group);
        // All blocks have `height` rows. The last one may begin before the others' end: it computes some rows once more.
        long blocks = ceil(n_rows, Unit::ROWS), height = ceil(n_rows, blocks);
        Unit unit(height);
        size_t lines = n_groups * blocks * height * COLUMNS / 16;
        if (sums_of_item.size() < lines) sums_of_item.resize(lines);
        float* all_sums = sums_of_item[0].sums;
        auto sums_at = [&](long group, long block) { return all_sums + (group * blocks + block) * height * COLUMNS; };
        auto words_at = [&](long group, long step) {
            return (const char*)packed + (first_group + group) * group_bytes + step * step_bytes;
        };
        for (long step = 0; step < steps; step += part) {
            long n_steps = std::min(part, steps - step), bytes = n_steps * step_bytes;
            bool last = step + n_steps == steps;
            for (long group = 0; group < n_groups; group++) {
                const char *words = words_at(group, step), *next = words_at(group + 1, step);
                if (blocks == 1) next = words + NEAR;  // words that are used once are just a stream
                else if (group + 1 == n_groups) next = last ? words_at(n_groups, 0) : words_at(0, step + part);
                for (long block = 0; block < blocks; block++) {
                    long done = block * height, row = std::min(done, n_rows - height);
                    Ahead ahead{next + block * bytes / blocks, next + (block + 1) * bytes / blocks,
                                1 + (step_bytes / 64 - 1) / blocks, blocks == 1};
                    if (last) {  // and for the places where results go, row by row: single cache lines would be slow
                        long slot = group * blocks + block, slots = n_groups * blocks;
                        for (long m = slot * n_rows / slots; m < (slot + 1) * n_rows / slots; m++)
                            for (long g = 0; g < n_groups; g++) finish.template ask<COLUMNS>(first_row + m, first_group + g);
                    }
                    unit.add(x + (first_row + row) * in + step * Unit::INPUTS, in, in - step * Unit::INPUTS, n_steps,
                             (const float*)words, sums_at(group, block), step == 0, ahead);
                }
            }
        }
        for (long block = 0, row = 0; block < blocks; block++)
            for (long start = std::min(row, n_rows - height), m = row - start; m < height; m++, row++)
                for (long g = 0; g < n_groups; g++)
                    finish.template row<COLUMNS>(first_row + row, first_group + g, sums_at(g, block) + m * COLUMNS);
    });
}
