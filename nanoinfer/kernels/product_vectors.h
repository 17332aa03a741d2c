// Products by vectors of floats: up to 6 rows and COLUMNS columns at a time, whose sums all stay in registers.
#pragma once
#include "product.h"
#include "vectors.h"

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
        Floats sums[M][PANELS] = {};
        if (!fresh) memcpy(sums, out, sizeof sums);
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
        memcpy(out, sums, sizeof sums);
    }
};
