"""Check of notebook 21: which heads a process has."""

from notebooks.course.exercises import Given, exercise
from notebooks.course.tables import Mistake, Wrong, compare, expect_refused


@exercise("21.1", "The heads of a process", points=2)
def _(given: Given) -> str:
    heads_of, cases = given["heads_of"], []
    for query_heads, kv_heads in ((8, 8), (8, 2), (8, 1), (4, 2), (12, 4), (32, 8), (6, 3), (6, 2), (1, 1)):
        for parts in range(1, query_heads + 1):
            if query_heads % parts == 0:
                cases += [(part, parts, query_heads, kv_heads) for part in range(parts)]
                continue
            why = f"{query_heads} query heads can't be divided over {parts} processes."
            call = lambda args=(0, parts, query_heads, kv_heads): heads_of(*args)  # noqa: E731
            expect_refused(call, (parts, query_heads), why)
    mistakes: dict[str, Mistake] = {
        "Its query heads are neighbours, so that they use few K/V heads.": "apart",
        "List a K/V head once, however many query heads use it.": "repeated",
        "It needs only the K/V heads of its own query heads; others would only take memory.": "every",
    }
    hint = "two lists: its query heads, which are neighbours, and the K/V heads that they use, sorted. With fewer of these "
    hint += "than processes, several processes have the same one"
    compare(heads_of, _heads, cases, mistakes, hint=hint)
    return f"{len(cases)} processes, with K/V heads divided and with K/V heads in several processes"


def _heads(part: int, parts: int, query_heads: int, kv_heads: int, wrong: Wrong = ()) -> tuple[list[int], list[int]]:
    each, group = query_heads // parts, query_heads // kv_heads
    mine = list(range(part, query_heads, parts) if "apart" in wrong else range(part * each, (part + 1) * each))
    used = [head // group for head in (range(query_heads) if "every" in wrong else mine)]
    return mine, used if "repeated" in wrong else sorted(set(used))
