"""Checks of notebook 12 but for the inner loop in C++: right answers pass, and each typical mistake gets its hint."""

import pytest

from notebooks.course import Hint, check
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("12_where_the_time_goes")
IDS = ("12.1", "12.2", "12.3", "12.5")

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("12.1", "requests * bandwidth", "bandwidth", "how many passes"),
    ("12.1", " + requests * context * kv_bytes", "", "K/V is read, too"),
    ("12.1", "requests * context", "context", "of one request"),
    ("12.1", "weight_bytes + requests", "requests * weight_bytes + requests", "once per pass, however many"),
    ("12.1", "/ pass_bytes", "/ pass_bytes / 2", "The speed is wrong"),
    ("12.2", "2 * weights * bandwidth", "weights * bandwidth", "two: a multiplication and an addition"),
    ("12.2", " - context * kv_bytes * flops", "", "K/V is missing|Return None"),
    ("12.2", "    if gained <= 0:\n        return None\n", "    if gained <= 0:\n        return 1\n", "Return None"),
    ("12.2", "gained)))", "gained))) + 1", "the fewest requests"),
    ("12.2", "max(1, int(-(-(weights * weight_bytes * flops) // gained)))", "weights * weight_bytes * flops / gained",
     "whole number"),
    ("12.3", "(slots, -1)", "(slots, 0)", "behind the batch \\[-1\\]"),
    ("12.3", "(lens - 1, 0)", "(lens, 0)", "is at position 4"),
    ("12.3", "rows * width", "rows", "Row r begins at r \\* width"),
    ("12.3", "        array[count:] = padding\n", "", "not what is left"),
    ("12.3", "        array[:count] = values\n        array[count:] = padding\n",
     "        full = np.full(len(array), padding)\n        full[:count] = values\n        setattr(buffers, name, full)\n",
     "the same array as before"),
    ("12.5", "some_x @ some_weights.T\n", "some_x.float() @ some_weights.float().T\n", "must be bfloat16"),
    ("12.5", "weight.chunk(parts, dim=1)", "[weight] * parts", "Split the inputs of both"),
    ("12.5", "parts = min(len(x), 8)", "parts = 1", "bits don't depend on the batch"),
    ("12.5", "dtype=x.dtype", "dtype=torch.float32", "must be bfloat16"),
    ("12.5", "total = total + some_x", "total = some_x", "not all inputs are added up"),
]  # fmt: skip


@pytest.mark.parametrize("id", IDS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ANSWERS) == {*IDS, "12.4"}, "which has a file of its own, test_checks_inner_loop.py"
    passes(id, ANSWERS[id], capsys)


NEVER = "if 2 * weights / flops <= context * kv_bytes / bandwidth:\n        return None"


@pytest.mark.parametrize(
    "body",
    [
        "gap = 2 * weights / flops - context * kv_bytes / bandwidth\n"
        "    return max(1, ceil(weights * weight_bytes / bandwidth / gap)) if gap > 0 else None",
        f"{NEVER}\n    n = 1\n"
        "    while 2 * weights * n / flops < (weights * weight_bytes + n * context * kv_bytes) / bandwidth:\n"
        "        n += 1\n    return n",
        f"{NEVER}\n    n = 1\n    while True:\n"
        "        reading = (weights * weight_bytes + n * context * kv_bytes) / bandwidth\n"
        "        computing = n * 2 * weights / flops\n"
        "        if computing >= reading:\n            return n\n        n += 1",
        "per = 2 * weights * bandwidth / flops - context * kv_bytes\n"
        "    return None if per <= 0 else max(1, ceil(weights * weight_bytes / per))",
    ],
)
def test_other_ways_to_find_the_batch_pass(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "weights, weight_bytes, context, kv_bytes, bandwidth, flops"
    passes("12.2", f"def busy_from({arguments}):\n    {body}\n", capsys)


PAIRS = "zip(x.chunk(parts, 1), weight.chunk(parts, 1))"
LINEAR = "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n    "


@pytest.mark.parametrize(
    "body",
    [
        "return reduce(torch.add, [a @ b.T for a, b in zip(x.tensor_split(parts, 1), weight.tensor_split(parts, 1))])",
        f"return sum(torch.nn.functional.linear(a, b) for a, b in {PAIRS})",
        f"return sum((a.float() @ b.float().T).bfloat16() for a, b in {PAIRS})",
        f"return sum([a @ b.T for a, b in {PAIRS}][::-1])",
        "total = x.new_zeros(len(x), len(weight))\n    for i in range(parts):\n"
        "        a, b = i * x.shape[1] // parts, (i + 1) * x.shape[1] // parts\n"
        "        total += torch.einsum('ti,oi->to', x[:, a:b], weight[:, a:b])\n    return total",
    ],
)
def test_other_sums_of_parts_pass(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes("12.5", LINEAR + body, capsys)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("return x @ weight.T", "With 2 tokens, your result is as exact as one product"),
        (
            "return torch.cat([a @ weight.T for a in x.chunk(parts)])",
            "With 2 tokens, your result is as exact as one product",
        ),
        (
            "return torch.cat([x @ b.T for b in weight.chunk(parts)], 1)",
            "With 2 tokens, your result is as exact as one product",
        ),
        ("return (x.float() @ weight.float().T).bfloat16()", "With 2 tokens, your result is as exact as one product"),
        (f"return torch.stack([a @ b.T for a, b in {PAIRS}]).sum(0)", "added in float32 and rounded once"),
        (f"return sum((a @ b.T).float() for a, b in {PAIRS}).bfloat16()", "added in float32 and rounded once"),
        (f"return sum(a.float() @ b.float().T for a, b in {PAIRS}).bfloat16()", "as exact as one product"),
        ("return sum(a @ weight.T for a in x.chunk(parts, 1))", "Split the inputs of both"),
    ],
)
def test_another_sum_is_told_what_it_is(body: str, hint: str) -> None:
    with pytest.raises(Hint, match=hint):
        check("12.5", written(LINEAR + body))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, ANSWERS[id], right, wrong, hint)
