// Rows of memory that are copied from or to places that a list names: the table of embeddings, and the slots of K/V.
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
