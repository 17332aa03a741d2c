// The library's entry points: every kernel for every element type, `<kernel>_<type>` (see program.h).
#include "draw.cpp"
#include "attention.cpp"
#include "elementwise.cpp"
#include "int4.cpp"
#include "int8.cpp"
#include "linear.cpp"
#include "low_rank.cpp"
#include "memory.cpp"
#include "moe.cpp"
#include "program.h"

#define FOR_TYPE(E, type)                                                                                              \
    EXPORT(linear_##type, linear<E>)                                                                                   \
    EXPORT(linear_silu_and_mul_##type, gated_linear<E, Silu>)                                                          \
    EXPORT(linear_gelu_tanh_and_mul_##type, gated_linear<E, GeluTanh>)                                                 \
    EXPORT(low_rank_##type, low_rank<E>)                                                                               \
    EXPORT(linear_argmax_##type, linear_argmax<E>)                                                                     \
    EXPORT(add_rms_norm_##type, add_rms_norm<E>)                                                                       \
    EXPORT(norm_heads_##type, norm_heads<E>)                                                                           \
    EXPORT(rotate_##type, rotate<E>)                                                                                   \
    EXPORT(silu_and_mul_##type, activation_and_mul<E, Silu>)                                                           \
    EXPORT(gelu_tanh_and_mul_##type, activation_and_mul<E, GeluTanh>)                                                  \
    EXPORT(add_##type, add<E>)                                                                                         \
    EXPORT(scale_##type, scale<E>)                                                                                     \
    EXPORT(softcap_##type, softcap<E>)                                                                                 \
    EXPORT(store_int8_##type, store_int8<E>)                                                                           \
    EXPORT(attention_##type, attention<E>)                                                                             \
    EXPORT(dispatch_##type, dispatch<E>)                                                                               \
    EXPORT(combine_##type, combine<E>)                                                                                 \
    EXPORT(run_multi_step_##type, run_multi_step_of<E>)                                                                \
    extern "C" const char* instructions_##type() { return instructions_of<E>(); }                                      \
    extern "C" long linear_columns_##type() { return columns_of<E>(); }                                                \
    extern "C" long linear_inputs_##type() { return inputs_of<E>(); }

FOR_TYPE(Float32, float32)
FOR_TYPE(BFloat16, bfloat16)
#if defined(HAS_BYTES)
EXPORT(int8_linear_float32, int8_linear<Float32>)
EXPORT(int4_linear_float32, groups_linear<Float32, 4, false>)
EXPORT(int4_minimum_linear_float32, groups_linear<Float32, 4, true>)
EXPORT(int8_groups_linear_float32, groups_linear<Float32, 8, false>)
EXPORT(int8_linear_bfloat16, int8_linear<BFloat16>)
EXPORT(int4_linear_bfloat16, groups_linear<BFloat16, 4, false>)
EXPORT(int4_minimum_linear_bfloat16, groups_linear<BFloat16, 4, true>)
EXPORT(int8_groups_linear_bfloat16, groups_linear<BFloat16, 8, false>)
#endif
EXPORT(draw, draw_tokens<Float32>)
EXPORT(gather_rows, gather)
EXPORT(store_rows, store_kv)
EXPORT(replay, replay_calls)
extern "C" long columns() { return COLUMNS; }
