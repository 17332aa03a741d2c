"""Checks of notebook 03: right answers pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes

SESSION = """
class Session:
    def __init__(self, forward, max_new_tokens, end_token_id):
        self.forward, self.max_new_tokens, self.end_token_id = forward, max_new_tokens, end_token_id
        self.token_ids, self.prompt_len, self.kv_len, self.finished = [], 0, 0, False

    def append(self, token_id):
        self.token_ids.append(token_id)
        if token_id == self.end_token_id or len(self.token_ids) - self.prompt_len == self.max_new_tokens:
            self.finished, self.kv_len = True, 0

    def prefill(self, prompt_ids):
        self.token_ids, self.prompt_len = list(prompt_ids), len(prompt_ids)
        token_id = self.forward(prompt_ids, 0)
        self.kv_len = len(prompt_ids)
        self.append(token_id)
        return token_id

    def step_once(self):
        if self.finished:
            return None
        token_id = self.forward(self.token_ids[-1:], self.kv_len)
        self.kv_len += 1
        self.append(token_id)
        return token_id
"""
STEP = """
def decode_step(q, k, v, keys, values):
    keys, values = torch.cat((keys, k[None])), torch.cat((values, v[None]))
    return (keys @ q / len(q) ** 0.5).softmax(0) @ values, keys, values
"""
GROUPED = """
def decode_attention(q, keys, values):
    group = len(q) // keys.shape[1]
    heads = [h // group for h in range(len(q))]
    scores = torch.stack([keys[:, kv] @ q[h] for h, kv in enumerate(heads)]) / q.shape[1] ** 0.5
    return torch.stack([row.softmax(0) @ values[:, kv] for row, kv in zip(scores, heads)])
"""
BYTES = """
def kv_cache_bytes(config, num_tokens, itemsize):
    c = config
    return num_tokens * 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * itemsize
"""
FIT = """
def requests_that_fit(memory, weights, kv, num_tokens):
    return max(0, memory - weights) // (kv * (num_tokens - 1))
"""
ANSWERS = {"3.1": BYTES, "3.2": FIT, "3.3": STEP, "3.4": GROUPED, "3.5": SESSION}

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("3.1", "num_tokens * 2 *", "num_tokens *", "a key and a value"),
    ("3.1", "num_key_value_heads", "num_attention_heads", "Query heads share keys and values"),
    ("3.1", "* c.num_hidden_layers ", "", "Every layer"),
    ("3.1", "* c.num_key_value_heads ", "", "Every key/value head"),
    ("3.1", "* itemsize", "", "takes `itemsize` bytes"),
    ("3.2", "(num_tokens - 1)", "num_tokens", "the newest token has no K/V yet"),
    ("3.2", "max(0, memory - weights)", "memory", "if there were no weights"),
    ("3.2", "max(0, memory - weights)", "(memory - weights)", "If the weights alone don't fit"),
    ("3.2", " // (kv * (num_tokens - 1))", " / (kv * (num_tokens - 1))", "whole number"),
    ("3.3", " / len(q) ** 0.5", "", "square root of D before"),
    ("3.3", "** 0.5", "", "Divide them by its square root"),
    ("3.3", ".softmax(0)", "", "Scores aren't weights"),
    ("3.3", "torch.cat((keys, k[None]))", "torch.cat((k[None], keys))", "the cached keys followed by k"),
    ("3.3", "(keys @ q / len(q) ** 0.5).softmax(0) @ values", "(keys[:-1] @ q / len(q) ** 0.5).softmax(0) @ values[:-1]",
     "sees itself"),
    ("3.4", "h // group", "h % keys.shape[1]", "Neighbours share"),
    ("3.4", " / q.shape[1] ** 0.5", "", "square root of D before"),
    ("3.4", "row.softmax(0) @", "row @", "Does your softmax run over the S tokens"),
    ("3.5", "self.forward(prompt_ids, 0)", "self.forward(prompt_ids[:-1], 0)", "whole prompt"),
    ("3.5", "self.kv_len = len(prompt_ids)", "self.kv_len = len(prompt_ids) + 1", "It has no K/V yet"),
    ("3.5", "self.forward(self.token_ids[-1:], self.kv_len)", "self.forward(self.token_ids, 0)", "next token to compute"),
    ("3.5", "        self.kv_len += 1\n", "", "number of tokens computed so far"),
    ("3.5", "True, 0", "True, self.kv_len", "must hold no K/V"),
]  # fmt: skip


@pytest.mark.parametrize("id", ANSWERS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, ANSWERS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, ANSWERS[id], right, wrong, hint)
