"""A ModelRunner without an engine: rows and slots chosen by hand, passes compared with those of transformers."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import transformers

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.model.attention import TorchNativeBackend
from nanoinfer.model.loader import LoadedModel
from nanoinfer.model.model_runner import ModelRunner
from tests.helpers.checkpoints import TINY


def random_tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, TINY["vocab_size"], length).tolist()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, relative: float = 1e-4) -> None:
    """Equal up to `relative` times the largest expected value."""
    assert actual.shape == expected.shape
    torch.testing.assert_close(
        actual.float().cpu(), expected.float().cpu(), rtol=0, atol=relative * float(expected.abs().max())
    )


@torch.no_grad()
def all_logits(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """`[len(tokens), V]` from transformers, computed in one go and without a cache."""
    return model(torch.tensor([list(tokens)]), use_cache=False).logits[0]


class HandWrittenRows:
    """A ModelRunner whose rows are written by hand: sequences grow by `extend` and `decode` in slots chosen at random.

    Slots and row entries that were never written hold NaN and numbers far out of range, so whatever reads more
    than it may shows.
    """

    def __init__(self, loaded: LoadedModel, num_requests: int, page_size: int = 1, size: int = 192):
        config, rng = loaded.config, np.random.default_rng(7)
        self.rows = ReqToTokenPool(num_requests + 2, 64)
        self.rows.req_to_token.fill_(10**6)
        self.pool = loaded.new_kv_pool(size, page_size)
        for layer in range(config.num_hidden_layers):
            self.pool.get_key_buffer(layer).fill_(torch.nan)
            self.pool.get_value_buffer(layer).fill_(torch.nan)
        self.runner = ModelRunner(loaded.model, self.rows, self.pool, TorchNativeBackend())
        pages = rng.permutation(size // page_size)
        self._slots = (pages[:, None] * page_size + np.arange(page_size)).reshape(num_requests, -1)
        self._row_of = rng.permutation(num_requests + 2)[:num_requests]
        self._lens = [0] * num_requests

    def extend(
        self, new_tokens: Mapping[int, Sequence[int]], return_normalized_logprob: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Give the requests that `new_tokens` names their next tokens, in its order, in one EXTEND pass."""
        where = self._grow({request: len(tokens) for request, tokens in new_tokens.items()})
        input_ids = torch.tensor([token for tokens in new_tokens.values() for token in tokens])
        output = self.runner.forward_extend(input_ids, **where, return_normalized_logprob=return_normalized_logprob)
        self._write_rows()
        return output

    def decode(self, new_token: Mapping[int, int]) -> torch.Tensor:
        where = self._grow(dict.fromkeys(new_token, 1)) | {"prefix_lens": None}
        logits = self.runner.forward_decode(torch.tensor(list(new_token.values())), **where)
        self._write_rows()
        return logits

    def written_slots(self, layer: int) -> list[int]:
        written = ~self.pool.get_key_buffer(layer).isnan().flatten(1).any(1)
        assert torch.equal(written, ~self.pool.get_value_buffer(layer).isnan().flatten(1).any(1))
        return written.nonzero()[:, 0].tolist()

    def used_slots(self) -> list[int]:
        return sorted(np.concatenate([row[:n] for row, n in zip(self._slots, self._lens, strict=True)]).tolist())

    def _write_rows(self) -> None:
        """After the pass: during it `out_cache_loc` alone says where the new tokens go."""
        for row, slots, length in zip(self._row_of.tolist(), self._slots, self._lens, strict=True):
            self.rows.req_to_token[row, :length] = torch.from_numpy(slots[:length]).int()

    def _grow(self, by: Mapping[int, int]) -> dict[str, torch.Tensor]:
        requests = list(by)
        prefix_lens = [self._lens[request] for request in requests]
        out_cache_loc = []
        for request, start in zip(requests, prefix_lens, strict=True):
            slots = self._slots[request, start : start + by[request]]
            self._lens[request] += len(slots)
            out_cache_loc.append(slots)
        return {
            "req_pool_indices": torch.tensor(self._row_of[requests], dtype=torch.int32),
            "seq_lens": torch.tensor([self._lens[request] for request in requests], dtype=torch.int32),
            "prefix_lens": torch.tensor(prefix_lens, dtype=torch.int32),
            "out_cache_loc": torch.from_numpy(np.concatenate(out_cache_loc)).int(),
        }


def compare_all_passes(
    loaded: LoadedModel, model: transformers.PreTrainedModel, page_size: int, relative: float = 1e-4
) -> None:
    """Four requests of mixed length through two EXTEND passes, the second over prefixes, and three DECODE passes."""
    sequences = [random_tokens(length, seed) for seed, length in enumerate((24, 31, 9, 22))]
    expected = [all_logits(model, tokens) for tokens in sequences]
    rows = HandWrittenRows(loaded, len(sequences), page_size)

    logits, normalized = rows.extend({0: sequences[0][:21], 1: sequences[1][:7], 2: sequences[2][:1]})
    assert_close(logits, torch.stack([expected[0][20], expected[1][6], expected[2][0]]), relative)
    assert normalized is None

    # One goes on after its prefix, one adds a single token, one is new; in another order than before.
    logits, _ = rows.extend({3: sequences[3][:19], 1: sequences[1][7:28], 2: sequences[2][1:2]})
    assert_close(logits, torch.stack([expected[3][18], expected[1][27], expected[2][1]]), relative)

    lens = [21, 28, 2, 19]
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1]):
        logits = rows.decode({request: sequences[request][lens[request]] for request in order})
        assert_close(logits, torch.stack([expected[request][lens[request]] for request in order]), relative)
        for request in order:
            lens[request] += 1
    for layer in range(loaded.config.num_hidden_layers):
        assert rows.written_slots(layer) == rows.used_slots()


@torch.no_grad()
def logprob_of_each_token(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """`[len(tokens)]`: of each token under those before it; NaN for the first."""
    table = all_logits(model, tokens).log_softmax(-1)
    return torch.cat((torch.tensor([torch.nan]), table[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]))


def assert_likeliest(found: Sequence[dict[int, float] | None], table: torch.Tensor, count: int) -> None:
    """`found` at each position but the first has the `count` likeliest tokens of the row of `table` [n, V] before it."""
    first, *others = found
    assert first is None
    for entry, row in zip(others, table, strict=False):
        assert entry is not None
        values, ids = row.topk(count)
        assert list(entry) == ids.tolist()
        assert_close(torch.tensor(list(entry.values())), values)
