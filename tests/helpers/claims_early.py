"""What notebooks 00 to 09 say about the numbers that they have measured."""

from tests.helpers.claims import Claim

N = r"([\d,.]*\d)"  # a number in an output
ROOFLINE = "DECODE, 1 token: " + N + r" operations per byte.*? ([\d.]+) % of the roof"
ROOFLINE += r".*?EXTEND, 8 tokens:.*? ([\d.]+) % of the roof"
ROOFLINE += ".*?EXTEND, 256 tokens: " + N + r" operations per byte.*? ([\d.]+) % of the roof"
THREE_WAYS = f"one by one {N} {N} 120 .*?padded batch {N} {N} 15 .*?pooled, plain torch {N} {N} 15 .*?C.. {N} {N} 15 "
BATCHES = " ".join(
    rf"{n} requests: {N} ms per pass \({N} times one request's\), {N} tokens/s" for n in (1, 2, 4, 8, 16)
)

EARLY: tuple[Claim, ...] = (
    # 01: what came out is printed with the reason, both computed
    Claim(
        "01",
        "Batching pays as long as a pass for four requests takes less time than four passes for one.",
        rf"{N} passes in {N} ms this engine: {N} passes in {N} ms {N} times fewer passes, and each takes {N} times",
        lambda theirs, ms, ours, our_ms, fewer, longer: (
            abs(theirs / ours - fewer) < 0.06 and ((our_ms < ms) == (longer < fewer) or abs(our_ms - ms) < 0.05 * ms)
        ),
    ),
    Claim(
        "01",
        "So here the engine is",
        rf"passes in {N} ms this .*? passes in {N} ms .*? the engine is {N} times",
        lambda theirs, ours, times: abs(max(theirs / ours, ours / theirs) - times) < 0.1 * times,
    ),
    # 02
    Claim(
        "02",
        "It need not go up exactly in proportion to the length.",
        rf"a token after 1000 costs {N} times as much as one after 64",
        lambda ratio: 4 < ratio < 60,
    ),
    Claim(
        "02",
        "the point is that the line goes up",
        rf"one pass, 8 points, from {N} at 1 to {N} at 1,000",
        lambda first, last: last > 2 * first,
    ),
    # 03
    Claim(
        "03",
        "much of the time goes into the Python code around each pass, and a cache can't save that",
        rf"{N} times fewer computed, {N} times faster",
        lambda fewer, faster: 1 < faster < fewer / 2,
    ),
    Claim(
        "03",
        "Without a cache, the time grows with the text. With one, it grows far less.",
        rf"without a cache, 4 points, from {N} at 16 to {N} at 512; with a cache, 4 points, from {N} at 16 to {N} at 512",
        lambda first, last, with_first, with_last: last > 8 * first and with_last < 2 * with_first,
    ),
    Claim(
        "03",
        "The longer the text, the more the cache saves",
        rf"times faster: {{16: {N}, 64: {N}, 256: {N}, 512: {N}}}",
        lambda a, b, c, d: a < b < c < d,
    ),
    Claim(
        "03",
        "256 times fewer tokens are computed, and the next token is nowhere near 256 times faster",
        rf"times faster: {{16: {N}, 64: {N}, 256: {N},",
        lambda a, b, c: 1 < c < 128,
    ),
    Claim(
        "03",
        "A pass over 8 tokens takes far less than 8 times as long as a pass over one.",
        rf"a pass over 8 tokens takes {N} times as long as one over a single token",
        lambda times: times < 4,
    ),
    Claim(
        "03",
        "Further right, the time grows with T",
        rf"measured, 9 points, from {N} at 1 to {N} at 256",
        lambda first, last: last > 4 * first,
    ),
    Claim(
        "03",
        "Where the passes are: DECODE is held back by memory, a long EXTEND by arithmetic",
        rf"both limits are equal at {N} flop per byte.*?{ROOFLINE}",
        lambda ridge, decode, _1, _8, extend, _256: decode < ridge < extend,
    ),
    Claim(
        "03",
        "A pass stays below the roof",
        ROOFLINE,
        lambda _1, decode, extend_8, _256, extend: max(decode, extend_8, extend) <= 100,
    ),
    Claim("03", "one token per pass, half a flop per byte", ROOFLINE, lambda decode, *_: 0.45 < decode < 0.55),
    Claim(
        "03",
        "| EXTEND | 6 | 24 | 48 | | | DECODE | 6 | 14 | 18 | 24 |",
        rf"This CPU can do {N} operations .*? With T = 64, DECODE does {N} per byte and "
        rf"(?:[a-z ]+; )?EXTEND (?:does )?{N}\b",
        lambda cpu, decode, extend: (decode, extend) == (14, 24) and cpu > 0,
    ),
    Claim(
        "03",
        "The tokens that the cache saves were cheap, because each pass computed many of them.",
        rf"extend: {N} tokens/s, decode: {N} tokens/s, ratio {N}",
        lambda extend, decode, ratio: extend > 2 * decode and abs(ratio * decode / extend - 1) < 0.05,
    ),
    # 04
    Claim(
        "04",
        "each user waits longer for a token, but nowhere near 16 times as long",
        BATCHES,
        lambda *rows: 1 < rows[-2] < 8,
    ),
    Claim(
        "04",
        "The more requests share a pass, the more tokens per second",
        BATCHES,
        lambda *rows: sorted(rows[2::3]) == list(rows[2::3]),
    ),
    Claim(
        "04",
        "`ratio` and the picture say how many times as fast as *one by one* each way is.",
        THREE_WAYS,
        lambda *rows: all(abs(rows[i] / rows[0] / rows[i + 1] - 1) < 0.25 for i in (0, 2, 4, 6)),
    ),
    Claim(
        "04",
        "so its `ratio` is its tokens per second divided by those of one by one.",
        THREE_WAYS,
        lambda *rows: abs(rows[-2] / rows[0] / rows[-1] - 1) < 0.01,
    ),
    Claim(
        "04",
        "With attention in plain torch, the pooled engine reads as much K/V as the padded batch. Why is it faster?",
        THREE_WAYS,
        lambda one, _1, padded, _2, pooled, *_: pooled > padded,
    ),
    Claim(
        "04",
        "no more than the pooled engine in C++. Why is that so slow?",
        THREE_WAYS,
        lambda one, *rows: rows[-2] > 2 * one,
    ),
    Claim(
        "04",
        "The pooled engine moves nothing.",
        rf"pooled, plain torch {N} {N} 15 {N} KiB .* pooled, C.. {N} {N} 15 {N} KiB",
        lambda _1, _2, torch, _3, _4, cpp: torch == cpp == 0,
    ),
    Claim(
        "04",
        "The pass would take longer for longer texts anyway",
        rf"16 tokens each: {N} ms per pass, {N}% .*900 tokens each: {N} ms per pass, {N}% of it copying",
        lambda short, of_short, long, of_long: long > short and 0 < of_short < 100 and 0 < of_long < 100,
    ),
    # 05
    Claim(
        "05",
        "In a small pool both cost about the same",
        rf"search the mask, 6 points, from {N} at 1,024 to",
        lambda mask: 0.6 < mask < 1.6,
    ),
    Claim(
        "05",
        "The cost of the mask grows with the pool; the allocator's barely does.",
        rf"search the mask, 6 points, from {N} at 1,024 to {N} at .*? SlotAllocator, 6 points, from 1 at 1,024 to {N} at",
        lambda small, mask, allocator: mask > 5 * small and allocator < 2,
    ),
    # 06
    Claim(
        "06",
        "For one request the loops are even faster",
        rf"loops, 4 points, from {N} at 1 to",
        lambda loops: loops < 1,
    ),
    Claim(
        "06",
        "the time of the loops grows in step with the tokens, and the time of `create` grows much less",
        rf"loops, 4 points, from {N} at 1 to {N} at 64; InputMetadata.create, 4 points, from 1 at 1 to {N} at 64",
        lambda small, loops, create: 32 < loops / small < 128 and create < loops / small / 2,
    ),
    Claim(
        "06",
        "the time of the loops grows in step with the tokens, and the time of `create` grows much less",
        rf"64 requests: the loops take {N} times as long",
        lambda times: times > 1,
    ),
    # 07
    Claim(
        "07",
        "Why not insist on neighbouring slots, if they are faster?",
        rf"index: {N} µs \({N}×\), slice: {N} µs",
        lambda index, _, neighbours: neighbours < index,
    ),
    Claim(
        "07",
        "The gain is a part of a millisecond in a layer",
        rf"index: {N} µs \({N}×\), slice: {N} µs",
        lambda index, _, neighbours: 0 < index - neighbours < 1000,
    ),
    Claim(
        "07",
        "A token alone pays for finding, collecting and reading all of that K/V by itself; 256 tokens share it.",
        rf"{N} times less .*EXTEND, 5 points, from {N} at 1 to {N} at 256",
        lambda less, alone, shared: less > 2 and alone > 2 * shared,
    ),
    Claim(
        "07",
        "so the time grows with it. But the time for computing everything grows much faster.",
        rf"all computed, 5 points, from {N} at 64 to {N} at 992; 32 new after a prefix, 5 points, from {N} at 64 to {N} at",
        lambda short, long, few, after: few < after and long / short > 2 * after / few,
    ),
    Claim(
        "07",
        "The rectangle pays for the longest request in every row.",
        rf"even, torch_native: {N} µs.*? one long, torch_native: {N} µs",
        lambda even, long: long > 1.5 * even,
    ),
    Claim(
        "07",
        "so it takes about as long for both batches",
        rf"even, cpp: {N} µs.*? one long, cpp: {N} µs",
        lambda even, long: 0.6 < long / even < 1.7,
    ),
    # 08
    Claim(
        "08",
        "The tree is far faster where texts are long and branch rarely",
        rf"tree, one long node: {N} µs, .*? blocks of 16: {N} µs",
        lambda tree, blocks: 3 * tree < blocks,
    ),
    Claim(
        "08",
        "Where it branches at every block, both do about one look-up per block, and the tree's cost more.",
        rf"a branch at every block: {N} µs, blocks of 16: {N} µs",
        lambda tree, blocks: tree > blocks,
    ),
    Claim(
        "08",
        "Compared with the model, which takes many milliseconds to compute as many tokens, none of this matters much.",
        rf"tree, a branch at every block: {N} µs, blocks of 16: {N} µs, blocks of 1: {N} µs",
        lambda *each: max(each) < 10_000,
    ),
    Claim(
        "08",
        "So measure what it does shorten: the time for one long prompt",
        rf"without the tree: {N} ms, with the tree: {N} ms",
        lambda without, tree: tree < without,
    ),
)
# Cells that measure and about whose numbers nothing is said: (notebook, words of the cell's code) → why not.
NOTHING_SAID_EARLY: dict[tuple[str, str], str] = {
    ("00", "llm.trace.player()"): "it plays a recording and measures no time; its page has other names each time",
    ("05", "try_slots(small_pool(32))"): "a live widget: it measures nothing, and a saved notebook has a still picture",
}
