"""adapter_config.json: what each setting means, and that everything else is refused with the field's name."""

import json
import math
import re
from typing import Any

import pytest

from nanoinfer.adapters.peft_config import EMBEDDINGS, AdapterConfig
from nanoinfer.errors import AdapterError

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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "ADALORA"}, "peft_type='ADALORA': must be 'LORA'"),
        ({"peft_type": None}, "peft_type=None: must be 'LORA'"),
        ({"use_dora": True}, "use_dora=True: DoRA, .* is not supported; merge it"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\]: .* whole modules .*; merge it"),
        ({"bias": "all"}, "bias='all': must be 'none'"),
        ({"bias": "lora_only"}, "bias='lora_only': must be 'none'"),
        ({"bias": None}, "bias=None: must be 'none'"),
        ({"lora_bias": True}, "lora_bias=True: .* biases"),
        ({"trainable_token_indices": [1, 2]}, r"trainable_token_indices=\[1, 2\]: .* embeddings"),
        ({"target_parameters": ["mlp.experts"]}, r"target_parameters=\['mlp.experts'\]: only projections"),
        ({"layer_replication": [[0, 4], [2, 5]]}, r"layer_replication=\[\[0, 4\], \[2, 5\]\]: .* repeated layers"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out=True: "),
        ({"megatron_config": {"a": 1}}, r"megatron_config=\{'a': 1\}: "),
        ({"use_qalora": True}, "use_qalora=True: "),
        ({"alora_invocation_tokens": [5]}, r"alora_invocation_tokens=\[5\]: "),
        ({"arrow_config": {"top_k": 3}}, "arrow_config=.*: .*Arrow"),
        ({"kasa_config": {"beta": 1}}, "kasa_config=.*: KaSA"),
        ({"velora_config": {"scale": 1}}, "velora_config=.*: VeLoRA"),
        ({"monteclora_config": {"num_samples": 1}}, "monteclora_config=.*: .*MonteCLoRA"),
        ({"use_bdlora": {"nblocks": 1}}, "use_bdlora=.*: block-diagonal"),
        *(
            ({"init_lora_weights": start}, f"init_lora_weights='{start}': .* changed the model's own weights")
            for start in ("pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga")
        ),
        ({"init_lora_weights": "newest"}, "init_lora_weights='newest': must be one of True, False, None, 'eva'"),
        ({"init_lora_weights": 1}, "init_lora_weights=1: must be one of"),
        ({"init_lora_weights": []}, r"init_lora_weights=\[\]: must be one of"),
        ({"use_newest": True}, "use_newest=True: is not known here; must be null, false or empty"),
        ({"use_newest": 0.5, "peft_version": "9.9"}, r"use_newest=0.5: is not known here \(peft 9.9 wrote the file\)"),
        ({"target_modules": ["q_proj", 5]}, r"target_modules=\['q_proj', 5\]: must be a list of names, a regular"),
        ({"target_modules": None}, "target_modules=None: must be a list"),
        ({"target_modules": {"q_proj": 1}}, "target_modules=.*: must be a list"),
        ({"target_modules": "(q_proj"}, r"target_modules='\(q_proj': is not a regular expression: "),
        ({"exclude_modules": "*"}, r"exclude_modules='\*': is not a regular expression: "),
        ({"exclude_modules": False}, "exclude_modules=False: must be null"),
        ({"layers_to_transform": "1"}, "layers_to_transform='1': must be null, a layer's number"),
        ({"layers_to_transform": [1, True]}, r"layers_to_transform=\[1, True\]: must be null"),
        ({"layers_to_transform": 1.0}, "layers_to_transform=1.0: must be null"),
        ({"layers_to_transform": 1, "target_modules": ".*"}, "layers_to_transform=1: must be null unless target_modules"),
        ({"layers_pattern": "h", "target_modules": ".*"}, "layers_pattern='h': must be null unless target_modules"),
        ({"layers_pattern": "h"}, "layers_pattern='h': needs layers_to_transform"),
        ({"layers_pattern": 5, "layers_to_transform": 1}, "layers_pattern=5: must be null"),
        ({"layers_pattern": ["h", "["], "layers_to_transform": 1}, r"layers_pattern='\[': is not a regular expression"),
        *(({"r": rank}, f"r={re.escape(repr(rank))}: must be a whole number, at") for rank in (0, -1, 1.5, "8", True)),
        ({"r": None}, "r=None: must be a whole number"),
        *(
            ({"lora_alpha": alpha}, "lora_alpha=.*: must be a finite number")
            for alpha in (float("nan"), float("inf"), "16", None, False, 10**400, 1e308)
        ),
        ({"use_rslora": 1}, "use_rslora=1: must be true or false"),
        ({"rank_pattern": {"q_proj": 0}}, r"rank_pattern=\{'q_proj': 0\}: must be an object"),
        ({"rank_pattern": {"(": 4}}, r"rank_pattern='\(': is not a regular expression"),
        ({"rank_pattern": ["q_proj"]}, r"rank_pattern=\['q_proj'\]: must be an object"),
        ({"rank_pattern": {"a{99999999999}": 1}}, "rank_pattern=.*: is not a regular expression"),
        ({"alpha_pattern": {"q_proj": float("-inf")}}, "alpha_pattern=.*: must be an object"),
        ({"alpha_pattern": {"+": 4}}, r"alpha_pattern='\+': is not a regular expression"),
    ],
)  # fmt: skip
def test_what_is_not_supported_or_wrong_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError, match=f"^{message}"):
        parsed(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "adapter_config.json is damaged"),
        (b'{"peft_type": "LORA", ', "adapter_config.json is damaged"),
        (b"\xff\xfe\x00", "adapter_config.json is damaged"),
        (b"[" * 100_000, "adapter_config.json is damaged"),
        (b"[]", "adapter_config.json must hold an object"),
        (b"null", "adapter_config.json must hold an object"),
        (b"{}", "peft_type=None: must be 'LORA'"),
        (b'{"peft_type": "LORA"}', "target_modules: missing, must be a list"),
    ],
)
def test_a_damaged_file_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(AdapterError, match=f"^{message}"):
        AdapterConfig.parse(text)


def test_a_long_value_is_not_quoted_whole() -> None:
    with pytest.raises(AdapterError) as caught:
        parsed(modules_to_save=[f"module{i}" for i in range(1000)])
    assert len(str(caught.value)) < 400
