// How fast this CPU multiplies when nothing has to be loaded: loops over registers, made of the instructions that the
// kernels use. Each function runs `rounds` rounds on every thread and returns the operations done (a multiplication and an
// addition are two), or 0 if the CPU has no such instruction.
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, SUMS = 24;  // as many sums as the kernels' tile keeps in registers
#else
constexpr int LANES = 8, SUMS = 12;
#endif
typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));

// Runs `body(sums, a, b)` on every thread. The sums are independent, so no instruction waits for the one before it.
template <class V, class Body>
static double repeat(long rounds, double per_instruction, Body body) {
    double operations = 0;
#pragma omp parallel reduction(+ : operations)
    {
        V sums[SUMS] = {}, a = {}, b = {};
        for (long round = 0; round < rounds; round++) {
            asm volatile("" : "+v"(a), "+v"(b));  // the compiler must not take the loop apart
#pragma GCC unroll 24
            for (int i = 0; i < SUMS; i++) body(sums[i], a, b);
#pragma GCC unroll 24
            for (int i = 0; i < SUMS; i++) asm volatile("" : "+v"(sums[i]));
        }
        operations += rounds * SUMS * per_instruction;
    }
    return operations;
}

extern "C" double peak_float32(long rounds) {
#if defined(__FMA__) || defined(__AVX512F__)
    return repeat<Floats>(rounds, 2.0 * LANES, [](Floats& sum, Floats a, Floats b) { sum += a * b; });
#else
    return 0;
#endif
}

extern "C" double peak_bfloat16(long rounds) {
#if defined(__AVX512BF16__)
    return repeat<Floats>(rounds, 4.0 * LANES, [](Floats& sum, Floats a, Floats b) {
        sum = _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    });
#else
    return 0;
#endif
}

extern "C" double peak_int8(long rounds) {
#if defined(__AVX512VNNI__)
    return repeat<Ints>(rounds, 8.0 * LANES, [](Ints& sum, Ints a, Ints b) {
        sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
    });
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return repeat<Ints>(rounds, 8.0 * LANES, [](Ints& sum, Ints a, Ints b) {
        sum = (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
    });
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return repeat<Ints>(rounds, 8.0 * LANES, [](Ints& sum, Ints a, Ints b) {
        __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
        sum += (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    });
#else
    return 0;
#endif
}

#if defined(__AMX_TILE__)
// Eight tiles of 16 rows by 64 bytes. It is a constant, because GCC 12 would leave out stores to a local variable: it
// believes that _tile_loadconfig reads 8 bytes.
static const struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } TILES = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Four sums, of two tiles by two tiles. `multiply` does one round: four products.
template <class Multiply>
static double repeat_tiles(long rounds, double per_instruction, Multiply multiply) {
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return 0;  // ask Linux for the tiles' registers
    double operations = 0;
#pragma omp parallel reduction(+ : operations)
    {
        _tile_loadconfig(&TILES);
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
        for (long round = 0; round < rounds; round++) multiply();
        _tile_release();
        operations += rounds * 4 * per_instruction;
    }
    return operations;
}
#endif

extern "C" double peak_bfloat16_amx(long rounds) {
#if defined(__AMX_BF16__)
    return repeat_tiles(rounds, 2.0 * 16 * 16 * 32, [] {
        _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    });
#else
    return 0;
#endif
}

extern "C" double peak_int8_amx(long rounds) {
#if defined(__AMX_INT8__)
    return repeat_tiles(rounds, 2.0 * 16 * 16 * 64, [] {
        _tile_dpbusd(0, 4, 6); _tile_dpbusd(1, 4, 7); _tile_dpbusd(2, 5, 6); _tile_dpbusd(3, 5, 7);
    });
#else
    return 0;
#endif
}
