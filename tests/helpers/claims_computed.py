"""Claims about numbers that are the same in each run. A change of the package may make them others: then the sentences
must change, too. A change of a router, or of how a new prefix finds its replica, changes all that is said of them in 17."""

from functools import partial

from tests.helpers.claims import Claim

# One line of compare_runs: its hits in %, what it computed, and the mean time to the first token.
LINE = r" +\d+ +\d+ +\d+ +(\d+)% +(\d+) +([\d.]+) s +[\d.]+ s"
ALL_RULES = (
    rf"round robin{LINE}.*?hash of 32{LINE}.*?hash, other names{LINE}.*?longest match{LINE}.*?prefix router{LINE}"
)
NAMES = "".join(rf".*?{names}: hash of 32{LINE}.*?{names}: prefix router{LINE}" for names in ("123", "DEF", "UVW"))

Line = tuple[float, float, float]


def lines(*numbers: float) -> list[Line]:
    """(hits, computed, seconds) of each rule, in the order of the table."""
    return [numbers[i : i + 3] for i in range(0, len(numbers), 3)]  # type: ignore[misc]


def lucky_or_not(*numbers: float) -> bool:
    even, lucky, unlucky, _, _ = lines(*numbers)
    return lucky[2] < 0.35 * even[2] and unlucky[2] > 1.9 * even[2] and min(lucky[0], unlucky[0]) > even[0]


def nearly_all_is_found(*numbers: float) -> bool:
    even, *others, router = lines(*numbers)
    return router[0] == 90 and router[2] < even[2] / 6.5 and router[1] <= min(rule[1] for rule in others)


def is_quicker(*numbers: float) -> bool:
    runs = lines(*numbers)
    return all(router[2] < hashed[2] for hashed, router in zip(runs[::2], runs[1::2], strict=True))


claim = partial(Claim, "17", computed=True)
COMPUTED = (
    claim("*twice as slow* as round robin", ALL_RULES, lucky_or_not),
    claim("in a seventh of the time that it takes with round robin", ALL_RULES, nearly_all_is_found),
    claim(
        "1,979 instead of 10,656 prompt tokens",
        ALL_RULES,
        lambda *numbers: (numbers[1], numbers[-2]) == (10_656, 1_979),
    ),
    claim("With each of them, the router is quicker", NAMES, is_quicker),
    claim(
        "Better than both",
        rf"least loaded{LINE} hash of 32{LINE} longest match{LINE}",
        lambda *numbers: all(other[0] < numbers[6] and other[2] > numbers[8] for other in lines(*numbers)[:2]),
    ),
    claim(
        "with other chats (the last line), the first token takes more than twice as long",
        rf"hash of 32{LINE} longest match{LINE} longest match, other chats{LINE}",
        lambda *numbers: lines(*numbers)[2][2] > 2 * lines(*numbers)[1][2],
    ),
    claim(
        "the story is soon everywhere, which is right for *this* traffic: it costs 250 tokens, once",
        rf"at most 10 s more{LINE} at most 0\.3 s more{LINE} at most 0\.05 s more{LINE}",
        lambda *numbers: (
            200 < numbers[7] - numbers[4] < 300 and numbers[8] < numbers[5] < numbers[2]  # computed, and seconds
        ),
    ),
    claim(
        "with a limit of 0.1 s, a quarter more is computed than with one of 0.3 s",
        rf"0\.3 s, chats from above{LINE} 0\.1 s, chats from above{LINE}",
        lambda *numbers: 1.2 < numbers[4] / numbers[1] < 1.3 and numbers[3] < numbers[0],
    ),
    claim(
        "each story has one place",
        r"prefix router, A: largest at (?!fox)\w+, (1\.00); prefix router, B: largest at (?!fox)\w+, (1\.00); "
        r"prefix router, C: largest at fox, (1\.00)",
        lambda *shares: set(shares) == {1},
    ),
    claim(
        "That takes half of the time, and four tenths of the work",
        rf"longest match{LINE} prefix router{LINE} The first request of a story",
        lambda _, most, slow, __, least, quick: least < 0.45 * most and quick < 0.55 * slow,
    ),
    claim("There isn't room for all that", rf"A dies{LINE}", lambda hits, *_: hits < 75),
    Claim(
        "11",
        "Even `random` computes fewer than `fcfs` does",
        r"fcfs +\d+ +\d+ +\d+ +(\d+) .*?random +\d+ +\d+ +\d+ +(\d+) .*?lpm +\d+ +\d+ +\d+ +(\d+) ",
        lambda in_order, at_random, longest_first: longest_first < at_random < in_order,
        computed=True,
    ),
    Claim(
        "14",
        "both models together make as many passes as without drafts",
        r"(\d+) passes of the model, and at least (\d+) of the draft model, which is as large: at least (\d+)",
        lambda model, drafting, both: model + drafting == both == 100,
        computed=True,
    ),
    Claim(
        "16",
        "FOX asks for 200 tokens. Ten passes later, BEAR arrives, from another program, and asks for 5.",
        r"one after the other: (\d+) passes for FOX and 5 of its own, so (\d+)\. Shared: (\d+)",
        lambda left, alone, shared: left == 200 - 10 and alone == left + 5 and shared == 5,
        computed=True,
    ),
    Claim(
        "18",
        "In the first one, each request has 14 tokens before it",
        r"slots with a token: +(\d+) to (\d+), .*?numbers per request, in the end: (\d+) in a row of slots",
        lambda first, last, of_each: first == 2 * 14 and last == 2 * of_each and of_each == 14 + 9,
        computed=True,
    ),
    Claim(
        "19",
        "A's 40 tokens were computed again, although they were all in host memory.",
        r"A, 80 tokens: pool 0\.\.39, host memory (\d+)\.\.(\d+)",
        lambda first, last: first <= 40 and last == 79,
        computed=True,
    ),
    Claim(
        "19",
        "The second time, 24 of them were fetched",
        r"after a slow fetch: A: \{'device': (\d+), 'host': (\d+), .*?C: .*? A: \{'device': 40, 'host': (\d+),",
        lambda in_pool, fetched, fetched_later: (in_pool, fetched, fetched_later) == (40, 0, 24),
        computed=True,
    ),
)
