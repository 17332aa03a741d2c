"""Answers to the exercises of notebooks 03 to 07: right ones, and typical mistakes with what their hints must say."""

# Right answers in which the mistakes are made, where that is not the notebook's solution.
RIGHT = {
    "3.1": """
def kv_cache_bytes(config, num_tokens, itemsize):
    c = config
    return num_tokens * 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * itemsize
""",
    "3.2": """
def requests_that_fit(memory, weights, kv, num_tokens):
    return max(0, memory - weights) // (kv * (num_tokens - 1))
""",
    "3.3": """
def decode_step(q, k, v, keys, values):
    keys, values = torch.cat((keys, k[None])), torch.cat((values, v[None]))
    return (keys @ q / len(q) ** 0.5).softmax(0) @ values, keys, values
""",
    "3.4": """
def decode_attention(q, keys, values):
    group = len(q) // keys.shape[1]
    heads = [h // group for h in range(len(q))]
    scores = torch.stack([keys[:, kv] @ q[h] for h, kv in enumerate(heads)]) / q.shape[1] ** 0.5
    return torch.stack([row.softmax(0) @ values[:, kv] for row, kv in zip(scores, heads)])
""",
    "3.5": """
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
""",
    "4.1": """
def pad(keys):
    lens = [len(key) for key in keys]
    rectangle = torch.zeros(len(keys), max(lens), *keys[0].shape[1:])
    for row, key in enumerate(keys):
        rectangle[row, : len(key)] = key
    seen = torch.arange(max(lens)) < torch.tensor(lens)[:, None]
    return rectangle, seen
""",
    "4.2": """
def batched_decode_attention(q, keys, values, seen):
    keys, values = keys.clone(), values.clone()
    keys[~seen] = 0
    values[~seen] = 0
    group = q.shape[1] // keys.shape[2]
    keys, values = keys.repeat_interleave(group, 2), values.repeat_interleave(group, 2)
    scores = torch.einsum("bhd,bshd->bhs", q, keys) / q.shape[2] ** 0.5
    scores[~seen[:, None].expand_as(scores)] = -torch.inf
    return torch.einsum("bhs,bshd->bhd", scores.softmax(-1), values)
""",
    "4.3": """
def split_rows(rectangle, lens):
    return [rectangle[row, :length].clone() for row, length in enumerate(lens)]
""",
    "4.4": """
def step(running, waiting, max_running, decode):
    finished = []
    while waiting and len(running) < max_running:
        request = waiting.popleft()
        request.prefill()
        (finished if request.finished else running).append(request)
    if running:
        decode(running)
    finished += [request for request in running if request.finished]
    running[:] = [request for request in running if not request.finished]
    return finished
""",
    "4.5": """
def padding_share(prompt_lens, new_tokens):
    used = total = 0
    for i in range(max(new_tokens) - 1):
        rows = [n + i + 1 for n, new in zip(prompt_lens, new_tokens) if new - 1 > i]
        used, total = used + sum(rows), total + len(rows) * max(rows)
    return 1 - used / total if total else 0.0
""",
    "5.1": """
def alloc(runs, need_size):
    if need_size > sum(end - start for start, end in runs):
        return None
    slots = []
    while len(slots) < need_size:
        start, end = runs[0]
        taken_to = min(end, start + need_size - len(slots))
        slots += range(start, taken_to)
        runs[:1] = [(taken_to, end)] if taken_to < end else []
    return slots
""",
    "5.2": """
def slots_of(block_table, positions, page_size):
    return block_table[positions // page_size] * page_size + positions % page_size
""",
    "5.3": """
def share_prefix(req_to_token_pool, token_to_kv_pool, old, new, length, total):
    fresh = token_to_kv_pool.alloc(total - length)
    if fresh is None:
        return None
    table = req_to_token_pool.req_to_token
    table[new, :length] = table[old, :length]
    table[new, length:total] = fresh
    return len(fresh)
""",
    "5.4": """
def alloc_contiguous(runs, need_size):
    for i, (start, end) in enumerate(runs):
        if end - start >= need_size:
            taken_to = start + need_size
            runs[i : i + 1] = [(taken_to, end)] if taken_to < end else []
            return start, taken_to
    return None
""",
    "5.5": """
def free(runs, slots, size):
    now = {slot for start, end in runs for slot in range(start, end)}
    for i, slot in enumerate(slots):
        if not 0 <= slot < size:
            raise ValueError(f"slot {slot} is outside the pool")
        if slot in now:
            raise ValueError(f"slot {slot} is free already")
        if slot in slots[:i]:
            raise ValueError(f"slot {slot} is given twice")
    ordered = sorted([*now, *slots])
    starts = [slot for slot in ordered if slot - 1 not in ordered]
    ends = [slot + 1 for slot in ordered if slot + 1 not in ordered]
    runs[:] = list(zip(starts, ends))
""",
    "5.6": """
def audit(pool, owners):
    count = np.zeros(pool.size, dtype=int)
    for slots in (pool.free_slots(), *owners.values()):
        for slot in slots.tolist():
            count[slot] += 1
    return np.flatnonzero(count == 0).tolist(), np.flatnonzero(count > 1).tolist()
""",
    "6.1": """
def positions(seq_lens, prefix_lens):
    spans = zip(prefix_lens.tolist(), seq_lens.tolist())
    return torch.cat([torch.arange(start, end) for start, end in spans])
""",
    "6.2": """
def row_pointers(lens):
    indptr = torch.zeros(len(lens) + 1, dtype=torch.int32)
    indptr[1:] = lens.cumsum(0)
    return indptr, indptr[:-1]
""",
    "6.3": """
def contiguous(out_cache_loc):
    slots = out_cache_loc.tolist()
    start, end = slots[0], slots[0] + len(slots)
    return (start, end) if slots == list(range(start, end)) else (None, None)
""",
    "6.4": """
def kv_indices(req_to_token, req_pool_indices, seq_lens):
    lens = seq_lens.long()
    request = torch.repeat_interleave(torch.arange(len(lens)), lens)
    position = torch.arange(int(lens.sum())) - (lens.cumsum(0) - lens)[request]
    return req_to_token[req_pool_indices.long()[request], position]
""",
    "6.5": """
def predicted():
    return {
        "req_pool_indices": [2, 0],
        "seq_lens": [9, 5],
        "prefix_lens": [6, 4],
        "extend_seq_lens": [3, 1],
        "positions": [6, 7, 8, 4],
        "out_cache_loc": [2, 3, 20, 4],
        "start_loc": [0, 9],
        "qo_indptr": [0, 3, 4],
        "kv_indptr": [0, 9, 14],
        "kv_indices": [8, 9, 10, 11, 0, 1, 2, 3, 20, 8, 9, 10, 11, 4],
        "kv_last_page_len": [1, 1],
    }
""",
}

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("3.1", "num_tokens * 2 *", "num_tokens *", "a key and a value"),
    ("3.1", "num_key_value_heads", "num_attention_heads", "Query heads share keys and values"),
    ("3.1", "* c.num_hidden_layers ", "", "Every layer"),
    ("3.1", "* c.num_key_value_heads ", "", "Every key/value head"),
    ("3.2", "(num_tokens - 1)", "num_tokens", "the newest token has no K/V yet"),
    ("3.2", "max(0, memory - weights)", "memory", "if there were no weights"),
    ("3.2", "max(0, memory - weights)", "(memory - weights)", "If the weights alone don't fit"),
    ("3.2", " // (kv * (num_tokens - 1))", " / (kv * (num_tokens - 1))", "whole number"),
    ("3.3", " / len(q) ** 0.5", "", "square root of D before"),
    ("3.3", "** 0.5", "", "Divide them by its square root"),
    ("3.3", ".softmax(0)", "", "Scores aren't weights"),
    ("3.3", "torch.cat((keys, k[None]))", "torch.cat((k[None], keys))", "the cached keys followed by k"),
    ("3.4", "h // group", "h % keys.shape[1]", "Neighbours share"),
    ("3.4", " / q.shape[1] ** 0.5", "", "square root of D before"),
    ("3.4", "row.softmax(0) @", "row @", "Does your softmax run over the S tokens"),
    ("3.5", "self.forward(prompt_ids, 0)", "self.forward(prompt_ids[:-1], 0)", "whole prompt"),
    ("3.5", "self.kv_len = len(prompt_ids)", "self.kv_len = len(prompt_ids) + 1", "It has no K/V yet"),
    ("3.5", "self.forward(self.token_ids[-1:], self.kv_len)",
     "self.forward(self.token_ids, 0)",
     "next token to compute"),
    ("3.5", "        self.kv_len += 1\n", "", "number of tokens computed so far"),
    ("4.1", "max(lens)) <", "max(lens)) >=", "mask is True for padding"),
    ("4.1", "torch.zeros(", "torch.ones(", "must be zeros"),
    ("4.1", ": len(key)] = key", "-len(key) :] = key", "must begin with"),
    ("4.1", "max(lens), *keys", "10, *keys", "longest"),
    ("4.2", "    scores[~seen[:, None].expand_as(scores)] = -torch.inf\n", "", "Padding isn't masked"),
    ("4.2", "= -torch.inf", "= 0", "Padding isn't masked"),
    ("4.2", "    values[~seen] = 0\n", "", "the output is NaN"),
    ("4.2", "keys.repeat_interleave(group, 2), values.repeat_interleave(group, 2)",
     "keys.repeat(1, 1, group, 1), values.repeat(1, 1, group, 1)",
     "h % Hk"),
    ("4.3", ".clone()", "", "keeps 480 bytes alive"),
    ("4.3", ".clone()", ".contiguous()", "doesn't copy a tensor that is already contiguous"),
    ("4.4", "    if running:\n        decode", "    if True:\n        decode", "pass without requests"),
    ("4.4", "(finished if request.finished else running)", "running", "has already finished"),
    ("4.4", "        request.prefill()\n", "", "wasn't prefilled"),
    ("4.4", "popleft()", "pop()", "waited longest"),
    ("4.5", "n + i + 1 for n, new in zip(prompt_lens, new_tokens) if new - 1 > i",
     "n + min(i + 1, new - 1) for n, new in zip(prompt_lens, new_tokens)",
     "keep all requests in the batch"),
    ("4.5", "used = total = 0\n", "return 1 - sum(prompt_lens) / len(prompt_lens) / max(prompt_lens)\n", "Rows grow"),
    ("4.5", "n + i + 1", "n + i", "another share"),
    ("4.5", "new - 1 > i", "new > i", "another share"),
    ("5.1", "    if need_size > sum(end - start for start, end in runs):\n        return None\n"
             "    slots = []\n    while",
     "    slots = []\n    while runs and",
     "all or nothing"),
    ("5.1", "    if need_size > sum(end - start for start, end in runs):\n        return None\n"
             "    slots = []\n    while len(slots) < need_size:\n",
     "    slots = []\n    while len(slots) < need_size:\n        if not runs:\n            return None\n",
     "the slots that it took are lost"),
    ("5.1", "runs[0]", "runs[-1]", "take the lowest free slots"),
    ("5.1", "    slots = []\n", "    slots, runs = [], list(runs)\n", "still in `runs`"),
    ("5.2", "block_table[positions // page_size]", "block_table[positions]", "used the position itself|IndexError"),
    ("5.2", "block_table[positions // page_size]",
     "block_table[positions % len(block_table)]",
     "used the position itself"),
    ("5.2", " + positions % page_size", "", "at offset n % P"),
    ("5.2", "return ", "", "Is a `return` missing"),
    ("5.3", "alloc(total - length)", "alloc(total)[length:]", "already have K/V"),
    ("5.3", "    table[new, :length] = table[old, :length]\n", "", "must have the same slots"),
    ("5.3", "table[new, length:total] = fresh",
     "table[new, length:total] = table[old, length:total]",
     "slots of the old request|the new slots"),
    ("5.3", "    if fresh is None:\n        return None\n    table = req_to_token_pool.req_to_token\n",
     "    table = req_to_token_pool.req_to_token\n    table[new, :length] = table[old, :length]\n"
     "    if fresh is None:\n        return None\n",
     "changed a row"),
    ("5.4", ">= need_size", "> need_size", "first run that is long enough|Is a `return` missing|\\*first fit\\*"),
    ("5.4", "enumerate(runs)", "list(enumerate(runs))[::-1]", "\\*first fit\\* takes the first"),
    ("5.4", "return start, taken_to", "return start, taken_to - 1", "`end` is exclusive"),
    ("5.4", "            runs[i : i + 1] = [(taken_to, end)] if taken_to < end else []\n",
     "",
     "the wrong slots are left"),
    ("5.5", "        if not 0 <= slot < size:\n"
             '            raise ValueError(f"slot {slot} is outside the pool")\n',
     "",
     "is outside 0..31"),
    ("5.5", "not 0 <= slot < size", "slot >= size", "negative index would count from the end"),
    ("5.5", '        if slot in now:\n            raise ValueError(f"slot {slot} is free already")\n',
     "",
     "two requests would get it"),
    ("5.5", "slot in slots[:i]", "False", "is given twice"),
    ("5.6", "    return np.flatnonzero(count == 0).tolist(), np", "    return [], np", "neither free nor held"),
    ("5.6", "count[slot] += 1", "count[slot] = 1", "more than one owner|an owner"),
    ("5.6", "    return", "    count[pool.free_slots()] = 1\n    return", "the free list is an owner"),
    ("5.6", "np.flatnonzero(count > 1).tolist()",
     "[s for s in range(pool.size) for _ in range(count[s] - 1)] * 2",
     "contested slot once|more than one owner"),
    ("6.1", "torch.arange(start, end)", "torch.arange(end - start)", "start every request at position 0"),
    ("6.1", "torch.arange(start, end)", "torch.arange(end)", "positions of all tokens"),
    ("6.1", "torch.cat([torch.arange(start, end) for start, end in spans])",
     "torch.arange(sum(end - start for start, end in spans))",
     "start every request at position 0|indices in the batch"),
    ("6.1", "torch.arange(start, end)", "torch.arange(start + 1, end + 1)", "prefix_len, ..., seq_len - 1"),
    ("6.2", "return indptr, indptr[:-1]", "return indptr[1:], indptr[:-1]", "0 at the front is missing"),
    ("6.2", "return indptr, indptr[:-1]", "return indptr[:-1], indptr[:-1]", "total is missing at the end"),
    ("6.2", "return indptr, indptr[:-1]", "return indptr, indptr[1:]", "where each request \\*ends"),
    ("6.2", "lens.cumsum(0)", "lens.cumsum_(0)", "changed `lens`"),
    ("6.3", "(start, end) if", "(start, end - 1) if", "`end` is exclusive"),
    ("6.3", "else (None, None)", "else None", "return two values"),
    ("6.4", "req_pool_indices.long()[request]", "request", "Request i of the batch is in row"),
    ("6.4", "- (lens.cumsum(0) - lens)[request]", "* 0", "each in the order of its positions"),
    ("6.4", "    return req_to_token",
     "    req_to_token += 0\n    req_to_token[1, 15] = -1\n    return req_to_token",
     "Only read it|order of its positions"),
    ("6.5", '"prefix_lens": [6, 4]', '"prefix_lens": [6, 0]', "10 of 11 .*`prefix_lens` is \\[6, 0\\]"),
    ("6.5", '"kv_last_page_len": [1, 1]', '"kv_last_page_len": [9, 5]', "its pages have one token"),
    ("6.5", '"qo_indptr": [0, 3, 4]', '"qo_indptr": [0, 9, 14]', "among the \\*new\\* tokens"),
    ("6.5", '        "start_loc": [0, 9],\n', "", "still missing: start_loc"),
    ("7.1", "slots >= 0", "slots >= -1", "you changed the last slot of the pool"),
    ("7.1", "value_buffer[slots[wanted]] = v[wanted]", "pass", "the value buffer. Token i"),
    ("7.1", "key_buffer[slots[wanted]] =", "key_buffer[:len(slots[wanted])] =", "change no other slot"),
    ("7.2", "repeat_interleave(num_heads // kv.shape[1], dim=1)",
     "repeat(1, num_heads // kv.shape[1], 1)",
     "neighbours"),
    ("7.2", ", dim=1)", ", dim=2)", "shape"),
    ("7.3", " * scale", "", "too sharp"),
    ("7.3", "dim=1)  # [S, H, D]", "dim=1).flip(1)", "isn't the right weighted mean of the values"),
    ("7.3", "slots = kv_indices[start:end]", "slots = kv_indices", "sees all requests' slots"),
    ("7.3", "slots = kv_indices[start:end]", "slots = torch.arange(start, end)", "look up each token's slot"),
    ("7.4", "torch.arange(prefix_len, seq_len)", "torch.arange(seq_len - prefix_len)", "row i isn't position i"),
    ("7.4", "torch.arange(prefix_len, seq_len)", "torch.arange(seq_len)", "one row per new token"),
    ("7.4", "key <= query", "key < query", "must see itself"),
    ("7.4", "< sliding_window", "<= sliding_window", "yours has 4"),
    ("7.5", " * scale", "", "q · k by `scale`"),
    ("7.5", "scores.masked_fill(hidden, -torch.inf)", "scores", "the mask is missing"),
    ("7.5", "torch.arange(total - new, total)", "torch.arange(new)", "didn't shift the mask by the prefix"),
    ("7.5", "-torch.inf", "0.0", "minus infinity before the softmax"),
]  # fmt: skip

# Other right answers.
OTHERS: list[tuple[str, str]] = [
]  # fmt: skip
