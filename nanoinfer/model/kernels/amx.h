// AMX: registers that hold whole tiles, 16 rows of 64 bytes, and an instruction that multiplies two of them.
//
//     c [16 rows][16 floats] += a [16 rows][16 words] x b [16 words][16 columns]        a word is 2 bfloat16 or 4 int8
//
// `b` is laid out as `linear` packs its weights: a row for every word of the input, 16 neighbouring columns of COLUMNS. The
// processor adds up a tile's products in an order of its own, which is the same for every row and every number of rows.
#pragma once
#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)
#define HAS_AMX
#include <cstdint>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr int TILE_ROWS = 16, TILE_WORDS = 16;

// Whether the operating system lets this process use tiles. It is asked once.
inline bool amx_allowed() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool allowed = !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
    return allowed;
}

struct TileRows { uint8_t of[8]; };  // how many rows each tile has

// The 8 tiles, for as long as the object lives. Other libraries configure tiles, too, so nothing is left behind: every item of
// work makes its own.
struct Tiles {
    explicit Tiles(TileRows rows = {16, 16, 16, 16, 16, 16, 16, 16}) {
        struct alignas(64) { uint8_t palette = 1, start = 0, unused[14] = {}; uint16_t bytes[16] = {}; uint8_t rows[16] = {}; } shape;
        for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = rows.of[i];
        asm volatile("" ::"r"(&shape) : "memory");  // the intrinsic does not tell the compiler how much it reads
        _tile_loadconfig(&shape);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
};
#endif
