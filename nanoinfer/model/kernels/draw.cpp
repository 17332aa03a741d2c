// Draws a token from each row of scores; and makes several passes in a row without returning to Python, each on drawn tokens.
#pragma once
#include "packing.h"
#include "program.h"
#include "team.h"
#include <cfloat>
#include <cmath>
#include <vector>

// Each row's scores [size], less their maximum and divided by the row's temperature, are exponents of weights. A row's token is
// the first one up to which the weights add up to more than `number` [0, 1) times their total, which is in `totals`: NaN if a
// score is NaN or infinity, or if all of them are -infinity; the token is 0 then. Sums are made in order, in double precision.
// With a temperature of 0, the token is the first of the likeliest ones, and the total 1.
template <class E>
static void draw_tokens(const typename E::T* scores, const float* temperatures, const double* numbers, int64_t* tokens,
                        double* totals, long rows, long size) {
    for_each_row(rows, size, [&](long row) {
        static thread_local std::vector<float> kept;
        kept.resize(std::max<long>(kept.size(), size + LANES));
        const typename E::T* from = scores + row * size;
        float* weights = kept.data();
        Floats most = Floats{} - INFINITY;
        Ints finite = ~Ints{};  // -infinity is a weight of 0, and allowed
        for (long i = 0; i < size; i += LANES) {
            Floats v = get_some<E>(from + i, size - i);
            for (long j = size - i; j < LANES; j++) v[j] = -INFINITY;
            finite &= v <= FLT_MAX;
            most = larger(v, most);
            store(weights + i, v);
        }
        float top = largest(most);
        bool usable = top > -INFINITY;
        for (int i = 0; i < LANES; i++) usable &= finite[i] != 0;
        tokens[row] = 0, totals[row] = NAN;
        if (!usable) return;
        if (!temperatures[row]) {
            while (weights[tokens[row]] != top) tokens[row]++;
            totals[row] = 1;
            return;
        }
        double total = 0, sum = 0;
        for (long i = 0; i < size; i += LANES) {
            Floats weight = exp_of_negative((load<Floats>(weights + i) - top) / temperatures[row]);
            store(weights + i, weight);
            for (long j = 0; j < LANES; j++) total += weight[j];  // behind the last one there are zeros
        }
        double target = std::min(numbers[row] * total, std::nextafter(total, 0.0));  // not past the last token, by rounding
        long token = 0;
        while ((sum += weights[token]) <= target) token++;
        tokens[row] = token, totals[row] = total;
    });
}

// Several passes in a row without returning to Python: each one's input is the token that the pass before has chosen.

// The buffers of a captured graph of `size` requests with one new token each, and where a request's slots begin in `table`.
struct Rows { int64_t *ids, *positions; int32_t *seq_lens, *slots; const int32_t *starts, *table; };

// Makes `steps` passes of `calls`. After each one, every request's next token goes to chosen [steps][size]: it is in `found`,
// with its logit in `logits` [size], if the pass finds the likeliest tokens itself, or else drawn from `logits` [size][vocab]
// with `temperatures` [size] and `numbers` [steps][size]. Then the request moves on by one position, as `advance_step` does.
// It becomes padding when it has counts[i] tokens, or when its logits hold NaN or infinity: then -1 comes in place of a token.
template <class E>
static void run_multi_step_of(const Call* calls, long count, const Rows* rows, const int64_t* found,
                              const typename E::T* logits, const float* temperatures, const double* numbers,
                              const int64_t* counts, int64_t* chosen, long steps, long size, long vocab) {
    std::vector<double> totals(size);
    std::vector<int64_t> ends(counts, counts + size);  // at which step
    for (long step = 0; step < steps; step++, chosen += size) {
        replay_calls(calls, count, nullptr);
        if (found) std::copy(found, found + size, chosen), std::copy(logits, logits + size, totals.begin());
        else draw_tokens<E>(logits, temperatures, numbers + step * size, chosen, totals.data(), size, vocab);
        for (long i = 0; i < size; i++) {
            if (step < ends[i] && !std::isfinite(totals[i])) chosen[i] = -1, ends[i] = step;
            bool ended = step + 1 >= ends[i];
            rows->ids[i] = ended ? 0 : chosen[i];
            rows->positions[i] = ended ? 0 : rows->positions[i] + 1;
            rows->seq_lens[i] = ended ? 0 : rows->seq_lens[i] + 1;
            rows->slots[i] = ended ? -1 : rows->table[rows->starts[i] + rows->positions[i]];
        }
    }
}
