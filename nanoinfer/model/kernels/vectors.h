// What the kernels share: vectors of floats, and the two element types.
#pragma once
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#if defined(__AVX512F__)
constexpr int LANES = 16, PANELS = 4;  // 32 registers of 16 floats
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int LANES = 8, PANELS = 2;  // 16 registers of 8 floats
#else
#error "needs AVX2 with FMA, or AVX-512"
#endif
constexpr int COLUMNS = PANELS * LANES;  // outputs that one tile computes side by side
constexpr int ROWS = 6;                  // rows of one tile at most: PANELS * ROWS sums stay in registers

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));

template <class V, class T> inline V load(const T* from) { V v; memcpy(&v, from, sizeof v); return v; }
template <class V, class T> inline void store(T* to, V v) { memcpy(to, &v, sizeof v); }

// a * b + sum, rounded once. The compiler may do the same to `a * b + sum`, or may not.
inline Floats multiply_add(Floats a, Floats b, Floats sum) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, sum);
#else
    return _mm256_fmadd_ps(a, b, sum);
#endif
}

// e^x for x <= 0, exactly 0 below the smallest normal number: 2^n * e^r with n whole and |r| <= ln(2) / 2, by the
// polynomial of the Cephes library.
inline Floats exp_of_negative(Floats x) {
    Ints n = __builtin_convertvector(x * 1.44269504f - 0.5f, Ints);  // rounds to nearest: x is not positive
    Floats whole = __builtin_convertvector(n, Floats);
    Floats r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Floats p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Ints bits = (Ints)p + (n << 23);
    return (Floats)(x < -87.0f ? Ints{} : bits);
}

inline float sum(Floats v) { float s = 0; for (int i = 0; i < LANES; i++) s += v[i]; return s; }
inline float largest(Floats v) { float m = v[0]; for (int i = 1; i < LANES; i++) m = v[i] > m ? v[i] : m; return m; }

// An element type: how floats are loaded and stored, and the step of a dot product that one vector instruction takes, between
// words in vectors and one word or as many others. STEP elements of every column lie together, so a "word" is 4 bytes for both types.
struct Float32 {
    typedef float T;
    static constexpr int STEP = 1;
    static Floats get(const T* from) { return load<Floats>(from); }
    static void put(T* to, Floats v) { store(to, v); }
    static float get1(T x) { return x; }
    static T put1(float x) { return x; }
    static Floats multiply_add(Floats sum, Floats words, const T* x) { return sum + words * *x; }
    static Floats multiply_add(Floats sum, Floats words, Floats others) { return ::multiply_add(words, others, sum); }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
    typedef uint16_t T;
    static constexpr int STEP = 2;
    static Floats get(const T* from) {
        return (Floats)((Ints)_mm512_cvtepu16_epi32(load<__m256i>(from)) << 16);  // g++ 12 makes four of __builtin_convertvector
    }
    static void put(T* to, Floats v) { store(to, _mm512_cvtneps_pbh(v)); }
    static float get1(T x) { uint32_t bits = (uint32_t)x << 16; float f; memcpy(&f, &bits, 4); return f; }
    static T put1(float x) { T all[LANES]; put(all, x - Floats{}); return all[0]; }
    static Floats multiply_add(Floats sum, Floats words, const T* x) {
        return multiply_add(sum, words, (Floats)_mm512_set1_epi32(load<int32_t>(x)));
    }
    static Floats multiply_add(Floats sum, Floats words, Floats others) {
        return _mm512_dpbf16_ps(sum, (__m512bh)words, (__m512bh)others);
    }
};
#else
// Without instructions for bfloat16: an element is the upper half of a float, and a word becomes two floats.
struct BFloat16 {
    typedef uint16_t T;
    static constexpr int STEP = 2;
    static constexpr int32_t UPPER = 0xffff0000;
    static Floats get(const T* from) {
#if defined(__AVX512F__)
        return lower_as_float((Floats)_mm512_cvtepu16_epi32(load<__m256i>(from)));
#else
        return lower_as_float((Floats)_mm256_cvtepu16_epi32(load<__m128i>(from)));
#endif
    }
    static void put(T* to, Floats v) {
        typedef T Elements __attribute__((vector_size(LANES * sizeof(T))));
        store(to, __builtin_convertvector((Ints)rounded(v) >> 16, Elements));
    }
    static float get1(T x) { uint32_t bits = (uint32_t)x << 16; float f; memcpy(&f, &bits, 4); return f; }
    static T put1(float x) { T all[LANES]; put(all, x - Floats{}); return all[0]; }
    static Floats multiply_add(Floats sum, Floats words, const T* x) {
        Ints word = load<int32_t>(x) - Ints{};
        asm("" : "+v"(word));  // or g++ makes its two floats one by one, outside the vectors' registers
        return multiply_add(sum, words, (Floats)word);
    }
    static Floats multiply_add(Floats sum, Floats words, Floats others) {
        Floats lower = lower_as_float(words) * lower_as_float(others);  // exact; a sum waits for one operation, not for two
        return sum + ::multiply_add(upper_as_float(words), upper_as_float(others), lower);
    }

    // The nearest floats whose lower halves are 0, of two equally near ones the even one. NaN stays NaN.
    static Floats rounded(Floats v) {
        Ints bits = (Ints)v, nearest = bits + 0x7fff + (bits >> 16 & 1);
        return (Floats)((v == v ? nearest : bits | 0x400000) & UPPER);
    }
    // Words of two elements each, which are floats as `rounded` makes them.
    static Floats words_of(Floats lower, Floats upper) { return (Floats)((Ints)lower >> 16 & ~UPPER | (Ints)upper); }

  private:
    static Floats lower_as_float(Floats words) { return (Floats)((Ints)words << 16); }
    static Floats upper_as_float(Floats words) { return (Floats)((Ints)words & UPPER); }
};
#endif

// The first `n` of LANES elements are loaded, the others are 0; or they are stored, and the others are left alone.
template <class E> inline Floats get_some(const typename E::T* from, long n) {
    if (n >= LANES) return E::get(from);
    typename E::T some[LANES] = {};
    memcpy(some, from, n * sizeof *from);
    return E::get(some);
}
template <class E> inline void put_some(typename E::T* to, long n, Floats v) {
    if (n >= LANES) return E::put(to, v);
    typename E::T some[LANES];
    E::put(some, v);
    memcpy(to, some, n * sizeof *to);
}

// What is left of `v` when it has been stored as the element type.
template <class E> inline Floats as_stored(Floats v) {
    typename E::T stored[LANES];
    E::put(stored, v);
    return E::get(stored);
}

// How many rows the next tile takes when `left` are to do: even shares, so that 7 rows are 4 + 3 and not 6 + 1.
inline int share(long left) { long tiles = (left + ROWS - 1) / ROWS; return (int)((left + tiles - 1) / tiles); }

// What a gate does to the output beside it.
//
// Both activations are v * sigmoid(inner(v)): for GELU by tanh because (1 + tanh u) / 2 = sigmoid(2 u), where
// u = sqrt(2 / pi) * (v + 0.044715 v^3).
struct Silu { static Floats inner(Floats v) { return v; } };
struct GeluTanh { static Floats inner(Floats v) { return 1.5957691216f * (v + 0.044715f * v * v * v); } };

// activation(gate) * up
template <class Activation>
inline Floats gated(Floats gate, Floats up) {
    Floats w = Activation::inner(gate);
    Floats e = exp_of_negative(w < 0 ? w : -w);  // e^-|w| never overflows
    Floats sigmoid = (w < 0 ? e : Floats{} + 1.0f) / (1.0f + e);
    return gate * sigmoid * up;
}
