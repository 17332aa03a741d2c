"""Answers to the exercises of notebooks 14 to 19: right ones, and typical mistakes with what their hints must say."""

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("14.1", "range(len(tokens) - 1, shortest - 1, -1)", "range(len(tokens) - 1, 0, -1)", "no ending of at least"),
    ("14.1", "range(len(tokens) - 1, shortest - 1, -1)", "range(shortest, len(tokens))", "A longer one occurs earlier"),
    ("14.1", "range(len(tokens) - n - 1, -1, -1)", "range(len(tokens) - n)", "Take the last of these"),
    ("14.1", "return tokens[start + n : start + n + count]",
     "return tokens[start : start + count]",
     "You return the match itself"),
    ("14.2", "row == len(drafts) or token != drafts[row]", "False", "rows behind it have read a wrong token"),
    ("14.2", "    return tokens\n",
     "    return [a for a, b in zip(drafts, sampled) if a == b] + sampled[-1:]\n",
     "behind it have read|that one included"),
    ("14.2", "    return tokens\n", "    return []\n", "at least one token"),
    ("14.2", "    return tokens\n", "    return [token + 1 for token in tokens]\n", "up to the first one that differs"),
    ("14.3", "range(k + 1))", "range(1, k + 1))", "own token is missing"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return 1 + p * k", "with probability p \\*\\* j"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return p**k", "probability that \\*all\\* drafts are right"),
    ("14.3", "return sum(p**j for j in range(k + 1))", "return 2 + k", "the sum of p"),
    ("14.4", "for length in range(start + 1, end + 1)]",
     "for length in [end] * (end - start)]",
     "reads \\*all\\* drafts"),
    ("14.4", "range(start + 1, end + 1)", "range(start + 2, end + 1)", "row for each draft"),
    ("14.4", "for length in range(start + 1, end + 1)]", "for length in [end]]", "one for each \\*token\\*"),
    ("14.4", "range(start + 1, end + 1)", "range(start + 3, end + 3)", "length is starts\\[i\\] \\+ 1"),
    ("15.1", "in text:", "in text[1:]:", "its first character has no arrow|all its characters have an arrow"),
    ("15.1", "arrows.get((at, char))",
     "arrows.get((state, char))",
     "Each arrow leads to the state for the next|one after the other"),
    ("15.1", "state in accepting if token == end else bool(text) and at is not None",
     "bool(text) and at is not None",
     "the end token is allowed"),
    ("15.1", "at is not None)", "at in accepting)", "where the text may not end yet"),
    ("15.2", "            allowed.append(end)\n",
     "",
     "the end token 0 is the best|more than `most`|larger score|So it ends"),
    ("15.2", "        if state in accepting:\n", "        if True:\n", "the text must go on|not allowed"),
    ("15.2", '            if not allowed:\n                return ids, "stop"\n', "", "nothing can follow"),
    ("15.2", "max(sorted(allowed)", "max(sorted(allowed)[::-1]", "Take the lower number|So it ends|ended after"),
    ("15.3", "mask[tokens // 32] >> (tokens % 32) & 1",
     "(mask[tokens // 32] & (1 << tokens % 32).astype(np.int32)) > 0",
     "the sign of an int32"),
    ("15.3", "(tokens % 32) & 1", "(31 - tokens % 32) & 1", "bit 0 is the lowest bit"),
    ("15.3", "allowed == 0", "allowed != 0", "you forbid the allowed tokens|you forbid token"),
    ("15.3", "    for row, mask", "    masks[:] = masks\n    masks[:1] = 0\n    for row, mask", "you changed `masks`"),
    ("15.4", " or allowed[0] == end", "", "is no draft"),
    ("15.4", "len(allowed) != 1", "len(allowed) == 0", "so none is forced|may end as well"),
    ("15.4", "len(drafts) < most", "len(drafts) < min(most, 1)", "the run goes on with it"),
    ("15.4", "        state = after(state, drafts[-1])\n",
     "",
     "without an alternative|the run goes on|so none is forced"),
    ("16.1", '*lines, rest = (rest + piece).split(b"\\n")',
     '*lines, rest = piece.split(b"\\n")',
     "incomplete for the next piece"),
    ("16.1", '*lines, rest = (rest + piece).split(b"\\n")',
     '*lines, rest = (rest + piece).decode().encode().split(b"\\n")',
     "in the middle of a character"),
    ("16.1", '*lines, rest = (rest + piece).split(b"\\n")',
     '*lines, rest = (rest + piece.decode("utf-8", "replace").encode()).split(b"\\n")',
     "if each half is decoded"),
    ("16.1", '*lines, rest = (rest + piece).split(b"\\n")',
     "lines = [each.encode() for each in (rest + piece).decode().splitlines()]\n"
     '        rest = b"" if piece.endswith(b"\\n") else lines.pop()',
     "splitlines|middle of a character|U.2028"),
    ("16.2", "rest[: len(rest) - waiting].decode()",
     'rest[: len(rest) - waiting].decode("utf-8", "replace")',
     "must wait for the next token"),
    ("16.2", "rest[: len(rest) - waiting].decode()",
     'rest[: len(rest) - waiting].decode("utf-8", "ignore")',
     "Text .* is|must not wait|each byte counts once"),
    ("16.2", '    if rest:\n        texts[-1] += "\\ufffd"\n', "", "the last text ends with one"),
    ("16.2", "        rest += token\n",
     "        rest += token\n        if not token:\n            continue\n",
     "which may be empty"),
    ("16.3", "min(self.burst, self.level + self.rate * (now - self.at))",
     "self.level + self.rate * (now - self.at)",
     "never has more than `burst`"),
    ("16.3", "        self.at = now\n", "", "it must be refused, with .* s to wait|never has more than"),
    ("16.3", "        if cost > self.level:\n            return ceil",
     "        if cost >= self.level:\n            return ceil",
     "Exactly enough is enough"),
    ("16.3", "return ceil((cost - self.level) / self.rate)", "return int((cost - self.level) / self.rate)", "Round up"),
    ("16.4", "times.append(end - arrival)", "times.append(end)", "count from its arrival"),
    ("16.4", "max(arrival, heapq.heappop(free_at)) + service",
     "heapq.heappop(free_at) + service",
     "can't begin before it arrives"),
    ("16.4", "max(arrival, heapq.heappop(free_at)) + service", "arrival + service", "the requests before it"),
    ("16.4", "heapq.heappush(free_at, end)",
     "heapq.heappush(free_at, arrival)",
     "before it are first|the requests before it"),
    ("16.5", "            difference = 0\n",
     "            if key == given:\n                return True\n            difference = 0\n",
     "stop at the first byte"),
    ("16.5", "    found = False\n", "    return given in keys\n", "stop at the first byte"),
    ("16.5", "                difference |= one ^ other\n",
     "                if one != other:\n                    difference = 1\n                    break\n",
     "how many bytes were right"),
    ("16.5", "                difference |= one ^ other\n",
     "                if one != other:\n                    difference = 1\n",
     "how many bytes were right|which it was"),
    ("17.1", "len(tokens) - size + 1", "len(tokens)", "left over at the end"),
    ("17.1", "parent.to_bytes(8,", "namespace.to_bytes(8,", "doesn't depend on the first block"),
    ("17.1", "hashes, parent = [], namespace", "hashes, parent = [], 0", "begin with the namespace"),
    ("17.1", '"little"', "'big'", "big-endian"),
    ("17.2", "0.001 * (view.queued + missing) + 0.01 * view.requests", "view.requests", "It has the whole story"),
    ("17.2", "0.001 * (view.queued + missing) + 0.01 * view.requests", "-view.cached", "fewest tokens ahead"),
    ("17.2", "0.001 * (view.queued + missing) + 0.01 * view.requests",
     "0.00001 * view.queued - view.cached",
     "5,000 ahead"),
    ("17.2", "0.001 * (view.queued + missing) + 0.01 * view.requests",
     "0.001 * missing + 0.01 * view.requests",
     "fewest tokens ahead"),
    ("17.3", "order = [0, 1, 2, 1, 2, 0, 2, 0, 1] * 2", "order = [0, 1, 2] * 6", "by accident"),
    ("17.3", "order = [0, 1, 2, 1, 2, 0, 2, 0, 1] * 2", "order = [0] * 9", "With a single story"),
    ("17.3", "order = [0, 1, 2, 1, 2, 0, 2, 0, 1] * 2", "order = range(9)", "No story comes twice"),
    ("17.3", "* 2", "* 3", "1 to 24 pairs"),
    ("17.4", "sent_at is None or now - sent_at > self.seconds", "sent_at is None", "They were sent too long ago"),
    ("17.4", "sent_at is None or now - sent_at > self.seconds",
     "sent_at is None or now - sent_at >= self.seconds",
     "still counts"),
    ("17.4", "block not in held and (", "(", "The index knows two of them"),
    ("17.4", "                break\n", "                continue\n", "what comes after it is of no use"),
    ("17.5", "    if query_heads % parts:\n", "    if False:\n", "Raise a ValueError"),
    ("17.5", 'f"parts={parts}: must divide query_heads={query_heads}"', "'cannot be divided'", "it should name"),
    ("17.5", "range(part * each, (part + 1) * each)", "range(part, query_heads, parts)", "neighbours"),
    ("17.5", "sorted({head // group for head in mine})", "[head // group for head in mine]", "List a K/V head once"),
    ("18.1", "blocks + [-1] * (width - len(blocks))", "blocks", "Entries that aren't in use"),
    ("18.1", "[-1] * (width", "[0] * (width", "You pad with 0"),
    ("18.1", "return blocks + ", "return row[::page_size] + ", "These are slots"),
    ("18.1", "return blocks + [-1] * (width - len(blocks))",
     "full = blocks[: len(row) // page_size]\n    return full + [-1] * (width - len(full))",
     "last block is missing"),
    ("18.2", "range(length - count, length)", "range(length, length + count)", "your code raises ValueError"),
    ("18.2", "range(length - count, length)", "range(length - count + 1, length + 1)", "newest one is at index"),
    ("18.2", "range(length - count, length)", "range(length - 1, length)", "may have several new tokens"),
    ("18.2", "slots.append(table[page] * page_size + n % page_size)",
     "slots.append(n % page_size)",
     "These are the offsets"),
    ("18.3", 'state["input_tokens"][:queries] = sampled[:, 0]',
     "state['input_tokens'] = torch.cat((sampled[:, 0], state['input_tokens'][queries:]))",
     "another tensor into the dictionary"),
    ("18.3", '    state["seq_lens"][:queries] += 1\n', "", "It counts the new token as well"),
    ("18.3", "block_tables[torch.arange(queries), positions // block_size]",
     "block_tables[0, positions // block_size]",
     "row 0 for every query"),
    ("18.3", "blocks * block_size + positions % block_size", "blocks", "These are blocks"),
    ("18.4", "return mask, ", "return ~mask, ", "the other way round"),
    ("18.4", "    mask[:, :context] = True\n", "", "All nodes see the context"),
    ("18.4", "            mask[node] |= mask[parent]\n", "            pass\n", "doesn't see its parent"),
    ("18.4", "            mask[node] |= mask[parent]\n",
     "            mask[node, context + parent] = True\n",
     "Its path goes up to the root"),
    ("18.5", '"a": (2, 0)', "'a': (1, 0)", "phase two has the last word"),
    ("18.5", '"b": (2, 561002)', "'b': (2, 0)", "makes the sequences longer"),
    ("18.5", '"c": (1, 161001)', "'c': (1, 161002)", "a null pointer in C"),
    ("18.5", '"d": (1, 561002)', "'d': (1, 161002)", "a whole number"),
    ("19.1", "int(begin / gain) + 1", "-int(-begin // gain)", "Equal isn't faster|at least 1"),
    ("19.1", "gain <= 0", "gain < -1", "never faster|division"),
    ("19.1", "        return None\n", "        return 0\n", "Return None"),
    ("19.1", "int(begin / gain) + 1", "1", "forget the"),
    ("19.2", "if name not in continued", "", "is behind the one"),
    ("19.2", "return min(", "return max(", "was used longer ago"),
    ("19.3", "bucket[tuple(tokens)] = kv", "bucket[0] = kv", "and get|is wrong"),
    ("19.3", "bucket[tuple(tokens)] = kv", "bucket[len(tokens)] = kv", "is wrong"),
    ("19.3", "self.buckets.setdefault(self.hash_of(tokens), {})",
     "self.buckets[self.hash_of(tokens)] = {}",
     "Both are to be kept"),
    ("19.3", "self.buckets.get(self.hash_of(tokens), {}).get(tuple(tokens))",
     "next(iter(self.buckets.get(self.hash_of(tokens), {}).values()), None)",
     "another text"),
    ("19.4", " or data[: len(head)] != head", "", "checksum fits"),
    ("19.4", "    if sha256(data[:end]).digest() != data[end:]:\n        return None\n", "", "has changed"),
    ("19.4", "data[len(head) : end]", "data[len(head) :]", "It is right, and so are the tokens"),
    ("19.4", "    if len(data)", "    assert data\n    if len(data)", "it is only a miss"),
]  # fmt: skip

# Other right answers.
OTHERS: list[tuple[str, str]] = [
    ("14.1",
     "def lookup(tokens, shortest, count):\n    best = []\n    size = 0\n    for at in range(1, len(tokens)):\n"
     "        n = 0\n        while n < at and tokens[at - 1 - n] == tokens[-1 - n]:\n            n += 1\n"
     "        if n >= max(size, shortest, 1):\n            best, size = tokens[at : at + count], n\n"
     "    return best\n"),
    ("14.2",
     "def counted(drafts, sampled, end):\n"
     "    right = next((i for i, (a, b) in enumerate(zip(drafts, sampled)) if a != b), len(drafts))\n"
     "    found = list(sampled[: right + 1])\n"
     "    return found[: found.index(end) + 1] if end in found else found\n"),
    ("14.3",
     "def expected_tokens(p, k):\n    return k + 1 if p == 1 else (1 - p ** (k + 1)) / (1 - p)\n\n"
     "def best_k(p, seconds, most):\n    best = 0\n    for k in range(1, most + 1):\n"
     "        if expected_tokens(p, k) / seconds[k + 1] > expected_tokens(p, best) / seconds[best + "
     "1] + 1e-12:\n            best = k\n    return best\n"),
    ("14.4",
     "def decode_rows(rows, starts, ends):\n    counts = np.array(ends) - starts\n"
     "    lens = np.concatenate([np.arange(s + 1, e + 1) for s, e in zip(starts, ends)])\n"
     "    return np.repeat(rows, counts).tolist(), lens.tolist()\n"),
    ("15.1",
     "def mask_of(arrows, accepting, state, tokens, end):\n    def walk(at, text):\n"
     "        return at if at is None or not text else walk(arrows.get((at, text[0])), text[1:])\n"
     "    mask = [text != '' and walk(state, text) is not None for text in tokens]\n"
     "    mask[end] = state in accepting\n    return np.array(mask)"),
    ("15.3",
     "def apply_bits(scores, rows, masks):\n    V = scores.shape[1]\n    if len(rows):\n"
     "        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder='little', count=V)\n"
     "        scores[rows] = scores[rows].masked_fill(torch.from_numpy(bits == 0), -torch.inf)"),
    ("15.3",
     "def apply_bits(scores, rows, masks):\n    for row, mask in zip(rows, masks):\n"
     "        for t in range(scores.shape[1]):\n            if not int(mask[t // 32]) >> t % 32 & 1:\n"
     "                scores[row, t] = float('-inf')"),
    ("15.4",
     "def forced(bits_of, after, state, end, most):\n    found = []\n    for _ in range(most):\n"
     "        row = bits_of(state).view(np.uint32)\n"
     "        ids = [32 * w + b for w in range(len(row)) for b in range(32) if int(row[w]) >> b & 1]\n"
     "        if ids == [end] or len(ids) != 1:\n            return found\n        found += ids\n"
     "        state = after(state, ids[0])\n    return found"),
    ("16.1",
     "def events_of(pieces):\n    waiting = b''\n    for piece in pieces:\n        waiting += piece\n"
     "        while (end := _end(waiting)) is not None:\n"
     "            event, waiting = waiting[: end[0]], waiting[end[1] :]\n"
     "            lines = [line.rstrip(b'\\r').decode() for line in event.split(b'\\n')]\n"
     "            data = [line[6:] if line[5:6] == ' ' else line[5:] for line in lines if line[:5] "
     "== 'data:']\n            if data:\n                yield '\\n'.join(data)\n\n\ndef _end(waiting):\n"
     "    at = 0\n    while (stop := waiting.find(b'\\n', at)) >= 0:\n"
     "        if waiting[at:stop] in (b'', b'\\r'):\n            return at, stop + 1\n        at = stop + 1\n"
     "    return None"),
    ("16.2",
     "import codecs\n\n\ndef texts_of(tokens):\n"
     "    decoder = codecs.getincrementaldecoder('utf-8')('replace')\n"
     "    return [decoder.decode(token, i + 1 == len(tokens)) for i, token in enumerate(tokens)]"),
    ("16.3",
     "class Bucket:\n    def __init__(self, rate, burst):\n"
     "        self.rate, self.burst, self.full_at = rate, burst, 0.0\n\n    def admit(self, now, cost):\n"
     "        if cost > self.burst:\n            raise ValueError(f'{cost} > {self.burst}')\n"
     "        start = max(self.full_at, now)\n        missing = (start - now) * self.rate + cost - self.burst\n"
     "        if missing > 0:\n            return ceil(missing / self.rate)\n"
     "        self.full_at = start + cost / self.rate\n"),
    ("16.4",
     "def times_of(arrivals, services, seats):\n    ends = []\n"
     "    for arrival, service in zip(arrivals, services):\n"
     "        begin = arrival if len(ends) < seats else max(arrival, sorted(ends)[-seats])\n"
     "        ends.append(begin + service)\n    return [end - arrival for end, arrival in zip(ends, arrivals)]"),
    ("16.5",
     "import hmac\n\n\ndef is_allowed(given, keys):\n"
     "    return any([hmac.compare_digest(given, key) for key in keys])"),
    ("16.5",
     "from hashlib import sha256\nfrom hmac import compare_digest\n\n\ndef is_allowed(given, keys):\n"
     "    digest = sha256(given).digest()\n"
     "    return sum(compare_digest(digest, sha256(key).digest()) for key in keys) > 0"),
    ("17.1",
     "import struct\n\n\ndef hashes_of(tokens, size, namespace):\n    if len(tokens) < size:\n"
     "        return []\n    data = struct.pack(f'<Q{size}q', namespace, *tokens[:size])\n"
     "    (first,) = struct.unpack('<Q', blake2b(data, digest_size=8).digest())\n"
     "    return [first, *hashes_of(tokens[size:], size, first)]"),
    ("17.2",
     "def best(prompt_tokens, views):\n"
     "    return sorted(views, key=lambda v: (v.queued - v.cached) + 12 * v.requests)[0]"),
    ("17.3",
     "def losing_burst():\n    return [(0, i % 2) for i in range(12)]"),
    ("17.4",
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
    ("17.5",
     "def heads_of(part, parts, query_heads, kv_heads):\n    each, rest = divmod(query_heads, parts)\n"
     "    if rest:\n        raise ValueError(f'{query_heads} heads, {parts} processes')\n"
     "    first, group = part * each, query_heads // kv_heads\n"
     "    return list(range(first, first + each)), list(range(first // group, (first + each - 1) // group + 1))"),
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
    ("18.4",
     "def tree_mask(parents, context):\n    rows, positions = [], []\n    for node in range(len(parents)):\n"
     "        path, at = [], node\n        while at >= 0:\n            path.append(at)\n"
     "            at = parents[at]\n"
     "        rows.append([True] * context + [n in path for n in range(len(parents))])\n"
     "        positions.append(context + len(path) - 1)\n    return torch.tensor(rows), positions"),
    ("19.1",
     "def fewest_tokens(bytes_per_token, bytes_per_second, begin, compute):\n"
     "    each = bytes_per_token / bytes_per_second\n    if each >= compute:\n        return None\n    n = 1\n"
     "    while begin + n * each >= n * compute:\n        n += 1\n    return n"),
    ("19.2",
     "def first_to_leave(blocks):\n    for name, _ in sorted(blocks.items(), key=lambda item: item[1][1]):\n"
     "        if not any(before == name for before, _ in blocks.values()):\n            return name"),
    ("19.4",
     "import struct\n\n\ndef read_kv(data, fingerprint, tokens, token_bytes):\n    n = len(tokens)\n"
     "    if len(data) != 20 + n * (4 + token_bytes) + 32:\n        return None\n"
     "    if sha256(data[:-32]).digest() != data[-32:]:\n        return None\n"
     "    name, count = data[:16], int.from_bytes(data[16:20], 'little')\n"
     "    found = list(struct.unpack(f'<{n}I', data[20 : 20 + 4 * n]))\n"
     "    same = (name, count, found) == (fingerprint, n, tokens)\n"
     "    return data[20 + 4 * n : -32] if same else None"),
]  # fmt: skip
