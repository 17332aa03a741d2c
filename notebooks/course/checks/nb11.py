"""Checks of notebook 11: the chunks of a prompt. nb11_order.py has the other exercises."""

from random import Random

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal


def _chunks_by_hand(prefix_len: int, num_tokens: int, size: int, spent: int, page_size: int) -> list[tuple[int, int]]:
    """Token by token: a chunk grows until the round's budget is spent, then shrinks to the last page boundary."""
    found, done, left = [], prefix_len, size - spent
    while done < num_tokens:
        end = done
        while end < num_tokens and end - done < left:
            end += 1
        while end < num_tokens and end % page_size:
            end -= 1
        if end > done:
            found.append((done, end))
        done, left = max(done, end), size
    return found


@exercise("11.1", "Divide a prompt into chunks")
def _(given: Given) -> str:
    prompt_chunks = given["prompt_chunks"]

    def ask(*arguments: int) -> list[tuple[int, int]]:
        answer = prompt_chunks(*arguments)
        expect(isinstance(answer, list), f"prompt_chunks must return a list of (start, end), not {answer!r}")
        expect(
            all(isinstance(chunk, tuple | list) for chunk in answer),
            f"prompt_chunks must return a list of (start, end), not {answer!r}",
        )
        return [tuple(chunk) for chunk in answer]

    expect_equal(ask(0, 10, 64, 0, 1), [(0, 10)], "A prompt that fits into the first round is one chunk")
    expect_equal(
        ask(0, 100, 40, 0, 1), [(0, 40), (40, 80), (80, 100)], "Each round computes 40 tokens, until the prompt ends"
    )
    expect_equal(
        ask(30, 100, 40, 0, 1),
        [(30, 70), (70, 100)],
        "Cached tokens aren't computed, so the chunks begin at prefix_len",
    )
    expect_equal(
        ask(0, 100, 40, 15, 1),
        [(0, 25), (25, 65), (65, 100)],
        "Other requests have used 15 of the first round's 40 tokens. Every later round has 40 again",
    )
    expect_equal(
        ask(0, 50, 20, 20, 1),
        [(0, 20), (20, 40), (40, 50)],
        "A round with no budget left gives no chunk at all, not an empty one",
    )
    expect_equal(
        ask(0, 20, 11, 0, 4),
        [(0, 8), (8, 16), (16, 20)],
        "A chunk in the middle of a prompt must end at a page boundary",
    )
    expect_equal(
        ask(0, 13, 7, 0, 4),
        [(0, 4), (4, 8), (8, 13)],
        "The last chunk ends where the prompt ends, even if that is in the middle of a page",
    )
    expect_equal(
        ask(16, 40, 20, 18, 8),
        [(16, 32), (32, 40)],
        "The first round has two tokens left, less than a page of 8, so it gives no chunk",
    )
    expect_equal(
        ask(16, 18, 20, 18, 8),
        [(16, 18)],
        "The rest of the prompt fits into the rest of the round, so there is one last chunk",
    )
    rng = Random(82)
    for _ in range(300):
        page_size = rng.choice((1, 2, 4, 8))
        size = rng.randint(page_size, 40)
        prefix_len = rng.randint(0, 5) * page_size
        arguments = (prefix_len, prefix_len + rng.randint(1, 150), size, rng.randint(0, size), page_size)
        expect_equal(ask(*arguments), _chunks_by_hand(*arguments), f"prompt_chunks{arguments}")
    return "every token is computed once, and no round computes too many"
