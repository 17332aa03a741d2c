// Several passes in a row without returning to Python: each one's input is the token that the pass before has chosen.
#include "draw.cpp"
#include "program.h"

// The buffers of a captured pass of `size` requests with one new token each, and where a request's slots begin in `table`.
struct Rows { int64_t *ids, *positions; int32_t *seq_lens, *slots; const int32_t *starts, *table; };

// Makes `steps` passes of `calls`. After each one, every request's next token goes to chosen [steps][size]: it is in `found`,
// with its logit in `logits` [size], if the pass finds the likeliest tokens itself, or else drawn from `logits` [size][vocab]
// with `temperatures` [size] and `numbers` [steps][size]. Then the request moves on by one position, as `advance_step` does.
// It becomes padding when it has counts[i] tokens, or when its logits hold NaN or infinity: then -1 comes in place of a token.
template <class E>
static void run_ahead_of(const Call* calls, long count, const Rows* rows, const int64_t* found,
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
