"""Adapters: PEFT's tokens and logits, the same bits in any company, a cache that never mixes them up, and their places."""

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, AsyncEngine, SamplingParams
from nanoinfer.errors import AdapterError, InvalidRequestError
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.layers import low_rank
from nanoinfer.model.loader import load_model
from nanoinfer.paged import GeneratorTorch
from tests.helpers.adapters import save_adapter
from tests.helpers.checkpoints import FAMILIES, save_checkpoint
from tests.helpers.fetches import Fetches
from tests.helpers.kernels import need_cpp

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
Name = str | None

NAMES = ("small", "large", "some")
PARAMS = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True, logprobs=4)
PROMPTS = [[5, 6, 7, 8, 9], [5, 6, 7, 8, 10, 11], [5, 6, 7, 8, 9], [40, 41, 42], [5, 6, 7, 8, 9], [9] * 20]
MIXED: list[Name] = ["small", "large", None, "some", "large", "small"]
CPP = {"kernels": "cpp", "attention_backend": "cpp"}


@pytest.fixture(scope="module")
def adapters(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """`adapters("llama")` → three random adapters of the tiny checkpoint of that family, of ranks 1, 9 and 4."""
    made: dict[str, dict[str, Path]] = {}

    def make(family: str) -> dict[str, Path]:
        if family not in made:
            network = load_model(checkpoint(family), kernels="torch").model
            folder = tmp_path_factory.mktemp(family)
            fused = family == "phi3"
            made[family] = {
                "small": save_adapter(folder / "small", network, 1, rank=1),
                "large": save_adapter(folder / "large", network, 2, rank=9, use_rslora=True),
                "some": save_adapter(
                    folder / "some", network, 3, ends=["qkv_proj" if fused else "v_proj", "down_proj"]
                ),
            }
        return made[family]

    return make


def outputs(llm: LLM, prompts: Sequence[list[int]] = PROMPTS, names: Sequence[Name] = MIXED) -> list[Any]:
    return llm.generate(prompts, PARAMS, use_tqdm=False, adapter=list(names))


def alone(llm: LLM, prompt: list[int], name: Name) -> list[dict[int, float]]:
    llm.engine.flush_cache()
    (output,) = llm.generate(prompt, PARAMS, adapter=name)
    assert output.cached_tokens == 0
    assert output.logprobs is not None
    return output.logprobs


# --- PEFT as the oracle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["cpp", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_mixed_batch_has_pefts_tokens_and_logits(
    family: str, kernels: str, checkpoint: Checkpoint, adapters: Any, oracle: Oracle
) -> None:
    path, folders = checkpoint(family), adapters(family)
    model = peft.PeftModel.from_pretrained(oracle(path), folders["small"], "small")
    try:
        for name in ("large", "some"):
            model.load_adapter(folders[name], name)
        model.eval()
        llm = LLM(path, max_total_tokens=512, kernels=kernels, adapters=folders)
        for prompt, name, output in zip(PROMPTS, MIXED, outputs(llm), strict=True):
            ids = torch.tensor([prompt + output.token_ids])
            if name is None:
                with model.disable_adapter():
                    logits = model(ids).logits[0, len(prompt) - 1 : -1]
            else:
                model.set_adapter(name)
                logits = model(ids).logits[0, len(prompt) - 1 : -1]
            assert output.token_ids == logits.argmax(-1).tolist()
            logprobs = logits.log_softmax(-1)
            for row, found in zip(logprobs, output.logprobs, strict=True):
                assert all(abs(float(row[token]) - value) < 1e-4 for token, value in found.items())
        batch = [row[:5] for row in (PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[5])]
        wanted = model(torch.tensor(batch), adapter_names=["small", "large", "__base__", "some"]).logits[:, -1]
        found = llm.generate(batch, PARAMS, use_tqdm=False, adapter=["small", "large", None, "some"])
        assert [output.token_ids[0] for output in found] == wanted.argmax(-1).tolist()
    finally:
        model.unload()


# --- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16"},
        {"capture": False},
        {"num_scheduler_steps": 3},
        {"chunked_prefill_size": 3},
        {"max_adapters_on_device": 1},
        {"quantization": "int8"},
        {"quantization": "int4", "dtype": "bfloat16"},
        {"kv_cache_dtype": "int8"},
        {"page_size": 4, "max_total_tokens": 64, "schedule_conservativeness": 0.001},
    ],
    ids=str,
)
def test_every_request_of_a_mixed_batch_equals_itself_alone(
    options: dict[str, Any], checkpoint: Checkpoint, adapters: Any
) -> None:
    need_cpp(options.get("dtype", "float32"))
    settings = {"max_total_tokens": 512, "max_context_len": 60, **CPP, **options}
    llm = LLM(checkpoint("llama"), adapters=adapters("llama"), **settings)
    together, again = outputs(llm), outputs(llm)
    for prompt, name, first, second in zip(PROMPTS, MIXED, together, again, strict=True):
        wanted = alone(llm, prompt, name)
        assert first.logprobs == wanted
        assert second.logprobs == wanted
    llm.engine.check_integrity()
    llm.shutdown()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batch_equals_its_requests_alone(data: st.DataObject, checkpoint: Checkpoint, adapters: Any) -> None:
    llm = shared_llm(checkpoint("llama"), adapters("llama"))
    names = data.draw(st.lists(st.sampled_from([None, *NAMES]), min_size=1, max_size=20))
    token = st.integers(5, 9)
    prompts = [data.draw(st.lists(token, min_size=1, max_size=9)) for _ in names]
    together = outputs(llm, prompts, names)
    for prompt, name, output in zip(prompts, names, together, strict=True):
        key = (tuple(prompt), name)
        if key not in ALONE:
            ALONE[key] = alone(llm, prompt, name)
        assert output.logprobs == ALONE[key]


ALONE: dict[tuple[tuple[int, ...], Name], list[dict[int, float]]] = {}
LOADED: dict[Path, LLM] = {}


def shared_llm(path: Path, folders: dict[str, Path]) -> LLM:
    if path not in LOADED:
        LOADED[path] = LLM(
            path, max_total_tokens=1024, max_context_len=40, max_adapters_on_device=2, adapters=folders, **CPP
        )
    return LOADED[path]


def test_without_adapters_nothing_changes(checkpoint: Checkpoint, adapters: Any) -> None:
    path = checkpoint("llama")
    plain, loaded = (LLM(path, max_total_tokens=512, adapters=each, **CPP) for each in (None, adapters("llama")))
    none: list[Name] = [None] * len(PROMPTS)
    assert [o.logprobs for o in outputs(plain, names=none)] == [o.logprobs for o in outputs(loaded, names=none)]
    calls = [
        [called.name for each in llm.engine.model_runner.captured.passes.values() for called, _ in each.program.calls]
        for llm in (plain, loaded)
        if llm.engine.model_runner.captured is not None
    ]
    assert calls[0] == calls[1]
    assert "low_rank" not in calls[0]
    assert loaded.engine.stats().adapter_fetches == 0


def test_captured_passes_are_captured_again_for_a_larger_rank(checkpoint: Checkpoint, tmp_path: Path) -> None:
    network = load_model(checkpoint("llama"), kernels="torch").model
    llm = LLM(checkpoint("llama"), max_total_tokens=512, **CPP)
    for i, (rank, ends) in enumerate([(2, ["q_proj"]), (3, ["q_proj", "up_proj"]), (20, ["q_proj", "up_proj"])]):
        llm.load_adapter(f"a{i}", save_adapter(tmp_path / f"a{i}", network, i, rank, ends))
        names: list[Name] = [f"a{i}", f"a{max(0, i - 1)}", None]
        together = outputs(llm, PROMPTS[:3], names)
        assert [output.logprobs for output in together] == [
            alone(llm, prompt, name) for prompt, name in zip(PROMPTS, names, strict=False)
        ]


# --- the cache ------------------------------------------------------------------------------------------------------


def test_the_cache_keeps_adapters_apart(checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters=adapters("llama"))
    for name in (None, *NAMES):
        first, second = (llm.generate(PROMPTS[1], PARAMS, adapter=name)[0] for _ in range(2))
        assert first.cached_tokens == 0
        assert second.cached_tokens == 5
        assert first.logprobs == second.logprobs
    adapter = llm.adapters["small"]
    for key in ((adapter.id, None), adapter.id, ("small", None), "small"):  # of the base model
        assert llm.generate(PROMPTS[1], PARAMS, extra_key=key)[0].cached_tokens == 0
    assert llm.generate(PROMPTS[1], PARAMS, adapter="small", extra_key="mine")[0].cached_tokens == 0
    assert llm.generate(PROMPTS[1], PARAMS, adapter="small", extra_key="mine")[0].cached_tokens == 5


def test_an_adapter_under_an_old_name_never_finds_the_old_kv(checkpoint: Checkpoint, adapters: Any) -> None:
    folders = adapters("llama")
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters={"mine": folders["large"]})
    old = llm.generate(PROMPTS[1], PARAMS, adapter="mine")[0]
    llm.unload_adapter("mine")
    llm.load_adapter("mine", folders["some"])
    new = llm.generate(PROMPTS[1], PARAMS, adapter="mine")[0]
    assert new.cached_tokens == 0
    assert new.logprobs == LLM(
        checkpoint("llama"), max_total_tokens=512, adapters={"x": folders["some"]}
    ).generate(PROMPTS[1], PARAMS, adapter="x")[0].logprobs  # fmt: skip
    assert new.token_ids != old.token_ids


# --- loading and unloading ------------------------------------------------------------------------------------------


def test_an_adapter_that_is_used_is_not_unloaded(checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters=adapters("llama"))
    stream = llm.stream(PROMPTS[0], PARAMS, adapter="small")
    next(stream)
    with pytest.raises(AdapterError, match=r"adapter='small': requests use it: 1 \(the first: request_id=0\)"):
        llm.unload_adapter("small")
    llm.unload_adapter("large")
    assert [*llm.adapters] == ["small", "some"]
    stream.close()
    llm.unload_adapter("small")
    with pytest.raises(AdapterError, match="adapter='small': no such adapter; loaded: 'some'; None is the base model"):
        llm.unload_adapter("small")
    llm.engine.check_integrity()


def test_a_request_that_was_prepared_before_its_adapter_was_unloaded_is_refused(
    checkpoint: Checkpoint, adapters: Any
) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters=adapters("llama"))
    stream = llm.stream(PROMPTS[0], PARAMS, adapter="small")
    llm.unload_adapter("small")
    with pytest.raises(InvalidRequestError, match="adapter='small': has been unloaded since the request was prepared"):
        next(stream)
    assert not llm.engine.has_unfinished()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("small", "adapter 'small': is loaded already, from .*small; unload it first"),
        ("base", "adapter 'base': this name is the base model's; choose another"),
        ("", "adapter '': a name must be text that is not empty"),
        (3, "adapter 3: a name must be text that is not empty"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: Any, problem: str, checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=64, adapters=adapters("llama"))
    with pytest.raises(AdapterError, match=problem):
        llm.load_adapter(name, adapters("llama")["some"])
    assert [*llm.adapters] == [*NAMES]


def test_unknown_adapters_are_refused_before_anything_starts(checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=64, adapters=adapters("llama"))
    missing = "no such adapter; loaded: 'small', 'large', 'some'; None is the base model"
    with pytest.raises(InvalidRequestError, match=f"prompt 1: adapter='x': {missing}"):
        llm.generate([[5], [6]], PARAMS, adapter=[None, "x"])
    with pytest.raises(ValueError, match="adapter: 1 for 2 prompts; must be one for all, or one per prompt"):
        llm.generate([[5], [6]], PARAMS, adapter=["small"])
    for wrong in (5, True, b"small", {"small"}, {"small": 1}):
        with pytest.raises(ValueError, match=r"prompt 0: adapter=.*: must be a name, or None for the base model"):
            llm.generate([[5]], PARAMS, adapter=wrong)  # type: ignore[arg-type]
    for wrong in (["small"], "small", 3):
        with pytest.raises(ValueError, match=r"adapters=.*: must be folders by name"):
            LLM("/nowhere", adapters=wrong)  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match="adapter None: must be the path of a folder"):
        llm.load_adapter("y", None)  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match=r"adapter '/nowhere': no such folder"):
        llm.load_adapter("y", "/nowhere")
    assert not llm.engine.has_unfinished()
    assert llm.generate([5], PARAMS, adapter="base")[0].logprobs == llm.generate([5], PARAMS)[0].logprobs


def test_all_callers_take_an_adapter(checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters=adapters("llama"))
    wanted = llm.generate(PROMPTS[0], PARAMS, adapter="large")[0].token_ids
    assert [token for piece in llm.stream(PROMPTS[0], PARAMS, adapter="large") for token in piece.token_ids] == wanted
    request_id = llm.engine.add_request(PROMPTS[0], PARAMS, adapter="large")
    while llm.engine.is_unfinished(request_id):
        (output,) = llm.engine.step()
    assert output.token_ids == wanted

    async def serve() -> list[int]:
        async with AsyncEngine(llm.engine) as engine:
            await engine.load_adapter("more", adapters("llama")["large"])
            found = await engine.generate(PROMPTS[0], PARAMS, adapter="more")
            await engine.unload_adapter("more")
            return list(found.token_ids)

    assert asyncio.run(serve()) == wanted


# --- places on the device -------------------------------------------------------------------------------------------


def by_hand(llm: LLM) -> Fetches:
    fetches = Fetches()
    llm.engine.adapters.pool._executor = fetches
    return fetches


def test_requests_go_on_while_an_adapter_is_fetched(checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, schedule_policy="fcfs", adapters=adapters("llama"))
    fetches, engine = by_hand(llm), llm.engine
    wanted = alone_in_another(checkpoint, adapters, "large")
    waits = engine.add_request(PROMPTS[0], PARAMS, adapter="large")
    goes = engine.add_request(PROMPTS[1], PARAMS)
    seen = [output.request_id for _ in range(4) for output in engine.step()]
    assert seen == [goes] * 4
    assert [*map(len, (fetches.waiting, engine.scheduler.waiting))] == [1, 1]
    fetches.run_all()
    last = {}
    while engine.has_unfinished():
        last.update({output.request_id: output for output in engine.step()})
    assert last[waits].token_ids == wanted
    assert engine.stats().adapters_on_device == 1


def alone_in_another(checkpoint: Checkpoint, adapters: Any, name: str) -> list[int]:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters=adapters("llama"))
    return llm.generate(PROMPTS[0], PARAMS, adapter=name)[0].token_ids


def test_the_least_recently_used_adapter_leaves_and_comes_back(checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, max_adapters_on_device=2, adapters=adapters("llama"))

    def use(name: str) -> list[str]:
        llm.generate(PROMPTS[0], PARAMS, adapter=name)
        return sorted(adapter.name for adapter in llm.engine.adapters.pool.on_device)

    assert [use("small"), use("large")] == [["small"], ["large", "small"]]
    assert use("small") == ["large", "small"]
    assert use("some") == ["small", "some"]
    assert use("large") == ["large", "some"]
    assert llm.engine.stats().adapter_fetches == 4
    assert llm.engine.stats().loaded_adapters == 3


def test_adapters_in_use_stay_and_others_wait_for_a_place(checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, max_adapters_on_device=1, adapters=adapters("llama"))
    engine = llm.engine
    first = engine.add_request(PROMPTS[0], PARAMS, adapter="small")
    engine.step()
    second = engine.add_request(PROMPTS[1], PARAMS, adapter="large")
    order = []
    while engine.has_unfinished():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == [first, second]
    assert engine.stats().adapter_fetches == 2


def test_a_request_whose_adapter_cannot_be_fetched_ends_alone(
    checkpoint: Checkpoint, adapters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, adapters=adapters("llama"))
    kind = low_rank.TorchLowRank if llm.engine.stats().kernels == "torch" else low_rank.CppLowRank
    pack = kind.pack

    def fail(*_: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(kind, "pack", fail)
    with pytest.raises(MemoryError, match="no room"):
        llm.generate(PROMPTS[0], PARAMS, adapter="small")
    engine, fetches = llm.engine, by_hand(llm)
    fails = [engine.add_request(prompt, PARAMS, adapter="small") for prompt in PROMPTS[:2]]
    goes = engine.add_request(PROMPTS[0], PARAMS)
    engine.step()
    fetches.run_all()
    with pytest.raises(MemoryError, match="no room"):
        engine.step()
    last = {}
    while engine.has_unfinished():
        last.update({output.request_id: output for output in engine.step()})
    assert [last[rid].finish_reason for rid in (*fails, goes)] == ["abort", "abort", "length"]
    monkeypatch.setattr(kind, "pack", pack)
    assert llm.generate(PROMPTS[0], PARAMS, adapter="small")[0].finished
    llm.engine.check_integrity()


# --- forward_tensor -------------------------------------------------------------------------------------------------


def test_forward_tensor_takes_adapter_ids(checkpoint: Checkpoint, adapters: Any) -> None:
    path, folders = checkpoint("llama"), adapters("llama")
    generator = GeneratorTorch(path, adapters=folders)
    llm = LLM(path, max_total_tokens=512, adapters=folders)
    wanted = [output.token_ids[0] for output in outputs(llm)]
    lens = torch.tensor([len(prompt) for prompt in PROMPTS])

    def first_tokens(adapter_ids: Sequence[Name] | None) -> list[int]:
        logits = generator.forward_tensor(
            torch.tensor([token for prompt in PROMPTS for token in prompt]),
            torch.cat([torch.arange(n) for n in lens.tolist()]),
            True,
            generator.new_kv_cache(len(PROMPTS), 32),
            torch.arange(len(PROMPTS))[:, None],
            torch.cat([32 * i + torch.arange(n) for i, n in enumerate(lens.tolist())]),
            lens,
            32,
            lens.cumsum(0) - 1,
            adapter_ids=adapter_ids,
        )
        return logits.argmax(-1).tolist()

    base = [output.token_ids[0] for output in outputs(llm, names=[None] * len(PROMPTS))]
    assert first_tokens(MIXED) == wanted
    assert first_tokens(None) == first_tokens([]) == first_tokens(["base", None]) == base
    assert first_tokens(["small", "large"]) == wanted[:2] + base[2:]
    with pytest.raises(ValueError, match="The length of `adapter_ids` should not be larger than batch size"):
        first_tokens([None] * 7)
    with pytest.raises(ValueError, match=r"adapter_ids\[1\]='x': no such adapter"):
        first_tokens([None, "x"])


def test_forward_tensor_may_be_called_from_several_threads(checkpoint: Checkpoint, adapters: Any) -> None:
    generator = GeneratorTorch(checkpoint("llama"), adapters=adapters("llama"))

    def logits(name: Name) -> torch.Tensor:
        ids = torch.arange(5, 11)
        kv = generator.new_kv_cache(1, 8)
        inputs = (
            ids,
            torch.arange(6),
            True,
            kv,
            torch.zeros(1, 1, dtype=torch.int64),
            torch.arange(6),
            torch.tensor([6]),
            6,
        )
        return generator.forward_tensor(*inputs, adapter_ids=[name])

    names = [None, *NAMES] * 8
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(logits, names))
    assert all(torch.equal(found, logits(name)) for found, name in zip(together, names, strict=True))
    generator.adapters.load("more", adapters("llama")["some"])
    with pytest.raises(AdapterError, match="adapters: 4 are loaded, must be the 3 given at the start"):
        logits("more")


def test_a_larger_adapter_that_arrives_during_a_pass_makes_no_row_longer_than_its_room() -> None:
    """It comes from another thread, at any moment: here, as soon as the kernel's caller has looked at the size."""
    rooms: list[tuple[int, ...]] = []
    strides: list[int] = []

    class Growing(low_rank.CppLowRank):
        most_ranks = property(lambda self: next(sizes), lambda self, value: None)  # type: ignore[assignment]

    class Input(torch.Tensor):
        def new_empty(self, *shape: int) -> torch.Tensor:  # type: ignore[override]
            rooms.append(shape)
            return torch.empty(shape)

    sizes = itertools.count(8, 8)
    table = Growing(16, 16, 1, torch.float32, lambda *arguments: strides.append(arguments[-1]))
    rows = AdapterRows(np.zeros(3, dtype=np.int32), {})
    table.add(torch.zeros(3, 16).as_subclass(Input), torch.zeros(3, 16), rows)
    assert rooms == [(3, strides[0])]


# --- where else it runs ---------------------------------------------------------------------------------------------


def test_an_adapter_has_one_pool(checkpoint: Checkpoint, adapters: Any) -> None:
    llm, other = (LLM(checkpoint("llama"), max_total_tokens=512, adapters=adapters("llama")) for _ in range(2))
    wanted = [output.logprobs for output in outputs(llm)]
    foreign = llm.adapters["large"]
    assert foreign.place == 1
    with pytest.raises(ValueError, match="has a place in another pool; load it once more for this one"):
        other.engine.adapters.pool.obtain(foreign, ())
    assert other.engine.adapters.pool.obtain(foreign.again(), ()) in (True, False)
    assert [output.logprobs for output in outputs(llm)] == wanted


def test_inference_mode_changes_nothing(checkpoint: Checkpoint, adapters: Any) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=512, max_adapters_on_device=1, adapters=adapters("llama"))
    with torch.inference_mode():
        first = outputs(llm)
    assert [output.logprobs for output in outputs(llm)] == [output.logprobs for output in first]
    llm.unload_adapter("large")


def test_a_forked_process_fetches_adapters_for_itself(checkpoint: Checkpoint, adapters: Any) -> None:
    folders = {name: str(folder) for name, folder in adapters("llama").items()}
    script = f"""
import os, signal
from nanoinfer import LLM, SamplingParams
params = SamplingParams(max_new_tokens=4, temperature=0)
llm = LLM({str(checkpoint("llama"))!r}, max_total_tokens=512, adapters={folders})
llm.generate([5, 6, 7], params, adapter="small")
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
signal.alarm(60)
llm.generate([5, 6, 7], params, adapter="large")
os._exit(17)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 17, done.stderr[-2000:]


def test_smaller_vectors_add_the_same(tmp_path: Path) -> None:
    """With sizes that are no multiples of anything, on a processor that has AVX2 only."""
    sizes = {
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_attention_heads": 4,
        "head_dim": 16,
        "num_hidden_layers": 2,
    }
    path = save_checkpoint(tmp_path / "odd", "llama", **sizes)
    network = load_model(path, kernels="torch").model
    folders = {f"r{rank}": str(save_adapter(tmp_path / f"r{rank}", network, rank, rank)) for rank in (1, 3, 20)}
    script = f"""
from nanoinfer import LLM, SamplingParams
for kernels in ("torch", "cpp"):
    llm = LLM({str(path)!r}, max_total_tokens=512, kernels=kernels, adapters={folders})
    prompts, names = [[5, 6, 7], [8, 9]] * 4, ["r1", "r3", "r20", None] * 2
    params = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True)
    print([output.token_ids for output in llm.generate(prompts, params, use_tqdm=False, adapter=names)])
"""
    environment = {**os.environ, "NANOINFER_CXXFLAGS": "-march=haswell", "NANOINFER_CACHE": str(tmp_path)}
    for env in (environment, dict(os.environ)):
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        by_torch, by_cpp = done.stdout.splitlines()
        assert by_cpp == by_torch
