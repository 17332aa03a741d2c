"""int8 and int4: numbers by numpy, equal bits on every path, and tokens that do not depend on what else is served."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.kernels import TorchKernels
from nanoinfer.model.kernels.select import Selection
from nanoinfer.model.layers.int4_weights import Int4Weights, quantize
from nanoinfer.model.layers.int8_weights import Int8Weights
from nanoinfer.model.layers.linear import Linear, quantization_of, weight_bytes
from nanoinfer.model.layers.linear_weights import DenseWeights
from nanoinfer.model.loader import load_model
from tests.helpers.checkpoints import FAMILIES, save_checkpoint
from tests.helpers.kernels import DTYPES, need_cpp, random
from tests.helpers.oracles import TINY_MODEL, VOCAB, NetworkOracle
from tests.helpers.pressure import World
from tests.helpers.quantized import KINDS, Kind, activations, layer
from tests.soak.episodes import manual

Checkpoint = Callable[..., Path]

SHAPES = [(16, 32), (64, 64), (96, 320), (48, 17), (130, 200), (33, 70), (2100, 65)]  # inputs, outputs
ROWS = [1, 2, 5, 6, 7, 16, 17, 33, 65]


def both(
    kind: Kind, inputs: int, outputs: int, dtype: torch.dtype, bias: bool = True
) -> tuple[DenseWeights, DenseWeights]:
    """The same weights, multiplied by in C++ and in plain torch."""
    weights = [
        kind(*layer(inputs, outputs, dtype, bias), kernels, "it") for kernels in (need_cpp(dtype), TorchKernels())
    ]
    assert weights[0].selection.reason == ""
    assert weights[1].selection.reason == "plain torch, since the kernels are TorchKernels"
    return weights[0], weights[1]


# --- the numbers ----------------------------------------------------------------------------------------------------


def in_numpy(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> np.ndarray:
    """int8's product as its formula says: sums in 64-bit integers, everything else in float32."""

    def turned(rows: torch.Tensor) -> np.ndarray:
        numbers = np.pad(rows.float().numpy(), ((0, 0), (0, -rows.shape[1] % 64)))
        for bit in range(6):
            bits = numbers.reshape(len(rows), -1, *[2] * 6)  # the last axis is the lowest bit of an input's number
            first, second = np.take(bits, 0, axis=7 - bit), np.take(bits, 1, axis=7 - bit)
            numbers = np.stack((first + second, first - second), axis=7 - bit).reshape(numbers.shape)
        return numbers

    def whole(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        most = np.abs(numbers).max(axis=1, keepdims=True)
        return np.rint(numbers * (np.float32(127) / most)).astype(np.int64), most / np.float32(127)

    w, column_scale = whole(turned(weight) / 64)
    assert np.abs(w).max() == 127
    sums, activations = np.zeros((len(x), len(weight)), np.float32), turned(x)
    for start in range(0, w.shape[1], 128):
        q, scale = whole(activations[:, start : start + 128])
        sums += (q @ w[:, start : start + 128].T).astype(np.float32) * scale
    return sums * column_scale.T + (0 if bias is None else bias.float().numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_int8_is_its_formula_to_the_last_bit(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    for bias in (False, True):
        weights, plain = both(Int8Weights, inputs, outputs, dtype, bias)
        for rows in ROWS:
            x = activations(rows, inputs, dtype)
            wanted = torch.from_numpy(in_numpy(x, *layer(inputs, outputs, dtype, bias))).to(dtype)
            assert torch.equal(weights.multiply(x), wanted)
            assert torch.equal(plain.multiply(x), wanted)


def test_int8_keeps_small_activations_beside_large_ones() -> None:
    """In real models, a few channels are much larger than all others. Were rows rounded to 8 bits as they are, these would
    suffer."""
    weight, _ = layer(1024, 200, torch.float32)
    x = random(40, 1024, dtype=torch.float32)
    x[:, [7, 300]] = 50
    wanted = x @ weight.T
    error = Int8Weights(weight, None, need_cpp(torch.float32), "it").multiply(x) - wanted
    of_rows = (x / (50 / 127)).round() * (50 / 127) @ weight.T - wanted
    assert float(error.norm()) < 0.25 * float(of_rows.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_int4_is_the_product_with_the_weights_that_it_keeps(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weights, plain = both(Int4Weights, inputs, outputs, dtype)
    weight, bias = layer(inputs, outputs, dtype)
    whole, scale, minimum = quantize(weight)
    assert whole.shape[2] == 32
    assert int(whole.min()) == 0
    assert int(whole.max()) == 15
    kept = (whole.double() * scale.double()[..., None] + minimum.double()[..., None]).flatten(1)[:, :inputs]
    for rows in ROWS:
        x = random(rows, inputs, dtype=dtype)
        wanted = x.double() @ kept.T + bias.double()
        tolerance = (4e-3 if dtype is torch.bfloat16 else 2e-6) * float(wanted.abs().max())
        for each in (weights, plain):
            assert float((each.multiply(x).double() - wanted).abs().max()) <= tolerance


def test_int4_fits_better_than_from_the_smallest_weight_to_the_largest() -> None:
    """Which is what GGUF's Q4_1 does. Weights that were so made before stay as they are."""

    def error(weight: torch.Tensor) -> float:
        whole, scale, minimum = quantize(weight)
        return float((whole * scale.float()[..., None] + minimum.float()[..., None] - weight.view(whole.shape)).norm())

    weight = random(512, 256, dtype=torch.float32)
    groups = weight.view(512, 8, 32)
    low, high = groups.aminmax(dim=2, keepdim=True)
    step = (high - low) / 15
    simple = ((groups - low) / step).round() * step + low
    assert error(weight) < 0.95 * float((simple - groups).norm())
    assert error(simple.flatten(1)) < 1e-3 * float(simple.norm())
    assert error(torch.full((3, 64), 0.25)) == 0.0


def in_groups(outputs: int, groups: int, least: int, most: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random whole numbers, scales and minimums."""
    generator = torch.Generator().manual_seed(4)
    whole = torch.randint(least, most + 1, (outputs, groups, 32), generator=generator)
    scale, minimum = torch.randn(2, outputs, groups, generator=generator).half()
    return whole, scale, minimum


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_weights_that_come_in_groups_are_used_as_they_are(kind: str, dtype: torch.dtype) -> None:
    least, most = {"Q4_0": (-8, 7), "Q4_1": (0, 15), "Q8_0": (-127, 127)}[kind]
    whole, scale, minimum = in_groups(70, 5, least, most)
    bias = random(70, dtype=dtype, seed=2)
    kept = whole.double() * scale.double()[..., None] + (minimum.double()[..., None] if kind == "Q4_1" else 0)
    x = activations(40, 160, dtype)
    wanted = x.double() @ kept.flatten(1).T + bias.double()
    tolerance = (4e-3 if dtype is torch.bfloat16 else 4e-6) * x.double().abs() @ kept.flatten(1).abs().T
    for kernels in (need_cpp(dtype), TorchKernels()):
        if kind == "Q8_0":
            weights = Int8Weights.from_groups(whole.to(torch.int8), scale, bias, kernels, "it")
        else:
            numbers = whole.to(torch.uint8 if kind == "Q4_1" else torch.int8)
            weights = Int4Weights.from_groups(numbers, scale, minimum if kind == "Q4_1" else None, bias, kernels, "it")
        got = weights.multiply(x)
        assert ((got.double() - wanted).abs() <= tolerance + 0.01 * bias.double().abs()).all()
        if weights.selection.reason == "":
            assert torch.equal(got, torch.cat([weights.multiply(part) for part in x.split(3)]))


# --- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_bits_whatever_rows_are_beside_it(kind: str, dtype: torch.dtype) -> None:
    for inputs, outputs in ((224, 96), (70, 130)):
        weights = KINDS[kind](*layer(inputs, outputs, dtype), need_cpp(dtype), "it")
        x = activations(300, inputs, dtype)
        whole = weights.multiply(x)
        for size in (1, 2, 3, 4, 5, 6, 7, 11, 16, 17, 32, 64, 65, 256):
            assert torch.equal(torch.cat([weights.multiply(part) for part in x.split(size)]), whole)
        assert weights.multiply(x[:0]).shape == (0, outputs)
        without_bias = KINDS[kind](*layer(inputs, outputs, dtype, bias=False), need_cpp(dtype), "it")
        for size in (1e-26, 1e-31, 1e-35, 1e-37):  # where some instructions see zeros, and others do not
            tiny = (x[:40].float() * size).to(dtype)
            alone = [without_bias.multiply(row) for row in tiny.split(1)]
            assert torch.equal(torch.cat(alone), without_bias.multiply(tiny))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_bits(kind: str) -> None:
    weights = KINDS[kind](*layer(224, 320, torch.float32), need_cpp(torch.float32), "it")
    x = activations(70, 224, torch.float32)
    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            results += [weights.multiply(x), weights.multiply(x[:1])]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0][: len(result)]) for result in results)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_not_finite_is_nan_alone_and_zeros_give_the_bias(kind: str) -> None:
    weights, plain = both(KINDS[kind], 96, 40, torch.float32)
    x = activations(20, 96, torch.float32)
    clean = weights.multiply(x)
    x[3, 5], x[4, 95], x[19, 0], x[7] = torch.nan, torch.inf, -torch.inf, 0
    for each in (weights, plain):
        got = each.multiply(x)
        assert not got[[3, 4, 19]].isfinite().any()
        assert torch.equal(got[7], layer(96, 40, torch.float32)[1])
        others = [row for row in range(20) if row not in (3, 4, 7, 19)]
        assert torch.allclose(got[others], clean[others], rtol=1e-4, atol=1e-4)
    assert torch.equal(weights.multiply(x)[others], clean[others])


# --- in the engine --------------------------------------------------------------------------------------------------

PROMPTS = [[*range(3, 3 + n), n] for n in (5, 40, 90, 90, 131)]
PARAMS = SamplingParams(temperature=0.0, max_new_tokens=12, ignore_eos=True, logprobs=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_logprobs_are_the_same_bits_alone_in_company_cached_cut_and_retracted(
    kind: str | None, dtype: str, checkpoint: Checkpoint
) -> None:
    need_cpp(dtype)
    path, settings = (
        checkpoint("llama"),
        {"dtype": dtype, "kernels": "cpp", "attention_backend": "cpp", "quantization": kind},
    )
    llm = LLM(path, max_total_tokens=2048, **settings)
    alone = []
    for prompt in PROMPTS:
        alone.append(llm.generate(prompt, PARAMS)[0].logprobs)
        llm.engine.flush_cache()
    together = [out.logprobs for out in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    cached = [out.logprobs for out in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    assert together == alone
    assert cached == alone
    cut = LLM(path, max_total_tokens=224, chunked_prefill_size=7, page_size=4, max_context_len=160, **settings)
    assert [out.logprobs for out in cut.generate(PROMPTS, PARAMS, use_tqdm=False)] == alone
    several = [[5 + i] * 30 for i in range(5)]
    wanted = [out.logprobs for out in llm.generate(several, PARAMS, use_tqdm=False)]
    tight = LLM(path, max_total_tokens=160, max_context_len=80, schedule_conservativeness=0.001, **settings)
    assert [out.logprobs for out in tight.generate(several, PARAMS, use_tqdm=False)] == wanted
    assert tight.engine.stats().retractions > 0
    tight.engine.check_integrity()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_tokens_of_plain_torch(family: str, kind: str, checkpoint: Checkpoint) -> None:
    """Where float32's rounding differs, an activation may fall on the other side of a half: logits are close, not equal."""
    need_cpp(torch.float32)
    tables = []
    for kernels in ("cpp", "torch"):
        llm = LLM(checkpoint(family), max_total_tokens=512, quantization=kind, kernels=kernels)
        stats = llm.engine.stats()
        assert stats.quantization == kind
        assert (stats.quantization_reason == "") == (kernels == "cpp")
        ids = torch.arange(3, 43)
        tables.append(llm.engine.model_runner.forward_extend(ids, [0], [40], [0], range(40))[0][0])
        network = llm.model.model
        kinds = {name: type(m.weights) for name, m in network.named_modules() if isinstance(m, Linear)}
        assert kinds.pop("lm_head") is Int8Weights
        assert set(kinds.values()) == {KINDS[kind]}
    assert float((tables[0] - tables[1]).abs().max()) <= 0.02 * float(tables[1].abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_float16_is_computed_by_plain_torch_and_says_so(kind: str, checkpoint: Checkpoint) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, dtype="float16", quantization=kind)
    assert llm.engine.stats().quantization_reason.startswith("plain torch, since the kernels are torch (not cpp: ")
    assert len(llm.generate(PROMPTS[0], PARAMS)[0].token_ids) == 12


def test_quantized_weights_take_less_memory(checkpoint: Checkpoint) -> None:
    need_cpp(torch.float32)
    path = checkpoint("llama", hidden_size=256, intermediate_size=512, vocab_size=640)
    dense, int8, int4 = (load_model(path, quantization=kind).model for kind in (None, *KINDS))
    table = dense.model.embed_tokens.weight.nbytes
    sizes = [weight_bytes(network) - table for network in (dense, int8, int4)]
    assert sizes[1] < 0.28 * sizes[0]
    head = dense.lm_head.out_features * dense.lm_head.in_features
    assert sizes[2] < 5.2 / 32 * (sizes[0] - 4 * head) + 1.05 * head
    assert quantization_of(dense) == Selection("")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_under_pressure_gives_the_tokens_of_each_request_alone(kind: str, tmp_path: Path) -> None:
    """One short episode of tests/soak, which runs as many as one likes."""
    tiny = load_model(save_checkpoint(tmp_path, "llama", seed=3, **TINY_MODEL), torch.float32, quantization=kind)
    oracle, rng = NetworkOracle(tiny, manual.MAX_NEW_TOKENS), np.random.default_rng(5)
    world = World(tiny, oracle, **{**manual.random_config(rng), "disable_radix_cache": False})
    stems = rng.integers(0, VOCAB, size=(3, manual.MAX_PROMPT))
    manual.run_episode(world, rng, stems, steps=80)
    assert world.counts["finished"] > 5
    assert world.engine.stats().cached_tokens > 0


# --- refusals -------------------------------------------------------------------------------------------------------


def test_weights_that_cannot_be_quantized_are_refused() -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        weight = torch.ones(3, 64)
        weight[1, 2] = bad
        for name, kind in KINDS.items():
            with pytest.raises(ValueError, match=f"quantization='{name}': model.layers.0.mlp.down_proj.weight has"):
                kind(weight, None, TorchKernels(), "model.layers.0.mlp.down_proj")
