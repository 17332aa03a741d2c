// Paged attention with grouped heads: new tokens over their requests' slots, a block of keys at a time.
//
// A block is always keys 64 i .. 64 i + 63 of the sequence and blocks are taken in order, so what a token gets does not
// depend on how many tokens are computed together, nor on where their K/V came from. While a block is computed, memory is asked
// for the one that follows: slots may be anywhere, so the processor cannot foresee it.
#include "query_rows.h"
#include "team.h"

// Some new tokens of a request, and the key heads whose rows are computed together.
struct AttentionTask { int request, token, tokens, head, heads; };

// Divides a pass into tasks. As many rows as possible share the work of packing a block, as long as all threads have some.
// Where each request has few rows, all its heads go together, too, because their keys are neighbours in memory; but not those
// of a request with so many keys that a thread could end up with nothing else. A VERIFY gives a request several times, once
// for each of its tokens: these rows share keys, too, and all their heads can be computed in the place of one token's.
static void divide(const int32_t* kv_start, const int32_t* seq_lens, const int32_t* qo_indptr, long batch, long heads,
                   long kv_heads, std::vector<AttentionTask>& tasks) {
    constexpr long LEAST_ROWS = 64, MOST_ROWS = 512;
    long threads = omp_get_max_threads ? omp_get_max_threads() : 1, share = heads / kv_heads, total = qo_indptr[batch];
    long tokens = std::max(1L, std::clamp(total * heads / threads, LEAST_ROWS, MOST_ROWS) / share);
    bool few = total <= batch && share <= LANES;
    auto goes_on = [&](int b) {  // whether the next request is the same one with its next tokens
        return b + 1 < batch && seq_lens[b] && kv_start[b + 1] == kv_start[b] &&
               seq_lens[b + 1] == seq_lens[b] + qo_indptr[b + 2] - qo_indptr[b + 1];
    };
    long keys = 0;
    for (int b = 0; b < batch; b++) keys += goes_on(b) ? 0 : seq_lens[b];
    tasks.clear();
    for (int b = 0, token = 0; b < batch; b++) {
        if (goes_on(b)) continue;
        int together = few && (threads == 1 || seq_lens[b] * 2 * threads <= keys) ? kv_heads : 1, end = qo_indptr[b + 1];
        for (; seq_lens[b] && token < end; token += tokens)
            for (int head = 0; head < kv_heads; head += together)
                tasks.push_back({b, token, (int)std::min<long>(tokens, end - token), head, together});
        token = end;
    }
}

// q [T, heads, dim] (tokens `q_stride` apart), keys and values [N, kv_heads, dim] -> out [T, heads, dim]. Request b has
// new tokens qo_indptr[b] .. qo_indptr[b + 1] and `seq_lens[b]` slots from kv_indices[kv_start[b]], the new tokens' last.
// A request without slots is padding: its rows of `out` are left as they are.
// `key_scales`, `value_scales` [N, kv_heads]: keys and values are int8, these times a scale; null: they are elements.
// `window`: how many tokens back a token sees, itself included; 0 for all. `cap`: bounds the scores by cap * tanh(score / cap);
// 0 for no bound.
template <class E>
static void attention(const typename E::T* q, const void* keys, const void* values, const float* key_scales,
                      const float* value_scales, typename E::T* out, const int32_t* kv_indices, const int32_t* kv_start,
                      const int32_t* seq_lens, const int32_t* qo_indptr, long batch, long heads, long kv_heads, long dim,
                      long q_stride, float scale, long window, float cap) {
    static thread_local std::vector<AttentionTask> tasks;
    const Stored<E> k{keys, key_scales, kv_heads, dim}, v{values, value_scales, kv_heads, dim};
    long share = heads / kv_heads;
    divide(kv_start, seq_lens, qo_indptr, batch, heads, kv_heads, tasks);
    const AttentionTask *first_task = tasks.data(), *last_task = first_task + tasks.size() - 1;
    auto position_of = [=](const AttentionTask& task) {
        return seq_lens[task.request] - (qo_indptr[task.request + 1] - task.token);
    };
    auto first_key_of = [=](long position) { return window ? std::max(0L, position + 1 - window) : 0; };
    // Keys and values of the block from key `block` on.
    auto ask_for = [=](const AttentionTask& task, long block, long head) {
        const int32_t* slots = kv_indices + kv_start[task.request] + block;
        long present = std::min<long>(BLOCK, position_of(task) + task.tokens - block);
        k.ask(task.head + head, slots, present), v.ask(task.head + head, slots, present);
    };
    // Returns whether all results are finite. `after`: what is computed next; null for nothing.
    auto compute = [=](const AttentionTask& task, const AttentionTask* after) {
        const int32_t* slots = kv_indices + kv_start[task.request];
        long position = position_of(task), end = position + task.tokens, rows = task.tokens * share;
        QueryRows<E> work(dim, rows, task.heads);
        KVBlock<E> kv(work.padded);
        Tiles tiles;
        auto head_of = [&](long head, long row) { return (task.head + head) * share + row % share; };
        // The keys that the task's t-th token sees, and the block where the first of them is.
        auto end_of = [&](long t) { return position + t + 1; };
        auto first_of = [&](long t) { return first_key_of(position + t); };
        auto first_block_of = [&](long t) { return first_of(t) / BLOCK * BLOCK; };

        for (long h = 0; h < task.heads; h++)
            work.load(h, [&](long row) { return q + (task.token + row / share) * q_stride + head_of(h, row) * dim; });
        for (long block = first_block_of(0); block < end; block += BLOCK)
            for (long h = 0; h < task.heads; h++) {
                int present = (int)std::min<long>(BLOCK, end - block);
                if (block + BLOCK < end) ask_for(task, block + BLOCK, h);
                else if (after) ask_for(*after, first_key_of(position_of(*after)) / BLOCK * BLOCK, h);
                kv.load(k, v, task.head + h, slots + block, present, !work.few);
                for (long group = 0; group < work.groups; group++) {
                    long first = group * GROUP / share, final = (std::min(rows, group * GROUP + GROUP) - 1) / share;
                    if (end_of(final) <= block || first_of(first) >= block + BLOCK) continue;
                    bool whole = end_of(first) >= block + BLOCK && first_of(final) <= block;
                    Seen seen[2];
                    for (long lane = 0, t = first, next = (t + 1) * share - group * GROUP; !whole && lane < GROUP; lane++) {
                        if (lane == next && t < final) t++, next += share;
                        seen[lane / LANES].first[lane % LANES] = (int)(first_of(t) - block);
                        seen[lane / LANES].end[lane % LANES] = (int)(end_of(t) - block);
                    }
                    work.attend(h, group, kv, scale, cap, whole ? nullptr : seen, block == first_block_of(first));
                }
            }
        bool finite = true;
        for (long h = 0; h < task.heads; h++)
            finite &= work.write(h, [&](long row) { return out + ((task.token + row / share) * heads + head_of(h, row)) * dim; });
        return finite;
    };
    for_each(tasks.size(), [=](long i) {  // a prompt's last tokens see most: longest first
        const AttentionTask& task = *(last_task - i);
        if (compute(task, &task == first_task ? nullptr : &task - 1) || task.token >= qo_indptr[task.request]) return;
        // NaN or infinity in a draft's value, times a probability of 0, is NaN: the tokens before it must not get it.
        for (int token = task.token; token < task.token + task.tokens; token++)
            compute({task.request, token, 1, task.head, task.heads}, nullptr);
    });
}
