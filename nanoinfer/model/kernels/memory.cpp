// Rows of memory that are copied from or to places that a list names: the table of embeddings, and the slots of K/V.
#include "packing.h"
#include "team.h"
#include <cstdint>
#include <cstring>

// out[i] = table[index[i]]: rows of `size` bytes. The caller has checked the indices.
static void gather(const char* table, const int64_t* index, char* out, long rows, long size) {
    for_each_row(rows, size, [&](long i) { memcpy(out + i * size, table + index[i] * size, size); });
}

// keys[slots[i]] = k[i] and values[slots[i]] = v[i]: rows of `size` bytes; those of k and v are `stride` bytes apart. A row
// whose slot is -1 is not stored.
static void store_kv(const char* k, const char* v, const int32_t* slots, char* keys, char* values, long rows, long size,
                       long stride) {
    for_each_row(rows, size, [&](long i) {
        if (slots[i] < 0) return;
        memcpy(keys + slots[i] * size, k + i * stride, size);
        memcpy(values + slots[i] * size, v + i * stride, size);
    });
}

// Storing K/V as int8 numbers with a scale per slot and head (see cache/kv_storage.py, whose arithmetic this is).

// A head's `dim` elements -> `numbers` and the scale that they are to be multiplied by.
template <class E>
static void quantize(const typename E::T* from, int8_t* numbers, float* scale, long dim) {
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    auto elements = [&](long d) {
        if (d + LANES <= dim) return E::get(from + d);
        typename E::T some[LANES] = {};
        memcpy(some, from + d, (dim - d) * sizeof *from);
        return E::get(some);
    };
    Floats most = {};
    for (long d = 0; d < dim; d += LANES) most = larger(most, (Floats)((Ints)elements(d) & 0x7fffffff));
    *scale = largest(most) / 127;
    float divisor = *scale > 0 ? *scale : 1;
    for (long d = 0; d < dim; d += LANES) {
        constexpr float WHOLE = 1.5f * (1 << 23);  // so large that its neighbours are the whole numbers: adding it rounds
        Floats rounded = elements(d) / divisor + WHOLE - WHOLE;
        Floats bounded = -larger(-larger(rounded, Floats{} - 127.0f), Floats{} - 127.0f);
        Bytes bytes = __builtin_convertvector(__builtin_convertvector(bounded, Ints), Bytes);
        memcpy(numbers + d, &bytes, std::min<long>(LANES, dim - d));
    }
}

// k and v [rows, heads, dim] (rows `stride` elements apart) -> slots of keys, values [N, heads, dim] and their scales
// [N, heads]. A row whose slot is -1 is not stored.
template <class E>
static void store_int8(const typename E::T* k, const typename E::T* v, const int32_t* slots, int8_t* keys, int8_t* values,
                       float* key_scales, float* value_scales, long rows, long heads, long dim, long stride) {
    for_each_row(rows, heads * dim, [&](long i) {
        if (slots[i] < 0) return;
        for (long head = 0; head < heads; head++) {
            long at = slots[i] * heads + head;
            quantize<E>(k + i * stride + head * dim, keys + at * dim, key_scales + at, dim);
            quantize<E>(v + i * stride + head * dim, values + at * dim, value_scales + at, dim);
        }
    });
}
