"""Right answers to the exercises that go another way than the notebooks' solutions."""

OTHERS: list[tuple[str, str]] = [
    ("20.2",
     "def busy_from(weights, weight_bytes, context, kv_bytes, bandwidth, flops):\n"
     "    gap = 2 * weights / flops - context * kv_bytes / bandwidth\n"
     "    return max(1, ceil(weights * weight_bytes / bandwidth / gap)) if gap > 0 else None\n"),
    ("20.2",
     "def busy_from(weights, weight_bytes, context, kv_bytes, bandwidth, flops):\n"
     "    if 2 * weights / flops <= context * kv_bytes / bandwidth:\n        return None\n    n = 1\n"
     "    while 2 * weights * n / flops < (weights * weight_bytes + n * context * kv_bytes) / bandwidth:\n"
     "        n += 1\n    return n\n"),
    ("13.1",
     "def grouped(x, of_rows, a, b, scales):\n    y = x.new_zeros(len(x), len(b[0]))\n"
     "    for i in range(len(a)):\n        rows = (of_rows == i).nonzero()[:, 0]\n"
     "        y[rows] = torch.einsum('ti,ri,or->to', x[rows], a[i], b[i]) * scales[i]\n    return y"),
    ("13.2",
     "def cache_key(adapter, extra_key):\n    return (-1 if adapter is None else adapter.id), extra_key\n"),
    ("14.1",
     "def lookup(tokens, shortest, count):\n    best = []\n    size = 0\n    for at in range(1, len(tokens)):\n"
     "        n = 0\n        while n < at and tokens[at - 1 - n] == tokens[-1 - n]:\n            n += 1\n"
     "        if n >= max(size, shortest, 1):\n            best, size = tokens[at : at + count], n\n"
     "    return best\n"),
    ("14.2",
     "def expected_tokens(p, k):\n    return k + 1 if p == 1 else (1 - p ** (k + 1)) / (1 - p)\n\n"
     "def best_k(p, seconds, most):\n    best = 0\n    for k in range(1, most + 1):\n"
     "        if expected_tokens(p, k) / seconds[k + 1] > expected_tokens(p, best) / seconds[best + "
     "1] + 1e-12:\n            best = k\n    return best\n"),
    ("15.2",
     "def forced(allowed, after, state, end, most):\n    found = []\n    for _ in range(most):\n"
     "        ids = list(allowed(state))\n"
     "        if ids == [end] or len(ids) != 1:\n            return found\n        found += ids\n"
     "        state = after(state, ids[0])\n    return found"),
    ("16.1",
     "class Bucket:\n    def __init__(self, rate, burst):\n"
     "        self.rate, self.burst, self.full_at = rate, burst, 0.0\n\n    def admit(self, now, cost):\n"
     "        if cost > self.burst:\n            raise ValueError(f'{cost} > {self.burst}')\n"
     "        start = max(self.full_at, now)\n        missing = (start - now) * self.rate + cost - self.burst\n"
     "        if missing > 0:\n            return ceil(missing / self.rate)\n"
     "        self.full_at = start + cost / self.rate\n"),
    ("16.2",
     "def times_of(arrivals, services, max_running):\n    ends = []\n"
     "    for arrival, service in zip(arrivals, services):\n"
     "        begin = arrival if len(ends) < max_running else max(arrival, sorted(ends)[-max_running])\n"
     "        ends.append(begin + service)\n    return [end - arrival for end, arrival in zip(ends, arrivals)]"),
    ("17.1",
     "def best(prompt_tokens, views):\n"
     "    return sorted(views, key=lambda v: (v.queued - v.cached) + 12 * v.requests)[0]"),
    ("17.2",
     "class Memory:\n    def __init__(self, seconds):\n        self.seconds, self.sent_at = seconds, {}\n\n"
     "    def sent(self, replica, hashes, now):\n"
     "        self.sent_at = {k: at for k, at in self.sent_at.items() if now - at <= self.seconds}\n"
     "        self.sent_at |= {(replica, block): now for block in hashes}\n\n"
     "    def matched(self, replica, hashes, held, now):\n        for i, block in enumerate(hashes):\n"
     "            young = now - self.sent_at.get((replica, block), float('-inf')) <= self.seconds\n"
     "            if not (young or block in held):\n                return i\n        return len(hashes)\n\n"
     "    def died(self, replica):\n"
     "        self.sent_at = {k: at for k, at in self.sent_at.items() if k[0] != replica}\n\n"
     "    def size(self):\n        return len(self.sent_at)"),
    ("18.1",
     "def block_table(row, page_size, width):\n    table = []\n    for n in range(0, len(row), page_size):\n"
     "        part = row[n : n + page_size]\n        for i, slot in enumerate(part):\n"
     "            if slot != part[0] + i or part[0] % page_size:\n"
     "                raise ValueError(f'slot {slot} of token {n + i}')\n"
     "        table.append(part[0] // page_size)\n    if len(table) > width:\n"
     "        raise ValueError(f'width {width} is less than {len(table)}')\n    while len(table) < width:\n"
     "        table.append(-1)\n    return table"),
    ("18.2",
     "def new_slots(tables, lengths, q_lens, page_size):\n    pairs = []\n    for i in range(len(tables)):\n"
     "        for n in range(lengths[i])[-q_lens[i]:]:\n            page, offset = divmod(n, page_size)\n"
     "            row = dict(enumerate(tables[i]))\n            if row.get(page, -1) == -1:\n"
     "                raise ValueError(f'token {n} of request {i}')\n"
     "            pairs.append((n, row[page] * page_size + offset))\n"
     "    return [n for n, _ in pairs], [slot for _, slot in pairs]"),
    ("18.3",
     "def advance(state, sampled, block_tables, block_size):\n    for i in range(len(state['seq_lens'])):\n"
     "        if i >= len(sampled):\n            state['input_tokens'][i] = state['input_positions'][i] = 0\n"
     "            state['slot_mapping'][i] = -1\n            continue\n        n = int(state['seq_lens'][i])\n"
     "        state['input_tokens'][i] = sampled[i, 0]\n        state['input_positions'][i] = n\n"
     "        state['seq_lens'][i] = n + 1\n"
     "        state['slot_mapping'][i] = block_tables[i, n // block_size] * block_size + n % block_size"),
    ("19.1",
     "def fewest_tokens(bytes_per_token, bytes_per_second, begin, compute):\n"
     "    each = bytes_per_token / bytes_per_second\n    if each >= compute:\n        return None\n    n = 1\n"
     "    while begin + n * each >= n * compute:\n        n += 1\n    return n"),
    ("19.2",
     "import struct\n\n\ndef read_kv(data, fingerprint, tokens, token_bytes):\n    n = len(tokens)\n"
     "    if len(data) != 20 + n * (4 + token_bytes) + 32:\n        return None\n"
     "    if sha256(data[:-32]).digest() != data[-32:]:\n        return None\n"
     "    name, count = data[:16], int.from_bytes(data[16:20], 'little')\n"
     "    found = list(struct.unpack(f'<{n}I', data[20 : 20 + 4 * n]))\n"
     "    same = (name, count, found) == (fingerprint, n, tokens)\n"
     "    return data[20 + 4 * n : -32] if same else None"),
    ("21.1",
     "def heads_of(part, parts, query_heads, kv_heads):\n    each, rest = divmod(query_heads, parts)\n"
     "    if rest:\n        raise ValueError(f'{query_heads} heads, {parts} processes')\n"
     "    first, group = part * each, query_heads // kv_heads\n"
     "    return list(range(first, first + each)), list(range(first // group, (first + each - 1) // group + 1))"),
]  # fmt: skip
