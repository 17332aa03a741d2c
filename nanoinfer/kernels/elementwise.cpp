// The small operations between the products. Each does in one pass over its data what torch does in several.
#include "vectors.h"
#include <cmath>

// residual += x (where a residual is given), then out = residual / rms(residual) * weight. `size` elements a row.
template <class E>
static void add_rms_norm(const typename E::T* x, typename E::T* residual, const typename E::T* weight, typename E::T* out,
                         long rows, long size, float eps) {
    typedef typename E::T T;
#pragma omp parallel for schedule(static) if (rows * size > 65536)
    for (long row = 0; row < rows; row++) {
        const T* from = x + row * size;
        T* to = out + row * size;
        if (residual) {
            T* both = residual + row * size;
            long i = 0;
            for (; i + LANES <= size; i += LANES) E::put(both + i, E::get(both + i) + E::get(from + i));
            for (; i < size; i++) both[i] = E::put1(E::get1(both[i]) + E::get1(from[i]));
            from = both;
        }
        Floats squares = {};
        float square = 0;
        long i = 0;
        for (; i + LANES <= size; i += LANES) { Floats v = E::get(from + i); squares += v * v; }
        for (; i < size; i++) square += E::get1(from[i]) * E::get1(from[i]);
        float scale = 1.0f / std::sqrt((sum(squares) + square) / size + eps);
        for (i = 0; i + LANES <= size; i += LANES) {
            E::put(to + i, E::get(from + i) * scale);  // rounded before the weight, as the reference does
            E::put(to + i, E::get(to + i) * E::get(weight + i));
        }
        for (; i < size; i++) to[i] = E::put1(E::get1(E::put1(E::get1(from[i]) * scale)) * E::get1(weight[i]));
    }
}

// Turns the first `heads` heads of each row in place, by the angles of the row's position: cos, sin [max_len, dim / 2].
template <class E>
static void rotate(typename E::T* x, const typename E::T* cos, const typename E::T* sin, const int64_t* positions,
                   long rows, long row_stride, long heads, long dim) {
    typedef typename E::T T;
    long half = dim / 2;
#pragma omp parallel for schedule(static) if (rows * heads * dim > 65536)
    for (long row = 0; row < rows; row++) {
        const T *c = cos + positions[row] * half, *s = sin + positions[row] * half;
        for (long head = 0; head < heads; head++) {
            T *a = x + row * row_stride + head * dim, *b = a + half;
            long i = 0;
            for (; i + LANES <= half; i += LANES) {
                Floats first = E::get(a + i), second = E::get(b + i), co = E::get(c + i), si = E::get(s + i);
                E::put(a + i, first * co - second * si);
                E::put(b + i, second * co + first * si);
            }
            for (; i < half; i++) {
                float first = E::get1(a[i]), second = E::get1(b[i]), co = E::get1(c[i]), si = E::get1(s[i]);
                a[i] = E::put1(first * co - second * si);
                b[i] = E::put1(second * co + first * si);
            }
        }
    }
}

// Both activations are v * sigmoid(inner(v)): for GELU by tanh because (1 + tanh u) / 2 = sigmoid(2 u), where
// u = sqrt(2 / pi) * (v + 0.044715 v^3).
struct Silu { static Floats inner(Floats v) { return v; } };
struct GeluTanh { static Floats inner(Floats v) { return 1.5957691216f * (v + 0.044715f * v * v * v); } };

// out[i] = activation(gate[i]) * up[i], the gates of a row before its ups: x [rows, 2 * size] -> out [rows, size].
template <class E, class Activation>
static void activation_and_mul(const typename E::T* x, typename E::T* out, long rows, long size) {
    typedef typename E::T T;
#pragma omp parallel for schedule(static) if (rows * size > 16384)
    for (long row = 0; row < rows; row++) {
        const T *gate = x + row * 2 * size, *up = gate + size;
        T* to = out + row * size;
        for (long i = 0; i < size; i += LANES) {
            T g[LANES] = {}, u[LANES] = {}, o[LANES];
            long n = size - i < LANES ? size - i : LANES;
            bool whole = n == LANES;
            if (!whole) { memcpy(g, gate + i, n * sizeof(T)); memcpy(u, up + i, n * sizeof(T)); }
            Floats v = E::get(whole ? gate + i : g), w = Activation::inner(v);
            Floats e = exp_of_negative(w < 0 ? w : -w);  // e^-|w| never overflows
            Floats sigmoid = (w < 0 ? e : Floats{} + 1.0f) / (1.0f + e);
            Floats result = v * sigmoid * E::get(whole ? up + i : u);
            E::put(whole ? to + i : o, result);
            if (!whole) memcpy(to + i, o, n * sizeof(T));
        }
    }
}
