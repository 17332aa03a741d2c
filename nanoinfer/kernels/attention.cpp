// Paged attention with grouped heads: new tokens over their requests' slots, blocks of keys at a time, with a running
// maximum and sum (Milakov and Gimelshein, 2018; FlashAttention). Both products are made of the same tile as `linear`:
// a block of keys, copied together from wherever its slots are, takes the place of the packed weights.
//
// A block is always keys 64 i .. 64 i + 63 of the sequence and blocks are taken in order, so what a token gets does not
// depend on how many tokens are computed together, nor on where their K/V came from.
#include "packing.h"
#include <cmath>
#include <vector>

// What one thread works with: a few query rows of one key head (every token brings the heads that share it).
template <class E>
struct Work {
    typedef typename E::T T;
    long dim, padded, rows;
    std::vector<T> query, probs;
    std::vector<float> keys, values, scores, sums, maximum, total, decay;

    Work(long dim, long max_rows)
        : dim(dim), padded((dim + COLUMNS - 1) / COLUMNS * COLUMNS), query(max_rows * dim), probs(max_rows * BLOCK),
          keys(BLOCK * dim / E::STEP), values(BLOCK * padded / E::STEP), scores(max_rows * BLOCK), sums(max_rows * padded),
          maximum(max_rows), total(max_rows), decay(max_rows) {}

    // scores = query x keys
    void multiply_by_keys() {
        Floats out[ROWS][PANELS];
        for (long row = 0, n; row < rows; row += n) {
            n = share(rows - row);
            for (long c = 0; c < BLOCK; c += COLUMNS) {
                tile<E>(n, &query[row * dim], dim, &keys[c * dim / E::STEP], dim, out);
                for (int m = 0; m < n; m++) memcpy(&scores[(row + m) * BLOCK + c], out[m], sizeof out[m]);
            }
        }
    }

    // sums = sums * decay + probs x values, over the first `count` keys of the block
    void multiply_by_values(long count) {
        Floats out[ROWS][PANELS];
        for (long row = 0, n; row < rows; row += n) {
            n = share(rows - row);
            for (long d = 0; d < padded; d += COLUMNS) {
                tile<E>(n, &probs[row * BLOCK], BLOCK, &values[d * BLOCK / E::STEP], count, out);
                for (int m = 0; m < n; m++)
                    for (int p = 0; p < PANELS; p++) {
                        float* to = &sums[(row + m) * padded + d + p * LANES];
                        store(to, load<Floats>(to) * decay[row + m] + out[m][p]);
                    }
            }
        }
    }

    // One row's scores of a block -> its probabilities, not yet divided by their total. It sees keys first .. last - 1.
    void soften(long row, int first, int last, float scale) {
        float* score = &scores[row * BLOCK];
        T* prob = &probs[row * BLOCK];
        decay[row] = 1;
        if (first >= last) {
            memset(prob, 0, BLOCK * sizeof(T));
            return;
        }
        for (int k = 0; k < first; k++) score[k] = -INFINITY;
        for (int k = last; k < BLOCK; k++) score[k] = -INFINITY;
        Floats most = load<Floats>(score);
        for (int k = LANES; k < last; k += LANES) {
            Floats s = load<Floats>(score + k);
            most = s > most ? s : most;
        }
        float highest = std::max(maximum[row], largest(most) * scale);
        Floats added = {};
        for (int k = 0; k < BLOCK; k += LANES) {
            Floats e = exp_of_negative(load<Floats>(score + k) * scale - highest);
            added += e;
            E::put(prob + k, e);
        }
        decay[row] = std::exp(maximum[row] - highest);
        total[row] = total[row] * decay[row] + sum(added);
        maximum[row] = highest;
    }
};

// q [T, heads, dim] (tokens `q_stride` apart), keys and values [N, kv_heads, dim] -> out [T, heads, dim]. Request b has
// new tokens qo_indptr[b] .. qo_indptr[b + 1] and slots kv_indices[kv_indptr[b] .. kv_indptr[b + 1]], the new ones last.
// `window`: how many tokens back a token sees, itself included; 0 for all. `dim` is even: a head's keys are whole words.
template <class E>
static void attention(const typename E::T* q, const typename E::T* keys, const typename E::T* values,
                      typename E::T* out, const int32_t* kv_indices, const int32_t* kv_indptr, const int32_t* qo_indptr,
                      long batch, long heads, long kv_heads, long dim, long q_stride, float scale, long window) {
    typedef typename E::T T;
    struct Task { int request, head, token; };
    long group = heads / kv_heads, slot_stride = kv_heads * dim;
    int tokens = (int)std::max<long>(1, BLOCK / group);  // at a time
    std::vector<Task> tasks;
    for (int b = 0; b < batch; b++)
        for (int token = qo_indptr[b]; token < qo_indptr[b + 1]; token += tokens)
            for (int head = 0; head < kv_heads; head++) tasks.push_back({b, head, token});
#pragma omp parallel if (tasks.size() > 1)
    {
        Work<E> work(dim, tokens * group);
#pragma omp for schedule(dynamic)
        for (long i = (long)tasks.size() - 1; i >= 0; i--) {  // a prompt's last tokens see most: longest first
            auto [b, head, token] = tasks[i];
            int count = std::min(tokens, qo_indptr[b + 1] - token);
            const int32_t* slots = kv_indices + kv_indptr[b];
            long position = kv_indptr[b + 1] - kv_indptr[b] - (qo_indptr[b + 1] - token), end = position + count;
            work.rows = count * group;
            for (long t = 0; t < count; t++)
                memcpy(&work.query[t * group * dim], q + (token + t) * q_stride + head * group * dim, group * dim * sizeof(T));
            std::fill(work.maximum.begin(), work.maximum.end(), -INFINITY);
            std::fill(work.total.begin(), work.total.end(), 0.0f);
            std::fill(work.sums.begin(), work.sums.end(), 0.0f);

            long start = window ? std::max(0L, position - window + 1) / BLOCK * BLOCK : 0;
            for (long block = start; block < end; block += BLOCK) {
                int present = (int)std::min<long>(BLOCK, end - block);
                int following = (int)std::clamp(end - block - BLOCK, 0L, (long)BLOCK);
                prefetch(values + head * dim, slot_stride, slots + block, present, dim);
                pack_keys((const float*)(keys + head * dim), slot_stride / E::STEP, slots + block, present, dim / E::STEP,
                          work.keys.data());
                pack_values<E>(values + head * dim, slot_stride, slots + block, present, dim, work.values.data());
                prefetch(keys + head * dim, slot_stride, slots + block + BLOCK, following, dim);
                work.multiply_by_keys();
                for (long row = 0; row < work.rows; row++) {
                    long at = position + row / group - block;  // the row's own key, counted from the block's first
                    long first = window ? std::max(0L, at - window + 1) : 0;
                    work.soften(row, (int)std::min<long>(first, BLOCK), (int)std::clamp(at + 1, 0L, (long)BLOCK), scale);
                }
                work.multiply_by_values((present + E::STEP - 1) / E::STEP * E::STEP);
            }
            for (long row = 0; row < work.rows; row++) {
                T* to = out + ((token + row / group) * heads + head * group + row % group) * dim;
                const float* sums = &work.sums[row * work.padded];
                float inverse = 1 / work.total[row];
                long d = 0;
                for (; d + LANES <= dim; d += LANES) E::put(to + d, load<Floats>(sums + d) * inverse);
                for (; d < dim; d++) to[d] = E::put1(sums[d] * inverse);
            }
        }
    }
}
