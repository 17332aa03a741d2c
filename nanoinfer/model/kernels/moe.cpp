// A mixture of experts: each token goes to the few experts that its router finds likeliest, and gets the weighted sum of what
// they make of it. `dispatch` sorts copies of the tokens by expert, `each_expert` multiplies every expert's own rows, and
// `combine` adds up. Nobody outside sees how many rows an expert has, so all three calls can be recorded.
#pragma once
#include "program.h"
#include "team.h"
#include "vectors.h"
#include <algorithm>
#include <cmath>
#include <vector>

// The `top` largest of a token's `experts` logits, the largest first, and of equals the first; NaN comes last. `weights`: their
// softmax among all experts, or, if `normalized`, among the chosen ones.
template <class E>
static void choose(const typename E::T* logits, int32_t* chosen, float* weights, long experts, long top, bool normalized) {
    typedef std::pair<float, int32_t> Candidate;
    static thread_local std::vector<Candidate> all;
    all.clear();
    for (long e = 0; e < experts; e++) {
        float logit = E::get1(logits[e]);
        all.push_back({logit == logit ? logit : -__builtin_inff(), e});
    }
    std::partial_sort(all.begin(), all.begin() + top, all.end(), [](const Candidate& a, const Candidate& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    });
    float total = 0;
    for (long e = 0; e < experts; e++) total += std::exp(E::get1(logits[e]) - all[0].first);
    for (long j = 0; j < top; j++) chosen[j] = all[j].second, weights[j] = std::exp(all[j].first - all[0].first) / total;
    if (!normalized) return;
    float sum = 0;
    for (long j = 0; j < top; j++) sum += weights[j];
    for (long j = 0; j < top; j++) weights[j] /= sum;
}

// x [rows, size], logits [rows, experts] -> sorted [rows * top, size], where expert e has rows starts[e] .. starts[e + 1] - 1, in
// the order of tokens. places [rows, top]: which rows of `sorted` are a token's. weights [rows, top]: see `choose`.
template <class E>
static void dispatch(const typename E::T* x, const typename E::T* logits, typename E::T* sorted, int32_t* starts, int32_t* places,
                     float* weights, long rows, long size, long experts, long top, long normalized) {
    for_each_row(rows, experts * 8, [&](long row) {
        choose<E>(logits + row * experts, places + row * top, weights + row * top, experts, top, normalized);
    });
    std::fill(starts, starts + experts + 1, 0);
    for (long i = 0; i < rows * top; i++) starts[places[i] + 1]++;
    for (long e = 0; e < experts; e++) starts[e + 1] += starts[e];
    static thread_local std::vector<int32_t> next;
    next.assign(starts, starts + experts);
    for (long i = 0; i < rows * top; i++) places[i] = next[places[i]]++;
    for_each_row(rows * top, size, [&](long i) { memcpy(sorted + places[i] * size, x + i / top * size, size * sizeof *x); });
}

// Calls `kernel` once for each expert that has rows. The words of these calls follow the five of its own: those of a call for
// all rows, with the first expert's weights. Word i of expert e is moved on by moves[0][i] for each row before its first, and by
// moves[1 + e][i]; word `rows_at` becomes the number of its rows.
extern "C" void each_expert(const int64_t* words) {
    auto kernel = (Kernel*)words[0];
    auto starts = (const int32_t*)words[1];
    auto moves = (const int64_t*)words[2];
    long experts = words[3], count = words[4], rows_at = count - 3;  // products end with rows, in, out
    std::vector<int64_t> own(count);
    for (long e = 0; e < experts; e++) {
        if (starts[e] == starts[e + 1]) continue;
        for (long i = 0; i < count; i++) own[i] = words[5 + i] + starts[e] * moves[i] + moves[(1 + e) * count + i];
        own[rows_at] = starts[e + 1] - starts[e];
        kernel(own.data());
    }
}

// y [rows, size] = the sum of weights * made [rows * top, size], in the order in which a token's experts were chosen. With
// `shared` [rows, size], what all tokens go through is added last, times the sigmoid of `gate` [rows].
template <class E>
static void combine(const typename E::T* made, const int32_t* places, const float* weights, const typename E::T* shared,
                    const typename E::T* gate, typename E::T* y, long rows, long size, long top) {
    for_each_row(rows, size * top, [&](long row) {
        float of_shared = shared ? 1 / (1 + std::exp(-E::get1(gate[row]))) : 0;
        for (long i = 0; i < size; i += LANES) {
            long n = std::min<long>(LANES, size - i);
            Floats sum = {};
            for (long j = row * top; j < (row + 1) * top; j++)
                sum = multiply_add(get_some<E>(made + places[j] * size + i, n), weights[j] - Floats{}, sum);
            if (shared) sum = multiply_add(get_some<E>(shared + row * size + i, n), of_shared - Floats{}, sum);
            put_some<E>(y + row * size + i, n, sum);
        }
    });
}
