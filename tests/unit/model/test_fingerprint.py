"""A model's fingerprint: the same for the same model loaded again, and another one for whatever changes K/V's bits."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from nanoinfer.model import fingerprint as model_fingerprint
from nanoinfer.model.attention.torch_native import TorchNativeBackend
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.fingerprint import NOT_OF_KV, kernels_of, model_fields, source_digest, weights_digest
from nanoinfer.model.kernels.select import selected
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.model.random_model import random_model


def module_with(shared: ModuleType, **changed: Any) -> SimpleNamespace:
    """What one of our modules sees in place of a module that all threads share: a copy with something changed."""
    return SimpleNamespace(**{**vars(shared), **changed})


SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 128}
KINDS = [(None, "torch"), (None, "auto"), ("int8", "auto"), ("int4", "auto"), ("int8", "torch"), ("int4", "torch")]


def make(seed: int = 0, kernels: str = "torch", **changes: Any) -> LoadedModel:
    return random_model(kernels=kernels, seed=seed, **{**SMALL, **changes})


def fields_of(model: LoadedModel, backend: object | None = None, **options: Any) -> dict[str, str]:
    return model_fields(
        model, selected(TorchNativeBackend(), "torch_native") if backend is None else backend, **options
    )


def tensors_of(model: LoadedModel) -> list[torch.Tensor]:
    """All numbers that the network computes with, each once."""
    found = {
        name: tensor
        for name, tensor in model_fingerprint._weights(model.model)
        if tensor.numel() and not tensor.is_mkldnn
    }
    return list({tensor.data_ptr(): tensor for tensor in found.values()}.values())


@pytest.mark.parametrize(("quantization", "kernels"), KINDS)
def test_every_bit_of_every_tensor_counts(quantization: str | None, kernels: str) -> None:
    model = make(quantization=quantization, kernels=kernels)
    right = weights_digest(model.model)
    assert weights_digest(make(quantization=quantization, kernels=kernels).model) == right
    tensors = tensors_of(model)
    assert len(tensors) >= 6 + 2  # the norms and the four products of the layer, the last norm, and the embedding
    for tensor in tensors:
        for place in (0, -1):
            byte = tensor.detach().view(-1).view(torch.uint8)
            byte[place] ^= 1
            assert weights_digest(model.model) != right
            byte[place] ^= 1
    assert weights_digest(model.model) == right


def test_the_same_checkpoint_loaded_twice(checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("qwen3")
    assert fields_of(load_model(path, kernels="torch")) == fields_of(load_model(path, kernels="torch"))


def test_pieces_are_put_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_fingerprint, "PIECE_BYTES", 1000)
    first = make()
    right = weights_digest(first.model)
    table = first.model.model.embed_tokens.weight.data.view(-1)
    table[:250], table[250:500] = table[250:500].clone(), table[:250].clone()
    assert weights_digest(first.model) != right


def different(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value, 7)
    return 7.5  # for what is None here


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(ModelConfig)])
def test_every_field_of_the_configuration_counts(name: str) -> None:
    model = make()
    value = getattr(model.config, name)
    if name == "rope_scaling":
        parts = {part.name: different(getattr(value, part.name)) for part in dataclasses.fields(value)}
        others = [dataclasses.replace(value, **{part: other}) for part, other in parts.items()]
    else:
        others = [different(value)]
    for other in others:
        changed = dataclasses.replace(model, config=dataclasses.replace(model.config, **{name: other}))
        assert (fields_of(changed) == fields_of(model)) == (name in NOT_OF_KV)


def test_dtype_kv_type_quantization_and_kernels_count() -> None:
    right = fields_of(make())
    others = [
        fields_of(make(dtype="bfloat16")),
        fields_of(make(), kv_cache_dtype="int8"),
        fields_of(make(quantization="int8")),
        fields_of(make(quantization="int4")),
        fields_of(make(), selected(TorchNativeBackend(), "cpp")),
        fields_of(make(kernels="auto")),
        fields_of(dataclasses.replace(make(), device=torch.device("meta"))),
    ]
    prints = [tuple(sorted(each.items())) for each in (right, *others)]
    assert len(set(prints)) == len(prints) - (others[-2] == right)  # where torch's kernels are all there are


@pytest.mark.parametrize("what", ["features", "version", "threads", "precision"])
def test_what_torch_computes_with_counts(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, backend = make(), selected(TorchNativeBackend(), "torch_native")
    right = kernels_of(model, backend)
    if what == "features":
        monkeypatch.setattr(model_fingerprint, "cpu_features", lambda: "flags: mmx")
    elif what == "version":
        monkeypatch.setattr(model_fingerprint, "torch", module_with(torch, __version__="0.1"))
    elif what == "precision":
        precise = module_with(torch, get_float32_matmul_precision=lambda: "medium")
        monkeypatch.setattr(model_fingerprint, "torch", precise)
    else:
        monkeypatch.setattr(model_fingerprint, "torch", module_with(torch, get_num_threads=lambda: 77))
    assert kernels_of(model, backend) != right


def test_our_own_kernels_do_not_mind_how_many_threads_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model, backend = make(), selected(TorchNativeBackend(), "cpp")
    model.model.kernels = selected(type("Kernels", (), {})(), "cpp")  # type: ignore[assignment]
    monkeypatch.setattr(model_fingerprint, "library", lambda: type("Library", (), {"_name": "/x/kernels-a-b-c.so"})())
    right = kernels_of(model, backend)
    assert "kernels-a-b-c.so" in right
    monkeypatch.setattr(model_fingerprint, "torch", module_with(torch, get_num_threads=lambda: 77))
    assert kernels_of(model, backend) == right
    monkeypatch.setattr(model_fingerprint, "library", lambda: type("Library", (), {"_name": "/x/kernels-a-b-d.so"})())
    assert kernels_of(model, backend) != right


def test_the_code_counts_that_of_other_families_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, file = ModuleType("made_up_family"), tmp_path / "made_up_family.py"
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "made_up_family", module)
    family = type("Family", (type(make().model),), {"__module__": "made_up_family"})
    network = family.__new__(family)
    without = source_digest(make().model)
    file.write_text("one = 1")
    one = source_digest(network)
    file.write_text("one = 2")
    assert len({without, one, source_digest(network)}) == 3
    assert source_digest(make().model) == without
