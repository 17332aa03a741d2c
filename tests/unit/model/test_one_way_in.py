"""One way into the model: a backend, or a scale and a softcap in attention, serve every caller; and what is refused."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from nanoinfer import LLM, SamplingParams
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.attention import AttentionLayer, TorchNativeBackend
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.radix_attention import RadixAttention
from nanoinfer.model.loader import load_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.registry import ATTENTION_BACKENDS
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from tests.helpers.paged import Caller, close

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [300, 2, 17], [42])
NEW = 5
LAST = torch.tensor([len(prompt) for prompt in PROMPTS]).cumsum(0) - 1


def engine_tokens(llm: LLM) -> list[list[int]]:
    params = SamplingParams(max_new_tokens=NEW, temperature=0, ignore_eos=True)
    return [out.token_ids for out in llm.generate([list(prompt) for prompt in PROMPTS], params, use_tqdm=False)]


def session_tokens(engine: InferenceEngine) -> list[list[int]]:
    scheduler = OfflineScheduler(engine)
    for prompt in PROMPTS:
        scheduler.add_request(list(prompt), NEW, temperature=0.0, stop_on_eos=False)
    while scheduler.has_unfinished():
        scheduler.step()
    return [session.generated_ids for session in scheduler.sessions.values()]


def paged_tokens(generator: GeneratorTorch) -> list[list[int]]:
    caller = Caller(generator, 16, 4)
    steps = [caller.prefill(dict(enumerate(PROMPTS)), lm_head_indices=LAST).argmax(-1).tolist()]
    while len(steps) < NEW:
        steps.append(caller.decode({i: [token] for i, token in enumerate(steps[-1])}).argmax(-1).tolist())
    return [list(tokens) for tokens in zip(*steps, strict=True)]


# --- logits, and what is refused -----------------------------------------------------------------------------


def test_logit_rows_are_the_last_tokens_of_an_extend_and_all_of_a_decode(checkpoint: Checkpoint) -> None:
    loaded = load_model(checkpoint())
    runner = ModelRunner(loaded.model, ReqToTokenPool(2, 16), loaded.new_kv_pool(32), TorchNativeBackend())
    extend = InputMetadata.create(runner, 1, ForwardMode.EXTEND, [0, 1], [3, 4], [0, 1], range(1, 7))
    assert extend.logit_rows.tolist() == [2, 5]
    ids = torch.arange(3, 9)
    every = runner.run(ids, replace(extend, logit_rows=None)).logits
    assert every.shape == (6, 320)
    close(runner.run(ids, extend).logits, every[[2, 5]])
    close(runner.run(ids, replace(extend, logit_rows=torch.tensor([4, 0, 4]))).logits, every[[4, 0, 4]])
    assert InputMetadata.create(runner, 1, ForwardMode.DECODE, [0, 1], [3, 4], None, [6, 7]).logit_rows is None


def test_explicit_arguments_are_refused_before_anything_is_written(checkpoint: Checkpoint) -> None:
    loaded = load_model(checkpoint())
    runner = ModelRunner(loaded.model, ReqToTokenPool(1, 16), loaded.new_kv_pool(16), TorchNativeBackend())
    with pytest.raises(ValueError, match=r"out_cache_loc: slot 16 is outside 0\.\.15"):
        runner.forward_extend(torch.tensor([5, 6]), [0], [2], [0], [15, 16])
    with pytest.raises(ValueError, match=r"input_ids: shape \[1\], must be \[2\]"):
        runner.forward_extend(torch.tensor([5]), [0], [2], [0], [4, 5])
    with pytest.raises(ValueError, match=r"input_ids: shape \[2\], must be \[1\]"):
        runner.forward_decode(torch.tensor([5, 6]), [0], [2], None, [4])
    for input_ids, message in (
        ([5, 6], "must be a tensor, got list"),
        (torch.tensor([5.0, 6.0]), "torch.float32, must be torch.int64 or torch.int32"),
        (torch.tensor([5, 320]), r"token 320 is outside 0\.\.319"),
        (torch.tensor([-1, 5], dtype=torch.int32), r"token -1 is outside 0\.\.319"),
    ):
        with pytest.raises(ValueError, match=f"input_ids: {message}"):
            runner.forward_extend(cast(Any, input_ids), [0], [2], [0], [4, 5])
    with pytest.raises(ValueError, match="out_cache_loc: slot 4 is given twice"):
        runner.forward_extend(torch.tensor([5, 6]), [0], [2], [0], [4, 4])
    assert not runner.token_to_kv_pool.get_key_buffer(0).any()


@pytest.mark.cpu
def test_under_a_mask_more_tokens_than_positions_fit_the_context(checkpoint: Checkpoint) -> None:
    """Drafts in a tree share positions: their indices may pass the end of the context, their positions may not."""
    generator = GeneratorTorch(load_model(checkpoint(), max_context_len=8))
    whole = GeneratorTorch(checkpoint())
    prompt = list(PROMPTS[0])
    mask = torch.zeros(3, 10)
    mask[1:, 7], mask[2, 8] = -torch.inf, -torch.inf  # three drafts of the same place hide each other
    logits = []
    for each in (generator, whole):
        caller = Caller(each, 8, 4)
        caller.prefill({0: prompt})
        logits.append(caller.decode({0: [3, 4, 5]}, q_lens=[3], spec_mask=mask, position_ids=torch.tensor([7, 7, 7])))
    assert torch.equal(*logits)


# --- a backend from outside --------------------------------------------------------------------------------------


class Counting(TorchNativeBackend):
    """The plain-torch backend under another name, with a count of the passes that it computes."""

    def __init__(self) -> None:
        self.extends = self.decodes = 0

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        self.extends += layer.layer_id == 0
        return super().forward_extend(q, layer, metadata)

    def forward_decode(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        self.decodes += layer.layer_id == 0
        return super().forward_decode(q, layer, metadata)


@pytest.fixture
def mine() -> Iterator[list[Counting]]:
    """`attention_backend="mine"` works; the backends that have been made."""
    made: list[Counting] = []

    def factory(dtype: torch.dtype, device: torch.device) -> Counting:
        made.append(Counting())
        return made[-1]

    ATTENTION_BACKENDS["mine"] = factory
    yield made
    del ATTENTION_BACKENDS["mine"]


@pytest.mark.parametrize(
    ("use", "extends"),
    [
        (lambda path, **backend: engine_tokens(LLM(path, max_total_tokens=64, **backend)), 1),
        (lambda path, **backend: session_tokens(InferenceEngine(path, **backend)), len(PROMPTS)),
        (lambda path, **backend: paged_tokens(GeneratorTorch(path, **backend)), 1),
    ],
    ids=["engine", "sessions", "forward_tensor"],
)
def test_a_backend_from_outside_serves_every_caller(
    use: Callable[..., list[list[int]]], extends: int, mine: list[Counting], checkpoint: Checkpoint
) -> None:
    assert use(checkpoint(), attention_backend="mine") == use(checkpoint())
    assert [(backend.extends, backend.decodes) for backend in mine] == [(extends, NEW - 1)]


def test_what_a_backend_cannot_do_is_computed_all_the_same(mine: list[Counting], checkpoint: Checkpoint) -> None:
    see = torch.ones(7, 7, dtype=torch.bool)
    see[4:, 2] = False
    strided = [tuple(torch.zeros(2, 64, 16).transpose(0, 1).view(16, 4, 2, 16) for _ in "KV") for _ in range(3)]
    passes: dict[str, dict[str, Any]] = {
        "a mask": {"atten_mask": see},
        "K/V that is not stored": {"slots": torch.full((7,), -1)},
        "blocks with gaps between them": {"kv_cache": strided},
    }
    reference, generator = GeneratorTorch(checkpoint()), GeneratorTorch(checkpoint(), attention_backend="mine")
    for changes in passes.values():
        wanted = Caller(reference, 16, 4).prefill({0: PROMPTS[0]}, **changes)
        close(Caller(generator, 16, 4).prefill({0: PROMPTS[0]}, **changes), wanted)
    assert [backend.extends for backend in mine] == [0]
    Caller(generator, 16, 4).prefill({0: PROMPTS[0]})
    assert mine[0].extends == 1


def test_a_backend_that_can_do_masks_gets_them(
    mine: list[Counting], monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint
) -> None:
    monkeypatch.setattr(Counting, "features", {"mask"})
    masks = []
    monkeypatch.setattr(Counting, "init_forward", lambda self, metadata: masks.append(metadata.attention_mask))
    monkeypatch.setattr(Counting, "forward_extend", lambda self, q, layer, metadata: torch.zeros_like(q))
    see = torch.ones(7, 7, dtype=torch.bool).tril()
    Caller(GeneratorTorch(checkpoint(), attention_backend="mine"), 16, 4).prefill({0: PROMPTS[0]}, atten_mask=see)
    (mask,) = masks
    assert torch.equal(mask, torch.zeros(7, 7).masked_fill(~see, -torch.inf))


# --- a network with a softcap ------------------------------------------------------------------------------------


@pytest.mark.cpu
@pytest.mark.parametrize("scale", [None, 0.4])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_scale_and_softcap_are_those_of_transformers(
    family: str, scale: float | None, checkpoint: Checkpoint, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint(family, **({"sliding_window": 5} if family == "mistral" else {}))
    theirs = importlib.import_module(f"transformers.models.{family}.modeling_{family}")

    def eager(*args: Any, **kwargs: Any) -> Any:
        scaling = kwargs["scaling"] if scale is None else scale
        return eager_attention_forward(*args, **{**kwargs, "softcap": 2.0, "scaling": scaling})

    monkeypatch.setattr(theirs, "eager_attention_forward", eager)
    tokens = [*range(100, 112), 7, 8, 9]
    with torch.no_grad():
        whole = oracle(path)(torch.tensor([tokens])).logits[0]
    loaded = load_model(path)
    for layer in loaded.model.model.layers:
        attention = layer.self_attn.attn
        sizes = (attention.layer_id, attention.num_heads, attention.num_kv_heads, attention.head_dim)
        layer.self_attn.attn = RadixAttention(*sizes, attention.sliding_window, scale=scale, softcap=2.0)
    for backend in (None, "auto", "torch_native"):  # None: PagedAttention
        caller = Caller(GeneratorTorch(loaded, attention_backend=backend), 8, 4)
        close(caller.prefill({0: tokens[:6]}), whole[:6])
        close(caller.prefill({0: tokens[6:12]}), whole[6:12])
        close(caller.decode({0: tokens[12:13]}), whole[12:13])
        close(caller.decode({0: tokens[13:]}, q_lens=[2], atten_mask=torch.zeros(2, 15)), whole[13:])


@pytest.fixture
def soft_path(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose networks are made with a softcap in their attention."""
    original = AttentionLayer.__init__

    def init(self: AttentionLayer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.softcap = 2.0

    monkeypatch.setattr(AttentionLayer, "__init__", init)
    return checkpoint()


@pytest.mark.parametrize("caller", [LLM, InferenceEngine, GeneratorTorch])
def test_a_backend_without_softcap_is_refused_for_such_a_network(caller: Callable[..., Any], soft_path: Path) -> None:
    ATTENTION_BACKENDS["hard"] = lambda dtype, device: object()
    try:
        with pytest.raises(KernelsUnavailableError, match=r"attention_backend='hard': .*softcap"):
            caller(soft_path, attention_backend="hard")
    finally:
        del ATTENTION_BACKENDS["hard"]
