"""Pictures of single notebooks: they show what they were given, and their texts can be read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers
from matplotlib.colors import to_hex

from nanoinfer import LLM, SamplingParams, viz
from nanoinfer.cache.block_events import block_hashes
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.viz.palette import BARS, ROLES
from notebooks.course import pictures
from notebooks.course.pictures.passes import KINDS
from tests.helpers.adapters import save_adapter
from tests.helpers.checkpoints import FAMILIES, tiny_config
from tests.helpers.pictures import assert_readable, faces, named, texts
from tests.helpers.tiers import disk_of

FREE, LOCKED, IN_USE, PADDING, LEFTOVER, NEW = (
    ROLES[role].face for role in ("free", "tree_locked", "in_use", "padding", "leftover", "new")
)
STORY = ModelConfig.from_pretrained(resolve_model_path("story"))  # 8 query heads, 2 K/V heads, 448 columns in the MLP
WIDE = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8}


def hashes() -> viz.Picture:
    tokenizer = LLM("story", max_total_tokens=64).tokenizer
    assert tokenizer is not None
    prompts = {"long": list(range(100, 145)), "short": range(9)}
    return pictures.hashed_blocks(prompts, 4, tokenizer)


def tiers() -> viz.Picture:
    llm = LLM("story", max_total_tokens=64, max_context_len=64, host_cache_tokens=32)
    llm.generate(list(range(100, 140)), SamplingParams(max_new_tokens=1), use_tqdm=False)
    return pictures.tiers(llm.engine.cache, {"a": range(100, 140), "b": range(960)})


PICTURES: dict[str, Callable[[], viz.Picture]] = {
    "tiers": tiers,
    "hashes": hashes,
    "padding": lambda: pictures.padded_batch(
        [1200, 3, 0, 400] * 2, labels=[f"a session, number {i}" for i in range(8)]
    ),
    "sessions": lambda: pictures.session_steps([dict.fromkeys(range(k, k + 4), 0) for k in range(12)] * 9, max_rows=6),
    "decoder": lambda: pictures.decoder(STORY),
    "kernels": lambda: pictures.kernel_times({"a": ([("linear_act", "model.layers.12.mlp", 0.0, 0.02)], 0.021)}),
    "lanes": lambda: pictures.lanes([("a", "x", 3, 3), ("b", "waiting", 3, 5)], unit="ms", title="T"),
    "split": lambda: pictures.split_product(-np.ones(8), np.full((8, 8), -0.75), np.ones((8, 8)), 4, title="T"),
    "drafts": lambda: pictures.drafted_text([([1000 + i], [1000 + i, i]) for i in range(150)]),
}


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES.keys())
def test_no_text_of_a_picture_lies_on_another_or_outside(draw: Callable[[], viz.Picture]) -> None:
    assert_readable(draw())


def test_each_token_of_a_drafted_text_has_the_look_of_where_it_comes_from() -> None:
    passes = [([], [5]), ([6, 7], [6, 7, 8]), ([9, 9, 9], [9, 10]), ([1], [11]), ([12, 13], [12])]
    picture = pictures.drafted_text(passes)
    kinds = [["none"], ["accepted", "accepted", "last"], ["accepted", "instead"], ["instead"], ["accepted"]]
    for i, of_pass in enumerate(kinds):
        looks = [faces(picture, f"pass {i} token {j}") for j in range(len(of_pass))]
        assert looks == [[KINDS[kind][0].face] for kind in of_pass]


def test_rows_of_adapters_are_in_tiles_and_what_is_added_is_coloured(tmp_path: Path) -> None:
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    llm = LLM("story", max_total_tokens=256)
    network = llm.model.model
    llm.load_adapter("small", save_adapter(tmp_path / "small", network, 1, 2, ["q_proj", "v_proj"]))
    llm.load_adapter("large", save_adapter(tmp_path / "large", network, 2, 8))
    for name in ("small", "large"):
        llm.generate([5, 6], params, adapter=name)
    llm.engine.flush_cache()
    for i, (length, adapter) in enumerate([(1, "large"), (1, None), (8, "small"), (1, "large")]):
        llm.engine.add_request([9 + i] * length, params, adapter=adapter)
    llm.engine.step()
    picture = pictures.adapter_rows(llm.engine, "model.layers.0.self_attn.qkv_proj")
    assert [len(named(picture, f"tile {tile} row")) for tile in range(3)] == [6, 2, 2]
    assert faces(picture, "tile 0 row 2") == faces(picture, "row 2") == [BARS[0].face]
    assert faces(picture, "tile 2 row 0") == faces(picture, "row 0") == [BARS[1].face]


def test_a_padded_batch_counts_what_is_used() -> None:
    picture = pictures.padded_batch([5, 17, 9, 30], labels="abcd")
    looks = [to_hex(cell.get_facecolor()) for cell in named(picture, "row ")]
    assert (looks.count(ROLES["in_use"].face), looks.count(ROLES["padding"].face)) == (61, 59)
    assert "61 of 120" in picture.alt


def test_spans_are_to_scale_and_in_their_lanes() -> None:
    spans = [("a", "served", 0.0, 2.0), ("b", "waiting", 1.0, 2.0), ("b", "served", 2.0, 4.0)]
    picture = pictures.lanes(spans, unit="seconds")
    first, wait, second = (named(picture, f"{lane}, {kind}")[0] for lane, kind, *_ in spans)
    assert first.get_width() == pytest.approx(2 * wait.get_width())
    assert second.get_x() == pytest.approx(first.get_x() + first.get_width())
    assert first.get_y() < wait.get_y() == second.get_y()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoder_counts_the_parameters_of_each_family(family: str) -> None:
    hf = tiny_config(family, attention_bias=True, architectures=[f"{family.capitalize()}ForCausalLM"])
    oracle = transformers.AutoModelForCausalLM.from_config(hf)
    alt = pictures.decoder(ModelConfig.from_hf_config(hf)).alt
    assert f"{sum(parameter.numel() for parameter in oracle.parameters()):,} together" in alt


def test_partial_sums_of_a_split_product_are_those_of_its_columns_and_rows() -> None:
    rng = np.random.default_rng(0)
    x, first, second = rng.normal(size=4), rng.normal(size=(4, 6)), rng.normal(size=(6, 3))
    picture = pictures.split_product(x, first, second, 3)
    sums = (*(x @ first[:, 2:4] @ second[2:4]), *(x @ first @ second))
    assert {f"{value:.2f}".replace("-", "\u2212") for value in sums} <= set(texts(picture))


def test_each_tier_has_a_line_with_what_it_holds_and_looking_is_no_use(tmp_path: Path, patient_files: None) -> None:
    llm = LLM("story", max_total_tokens=96, max_context_len=80, host_cache_tokens=32, cache_dir=tmp_path)
    disk = disk_of(llm.engine)
    prompts = {"A": [5, *range(100, 163)], "B": [5, *range(200, 263)]}
    for tokens in prompts.values():
        llm.generate(tokens, SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True), use_tqdm=False)
    llm.save_cache()
    cache = llm.engine.cache
    assert cache.next_tier is not None
    index = cache.next_tier.index
    before = [node.last_access_time for _, node in cache.radix_cache.nodes()]
    picture = pictures.tiers(cache, prompts)
    assert before == [node.last_access_time for _, node in cache.radix_cache.nodes()]
    for label, tokens in prompts.items():
        ids, starts = np.array(tokens, np.int64), range(0, len(tokens), 16)
        assert len(named(picture, f"{label} pool")) == (cache.radix_cache.peek_prefix(ids, None)[0] > 0)
        for name, tier in (("host memory", index), ("files", disk)):
            held = sum(tier.reach(ids[: at + 16], None, at) > at for at in starts)
            assert len(named(picture, f"{label} {name}")) == held


def test_a_block_has_its_hash_and_equal_beginnings_are_shared() -> None:
    tokenizer = LLM("story", max_total_tokens=64).tokenizer
    assert tokenizer is not None
    one, other = list(range(100, 110)), [*range(100, 104), *range(200, 208)]
    picture = pictures.hashed_blocks({"one": one, "other": other}, 4, tokenizer)
    assert (len(named(picture, "one block")), len(named(picture, "other block"))) == (2, 3)
    assert {f"{block >> 48:04x}" for block in block_hashes(one, 4)} <= set(texts(picture))
    assert picture.alt.count("1 block shared") == 2
