"""Random trees of drafts: nodes have the logits of their paths, and what is accepted leaves the K/V of a plain decode."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.ascend.draft_tree import DraftTree, keep_accepted, tree_inputs
from nanoinfer.ascend.generator import GeneratorTorch
from tests.helpers.paged import Caller, close

OPTIONS: dict[str, dict[str, object]] = {"llama": {}, "gemma3": {}, "mistral": {"sliding_window": 5}}
VOCAB_SIZE = 320


def paths_to_root(parents: list[int]) -> list[list[int]]:
    """Of each node, from the root: computed on its own, not with DraftTree."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    return paths


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[int], list[int], int]]:
    """Per request: its prompt, the parents of its tree, and a seed for the tree's tokens."""
    token = st.integers(3, VOCAB_SIZE - 1)
    requests = []
    for _ in range(draw(st.integers(1, 3))):
        prompt = draw(st.lists(token, min_size=1, max_size=12))
        parents = [-1]
        for node in range(1, draw(st.integers(1, 9))):
            parents.append(draw(st.integers(0, node - 1)))
        requests.append((prompt, parents, draw(st.integers(0, 999))))
    return requests


@pytest.mark.parametrize(("family", "block_size"), [("llama", 1), ("llama", 4), ("gemma3", 4), ("mistral", 1)])
def test_a_random_tree_is_a_plain_decode_of_each_of_its_paths(
    family: str,
    block_size: int,
    checkpoint: Callable[..., Path],
    oracle: Callable[[Path], transformers.PreTrainedModel],
) -> None:
    path = checkpoint(family, **OPTIONS[family])
    generator, model = GeneratorTorch(path), oracle(path)

    @torch.no_grad()
    def last_logits(tokens: list[int]) -> torch.Tensor:
        return model(torch.tensor([tokens])).logits[0, -1]

    def grown(prompt: list[int], parents: list[int], seed: int) -> tuple[int, DraftTree]:
        """The newest token after the prompt, and a tree: about half of the nodes hold what transformers would choose."""
        rng, newest = random.Random(seed), int(last_logits(prompt).argmax())
        tokens = [newest]
        for node in range(1, len(parents)):
            before = [*prompt, *(tokens[each] for each in paths_to_root(parents)[parents[node]])]
            token = int(last_logits(before).argmax()) if rng.random() < 0.5 else rng.randrange(VOCAB_SIZE)
            siblings = {tokens[each] for each in range(1, node) if parents[each] == parents[node]}
            while token in siblings:
                token = rng.randrange(VOCAB_SIZE)
            tokens.append(token)
        return newest, DraftTree(tokens, parents)

    @settings(max_examples=12)
    @given(batches())
    def check(batch: list[tuple[list[int], list[int], int]]) -> None:
        caller = Caller(generator, 120 // block_size, block_size)
        prompts = {i: prompt for i, (prompt, _, _) in enumerate(batch)}
        caller.prefill(prompts)
        trees = [grown(*request)[1] for request in batch]
        contexts = [len(prompt) for prompt in prompts.values()]
        for i, tree in enumerate(trees):
            caller.slot(i, contexts[i] + len(tree) + 1)  # takes blocks, also for the token afterwards
        tables = caller.tables(list(prompts))
        inputs = tree_inputs(trees, contexts, tables, block_size)
        longest = int(inputs["input_lengths"].max())
        logits = generator.forward_tensor(
            is_prefill=False, kv_cache=caller.kv_cache, block_tables=tables, max_seq_len=longest, **inputs
        ).split(inputs["q_lens"])

        verdicts = []
        for prompt, tree, rows in zip(prompts.values(), trees, logits, strict=True):
            paths = paths_to_root(list(tree.parents))
            wanted = [last_logits([*prompt, *(tree.tokens[node] for node in each)]) for each in paths]
            close(rows, torch.stack(wanted))
            chosen = [int(row.argmax()) for row in wanted]
            # The accepted path is the longest on which every draft is what transformers chose one node before.
            right = [each for each in paths if all(tree.tokens[b] == chosen[a] for a, b in pairwise(each))]
            longest_path = max(right, key=len)
            assert tree.accepted(rows.argmax(-1).tolist()) == (longest_path, chosen[longest_path[-1]])
            verdicts.append((longest_path, chosen[longest_path[-1]]))

        plain = Caller(generator, 120 // block_size, block_size, seed=1)
        plain.prefill(prompts)
        assert keep_accepted(caller.kv_cache, tables, contexts, [each for each, _ in verdicts]) == [
            context + len(each) for context, (each, _) in zip(contexts, verdicts, strict=True)
        ]
        for i, (tree, (accepted, after)) in enumerate(zip(trees, verdicts, strict=True)):
            tokens = [tree.tokens[node] for node in accepted]
            for token in tokens:  # one at a time
                last = plain.decode({i: [token]})
            assert int(last[0].argmax()) == after
            caller.tokens[i] = [*prompts[i], *tokens]
            for layer, other in zip(caller.kv_cache, plain.kv_cache, strict=True):
                for cache, wanted_cache in zip(layer, other, strict=True):
                    kept, made = (
                        torch.stack([blocks.flatten(0, 1)[owner.slot(i, n)] for n in range(len(caller.tokens[i]))])
                        for owner, blocks in ((caller, cache), (plain, wanted_cache))
                    )
                    close(kept, made)
        # And the next pass continues from there.
        new = {i: [after] for i, (_, after) in enumerate(verdicts)}
        close(caller.decode(new), torch.stack([last_logits(caller.tokens[i]) for i in new]))

    check()
