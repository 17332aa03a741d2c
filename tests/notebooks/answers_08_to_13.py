"""Answers to the exercises of notebooks 08 to 13: right ones, and typical mistakes with what their hints must say."""

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("8.1", "            if length < len(child):\n                child = self._split(child, length)\n",
     "",
     "Where a node matches only partly"),
    ("8.1", "            if length < len(child):\n                child = self._split(child, length)\n",
     "            if length < len(child):\n                slots += child.value[:length].tolist()\n"
     "                node = child\n                break\n",
     "must hold exactly these"),
    ("8.1", "            child.last_access_time = self._clock\n", "", "or lru evicts it"),
    ("8.1", "node, tokens = child, tokens[length:]", "node, tokens = child, tokens[:0]", "the slots of these tokens"),
    ("8.2", "        return upper\n", "        return node\n", "the lower part: a request that locked it later walks"),
    ("8.2", "        return upper\n", "", "must return the new upper part"),
    ("8.2", "upper.lock_ref, upper.hit_count = node.lock_ref, node.hit_count\n", "pass\n", "evicted while they are"),
    ("8.2", "        upper.parent.children[upper.edge] = upper\n", "", "still points to the lower part"),
    ("8.3", "        return known\n", "        return len(tokens)\n", "already in the tree: the tree was empty"),
    ("8.3", "            self._evictable_size += len(leaf)\n", "", "total_size|contradicts itself"),
    ("8.3", "            self._eviction_queue.offer(leaf)\n", "", "queue"),
    ("8.3", "        if known < len(tokens):", "        if True:", "a node has no tokens"),
    ("8.4", " and not node.lock_ref]", "]", "a running request reads|is locked"),
    ("8.4", "if not node.children and not node.lock_ref]", "if not node.lock_ref]", "could never be matched again"),
    ("8.4", "node.last_access_time)", "-node.last_access_time)", "before 'X'"),
    ("8.4", "        return freed\n", "", "evict must return"),
    ("9.1", "req.tree_len : req.allocated_len", ": req.allocated_len", "begin at tree_len"),
    ("9.1", "req.tree_len : req.allocated_len", "req.prefix_len : req.allocated_len", "begin at tree_len"),
    ("9.1", "req.tree_len : req.allocated_len", "req.tree_len : req.kv_len", "up to allocated_len"),
    ("9.1", "req.tree_len : req.allocated_len", "req.tree_len : req.num_tokens", "two pages"),
    ("9.2", "            node = node.parent\n", "            node = self.root\n", "every node from the root down"),
    ("9.2", "            if node.lock_ref == 0:\n                self._evictable_size -= len(node)\n"
             "                self._protected_size += len(node)\n",
     "            self._evictable_size -= len(node)\n            self._protected_size += len(node)\n",
     "counts once"),
    ("9.2", "                self._eviction_queue.offer(node)\n", "", "offer it to the queue"),
    ("9.2", "        while node is not self.root:", "        while node is not None:", "leave its lock_ref alone"),
    ("9.3", "        self.token_to_kv_pool.free(duplicates)\n", "", "lost for good"),
    ("9.3", "row[req.tree_len : known].copy()", "row[req.tree_len : known]", "both free and in the tree"),
    ("9.3", "row[req.tree_len : known]", "row[:known]", "both free and in the tree"),
    ("9.3", "        row[: len(tokens)] = match.indices.numpy()\n", "", "must name the tree's slots"),
    ("9.4", "        self.radix_cache.dec_lock_ref(req.last_node)\n", "", "locks the path|give the lock back"),
    ("9.4", "        self.req_to_token_pool.free([req.req_pool_idx])\n", "", "row must be free again"),
    ("9.4", "row[req.tree_len : known]", "row[:known]", "both free and in the tree"),
    ("9.4", "row[req.tree_len : known]", "row[:0]", "lost for good"),
    ("9.5", " if node.lock_ref == 0)", ")", "four can be evicted"),
    ("9.5", "return self.token_to_kv_pool.available_size() + evictable", "return evictable", "every slot is free"),
    ("9.5", "return self.token_to_kv_pool.available_size() + evictable",
     "return self.token_to_kv_pool.available_size()",
     "can be evicted"),
    ("9.5", "        self.lock_prefix(req)\n"
             "        if req.num_tokens - req.prefix_len <= self.obtainable_size():\n",
     "        before = self.obtainable_size()\n        self.lock_prefix(req)\n"
     "        if req.num_tokens - req.prefix_len <= before:\n",
     "lock first, then count"),
    ("10.1", "free + evictable", "free", "Evictable slots are available too"),
    ("10.1", "[*running, candidate]", "[candidate]", "candidate can't have all"),
    ("10.1", " - wish.held", "", "don't count them again"),
    ("10.1", "ceil(ratio", "int(ratio", "rounded up"),
    ("10.2", "list(running), []", "running, []", "You changed `running`"),
    ("10.2", "while len(staying) > 1 and len(staying) > obtainable",
     "if len(staying) > 1 and len(staying) > obtainable",
     "Retract until"),
    ("10.2", "len(staying) > 1 and ", "", "One request always stays|min\\(\\) "),
    ("10.2", "-req.ticket", "req.ticket", "the highest ticket"),
    ("10.3", "req.num_tokens + members > free", "req.num_tokens > free", "one more for each of the three"),
    ("10.3", "req.num_tokens + members > free", "req.prompt_len + members > free", "its 6 output tokens"),
    ("10.3", "            break\n", "            continue\n", "no request may overtake b"),
    ("10.3", "members > max_running or ", "", "Both rows are taken"),
    ("11.1", "prefix_len, chunked_prefill_size - spent", "0, chunked_prefill_size - spent", "Cached tokens aren't"),
    ("11.1", "chunked_prefill_size - spent", "chunked_prefill_size", "Other requests have used 15"),
    ("11.1", "left = end, chunked_prefill_size",
     "left = end, chunked_prefill_size - spent",
     "later round has 40 again"),
    ("11.1", "        if end > start:\n            found", "        if True:\n            found", "not an empty one"),
    ("11.2", "-hit(prompts[i])", "hit(prompts[i])", "The most cached tokens go first"),
    ("11.2", "len(prompt) - 1", "len(prompt)", "its last token must be computed"),
    ("11.2", "most - most % page_size", "most", "whole number of pages"),
    ("11.2", "for tokens in cached:", "for tokens in cached[:1]:", "every cached sequence"),
    ("11.3", "    if left >= waiting[0].ticket + max_overtakes:\n        return waiting[0]\n", "", "starve"),
    ("11.3", "left >= waiting[0].ticket + max_overtakes", "left > waiting[0].ticket + max_overtakes", "firm limit"),
    ("11.3", "left >= waiting[0].ticket + max_overtakes",
     "left >= waiting[0].ticket + max_overtakes - 1",
     "tokens decide"),
    ("11.3", "left >= waiting[0].ticket + max_overtakes", "left >= max_overtakes", "after other requests have left"),
    ("12.1", "requests * bandwidth", "bandwidth", "how many passes"),
    ("12.1", " + requests * context * kv_bytes", "", "K/V is read, too"),
    ("12.1", "requests * context", "context", "of one request"),
    ("12.1", "weight_bytes + requests", "requests * weight_bytes + requests", "once per pass, however many"),
    ("12.2", "2 * weights * bandwidth", "weights * bandwidth", "two: a multiplication and an addition"),
    ("12.2", " - context * kv_bytes * flops", "", "K/V is missing|Return None"),
    ("12.2", "    if gained <= 0:\n        return None\n", "    if gained <= 0:\n        return 1\n", "Return None"),
    ("12.2", "gained)))", "gained))) + 1", "the fewest requests"),
    ("12.3", "(slots, -1)", "(slots, 0)", "behind the batch \\[-1\\]"),
    ("12.3", "(lens - 1, 0)", "(lens, 0)", "is at position 4"),
    ("12.3", "rows * width", "rows", "Row r begins at r \\* width"),
    ("12.3", "        array[count:] = padding\n", "", "not what is left"),
    ("12.5", "some_x @ some_weights.T\n", "some_x.float() @ some_weights.float().T\n", "must be bfloat16"),
    ("12.5", "weight.chunk(parts, dim=1)", "[weight] * parts", "Split the inputs of both"),
    ("12.5", "parts = min(len(x), 8)", "parts = 1", "bits don't depend on the batch"),
    ("12.5", "dtype=x.dtype", "dtype=torch.float32", "must be bfloat16"),
    ("13.1", "outputs + inputs for", "outputs for", "that is B alone"),
    ("13.1", "outputs + inputs for", "inputs for", "that is A alone"),
    ("13.1", "rank * width * sum(outputs + inputs", "width * sum(outputs * inputs", "the whole of b @ a"),
    ("13.1", "rank * width * sum", "rank * sum", "Each takes `width` bytes"),
    ("13.2", "scales[adapter] * ", "", "`scales` is missing"),
    ("13.2", "        if adapter >= 0:\n", "        if True:\n", "has no adapter, so its result is 0"),
    ("13.2", "torch.zeros", "torch.ones", "without an adapter get 0|of its own adapter"),
    ("13.2", "a[adapter].T", "a[0].T", "of its own adapter|your code raises"),
    ("13.3", " if adapter >= 0]", "]", "without an adapter"),
    ("13.3", " if adapter >= 0]", " if adapter > 0]", "the rows with an adapter"),
    ("13.3", "    rows.sort(key=lambda row: of_rows[row])\n", "", "sorted by it"),
    ("13.3", "key=lambda row: of_rows[row]", "key=lambda row: (of_rows[row], -row)", "stay in their order"),
    ("13.4", "return None if adapter is None else adapter.id, extra_key",
     "return extra_key if adapter is None else adapter.name",
     "finds the K/V of the old one"),
    ("13.4", "return None if adapter is None else adapter.id, extra_key",
     "return adapter.name if adapter else None, extra_key",
     "finds the K/V of the old one"),
    ("13.4", "return None if adapter is None else adapter.id, extra_key",
     "return id(adapter) if adapter else None, extra_key",
     "Python's id\\(\\) is an address"),
    ("13.4", "return None if adapter is None else adapter.id, extra_key",
     "return adapter.id if adapter else extra_key",
     "Two customers have"),
    ("13.5", "min(idle, key=lambda place: self.used[place])", "idle[0]", "'b' has to go"),
    ("13.5", "if each not in in_use]", "]", "a running request uses it|has to wait"),
    ("13.5", "            if not idle:\n                return None\n",
     "            idle = idle or [0]\n",
     "'c' has to wait: return None"),
    ("13.5", "        if adapter in self.adapters:\n            place = self.adapters.index(adapter)\n"
             "        elif",
     "        if",
     "is on the device already"),
]  # fmt: skip

# Other right answers.
OTHERS: list[tuple[str, str]] = [
    ("12.2",
     "def busy_from(weights, weight_bytes, context, kv_bytes, bandwidth, flops):\n"
     "    gap = 2 * weights / flops - context * kv_bytes / bandwidth\n"
     "    return max(1, ceil(weights * weight_bytes / bandwidth / gap)) if gap > 0 else None\n"),
    ("12.2",
     "def busy_from(weights, weight_bytes, context, kv_bytes, bandwidth, flops):\n"
     "    if 2 * weights / flops <= context * kv_bytes / bandwidth:\n        return None\n    n = 1\n"
     "    while 2 * weights * n / flops < (weights * weight_bytes + n * context * kv_bytes) / bandwidth:\n"
     "        n += 1\n    return n\n"),
    ("12.2",
     "def busy_from(weights, weight_bytes, context, kv_bytes, bandwidth, flops):\n"
     "    if 2 * weights / flops <= context * kv_bytes / bandwidth:\n        return None\n    n = 1\n"
     "    while True:\n        reading = (weights * weight_bytes + n * context * kv_bytes) / bandwidth\n"
     "        computing = n * 2 * weights / flops\n        if computing >= reading:\n            return n\n"
     "        n += 1\n"),
    ("12.2",
     "def busy_from(weights, weight_bytes, context, kv_bytes, bandwidth, flops):\n"
     "    per = 2 * weights * bandwidth / flops - context * kv_bytes\n"
     "    return None if per <= 0 else max(1, ceil(weights * weight_bytes / per))\n"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return reduce(torch.add, [a @ b.T for a, b in zip(x.tensor_split(parts, 1), "
     "weight.tensor_split(parts, 1))])"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return sum(torch.nn.functional.linear(a, b) for a, b in zip(x.chunk(parts, 1), "
     "weight.chunk(parts, 1)))"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return sum((a.float() @ b.float().T).bfloat16() for a, b in zip(x.chunk(parts, 1), "
     "weight.chunk(parts, 1)))"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return sum([a @ b.T for a, b in zip(x.chunk(parts, 1), weight.chunk(parts, 1))][::-1])"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    total = x.new_zeros(len(x), len(weight))\n    for i in range(parts):\n"
     "        a, b = i * x.shape[1] // parts, (i + 1) * x.shape[1] // parts\n"
     "        total += torch.einsum('ti,oi->to', x[:, a:b], weight[:, a:b])\n    return total"),
    ("13.2",
     "def grouped(x, of_rows, a, b, scales):\n    y = torch.zeros(len(x), b[0].shape[0])\n"
     "    for i, (A, B, s) in enumerate(zip(a, b, scales)):\n"
     "        y[of_rows == i] += s * x[of_rows == i] @ A.T @ B.T\n    return y"),
    ("13.2",
     "def grouped(x, of_rows, a, b, scales):\n    y = x.new_zeros(len(x), len(b[0]))\n"
     "    for i in range(len(a)):\n        rows = (of_rows == i).nonzero()[:, 0]\n"
     "        y[rows] = torch.einsum('ti,ri,or->to', x[rows], a[i], b[i]) * scales[i]\n    return y"),
    ("13.4",
     "def cache_key(adapter, extra_key):\n"
     "    return ('base', extra_key) if adapter is None else ('adapter', adapter.id, extra_key)\n"),
    ("13.4",
     "def cache_key(adapter, extra_key):\n"
     "    return (extra_key,) if adapter is None else (adapter.id, extra_key)\n"),
    ("13.4",
     "def cache_key(adapter, extra_key):\n    return (-1 if adapter is None else adapter.id), extra_key\n"),
]  # fmt: skip

# Whole answers that are wrong, and what their hints must say.
WRONG = [
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return x @ weight.T",
     "With 2 tokens, your result is as exact as one product"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return torch.cat([a @ weight.T for a in x.chunk(parts)])",
     "With 2 tokens, your result is as exact as one product"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return torch.cat([x @ b.T for b in weight.chunk(parts)], 1)",
     "With 2 tokens, your result is as exact as one product"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return (x.float() @ weight.float().T).bfloat16()",
     "With 2 tokens, your result is as exact as one product"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return torch.stack([a @ b.T for a, b in zip(x.chunk(parts, 1), weight.chunk(parts, 1))]).sum(0)",
     "added in float32 and rounded once"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return sum((a @ b.T).float() for a, b in zip(x.chunk(parts, 1), weight.chunk(parts, 1))).bfloat16()",
     "added in float32 and rounded once"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return sum(a.float() @ b.float().T for a, b in zip(x.chunk(parts, 1), weight.chunk(parts, "
     "1))).bfloat16()",
     "as exact as one product"),
    ("12.5",
     "from functools import reduce\n\ndef linear(x, weight):\n    parts = min(len(x), 8)\n"
     "    return sum(a @ weight.T for a in x.chunk(parts, 1))",
     "Split the inputs of both"),
]  # fmt: skip
