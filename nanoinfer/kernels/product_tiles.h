// Products of bfloat16 by AMX (amx.h): up to 32 rows and 32 columns at a time, a step of 32 inputs with every instruction.
#pragma once
#include "amx.h"
#if defined(HAS_AMX)
#include "product.h"
#include <cstring>

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
