"""What the explorables of sampling, padding, roofline, bytes of a DECODE and row pointers show is what the engine does."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import LoadedModel
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.viz.words import num_bytes
from notebooks.course.explore import Bars, Cells, Explorable, Lines, Numbers
from notebooks.course.explore.decode_bytes import DTYPES, configs, decode_bytes, size_of
from notebooks.course.explore.padding import MIXES, decode_pass, lengths, padding
from notebooks.course.explore.roofline import ACCELERATORS, DECODE, EXTEND, Machine, roofline, seconds, work
from notebooks.course.explore.row_pointers import C_LENS, NAMES, PREFIX_SLOTS, TAKEN, row_pointers
from notebooks.course.explore.sampling import distributions, sampling
from tests.tools.pages.conftest import PROMPT

# --- sampling ---------------------------------------------------------------------------------------------------------


def cut(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution, written a second way: the likeliest one by one, until there are enough."""
    weights = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-weights)[: top_k or None]
    shares = weights[order] / weights[order].sum()
    kept = order[: int(np.searchsorted(np.cumsum(shares), top_p) + 1)] if top_p < 1 else order
    result = np.zeros_like(weights)
    result[kept] = weights[kept] / weights[kept].sum()
    return result


@pytest.mark.parametrize("setting", [(0.3, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.7), (2.5, 8, 0.5), (1.5, 1, 0.9)])
def test_probabilities_are_those_with_which_the_sampler_draws(story: LLM, setting: tuple[float, int, float]) -> None:
    temperature, top_k, top_p = setting
    engine = InferenceEngine(story.model)
    logits, _ = engine.extend(engine.builder.prompt_ids(PROMPT), keep=False)
    _, after = distributions(logits, temperature, top_k, top_p)
    assert after.numpy() == pytest.approx(cut(logits[0].double().numpy(), temperature, top_k, top_p), abs=1e-5)

    draws, builder = 2000, RequestBuilder(story.model.config.vocab_size, (), None)
    params = SamplingParams(temperature=temperature, top_k=top_k or -1, top_p=top_p)
    reqs = [builder.build(i, builder.prompt_ids([1]), params)[0] for i in range(draws)]
    drawn = Sampler().sample(logits.expand(draws, -1), reqs)
    counts = torch.bincount(drawn, minlength=len(after))
    assert bool((after[counts > 0] > 0).all())
    assert float((counts / draws - after).abs().max()) < 0.06


def test_bars_and_numbers_are_of_the_distribution(explorables: dict[str, Explorable], story: LLM) -> None:
    explorable = explorables["sampling"]
    engine = InferenceEngine(story.model)
    logits, _ = engine.extend(engine.builder.prompt_ids(PROMPT), keep=False)
    for chosen, frame in explorable.frames.items():
        values = [control.values[i] for control, i in zip(explorable.controls, chosen, strict=True)]
        _, after = distributions(logits, *values)
        bars, numbers = frame.panels
        assert isinstance(bars, Bars)
        assert isinstance(numbers, Numbers)
        assert sum(bar.value for bar in bars.bars) == pytest.approx(1, abs=1e-3)
        likeliest = after.sort(descending=True).values[:12].tolist()
        assert [bar.value for bar in bars.bars[:12]] == pytest.approx(likeliest, abs=1e-4)
        assert [bar.off for bar in bars.bars[:12]] == [share == 0 for share in likeliest]
        assert numbers.numbers[0].value == f"{int((after > 0).sum()):,} of 2,048"


def test_a_temperature_of_0_is_refused(story: LLM) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        sampling(story, PROMPT, temperatures=[0.0, 1.0])


# --- padding ----------------------------------------------------------------------------------------------------------


def test_the_cells_of_each_frame_are_the_bytes_of_the_account(explorables: dict[str, Explorable], story: LLM) -> None:
    explorable, engine = explorables["padding"], InferenceEngine(story.model)
    size = engine.kv_bytes_per_token
    token_ids = list(range(100, 200))
    for (i, mix), frame in explorable.frames.items():
        _, cost = decode_pass(engine, token_ids, lengths(mix, explorable.controls[0].values[i], 8))
        cells, bars, _ = frame.panels
        assert isinstance(cells, Cells)
        assert isinstance(bars, Bars)
        looks = [cell.look for row in cells.rows for cell in row.cells]
        assert looks.count("new") == cost.tokens_computed == 8
        assert looks.count("padding") * size == cost.decode_bytes_padding
        assert (len(looks) - looks.count("padding")) * size == cost.decode_bytes_used
        recorded = [bar.value for bar in bars.bars]
        assert recorded == [cost.decode_bytes_used, cost.decode_bytes_padding, cost.bytes_copied]


def test_the_mixes_are_what_they_are_called() -> None:
    assert len(MIXES) == 4
    assert lengths(0, 32, 4) == [32, 4, 4, 4]
    assert lengths(1, 32, 4) == [32, 32, 4, 4]
    assert lengths(2, 31, 4) == [31, 22, 13, 4]
    assert lengths(3, 32, 4) == [32, 32, 32, 32]


def test_a_session_longer_than_the_text_is_refused(story: LLM) -> None:
    with pytest.raises(ValueError, match=r"longest=\(4, 9\): must be in 4\.\.\d, the tokens of text"):
        padding(story, longest=(4, 9), text="The fox said")


# --- decode_bytes ------------------------------------------------------------------------------------------------------


def test_the_bytes_of_the_bundled_model_are_those_of_its_weights_and_of_what_a_session_holds(story: LLM) -> None:
    size = size_of(configs(story)["the bundled model"], torch.float32)
    assert size.weights == sum(tensor.nbytes for tensor in load_file(story.model.path / "model.safetensors").values())
    engine = InferenceEngine(story.model)
    _, kv_cache = engine.extend(list(range(100, 107)))
    assert size.per_token * 7 == sum(tensor.nbytes for layer in kv_cache for tensor in layer)


def test_the_public_models_have_the_sizes_that_notebook_03_prints(story: LLM) -> None:
    sizes = {name: size_of(config, torch.bfloat16) for name, config in configs(story).items()}
    assert {name: (size.weights // 2**20, size.per_token // 2**10) for name, size in sizes.items()} == {
        "Llama-3-8B": (15316, 128),
        "Llama-2-7B": (12852, 512),
        "Qwen3-0.6B": (1136, 112),
        "the bundled model": (5, 1),
    }


def test_each_frame_says_of_which_there_is_more(explorables: dict[str, Explorable], story: LLM) -> None:
    explorable, models = explorables["decode_bytes"], list(configs(story).values())
    said = set()
    for (i, j, m, d), frame in explorable.frames.items():
        requests, length = (control.values[k] for control, k in zip(explorable.controls, (i, j), strict=False))
        size = size_of(models[m], DTYPES[d])
        kv = requests * length * size.per_token
        bars, numbers = frame.panels
        assert isinstance(bars, Bars)
        assert isinstance(numbers, Numbers)
        assert [bar.value for bar in bars.bars] == pytest.approx(
            [size.weights / (size.weights + kv), kv / (size.weights + kv)], abs=1e-4
        )
        assert [bar.text.split(",")[0] for bar in bars.bars] == [num_bytes(size.weights), num_bytes(kv)]
        enough = int(numbers.numbers[1].value.split()[0].replace(",", ""))
        assert enough * length * size.per_token > size.weights >= (enough - 1) * length * size.per_token
        assert ("K/V is more than half" in frame.sentence) == (requests >= enough)
        said.add((m, requests >= enough))
    assert len(said) == 2 * len(models), "each model has both, so that there is something to find"


def test_the_size_of_a_number_does_not_move_the_border(story: LLM) -> None:
    for config in configs(story).values():
        assert size_of(config, torch.bfloat16).border == size_of(config, torch.float32).border


def test_a_pass_without_requests_is_refused(story: LLM) -> None:
    with pytest.raises(ValueError, match=r"requests=\(0, 1\).*must be at least 1"):
        decode_bytes(story, requests=(0, 1))


# --- roofline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("mode", [DECODE, EXTEND])
def test_the_operations_of_a_pass_are_those_that_torch_counts(tiny: LoadedModel, mode: str, tokens: int) -> None:
    """Of products with weights: attention is computed by other kernels, and counted here by its formula."""
    with FlopCounterMode(display=False) as counter:
        seconds(tiny, mode, tokens, repeats=1)
    products = sum(
        n for name, n in counter.get_flop_counts()["Global"].items() if "mm" in str(name) and "bmm" not in str(name)
    )
    pairs = tokens * 513 if mode == DECODE else tokens * (tokens + 1) // 2
    assert work(tiny, mode, tokens).flops == products / 2 + 4 * pairs * 32 * 2  # two passes were run


def test_the_limit_is_the_longer_of_the_two_times(explorables: dict[str, Explorable], tiny: LoadedModel) -> None:
    explorable = explorables["roofline"]
    machines = (Machine("this CPU", 10e9, 100e9, 4), *ACCELERATORS)
    seen = set()
    for (i, j), frame in explorable.frames.items():
        tokens, machine = explorable.controls[0].values[i], machines[j]
        chart, *tables = frame.panels
        assert isinstance(chart, Lines)
        for mode, table, mark in zip((DECODE, EXTEND), tables, chart.marks, strict=True):
            each = work(tiny, mode, tokens)
            memory, arithmetic = each.numbers * machine.item / machine.bandwidth, each.flops / machine.flops
            limit = "memory" if memory > arithmetic else "arithmetic"
            seen.add((j, limit))
            assert isinstance(table, Numbers)
            assert [number.strong for number in table.numbers[2:4]] == [limit == "memory", limit == "arithmetic"]
            assert limit in frame.sentence
            if j:
                assert mark.y * 1e9 == pytest.approx(each.flops / max(memory, arithmetic), rel=1e-2)
    assert {(0, "memory"), (0, "arithmetic"), (1, "memory")} <= seen


def test_two_times_that_are_nearly_equal_are_called_so(tiny: LoadedModel) -> None:
    ridge = work(tiny, DECODE, 4).flops / work(tiny, DECODE, 4).numbers / 4
    for share, said in ((1.1, "waits about as long for memory"), (1.3, "waits for memory")):
        frame = roofline(tiny, bandwidth=1e9, flops=1e9 * ridge * share, tokens=(1, 4), repeats=1).frames[1, 0]
        assert f"and {said}" in frame.sentence or f"both {said.replace('waits', 'wait')}" in frame.sentence


def test_the_points_of_this_machine_are_what_was_timed(explorables: dict[str, Explorable], tiny: LoadedModel) -> None:
    frames = explorables["roofline"].frames
    chart = frames[2, 0].panels[0]
    assert isinstance(chart, Lines)
    measured = {series.label.split()[0]: series.points for series in chart.series if series.dots}
    for mode, mark in zip((DECODE, EXTEND), chart.marks, strict=True):
        assert (mark.x, mark.y) == measured[mode][2]
        shown = next(panel for panel in frames[2, 0].panels if panel.title.startswith(mode))
        assert isinstance(shown, Numbers)
        value, unit = shown.numbers[-1].value.removesuffix(", measured").split()
        elapsed = float(value) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
        assert work(tiny, mode, 4).flops / elapsed / 1e9 == pytest.approx(mark.y, rel=2e-2)


def test_tokens_beyond_the_context_are_refused(tiny: LoadedModel) -> None:
    with pytest.raises(ValueError, match=r"tokens=\(1, 2000\): must be in 1\.\.1024"):
        roofline(tiny, 1e9, 1e9, tokens=(1, 2000))


# --- row pointers -----------------------------------------------------------------------------------------------------


def test_the_lists_of_each_pass_are_what_a_loop_over_its_tokens_finds(explorables: dict[str, Explorable]) -> None:
    explorable, refused = explorables["row_pointers"], 0
    for chosen, frame in explorable.frames.items():
        mode, seq_a, prefix_a, seq_b, prefix_b = (
            control.values[i] for control, i in zip(explorable.controls, chosen, strict=True)
        )
        seqs = [seq_a, seq_b, C_LENS[0]]
        prefixes = [prefix_a, prefix_b, C_LENS[1]] if mode == EXTEND else [seq - 1 for seq in seqs]
        if any(prefix >= seq for prefix, seq in zip(prefixes, seqs, strict=True)):
            refused += 1
            (table,) = frame.panels
            assert isinstance(table, Numbers)
            assert "ValueError: prefix_lens[1]=" in table.numbers[-1].value
            continue
        free, new, everything, qo, kv = TAKEN, [], [], [0], [0]
        for i, (seq, prefix) in enumerate(zip(seqs, prefixes, strict=True)):
            for position in range(seq):
                if position < prefix:
                    everything.append((NAMES[i], f"r{i}", str(PREFIX_SLOTS[i][position])))
                else:
                    new.append((NAMES[i], str(position), str(free)))
                    everything.append((NAMES[i], "new", str(free)))
                    free += 1
            qo.append(len(new))
            kv.append(len(everything))
        written, read, table = frame.panels
        assert isinstance(written, Cells)
        assert isinstance(read, Cells)
        assert isinstance(table, Numbers)
        assert [row.label for row in written.rows] == ["request", "positions", "out_cache_loc"]
        assert list(zip(*[[cell.text for cell in row.cells] for row in written.rows], strict=True)) == new
        requests, slots = (row.cells for row in read.rows)
        assert [(r.text, s.look, s.text) for r, s in zip(requests, slots, strict=True)] == everything
        shown = [number.value for number in table.numbers]
        assert shown == [str(seqs), str(prefixes if mode == EXTEND else None), str(qo), str(kv)]
        assert f"kv_indices[{kv[2]}:{kv[3]}]" in frame.sentence
    assert 0 < refused < len(explorable.frames) / 4


def test_more_lengths_can_be_chosen() -> None:
    page = row_pointers(seq_lens=((3, 6), (2, 3)), prefix_lens=((0, 2), (0, 1)))
    assert len(page.frames) == 2**5
    assert page.source == "Computed with InputMetadata.create, for each of 32 settings."
