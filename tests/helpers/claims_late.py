"""What notebooks 10 to 19 say about the numbers that they have measured."""

from tests.helpers.claims import Claim

LATE: tuple[Claim, ...] = (
    Claim(
        "11",
        "Smaller chunks: shorter gaps for the readers, a later first token for STORY",
        r"longest gap between two tokens of a reader, 5 points, from ([\d.]+) at 256 to ([\d.]+) at 16; "
        r"first token of STORY, 5 points, from ([\d.]+) at 256 to ([\d.]+) at 16",
        lambda gap, short_gap, first, late_first: short_gap < 0.8 * gap and late_first > 2 * first,
    ),
    Claim(
        "11",
        "the first token comes more than twice as late, and the gap shrinks by a smaller factor.",
        r"chunks of 64: longest gap ([\d.]+) ms, first token of STORY after ([\d.]+) ms .*?"
        r"chunks of 16: longest gap ([\d.]+) ms, first token of STORY after ([\d.]+) ms",
        lambda gap, first, short_gap, late_first: 1 < gap / short_gap < late_first / first > 2,
    ),
    # --- 12 -------------------------------------------------------------------------------------------------------------
    Claim(
        "12",
        "the bundled model has about 3 million weights of 4 bytes",
        r"([\d,]+) weights, ([\d.]+) MB: ([\d,]+) µs at 20 GB per second",
        lambda weights, mb, time: (
            abs(weights - 3e6) < 2e5 and abs(mb - 4e-6 * weights) < 0.1 and abs(time - mb / 20e-3) < 5
        ),
    ),
    Claim(
        "12",
        "They could be read in a fraction of the time that a token takes",
        r"a token takes ([\d,]+) µs, ([\d.]+) times as long as reading the weights",
        lambda time, ratio: ratio > 1.5,
    ),
    Claim(
        "12",
        "And reading them is only a part of the time",
        r"a token takes ([\d,]+) µs, ([\d.]+) times as long as reading the weights",
        lambda time, ratio: ratio > 1.2,
    ),
    Claim(
        "12",
        "The same calls follow for each layer",
        r"\.\.\. (\d+) calls in all, for (\d+) layers",
        lambda calls, layers: calls > 24 and calls > 8 * layers,
    ),
    Claim(
        "12",
        "Palest: Python, before, between and after the kernels",
        r"Grey: products with weights\. .*?(\d+) % products with weights, .*? (\d+) % other kernels, (\d+) % outside the",
        lambda products, others, python: others < products and others < python,
    ),
    Claim(
        "12",
        "what Python does between two kernels takes several times as long as such a kernel",
        r"% of the pass, (\d+) µs between two kernels a norm of 256 numbers: ([\d.]+) µs",
        lambda python, norm: python > 3 * norm,
    ),
    Claim(
        "12",
        "take about as long as all products of a layer together",
        r"qkv_proj, products with weights: ([\d.]+) µs, o_proj, products with weights: ([\d.]+) µs, "
        r"gate_up_proj, products with weights: ([\d.]+) µs, down_proj, products with weights: ([\d.]+) µs, "
        r"lm_head, products with weights: ([\d.]+) µs",
        lambda qkv, o, gate_up, down, head: 0.7 < 5 * head / (qkv + o + gate_up + down) < 1.4,
    ),
    Claim(
        "12",
        "The kernels that are neither products nor attention are so short that you hardly see them",
        r"gather_rows, other kernels: ([\d.]+) µs, add_rms_norm, other kernels: ([\d.]+) µs, "
        r"rotate, other kernels: ([\d.]+) µs, store_rows, other kernels: ([\d.]+) µs, .*?, Python: ([\d,.]+) µs",
        lambda *times: max(times[:-1]) < 0.05 * times[-1],
    ),
    Claim(
        "12",
        "The gaps are gone. The pale block that stays in front is Python",
        r"called from Python: .*? (\d+) % outside the kernels; replayed: .*? (\d+) % outside the kernels\.",
        lambda before, after: after < 0.5 * before,
    ),
    Claim(
        "12",
        "The pass is short now, so the rest of a step weighs more",
        r"kernels called from Python: ([\d,]+) µs per token captured passes: ([\d,]+) µs per token the same tokens: True",
        lambda python, captured: captured < python,
    ),
    Claim(
        "12",
        "Of what is left, the products are usually the largest part",
        r"a token takes ([\d,]+) µs: ([\d,]+) in products, ([\d,]+) in the rest of the pass, and ([\d,]+) outside",
        lambda all_of_it, products, rest, outside: products > max(rest, outside),
    ),
    Claim(
        "12",
        "they read all its weights in about the time that reading alone takes",
        r"only reading: ([\d,]+) µs\..*? a token takes ([\d,]+) µs: ([\d,]+) in products",
        lambda reading, all_of_it, products: products < 1.25 * reading,
    ),
    Claim(
        "12",
        "the model of notebook 03 with 47 million random weights",
        r"reads (\d+) MB at ([\d.]+) GB per second",
        lambda mb, speed: abs(mb / 4 - 47) < 1,
    ),
    Claim(
        "12",
        "all five are at the far left: half an operation for each byte. Memory is the limit",
        r"lm_head, T = 1: ([\d.]+) operations per byte, [\d.]+ billion operations per second, \d+ % of the roof \(memory",
        lambda intensity: abs(intensity - 0.5) < 0.02,
    ),
    Claim(
        "12",
        "The five lines are nearly one: what counts is T, not which product it is.",
        r"qkv_proj, T = 1: .*?, ([\d.]+) billion .*?qkv_proj, T = 64: .*?, ([\d.]+) billion .*?"
        r"lm_head, T = 1: .*?, ([\d.]+) billion .*?lm_head, T = 64: .*?, ([\d.]+) billion",
        lambda one, many, head_one, head_many: 0.7 < one / head_one < 1.4 and 0.7 < many / head_many < 1.4,
    ),
    Claim(
        "12",
        "Why may a product be further below the roof near the ridge than at T = 1?",
        r"qkv_proj, T = 1: .*?, (\d+) % of the roof .*?qkv_proj, T = 16: .*?, (\d+) % of the roof",
        lambda one, sixteen: sixteen < one,
    ),
    Claim(
        "12",
        "T times the work takes less than T times as long",
        r"qkv_proj T = 1: .*? T = 4: ([\d.]+), T = 16: ([\d.]+), T = 64: ([\d.]+) o_proj "
        r".*?lm_head .*? T = 4: .*? T = 64: ([\d.]+)",
        lambda four, sixteen, many, head_many: four < 4 and sixteen < 16 and max(many, head_many) < 64,
    ),
    Claim(
        "12",
        "The three loops compute the right numbers, at a small part of the peak",
        r"three loops at T = 64: ([\d.]+) % of it",
        lambda percent: percent < 15,
    ),
    Claim(
        "12",
        "So a token's result is the same to the last bit, whichever tokens are computed with it",
        r"the package token 0 has the same bits alone and among 64: True",
    ),
    Claim(
        "12",
        "int8 has half the bytes, 1 per weight instead of 2",
        r"bfloat16 (\d+) MB, .*? int8 (\d+) MB",
        lambda two, one: abs(two - 2 * one) <= 2,
    ),
    Claim(
        "12",
        "So a token takes half the time, if nothing else changes. But something may, so your factor may differ from 2",
        r"with half the bytes, a pass is ([\d.]+) times as fast",
        lambda factor: 1.3 < factor < 3,
    ),
    Claim(
        "12",
        "int8 costs so little that it takes many texts to see it at all",
        r"int8 costs ([+-][\d.]+) nats per token, give or take ([\d.]+);",
        lambda cost, margin: abs(cost) < 0.003 and margin < 0.003,
    ),
    Claim(
        "12",
        "Four bits save more bytes, and they move it more",
        r"int8 costs .*? a log-probability moves by ([\d.]+) int4 costs .*? a log-probability moves by ([\d.]+)",
        lambda eight, four: four > 1.5 * eight,
    ),
    Claim(
        "12",
        "Which idea helps most depends on the model: Python for a small one",
        r"^ ?kernels called from Python +(\d+) µs per token captured passes (\d+) µs per token "
        r"captured, 8 passes per visit (\d+) µs",
        lambda python, captured, fewer_visits: python - captured > captured - fewer_visits,
    ),
    # --- 13 -------------------------------------------------------------------------------------------------------------
    Claim(
        "13",
        "It costs little more than the base model, if ranks are small or adapters few",
        r"1 adapter, 4 points, from ([\d.]+) times as long at 8 to ([\d.]+) times as long at 64; .*?"
        r"16 adapters, 4 points, from ([\d.]+) times as long at 8",
        lambda one_small, one_large, many_small: max(one_small, one_large, many_small) < 1.5,
    ),
    Claim(
        "13",
        "A pass takes longer with larger ranks, and with more distinct adapters, as bytes say",
        r"distinct adapters: 1 ([\d.]+) [\d.]+ [\d.]+ ([\d.]+) .*?distinct adapters: 16 ([\d.]+) [\d.]+ [\d.]+ ([\d.]+)",
        lambda one_small, one_large, many_small, many_large: (
            many_large > max(one_large, many_small) and min(one_large, many_small) > one_small - 0.03
        ),
    ),
    Claim(
        "13",
        "by bytes, 16 adapters of rank 8 cost more than one of rank 64, and measured, they hardly differ",
        r"16 of rank +8: ([\d.]+) by bytes, ([\d.]+) measured +1 of rank 64: ([\d.]+) by bytes, ([\d.]+) measured",
        lambda many_bytes, many, one_bytes, one: many_bytes > one_bytes and abs(many - one) < 0.1,
    ),
    Claim(
        "13",
        "One adapter of rank 8 barely shows",
        r"distinct adapters: 1 ([\d.]+)",
        lambda ratio: 0.9 < ratio < 1.1,
    ),
    Claim(
        "13",
        "the bytes of A and B are a smaller part of the whole, and a pass may cost *less* than bytes say",
        r"16 of rank 64: ([\d.]+) by bytes, ([\d.]+) measured",
        lambda by_bytes, by_clock: by_clock < by_bytes,
    ),
    # --- 14 -------------------------------------------------------------------------------------------------------------
    Claim(
        "14",
        "Rows that share a pass share its weights. A pass for each would read them again each time.",
        r"bundled model, 5 points, from just as long at 1 to ([\d.]+) times as long at 16; "
        r"47 million weights, 5 points, from just as long at 1 to ([\d.]+) times as long at 16",
        lambda small, large: max(small, large) < 8,
    ),
    Claim(
        "14",
        "Several rows for not much more than the price of one",
        r"bundled model 2 rows: ([\d.]+) 4 rows: ([\d.]+) .*?47 million weights 2 rows: ([\d.]+) 4 rows: ([\d.]+)",
        lambda *ratios: min(ratios) > 0.9 and max(ratios) < 1.6,
    ),
    Claim(
        "14",
        "Then its passes wait less, and each further row costs a larger part of a pass",
        r"bundled model 2 rows: .*? 8 rows: ([\d.]+) .*?47 million weights 2 rows: .*? 8 rows: ([\d.]+)",
        lambda small, large: small > large,
    ),
    Claim(
        "14",
        "Below the line of 1, drafts make the engine slower. The larger the batch, the more of them must be right.",
        r"1 request, 11 points, from ([\d.]+) times as many at 0 .*?4 requests, 11 points, from ([\d.]+) times as many .*?"
        r"8 requests, 11 points, from ([\d.]+) times as many",
        lambda one, four, eight: 1 > one > four > eight,
    ),
    Claim(
        "14",
        "Then drafts must be right much more often to pay",
        r"1 request ([\d.]+) ([\d.]+) .*?8 requests ([\d.]+) ([\d.]+)",
        lambda one, one_more, eight, eight_more: one_more > 1.1 > eight_more,
    ),
    Claim(
        "14",
        "`tree` gains most: FOX was answered before",
        r"ngram: ([\d.]+) times as many .*?tree: ([\d.]+) times as many, draft model: ([\d.]+) times as many",
        lambda ngram, tree, model: tree > max(ngram, model, 1.3),
    ),
    Claim(
        "14",
        "it could gain a factor of 100/73, about 1.4, if a pass with drafts took no longer than one without",
        r"ngram: ([\d.]+) times as many",
        lambda ngram: ngram < 100 / 73,
    ),
    Claim(
        "14",
        "What is left is a small gain on one machine and a small loss on another",
        r"ngram: ([\d.]+) times as many",
        lambda ngram: 0.8 < ngram < 1.25,
    ),
    # --- 15 -------------------------------------------------------------------------------------------------------------
    Claim(
        "15",
        "The package's mask takes so little time that its bar can hardly be seen",
        r"only the mask, in the package: ([\d,.]+) µs, only the mask, by our machine: ([\d,.]+) µs",
        lambda package, ours: package < 0.02 * ours,
    ),
    Claim(
        "15",
        "A token with a grammar takes longer than its mask explains",
        r"a token, without a grammar (\d+) µs a token, with regex=\.\.\. (\d+) µs only the mask, in the package (\d+) µs",
        lambda without, with_grammar, mask: with_grammar - without > 2 * mask,
    ),
    Claim(
        "15",
        "Our own machine takes longer than a whole token of this small model",
        r"a token, without a grammar (\d+) µs .*? only the mask, by our machine (\d+) µs",
        lambda token, mask: mask > token,
    ),
    # --- 16 -------------------------------------------------------------------------------------------------------------
    Claim(
        "16",
        "That is why you may see fewer events than tokens.",
        r"(\d+) chunks; the last one is b'data: \[DONE\]",
        lambda chunks: 2 <= chunks <= 16 + 2,
    ),
    Claim(
        "16",
        "Only the few bytes of the text are new; the rest is the same each time.",
        r"\d+ bytes: chunk (\d+), event (\d+), text (\d+)",
        lambda chunk, event, text: text < 0.2 * event,
    ),
    Claim(
        "16",
        "A stream repeats its frame for every event.",
        r"the text alone: ([\d,]+) bytes, one answer: ([\d,]+) bytes .*?, a stream: ([\d,]+) bytes",
        lambda text, answer, stream: text < answer < stream,
    ),
    Claim(
        "16",
        "Tokens that end in the middle of a character give no text yet",
        r"token \[\d+\] text '' token \[\d+\] text 'é' token \[\d+\] text '' .*?text '🦊'",
    ),
    Claim(
        "16",
        "a pass of the model takes time (about a millisecond here",
        r"of ([\d.]+) ms, [\d.]+ are between two steps",
        lambda eight_steps: 0.5 < eight_steps / 8 < 2,
    ),
    Claim(
        "16",
        "The line above it says how long the gaps are",
        r"of ([\d.]+) ms, ([\d.]+) are between two steps",
        lambda whole, between: between < 0.2 * whole,
    ),
    Claim(
        "16",
        "What coroutines do per token makes every token later",
        r"the event loop's thread: coroutines ([\d.]+); the engine's thread: a step of the engine (\d+\.?\d*)",
        lambda coroutines, steps: 0 < coroutines < steps,
    ),
    Claim(
        "16",
        "It is the same shape, with one difference",
        r"p99, 6 points, from ([\d.]+) at 0.3 to ([\d.]+) at 1.15; p50, 6 points, from ([\d.]+) at 0.3 to ([\d.]+) at 1.15",
        lambda slow, slowest, usual, late: usual < slow < slowest and usual < late < slowest,
    ),
    Claim(
        "16",
        "The other one says no to some, and those that it serves wait less",
        r"any number may wait (\d+) served, \d+ per second, and (\d+) refused "
        r"at most 4 may wait (\d+) served, \d+ per second, and (\d+) refused .*? after (\d+) ms instead of (\d+)",
        lambda all_served, none, served, refused, short, long: (
            none == 0 < refused and served < all_served and short < 0.8 * long
        ),
    ),
    Claim(
        "16",
        "the last line says that the server that refuses has the higher",
        r"answers within 400 ms, per second: any number may wait: ([\d.]+), at most 4 may wait: ([\d.]+)",
        lambda every, few: few > every,
    ),
    # --- 18 -------------------------------------------------------------------------------------------------------------
    Claim(
        "18",
        "On a CPU, nothing is gained",
        r"a step of the engine: ([\d.]+) ms; advance_step and forward_tensor: ([\d.]+) ms, of which advance_step ([\d.]+)",
        lambda engine, calls, advance: calls > engine and advance < calls,
    ),
    # --- 19 -------------------------------------------------------------------------------------------------------------
    Claim(
        "19",
        "each storey pays here: fetching takes less time than computing again, even from files",
        r"computed +([\d.]+) µs per token.*?host +([\d.]+) µs per token.*?disk +([\d.]+) µs per token",
        lambda computed, host, disk: max(host, disk) < 0.7 * computed,
    ),
)
UNWRITTEN = "an exercise: the stored output is that of a student who has not written it"
# Cells that measure and about whose numbers nothing is said: (notebook, words of the cell's code) → why not.
NOTHING_SAID_LATE: dict[tuple[str, str], str] = {
    ("12", "product_roof(mine)"): "a page with sliders, whose sentences are computed from the numbers",
    ("12", 'with attempt("12.1"):'): UNWRITTEN,
    ("12", 'with attempt("12.3")'): UNWRITTEN,
    ("12", 'with attempt("12.4")'): UNWRITTEN,
    ("12", 'with attempt("12.5"):'): UNWRITTEN,
    ("18", "An NPU here?"): "says whether there is an NPU, and measures nothing",
}
