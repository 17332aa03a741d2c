"""The part of `demo paged` with drafts: a line and a tree of them, verified and moved on without an engine.

The drafts are what followed the same tokens in stories that the model wrote before. The bundled model repeats itself often
enough for some of them to be accepted, and not so often that all are.
"""

from collections.abc import Iterable, Sequence

from nanoinfer.frontends.llm import LLM
from nanoinfer.paged.by_hand import decode_with_lines, decode_with_trees
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
LINE_DRAFTS, TREE_DRAFTS, DEPTH = 3, 8, 3
LONGEST_MATCH = 2  # tokens


class Continuations:
    """Proposes what followed the last tokens of a request in `texts` (token ids), longest match first."""

    def __init__(self, texts: Iterable[Sequence[int]]):
        self.found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}  # 1 or 2 tokens → the different continuations
        for text in texts:
            for i in range(1, len(text)):
                for length in range(1, min(i, LONGEST_MATCH) + 1):
                    found = self.found.setdefault(tuple(text[i - length : i]), [])
                    if (continuation := tuple(text[i : i + DEPTH])) not in found:
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


def show_drafts(llm: LLM, prompts: Sequence[list[int]], max_passes: int, block_size: int, limit: int | None) -> bool:
    """Decode `prompts` (token ids) with a line and with a tree of drafts, `max_passes` passes each or as many as fit, and
    print what was accepted. Returns whether all tokens equal the engine's."""
    assert llm.tokenizer is not None
    # The engine writes the stories and checks the tokens, so all of them have to fit into its pool, too.
    most = min(llm.model.max_context_len, llm.config.max_total_tokens)
    earlier = [llm.tokenizer.encode(text)[: max(most - 1, 1)] for text in EARLIER]
    rooms = [min(EARLIER_TOKENS, most - len(tokens)) for tokens in earlier]
    limits = [SamplingParams(max_new_tokens=left, temperature=0.0) for left in rooms]
    written = [output.token_ids for output in llm.generate(earlier, limits, use_tqdm=False)]
    guesses = Continuations([*prompt, *tokens] for prompt, tokens in zip(earlier, written, strict=True))

    num_passes = max(1, min(max_passes, (most - max(map(len, prompts))) // (1 + TREE_DRAFTS)))
    blocks = sum(-(-(len(prompt) + num_passes * (1 + TREE_DRAFTS)) // block_size) for prompt in prompts)
    pool = llm.model.new_kv_pool(blocks * block_size, block_size)
    arguments = (GeneratorTorch(llm.model), pool, prompts)
    lines = list(decode_with_lines(*arguments, guesses.line, LINE_DRAFTS, num_passes))
    trees = list(decode_with_trees(*arguments, guesses.tree, TREE_DRAFTS, num_passes))
    of_lines = [[int(token)] for token in lines[0].input_tokens[:, 0]]
    for each in lines:
        for tokens, row in zip(of_lines, each.sampled_token_ids.tolist(), strict=True):
            tokens += [token for token in row if token >= 0]
    of_trees = [
        [requests[0].tree.tokens[0], *(token for request in requests for token in request.tokens)]
        for requests in zip(*trees, strict=True)
    ]
    longest = max(map(len, (*of_lines, *of_trees)))
    params = SamplingParams(max_new_tokens=longest, temperature=0.0, ignore_eos=True)
    expected = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]

    accepted = [[f"{number} of {LINE_DRAFTS}" for number in each.accepted_num.tolist()] for each in lines]
    head = f"Drafts in a line, {LINE_DRAFTS} per request: one pass verifies them"
    same = _show(head, accepted, of_lines, expected, limit)
    accepted = [[f"{len(done.path) - 1} of {len(done.tree) - 1}" for done in requests] for requests in trees]
    head = f"Drafts in a tree, up to {TREE_DRAFTS} per request: spec_mask shows a node only its own path"
    return _show(head, accepted, of_trees, expected, limit) and same


def _show(
    head: str,
    accepted: list[list[str]],
    tokens: list[list[int]],
    expected: list[list[int]],
    limit: int | None,
) -> bool:
    """Print how many drafts each pass accepted, and return whether the tokens equal the engine's."""
    print("\n" + styled(filled(head, limit), "bold"))
    columns = [["accepted in pass", *(f"{i:16}" for i in range(1, len(accepted) + 1))]]
    columns += [[f"request {i}", *(f"{each[i]:>9}" for each in accepted)] for i in range(len(tokens))]
    print(side_by_side(columns, limit))
    same = all(made == want[: len(made)] for made, want in zip(tokens, expected, strict=True))
    counts, verdict = ", ".join(str(len(made)) for made in tokens), "equal to" if same else "DIFFERENT from"
    print(filled(f"{len(accepted)} passes after the prefill: {counts} tokens, {verdict} the engine's.", limit))
    return same
