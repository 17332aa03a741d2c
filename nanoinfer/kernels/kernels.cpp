// The library's entry points: every kernel for every element type, `<kernel>_<type>`, callable from C.
#include "attention.cpp"
#include "elementwise.cpp"
#include "linear.cpp"

#define FOR_TYPE(E, name)                                                                                              \
    extern "C" void linear_##name(const E::T* x, const float* packed, const E::T* bias, E::T* y, long rows, long in,   \
                                  long out) {                                                                          \
        linear<E>(x, packed, bias, y, rows, in, out);                                                                  \
    }                                                                                                                  \
    extern "C" void add_rms_norm_##name(const E::T* x, E::T* residual, const E::T* weight, E::T* out, long rows,       \
                                        long size, float eps) {                                                        \
        add_rms_norm<E>(x, residual, weight, out, rows, size, eps);                                                    \
    }                                                                                                                  \
    extern "C" void rotate_##name(E::T* x, const E::T* cos, const E::T* sin, const int64_t* positions, long rows,      \
                                  long row_stride, long heads, long dim) {                                             \
        rotate<E>(x, cos, sin, positions, rows, row_stride, heads, dim);                                               \
    }                                                                                                                  \
    extern "C" void silu_and_mul_##name(const E::T* x, E::T* out, long rows, long size) {                              \
        activation_and_mul<E, Silu>(x, out, rows, size);                                                               \
    }                                                                                                                  \
    extern "C" void gelu_tanh_and_mul_##name(const E::T* x, E::T* out, long rows, long size) {                         \
        activation_and_mul<E, GeluTanh>(x, out, rows, size);                                                           \
    }                                                                                                                  \
    extern "C" void attention_##name(const E::T* q, const E::T* keys, const E::T* values, E::T* out,                   \
                                     const int32_t* kv_indices, const int32_t* kv_indptr, const int32_t* qo_indptr,    \
                                     long batch, long heads, long kv_heads, long dim, long q_stride, float scale,      \
                                     long window) {                                                                    \
        attention<E>(q, keys, values, out, kv_indices, kv_indptr, qo_indptr, batch, heads, kv_heads, dim, q_stride,    \
                     scale, window);                                                                                   \
    }

FOR_TYPE(Float32, float32)
#if defined(__AVX512BF16__)
FOR_TYPE(BFloat16, bfloat16)
#endif
extern "C" long columns() { return COLUMNS; }
