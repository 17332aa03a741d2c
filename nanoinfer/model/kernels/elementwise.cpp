// The small operations between the products. Each does in one pass over its data what torch does in several.
#include "team.h"
#include "vectors.h"
#include <cmath>

// to = from / rms(from) * weight, `size` elements. `to` may be `from`.
template <class E>
static void norm_row(const typename E::T* from, const typename E::T* weight, typename E::T* to, long size, float eps) {
    Floats squares = {};
    float square = 0;
    long i = 0;
    for (; i + LANES <= size; i += LANES) { Floats v = E::get(from + i); squares += v * v; }
    for (; i < size; i++) square += E::get1(from[i]) * E::get1(from[i]);
    float scale = 1.0f / std::sqrt((sum(squares) + square) / size + eps);
    for (i = 0; i + LANES <= size; i += LANES) {
        Floats scaled = as_stored<E>(E::get(from + i) * scale);  // rounded before the weight, as the reference does
        E::put(to + i, scaled * E::get(weight + i));
    }
    for (; i < size; i++) to[i] = E::put1(E::get1(E::put1(E::get1(from[i]) * scale)) * E::get1(weight[i]));
}

// residual += x (where a residual is given), then out = residual / rms(residual) * weight. `size` elements a row.
template <class E>
static void add_rms_norm(const typename E::T* x, typename E::T* residual, const typename E::T* weight, typename E::T* out,
                         long rows, long size, float eps) {
    typedef typename E::T T;
    for_each_row(rows, size, [&](long row) {
        const T* from = x + row * size;
        if (residual) {
            T* both = residual + row * size;
            long i = 0;
            for (; i + LANES <= size; i += LANES) E::put(both + i, E::get(both + i) + E::get(from + i));
            for (; i < size; i++) both[i] = E::put1(E::get1(both[i]) + E::get1(from[i]));
            from = both;
        }
        norm_row<E>(from, weight, out + row * size, size, eps);
    });
}

// Norms the first `heads` heads of each row in place, each over its own `dim` elements.
template <class E>
static void norm_heads(typename E::T* x, const typename E::T* weight, long rows, long row_stride, long heads, long dim,
                       float eps) {
    for_each_row(rows, heads * dim, [&](long row) {
        for (long head = 0; head < heads; head++) {
            typename E::T* at = x + row * row_stride + head * dim;
            norm_row<E>(at, weight, at, dim, eps);
        }
    });
}

// Turns the first `heads` heads of each row in place, by the angles of the row's position: cos, sin [max_len, dim / 2].
template <class E>
static void rotate(typename E::T* x, const typename E::T* cos, const typename E::T* sin, const int64_t* positions,
                   long rows, long row_stride, long heads, long dim) {
    typedef typename E::T T;
    long half = dim / 2;
    for_each_row(rows, heads * dim, [&](long row) {
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
    });
}

// out[i] = activation(gate[i]) * up[i], the gates of a row before its ups: x [rows, 2 * size] -> out [rows, size].
template <class E, class Activation>
static void activation_and_mul(const typename E::T* x, typename E::T* out, long rows, long size) {
    for_each_row(rows, size, [&](long row) {
        const typename E::T *gate = x + row * 2 * size, *up = gate + size;
        for (long i = 0; i < size; i += LANES) {
            long n = std::min<long>(LANES, size - i);
            put_some<E>(out + row * size + i, n, gated<Activation>(get_some<E>(gate + i, n), get_some<E>(up + i, n)));
        }
    });
}

// out = a + b.
template <class E>
static void add(const typename E::T* a, const typename E::T* b, typename E::T* out, long rows, long size) {
    for_each_row(rows, size, [&](long row) {
        for (long i = row * size; i < (row + 1) * size; i++) out[i] = E::put1(E::get1(a[i]) + E::get1(b[i]));
    });
}

// x *= factor, in place.
template <class E>
static void scale(typename E::T* x, long rows, long size, float factor) {
    for_each_row(rows, size, [&](long row) {
        for (long i = row * size; i < (row + 1) * size; i++) x[i] = E::put1(E::get1(x[i]) * factor);
    });
}

// x = cap * tanh(x / cap), in place: by the C library, since a model does it once, on its logits.
template <class E>
static void softcap(typename E::T* x, long rows, long size, float cap) {
    for_each_row(rows, size, [&](long row) {
        for (long i = row * size; i < (row + 1) * size; i++)
            x[i] = E::put1(E::get1(E::put1(std::tanh(E::get1(E::put1(E::get1(x[i]) / cap))))) * cap);
    });
}
