"""adapter_config.json: what each setting means, and that everything else is refused with the field's name. And an adapter's
digest, which is of its content and nothing else."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer.errors import AdapterError
from nanoinfer.model.lora.adapter import Adapter, adapter_digest
from nanoinfer.model.lora.peft_files import EMBEDDINGS, REFUSED, AdapterConfig
from nanoinfer.model.lora.projections import LowRank

NAMES = [
    f"model.layers.{layer}.{name}"
    for layer in range(12)
    for name in ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
]


def parsed(**fields: Any) -> AdapterConfig:
    return AdapterConfig.parse(json.dumps({"peft_type": "LORA", "target_modules": ["q_proj"], **fields}))


def targets(**fields: Any) -> list[str]:
    """Which of NAMES it targets, without the beginning that all have."""
    config = parsed(**fields)
    return [name.removeprefix("model.layers.") for name in NAMES if config.targets(name)]


def each(*layers: int, name: str = "self_attn.q_proj") -> list[str]:
    return [f"{layer}.{name}" for layer in layers]


# --- what it says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"target_modules": ["q_proj"]}, each(*range(12))),
        ({"target_modules": ["self_attn.q_proj", "unheard_of"]}, each(*range(12))),
        ({"target_modules": ["proj", "attn.q_proj", ""]}, []),  # an end begins at a dot
        ({"target_modules": ["layers.1.self_attn.q_proj"]}, each(1)),
        ({"target_modules": r".*\.[01]\..*q_proj"}, each(0, 1)),
        ({"target_modules": r"layers\.0.*q_proj"}, []),  # a regular expression is for the whole path
        ({"target_modules": "", "exclude_modules": ""}, []),
        ({"layers_to_transform": 0}, each(0)),
        ({"layers_to_transform": [1, 10, 99]}, each(1, 10)),
        ({"layers_to_transform": []}, each(*range(12))),
        ({"layers_to_transform": 1, "target_modules": ["q_proj", "model.layers.7.self_attn.q_proj"]}, each(1, 7)),
        ({"layers_to_transform": 1, "layers_pattern": "layers"}, each(1)),
        ({"layers_to_transform": 1, "layers_pattern": ["h", "lay.*"]}, each(1)),
        ({"layers_to_transform": 1, "layers_pattern": []}, each(1)),
        ({"layers_to_transform": 1, "layers_pattern": "h"}, []),
        ({"layers_to_transform": 1, "layers_pattern": "layers|h"}, []),  # as in PEFT, whose pattern has no parentheses
        ({"exclude_modules": ["layers.2.self_attn.q_proj", "up_proj"]}, each(0, 1, *range(3, 12))),
        ({"exclude_modules": r".*\.1?[1-9]\..*"}, each(0, 10)),
    ],
)
def test_projections_are_targeted(fields: dict[str, Any], wanted: list[str]) -> None:
    assert targets(**fields) == wanted


@pytest.mark.parametrize("spelling", ["all-linear", "All-Linear"])
def test_all_linear_is_every_projection_and_no_embedding(spelling: str) -> None:
    config = parsed(target_modules=spelling, exclude_modules=["up_proj"])
    assert [name for name in NAMES if not config.targets(name)] == [name for name in NAMES if "up_proj" in name]
    assert not any(map(config.targets, EMBEDDINGS))


def test_a_pattern_gives_some_projections_another_rank_and_alpha() -> None:
    config = parsed(
        r=8,
        lora_alpha=16,
        rank_pattern={"v_proj": 2, r"layers\.1\..*": 3, "up_proj": 4},  # the first that matches
        alpha_pattern={r"model\.layers\.\d+\.mlp\.up_proj": 0.5, "proj": 1000, "down_proj|v_proj": -3},
    )
    ranks = {name: config.rank(f"model.layers.{name}") for name in ("0.attn.q_proj", "1.attn.v_proj", "1.mlp.up_proj")}
    assert ranks == {"0.attn.q_proj": 8, "1.attn.v_proj": 2, "1.mlp.up_proj": 3}
    assert config.scale("model.layers.0.attn.q_proj") == 16 / 8
    assert config.scale("model.layers.0.mlp.up_proj") == 0.5 / 4
    assert config.scale("model.layers.0.attn.v_proj") == -3 / 2
    assert config.scale("model.layers.0.mlp.down_proj") == -3 / 8


def test_rslora_divides_by_the_root_of_the_rank() -> None:
    config = parsed(r=8, lora_alpha=16, use_rslora=True, rank_pattern={"v_proj": 9})
    assert config.scale("model.layers.0.attn.q_proj") == 16 / math.sqrt(8)
    assert config.scale("model.layers.0.attn.v_proj") == 16 / 3


def test_without_more_it_has_the_defaults_of_peft() -> None:
    assert parsed() == AdapterConfig(target_modules=("q_proj",), r=8, lora_alpha=8)
    nothing = dict.fromkeys(
        ["exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"]
    )
    assert parsed(**nothing, init_lora_weights=None) == parsed()


def test_what_has_no_part_in_inference_is_not_looked_at() -> None:
    trained = {"lora_dropout": 0.1, "eva_config": {"rho": 2.0}, "corda_config": 5, "megatron_core": "megatron.core"}
    origin = {"task_type": "CAUSAL_LM", "inference_mode": True, "auto_mapping": {"a": 1}, "revision": "main"}
    assert parsed(**trained, **origin, qalora_group_size=16, peft_version="9.9", unknown=[], other=None) == parsed()
    assert parsed(base_model_name_or_path="Qwen/Qwen3-0.6B").base_model_name_or_path == "Qwen/Qwen3-0.6B"
    assert parsed(base_model_name_or_path=5).base_model_name_or_path is None


@pytest.mark.parametrize("start", [True, False, "gaussian", "Gaussian", "eva", "mica", "orthogonal"])
def test_a_start_that_leaves_the_model_alone_is_accepted(start: object) -> None:
    assert parsed(init_lora_weights=start) == parsed()


# --- what is refused -----------------------------------------------------------------------------------------------

CHANGED_BASE = ("pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga")
WRONG: list[dict[str, Any]] = [
    *({"peft_type": kind} for kind in ("ADALORA", None)),
    *({"bias": bias} for bias in ("all", "lora_only", None)),
    *({name: {"a": 1}} for name in sorted(REFUSED)),
    *({"init_lora_weights": start} for start in (*CHANGED_BASE, "newest", 1, [])),
    {"use_newest": True},
    *({"target_modules": modules} for modules in (["q_proj", 5], None, {"q_proj": 1}, "(q_proj")),
    *({"exclude_modules": modules} for modules in ("*", False)),
    *({"layers_to_transform": layers} for layers in ("1", [1, True], 1.0)),
    *({name: 1, "target_modules": ".*"} for name in ("layers_to_transform", "layers_pattern")),
    {"layers_pattern": "h"},
    *({"layers_pattern": pattern, "layers_to_transform": 1} for pattern in (5, ["h", "["])),
    *({"r": rank} for rank in (0, -1, 1.5, "8", True, None)),
    *({"lora_alpha": alpha} for alpha in (float("nan"), float("inf"), "16", None, False, 10**400, 1e308)),
    {"use_rslora": 1},
    *({"rank_pattern": ranks} for ranks in ({"q_proj": 0}, {"(": 4}, ["q_proj"], {"a{99999999999}": 1})),
    *({"alpha_pattern": alphas} for alphas in ({"q_proj": float("-inf")}, {"+": 4})),
]


@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: str(fields)[:60])
def test_what_is_not_supported_or_wrong_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(AdapterError, match=f"^{next(iter(fields))}="):
        parsed(**fields)


@pytest.mark.parametrize("text", [b"", b'{"peft_type": "LORA", ', b"\xff\xfe\x00", b"[" * 100_000, b"[]", b"null"])
def test_a_damaged_file_is_refused(text: bytes) -> None:
    with pytest.raises(AdapterError, match=r"^adapter_config\.json"):
        AdapterConfig.parse(text)


@pytest.mark.parametrize(("text", "field"), [(b"{}", "peft_type"), (b'{"peft_type": "LORA"}', "target_modules")])
def test_a_file_must_say_what_it_is(text: bytes, field: str) -> None:
    with pytest.raises(AdapterError, match=f"^{field}"):
        AdapterConfig.parse(text)


# --- what it is called by ------------------------------------------------------------------------------------------


def adapter_of(**changes: object) -> Adapter:
    one = LowRank(torch.arange(8.0).view(2, 4), torch.arange(6.0).view(3, 2), 0.5)
    two = LowRank(torch.ones(1, 4), torch.ones(5, 1), 2.0)
    return Adapter("a", Path("a"), {"q": replace(one, **changes), "v": two})


def test_name_place_and_order_do_not_count() -> None:
    adapter = adapter_of()
    other = Adapter("b", Path("elsewhere"), dict(reversed(adapter.parts.items())))
    assert other.id != adapter.id
    assert adapter_digest(other) == adapter_digest(adapter) == adapter_digest(adapter_of())
    assert adapter_digest(adapter.again()) == adapter_digest(adapter)


def test_everything_else_counts() -> None:
    a, b = adapter_of().parts["q"].a, adapter_of().parts["q"].b
    others = [
        adapter_of(a=a + torch.eye(2, 4) * 1e-6),
        adapter_of(b=b.flip(0)),
        adapter_of(scale=0.25),
        adapter_of(a=a.bfloat16()),
    ]
    others += [adapter_of(a=a.view(4, 2)), adapter_of(a=a.double())]
    parts = adapter_of().parts
    others += [Adapter("a", Path("a"), {"k": parts["q"], "v": parts["v"]}), Adapter("a", Path("a"), {"q": parts["q"]})]
    others += [Adapter("a", Path("a"), {"q": parts["v"], "v": parts["q"]}), Adapter("a", Path("a"), {})]
    digests = {adapter_digest(each) for each in (adapter_of(), *others)}
    assert len(digests) == len(others) + 1
