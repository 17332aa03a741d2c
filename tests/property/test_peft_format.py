"""Adapters on disk, with PEFT as the oracle: the same projections, ranks, scales and deltas; and all else is refused."""

import copy
import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file

from nanoinfer.adapters import peft_config
from nanoinfer.adapters.peft_config import EMBEDDINGS, AdapterConfig
from nanoinfer.adapters.peft_files import read_adapter
from nanoinfer.adapters.projections import LowRank, projections
from nanoinfer.errors import AdapterError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.families import find_family
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.model.weights import load_weights
from tests.helpers.checkpoints import FAMILIES

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
Networks = Callable[[str], LlamaForCausalLM]
Tensors = dict[str, torch.Tensor]

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT warns of much that is asked for here on purpose

ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
ENDS = dict.fromkeys(FAMILIES, ATTENTION + MLP) | {"phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}


@pytest.fixture(scope="module")
def networks(checkpoint: Checkpoint) -> Networks:
    """`networks("qwen3")` → this engine's network of the tiny checkpoint of that family, loaded once."""
    loaded: dict[str, LlamaForCausalLM] = {}

    def load(family: str) -> LlamaForCausalLM:
        if family not in loaded:
            loaded[family] = load_model(checkpoint(family), kernels="torch").model
        return loaded[family]

    return load


def adapt(base: transformers.PreTrainedModel, seed: int = 0, **fields: Any) -> peft.PeftModel:
    """PEFT's model of a copy of `base` with a random adapter of this LoraConfig."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(**{"task_type": "CAUSAL_LM", **fields})
    model = peft.get_peft_model(copy.deepcopy(base), config)
    for layer in layers_of(model).values():
        if "default" not in layer.lora_B:
            continue  # of an embedding
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    return model


def layers_of(model: peft.PeftModel) -> dict[str, LoraLayer]:
    prefix = "base_model.model."
    modules = {name.removeprefix(prefix): module for name, module in model.named_modules()}
    return {name: module for name, module in modules.items() if isinstance(module, LoraLayer)}


def check_equal(model: peft.PeftModel, read: dict[str, LowRank]) -> None:
    layers = layers_of(model)
    assert read.keys() == layers.keys()
    for name, low_rank in read.items():
        assert low_rank.rank == layers[name].r["default"]
        assert low_rank.scale == layers[name].scaling["default"]
        assert torch.equal(low_rank.a, layers[name].lora_A["default"].weight)
        assert torch.equal(low_rank.b, layers[name].lora_B["default"].weight)
        assert torch.equal(low_rank.b @ low_rank.a * low_rank.scale, layers[name].get_delta_weight("default"))


# --- what is read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_projections_are_the_rows_of_the_checkpoint(family: str, checkpoint: Checkpoint, networks: Networks) -> None:
    stored = load_file(checkpoint(family) / "model.safetensors")
    found = projections(networks(family))
    wanted = {f"model.layers.{layer}.{'self_attn' if end in ('qkv_proj', *ATTENTION) else 'mlp'}.{end}"
              for layer in range(3) for end in ENDS[family]}  # fmt: skip
    assert found.keys() == wanted
    for name, projection in found.items():
        assert [projection.columns, projection.in_features] == list(stored[f"{name}.weight"].shape)
        together = [each for each in found.values() if each.linear is projection.linear]
        before = sum(each.columns for each in together[: together.index(projection)])
        assert projection.first == before  # side by side, in the order of names
        assert sum(each.columns for each in together) == projection.linear.out_features
        assert projection.linear.in_features == projection.in_features


@pytest.mark.parametrize("family", FAMILIES)
def test_columns_of_a_projection_are_its_rows_of_the_weight(family: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(family)
    config = ModelConfig.from_pretrained(path)
    network = find_family(config.architecture)(config, 64, torch.float32, torch.device("cpu"))
    load_weights(network, path)
    stored = load_file(path / "model.safetensors")
    for name, projection in projections(network).items():
        assert projection.linear.weight is not None  # not packed yet
        rows = projection.linear.weight[projection.first : projection.first + projection.columns]
        assert torch.equal(rows, stored[f"{name}.weight"])


def named_configs(ends: list[str]) -> dict[str, dict[str, Any]]:
    """One LoraConfig for each thing that a config can say."""
    first, second, *_, last = ends
    return {
        "one": {"target_modules": [first]},
        "all by name": {"target_modules": ends},
        "all linear": {"target_modules": "all-linear"},
        "regex": {"target_modules": rf".*layers\.[02]\..*({first}|{last})"},
        "full names": {"target_modules": [f"model.layers.1.self_attn.{first}", f"layers.2.mlp.{last}"]},
        "rank and alpha": {"target_modules": ends, "r": 3, "lora_alpha": 7},
        "alpha is not whole": {"target_modules": [first], "lora_alpha": 0.3},
        "rslora": {"target_modules": ends, "r": 5, "lora_alpha": 3, "use_rslora": True},
        "rank_pattern": {"target_modules": ends, "rank_pattern": {rf"layers\.1\..*{first}": 2, second: 11, first: 4}},
        "alpha_pattern": {"target_modules": ends, "alpha_pattern": {rf".*\.[01]\..*\.{last}": 1, last: 5}},
        "both patterns, rslora": {
            "target_modules": "all-linear",
            "use_rslora": True,
            "rank_pattern": {"(mlp|self_attn).*": 6, first: 1},
            "alpha_pattern": {f"^model.layers.0.self_attn.{first}": 64, r"[^.]*\.[^.]*\.2\..*": 0.5},
        },
        "one layer": {"target_modules": ends, "layers_to_transform": 1},
        "some layers": {"target_modules": [first, last], "layers_to_transform": [0, 2, 5]},
        "layers by pattern": {"target_modules": ends, "layers_to_transform": [2], "layers_pattern": ["h", "layers"]},
        "layers, but one by name": {
            "target_modules": [first, f"model.layers.2.mlp.{last}"],
            "layers_to_transform": 0,
            "layers_pattern": "layers",
        },
        "excluded": {"target_modules": ends, "exclude_modules": [last, f"layers.0.self_attn.{first}"]},
        "excluded by regex": {"target_modules": "all-linear", "exclude_modules": rf".*\.1\..*|.*{first}"},
        "gaussian start": {"target_modules": [first], "init_lora_weights": "gaussian", "lora_dropout": 0.2},
        "no task": {"target_modules": [first], "task_type": None},
    }  # fmt: skip


@pytest.mark.parametrize("case", named_configs(ENDS["llama"]))
@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_is_what_it_is_in_peft(
    family: str,
    case: str,
    checkpoint: Checkpoint,
    oracle: Oracle,
    networks: Networks,
    tmp_path: Path,
) -> None:
    model = adapt(oracle(checkpoint(family)), **named_configs(ENDS[family])[case])
    model.save_pretrained(tmp_path)
    check_equal(model, read_adapter(tmp_path, networks(family)))


@st.composite
def configs(draw: st.DrawFn, ends: list[str]) -> dict[str, Any]:
    """Random settings; some target nothing, or what is no projection."""
    end, number = st.sampled_from(ends), st.integers(1, 9)
    paths = [
        f"{part}.{end}" for part in ("self_attn", "mlp", "model.layers.1.mlp", "layers.0.self_attn") for end in ends
    ]
    names = st.lists(end | st.sampled_from([*paths, "proj", "other"]), min_size=1, max_size=6)
    starts = ["", "", ".*", r"model\.layers\.\d\.", r".*\.[01]\..*", r"layers\.2\.(mlp|self_attn)\.", "[a-z_]*", "a|"]
    body = (
        end | st.tuples(end, end).map("|".join) | st.sampled_from(["[a-z]+_proj", "self_attn.*", "mlp", "(o|down).*"])
    )
    regex = st.builds("{}{}{}".format, st.sampled_from(starts), body, st.sampled_from(["", "", "", ".*", "|other"]))
    layer, pattern = (
        st.integers(-1, 4),
        st.sampled_from(["layers", "h", "l.*s", "model.layers", "layers|h", "h|layers", ""]),
    )
    config: dict[str, Any] = {
        "target_modules": draw(names | names | regex | st.just("all-linear")),
        "exclude_modules": draw(st.none() | names | regex),
        "r": draw(number),
        "lora_alpha": draw(number | st.floats(-10, 10)),
        "use_rslora": draw(st.booleans()),
        "rank_pattern": draw(st.dictionaries(regex, number, max_size=3)),
        "alpha_pattern": draw(st.dictionaries(regex, number | st.floats(0, 9), max_size=3)),
    }
    for field in ("rank_pattern", "alpha_pattern"):  # PEFT saves them in this order, and the first that matches counts
        config[field] = dict(sorted(config[field].items()))
    if isinstance(config["target_modules"], list):
        config["layers_to_transform"] = draw(st.none() | layer | st.lists(layer, max_size=3))
        if config["layers_to_transform"] is not None:
            config["layers_pattern"] = draw(st.none() | pattern | st.lists(pattern, max_size=2))
    return config


@pytest.mark.parametrize("family", FAMILIES)
def test_patterns_select_what_they_select_in_peft(
    family: str,
    checkpoint: Checkpoint,
    oracle: Oracle,
    networks: Networks,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base, network = oracle(checkpoint(family)), networks(family)

    @settings(max_examples=50, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(configs(ENDS[family]))
    def check(fields: dict[str, Any]) -> None:
        folder = tmp_path_factory.mktemp("adapter")
        (folder / "adapter_model.safetensors").touch()  # so that a refusal is about the config
        config = peft.LoraConfig(task_type="CAUSAL_LM", **fields)
        config.save_pretrained(folder)
        ours = AdapterConfig.parse((folder / "adapter_config.json").read_bytes())
        modules = {name for name, _ in base.named_modules() if name and ours.targets(name)}
        if fields["target_modules"] == "all-linear":
            modules &= projections(network).keys()
        if not modules or not modules <= {*projections(network), *EMBEDDINGS}:
            with pytest.raises(ValueError, match=r"odules|not supported"):  # PEFT finds none, or no linear ones
                adapt(base, **fields)
            return
        model = adapt(base, **fields)
        layers = layers_of(model)
        assert modules == layers.keys()
        if not modules.isdisjoint(EMBEDDINGS):
            assert "only projections" in refusal(folder, network)
            return
        for name, layer in layers.items():
            assert (ours.rank(name), ours.scale(name)) == (layer.r["default"], layer.scaling["default"])
        model.save_pretrained(folder)
        check_equal(model, read_adapter(folder, network))

    check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_keep_the_dtype_they_are_stored_in(
    dtype: torch.dtype,
    checkpoint: Checkpoint,
    oracle: Oracle,
    networks: Networks,
    tmp_path: Path,
) -> None:
    model = adapt(oracle(checkpoint("llama")), target_modules="all-linear").to(dtype)
    model.save_pretrained(tmp_path)
    read = read_adapter(tmp_path, networks("llama"))
    assert len(read) == 21
    for name, layer in layers_of(model).items():
        assert read[name].a.dtype == read[name].b.dtype == dtype
        assert torch.equal(read[name].a, layer.lora_A["default"].weight)


# --- every field of PEFT is known ----------------------------------------------------------------------------------


def test_each_field_of_peft_is_read_or_refused_or_has_no_part_in_inference() -> None:
    """A new version of PEFT may bring fields: look at each before it is added to one of these."""
    groups = [*map(set, (peft_config.CHECKS, peft_config.REFUSED, peft_config.IRRELEVANT))]
    groups.append({"peft_type", "bias", "init_lora_weights"})
    assert set.union(*groups) == {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert sum(map(len, groups)) == len(set.union(*groups))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_dora", True),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [3, 4]),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"),
        ("layer_replication", [(0, 2), (1, 3)]),
        ("kasa_config", peft.KasaConfig()),
    ],
)
def test_what_peft_saves_and_this_engine_cannot_compute_is_refused(
    field: str,
    value: object,
    checkpoint: Checkpoint,
    oracle: Oracle,
    networks: Networks,
    tmp_path: Path,
) -> None:
    model = adapt(oracle(checkpoint("qwen2")), **{"target_modules": ["q_proj", "down_proj"], field: value})
    model.save_pretrained(tmp_path)
    with pytest.raises(AdapterError, match=rf"^adapter '{re.escape(str(tmp_path))}': {field}="):
        read_adapter(tmp_path, networks("qwen2"))


def test_other_kinds_of_adapters_are_refused(
    checkpoint: Checkpoint, oracle: Oracle, networks: Networks, tmp_path: Path
) -> None:
    config = peft.LoHaConfig(target_modules=["q_proj"])
    peft.get_peft_model(copy.deepcopy(oracle(checkpoint("llama"))), config).save_pretrained(tmp_path)
    with pytest.raises(AdapterError, match="peft_type='LOHA': must be 'LORA'"):
        read_adapter(tmp_path, networks("llama"))


@pytest.mark.parametrize(
    ("targets", "name"),
    [
        (["q_proj", "lm_head"], "lm_head"),
        (["q_proj", "embed_tokens"], "model.embed_tokens"),
        (["model.embed_tokens"], "model.embed_tokens"),
        (r".*(q_proj|embed_tokens)", "model.embed_tokens"),
        ("lm_head|.*v_proj", "lm_head"),
    ],
)
def test_an_adapter_of_embeddings_is_refused(
    targets: object,
    name: str,
    checkpoint: Checkpoint,
    oracle: Oracle,
    networks: Networks,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=targets, task_type="CAUSAL_LM")
    peft.get_peft_model(copy.deepcopy(oracle(checkpoint("llama"))), config).save_pretrained(tmp_path)
    with pytest.raises(AdapterError, match=f"target_modules=.*: targets {name}; only projections of attention and MLP"):
        read_adapter(tmp_path, networks("llama"))


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(networks: Networks) -> LlamaForCausalLM:
    return networks("llama")


@pytest.fixture(scope="module")
def saved(checkpoint: Checkpoint, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of the tiny Llama with rank 4 for query and down projections."""
    folder = tmp_path_factory.mktemp("saved")
    adapt(oracle(checkpoint("llama")), r=4, target_modules=["q_proj", "down_proj"]).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    shutil.copytree(saved, tmp_path / "adapter")
    return tmp_path / "adapter"


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def change_config(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **fields}))


def key(layer: int, end: str = "self_attn.q_proj", which: str = "lora_A") -> str:
    return f"base_model.model.model.layers.{layer}.{end}.{which}.weight"


def refusal(folder: Path | str, network: LlamaForCausalLM) -> str:
    with pytest.raises(AdapterError) as caught:
        read_adapter(folder, network)
    start = f"adapter {str(folder)!r}: "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


def equal(one: dict[str, LowRank], other: dict[str, LowRank]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name].a, other[name].a)
        and torch.equal(one[name].b, other[name].b)
        and one[name].scale == other[name].scale
        for name in one
    )


def test_a_tilde_is_the_home_directory(saved: Path, llama: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(saved.parent))
    assert equal(read_adapter(f"~/{saved.name}", llama), read_adapter(saved, llama))
    assert refusal("~/other", llama).startswith("no such folder")


def rename(tensors: Tensors, change: Callable[[str], str]) -> None:
    for name in list(tensors):
        tensors[change(name)] = tensors.pop(name)


def loaded_by_peft(base: transformers.PreTrainedModel, folder: Path) -> Tensors:
    model = peft.PeftModel.from_pretrained(copy.deepcopy(base), str(folder))
    return {name: layer.get_delta_weight("default") for name, layer in layers_of(model).items()}


def test_the_name_of_an_adapter_may_be_in_those_of_its_tensors(
    folder: Path, saved: Path, llama: LlamaForCausalLM, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    change_tensors(folder, partial(rename, change=lambda name: name.replace(".weight", ".default.weight")))
    read = read_adapter(folder, llama)
    assert equal(read, read_adapter(saved, llama))
    for name, delta in loaded_by_peft(oracle(checkpoint("llama")), folder).items():
        assert torch.equal(read[name].b @ read[name].a * read[name].scale, delta)


@pytest.mark.parametrize(
    "change",
    [lambda name: name.removeprefix("base_model.model."), lambda name: name.replace(".weight", ".mine.weight")],
)
def test_tensors_under_other_names_are_refused_as_peft_does_not_load_them(
    change: Callable[[str], str], folder: Path, llama: LlamaForCausalLM, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    change_tensors(folder, partial(rename, change=change))
    message = refusal(folder, llama)
    assert "surplus" in message
    assert "and 14 more" in message  # 12 surplus, 12 missing
    assert not any(delta.any() for delta in loaded_by_peft(oracle(checkpoint("llama")), folder).values())


def test_tensors_are_copies_of_what_is_in_the_file(folder: Path, saved: Path, llama: LlamaForCausalLM) -> None:
    read = read_adapter(folder, llama)
    with open(folder / "adapter_model.safetensors", "r+b") as file:
        file.truncate(0)
    assert equal(read, read_adapter(saved, llama))


def test_all_that_is_wrong_with_tensors_is_named(folder: Path, llama: LlamaForCausalLM) -> None:
    def change(tensors: Tensors) -> None:
        del tensors[key(0)], tensors[key(2, "mlp.down_proj", "lora_B")]
        tensors[key(1)] = torch.zeros(4, 63)
        tensors[key(1, "mlp.down_proj", "lora_B")] = torch.zeros(64)
        tensors[key(2)] = torch.zeros(4, 64, dtype=torch.int32)
        tensors[key(2, which="lora_B")][3, 1] = float("nan")
        tensors[key(1, which="lora_B")][0, 0] = float("inf")
        tensors[key(0, "self_attn.v_proj")] = torch.zeros(4, 64)
        tensors[key(7)] = torch.zeros(4, 64)
        tensors["base_model.model.lm_head.weight"] = torch.zeros(320, 64)

    change_tensors(folder, change)
    message, targeted = refusal(folder, llama), "surplus, adapter_config.json targets no such projection of this model"
    assert set(message.split(" (the adapter was trained with ")[0].split("; ")) == {
        f"{key(0)}: missing",
        f"{key(2, 'mlp.down_proj', 'lora_B')}: missing",
        f"{key(1)}: shape [4, 63], must be [4, 64]",
        f"{key(1, 'mlp.down_proj', 'lora_B')}: shape [64], must be [64, 4]",
        f"{key(2)}: I32 numbers, must be floating-point",
        f"{key(2, which='lora_B')}: has numbers that are not finite",
        f"{key(1, which='lora_B')}: has numbers that are not finite",
        f"{key(0, 'self_attn.v_proj')}: {targeted}",
        f"{key(7)}: {targeted}",
        f"base_model.model.lm_head.weight: {targeted}",
    }


def test_a_tensor_under_two_names_is_refused(folder: Path, llama: LlamaForCausalLM) -> None:
    twice = key(0).replace(".weight", ".default.weight")
    change_tensors(folder, lambda tensors: tensors.update({twice: tensors[key(0)].clone()}))
    assert "surplus, the same tensor as base_model.model.model.layers.0.self_attn.q_proj.lora_A" in refusal(
        folder, llama
    )


def test_an_adapter_of_another_model_says_which(
    saved: Path, networks: Networks, checkpoint: Checkpoint, folder: Path
) -> None:
    wider = load_model(checkpoint("llama", intermediate_size=128), kernels="torch").model
    message = refusal(saved, wider)
    assert f"{key(0, 'mlp.down_proj')}: shape [4, 96], must be [4, 128]" in message
    assert message.endswith(f"(the adapter was trained with {checkpoint('llama')})")
    assert "layers.0.self_attn.q_proj.lora_A.weight: surplus" in refusal(saved, networks("phi3"))
    change_config(folder, target_modules=["q_proj"])
    assert "targets none of this model's projections" in refusal(folder, networks("phi3"))
    assert "they are qkv_proj, o_proj, gate_up_proj, down_proj in each layer" in refusal(folder, networks("phi3"))


def test_a_config_that_does_not_fit_its_tensors_is_refused(folder: Path, llama: LlamaForCausalLM) -> None:
    change_config(folder, rank_pattern={"layers.1.mlp.down_proj": 2})
    assert f"{key(1, 'mlp.down_proj')}: shape [4, 96], must be [2, 96]" in refusal(folder, llama)
    change_config(folder, rank_pattern={}, layers_to_transform=[0, 1])
    assert f"{key(2)}: surplus" in refusal(folder, llama)
    change_config(folder, layers_to_transform=None, target_modules=[])
    assert refusal(folder, llama).startswith("target_modules=(): targets none of this model's projections")


@pytest.mark.parametrize("size", [0, 5, 300, -1])
def test_a_file_cut_short_is_named(size: int, folder: Path, llama: LlamaForCausalLM) -> None:
    for name, wanted in (
        ("adapter_model.safetensors", "adapter_model.safetensors: is not a complete safetensors file: "),
        ("adapter_config.json", "adapter_config.json is damaged: "),
    ):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:size])
        assert refusal(folder, llama).startswith(wanted)
        (folder / name).write_bytes(data)
    assert read_adapter(folder, llama)


def test_files_that_are_not_there_are_named(folder: Path, saved: Path, llama: LlamaForCausalLM) -> None:
    (folder / "adapter_model.safetensors").unlink()
    assert refusal(folder, llama) == "no adapter_model.safetensors there"
    (folder / "adapter_model.bin").write_bytes(b"PK")
    assert re.match("adapter_model.bin is pickled, .* save it as adapter_model.safetensors", refusal(folder, llama))
    (folder / "adapter_config.json").unlink()
    assert refusal(folder, llama) == "no adapter_config.json there"
    shutil.copytree(saved, folder / "fox")  # as PEFT saves an adapter with a name
    assert refusal(folder, llama).endswith("there are adapters in the folders inside it: fox")
    assert refusal(saved / "adapter_config.json", llama).startswith("is a file; give the folder that it is in")
    assert refusal(folder / "nowhere", llama).startswith("no such folder; only local folders are read")
    with pytest.raises(AdapterError, match="adapter 5: must be the path of a folder, got int"):
        read_adapter(5, llama)  # type: ignore[arg-type]


def test_a_whole_model_is_no_adapter(checkpoint: Checkpoint, llama: LlamaForCausalLM) -> None:
    assert refusal(checkpoint("llama"), llama).startswith("is a whole model, not an adapter")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pointer_is_not_the_file(name: str, folder: Path, llama: LlamaForCausalLM) -> None:
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n")
    assert refusal(folder, llama).startswith(f"{name} is a git-LFS pointer, not the file itself; install git-lfs")
