"""The part of `demo paged` with drafts: a line and a tree of them, verified and moved on without an engine.

The drafts are what followed the same tokens in stories that the model wrote before. The bundled model repeats itself often
enough for some of them to be accepted, and not so often that all are.
"""

from collections.abc import Iterable, Sequence

from nanoinfer.frontends.llm import LLM
from nanoinfer.paged.by_hand import LinePass, TreePass, decode_with_lines, decode_with_trees
from nanoinfer.paged.draft_tree import DraftTree
from nanoinfer.paged.generator import GeneratorTorch
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.terminal import filled, side_by_side, styled

EARLIER = (
    "Once upon a time, there was a cat.",
    "One day, a girl",
    "Tom and Lily went to the forest.",
    "Once upon a time, there was a rabbit named Max.",
    "Mia and Ben wanted to play.",
)
EARLIER_TOKENS = 200  # written for each of these
LINE_DRAFTS, TREE_DRAFTS, TREE_DEPTH = 3, 8, 3
LONGEST_MATCH = 2  # tokens


class Continuations:
    """Proposes what followed the last tokens of a request in `texts` (token ids), longest match first."""

    def __init__(self, texts: Iterable[Sequence[int]], depth: int):
        self.found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}  # 1 or 2 tokens → the different continuations
        for text in texts:
            for i in range(1, len(text)):
                for length in range(1, min(i, LONGEST_MATCH) + 1):
                    found = self.found.setdefault(tuple(text[i - length : i]), [])
                    continuation = tuple(text[i : i + depth])
                    if continuation not in found:
                        found.append(continuation)

    def after(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """All continuations of `tokens`."""
        keys = [tuple(tokens[-length:]) for length in range(min(len(tokens), LONGEST_MATCH), 0, -1)]
        return [continuation for key in keys for continuation in self.found.get(key, ())]

    def line(self, tokens: Sequence[int]) -> list[int]:
        """LINE_DRAFTS drafts: the first continuation. If it is too short, the last token again and again."""
        first = next(iter(self.after(tokens)), ())
        return [*first, *[tokens[-1]] * LINE_DRAFTS][:LINE_DRAFTS]

    def tree(self, tokens: Sequence[int]) -> DraftTree:
        """At most TREE_DRAFTS drafts: continuations with the same beginning share its nodes."""
        nodes: dict[tuple[int, ...], int] = {(): 0}
        chosen, parents = [tokens[-1]], [-1]
        for continuation in self.after(tokens):
            for end in range(1, len(continuation) + 1):
                path = continuation[:end]
                if path not in nodes and len(chosen) <= TREE_DRAFTS:
                    nodes[path] = len(chosen)
                    chosen.append(path[-1])
                    parents.append(nodes[path[:-1]])
        return DraftTree(chosen, parents)


class DraftsDemo:
    """Decodes `prompts` (token ids) with a line and with a tree of drafts, `max_passes` passes each, or as many as fit.

    `same` says whether all tokens equal the engine's. ValueError if not even one pass fits.
    """

    def __init__(self, llm: LLM, prompts: Sequence[list[int]], max_passes: int, block_size: int):
        assert llm.tokenizer is not None
        self.decode = llm.tokenizer.decode
        # The engine writes the stories and checks the tokens, so all of them have to fit into its pool, too.
        limit = min(llm.model.max_context_len, llm.config.max_total_tokens)
        earlier = [llm.tokenizer.encode(text)[: max(limit - 1, 1)] for text in EARLIER]
        rooms = [min(EARLIER_TOKENS, limit - len(tokens)) for tokens in earlier]
        limits = [SamplingParams(max_new_tokens=most, temperature=0.0) for most in rooms]
        written = [output.token_ids for output in llm.generate(earlier, limits, use_tqdm=False)]
        texts = [[*prompt, *tokens] for prompt, tokens in zip(earlier, written, strict=True)]
        guesses = Continuations(texts, max(TREE_DEPTH, LINE_DRAFTS))

        generator = GeneratorTorch(llm.model)
        left = limit - max(map(len, prompts))
        num_passes = max(1, min(max_passes, left // (1 + max(LINE_DRAFTS, TREE_DRAFTS))))
        growth = num_passes * (1 + max(LINE_DRAFTS, TREE_DRAFTS))
        blocks = sum(-(-(len(prompt) + growth) // block_size) for prompt in prompts)
        pool = llm.model.new_kv_pool(blocks * block_size, block_size)
        arguments = (generator, pool, prompts)
        self.lines: list[LinePass] = list(decode_with_lines(*arguments, guesses.line, LINE_DRAFTS, num_passes))
        self.trees: list[list[TreePass]] = list(decode_with_trees(*arguments, guesses.tree, TREE_DRAFTS, num_passes))
        self.line_tokens = [[int(token)] for token in self.lines[0].input_tokens[:, 0]]
        for each in self.lines:
            for tokens, row in zip(self.line_tokens, each.sampled_token_ids.tolist(), strict=True):
                tokens += [token for token in row if token >= 0]
        self.tree_tokens = [
            [requests[0].tree.tokens[0], *(token for request in requests for token in request.tokens)]
            for requests in zip(*self.trees, strict=True)
        ]
        longest = max(map(len, (*self.line_tokens, *self.tree_tokens)))
        params = SamplingParams(max_new_tokens=longest, temperature=0.0, ignore_eos=True)
        self.expected = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]

    @property
    def same(self) -> bool:
        return self._same(self.line_tokens) and self._same(self.tree_tokens)

    def show(self, limit: int | None) -> None:
        """Print tables of both, and the tree with the most accepted drafts, in lines of at most `limit` characters."""
        head = (
            f"Drafts in a line, {LINE_DRAFTS} per request: one pass verifies them, and advance_step moves the batch on"
        )
        print("\n" + styled(filled(head, limit), "bold"))
        source = f"The drafts followed the same tokens in {len(EARLIER)} stories that the model wrote before."
        meaning = (
            "Below: the newest token and its drafts, the newest token's position, and how many drafts were accepted."
        )
        print(filled(f"{source} {meaning}", limit))
        print(side_by_side(self._line_columns(), limit))
        print(filled(self._verdict(self.line_tokens, len(self.lines)), limit))

        head = f"Drafts in a tree, up to {TREE_DRAFTS} per request: spec_mask shows a node only its own path"
        print("\n" + styled(filled(head, limit), "bold"))
        number, request = self._best()
        best = self.trees[number][request]
        print(filled(f"Pass {number + 1}, request {request}: {_counts(best)} drafts accepted (✓).", limit))
        print(side_by_side(self._node_columns(best), limit))
        print(f"\n{side_by_side(self._tree_columns(), limit)}")
        print(filled(self._verdict(self.tree_tokens, len(self.trees)), limit))

    def _line_columns(self) -> list[list[str]]:
        """One row per pass. Per request: newest token and drafts, position of the newest, number of accepted drafts."""
        digits = max(len(str(int(each.input_tokens.max()))) for each in self.lines)
        columns = [["pass", *(f"{i:4}" for i in range(1, len(self.lines) + 1))]]
        for i in range(len(self.line_tokens)):
            rows = [each.input_tokens[i].tolist() for each in self.lines]
            columns.append([f"input_tokens {i}", *(" ".join(f"{token:{digits}}" for token in row) for row in rows)])
        for name, values in (
            ("input_positions", [each.input_positions[:, 0].tolist() for each in self.lines]),
            ("accepted_num", [each.accepted_num.tolist() for each in self.lines]),
        ):
            size = max(len(str(value)) for row in values for value in row)
            columns.append([name, *(" ".join(f"{value:{size}}" for value in row) for row in values)])
        return columns

    def _node_columns(self, done: TreePass) -> list[list[str]]:
        """One row per node, depth first: its number, position, slot, token, and where its K/V goes if it is accepted."""
        order, branches = _drawn(done.tree)
        kept = {node: done.slots[depth] for depth, node in enumerate(done.path)}
        positions = [done.context + done.tree.depths[node] for node in order]
        moves = [
            "" if node not in kept else "stays" if kept[node] == done.slots[node] else f"moves to slot {kept[node]}"
            for node in order
        ]
        tokens = [repr(self.decode([done.tree.tokens[node]])) for node in order]
        marks = [
            styled(f"{token} ✓", "green") if node in kept else token for node, token in zip(order, tokens, strict=True)
        ]
        return [
            ["node", *(f"{node:4}" for node in order)],
            ["position", *(f"{position:8}" for position in positions)],
            ["slot", *(f"{done.slots[node]:4}" for node in order)],
            ["token", *(branch + mark for branch, mark in zip(branches, marks, strict=True))],
            ["its K/V", *moves],
        ]

    def _tree_columns(self) -> list[list[str]]:
        """One row per pass: how many drafts of each request were accepted."""
        columns = [["accepted in pass", *(f"{i:16}" for i in range(1, len(self.trees) + 1))]]
        for i in range(len(self.tree_tokens)):
            columns.append([f"request {i}", *(f"{_counts(requests[i]):>9}" for requests in self.trees)])
        return columns

    def _best(self) -> tuple[int, int]:
        """Pass and request with the most accepted drafts; then with the most K/V to move, then with the most drafts."""

        def rank(where: tuple[int, int]) -> tuple[int, ...]:
            done = self.trees[where[0]][where[1]]
            return len(done.path), sum(node != depth for depth, node in enumerate(done.path)), len(done.tree)

        return max(((i, k) for i, requests in enumerate(self.trees) for k in range(len(requests))), key=rank)

    def _same(self, tokens: Sequence[Sequence[int]]) -> bool:
        return all(made == want[: len(made)] for made, want in zip(tokens, self.expected, strict=True))

    def _verdict(self, tokens: Sequence[Sequence[int]], num_passes: int) -> str:
        counts = ", ".join(str(len(made)) for made in tokens)
        verdict = styled("equal to", "green") if self._same(tokens) else styled("DIFFERENT from", "red")
        without = f"instead of {num_passes + 1} each"
        passes = "1 pass" if num_passes == 1 else f"{num_passes} passes"
        return f"{passes} after the prefill: {counts} tokens {without}, {verdict} the engine's."


def _counts(done: TreePass) -> str:
    return f"{len(done.path) - 1} of {len(done.tree) - 1}"


def _drawn(tree: DraftTree) -> tuple[list[int], list[str]]:
    """The nodes depth first, and the branches to be drawn before each."""
    order, branches = [0], [""]

    def below(node: int, indent: str) -> None:
        children = tree.children(node)
        for child in children:
            last = child == children[-1]
            order.append(child)
            branches.append(indent + ("└─ " if last else "├─ "))
            below(child, indent + ("   " if last else "│  "))

    below(0, "")
    return order, branches
