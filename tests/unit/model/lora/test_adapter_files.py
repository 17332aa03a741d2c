"""Adapters on disk: what is damaged, is not there, or cannot be computed is refused by name."""

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nanoinfer.errors import AdapterError
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.model.lora import peft_files
from nanoinfer.model.lora.peft_files import read_adapter
from tests.helpers.peft_models import adapt, equal, layers_of, network_of, refusal

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
Tensors = dict[str, torch.Tensor]
pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT warns of much that is asked for here on purpose


@pytest.fixture(scope="module")
def llama(checkpoint: Checkpoint) -> LlamaForCausalLM:
    return network_of(checkpoint("llama"))


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


def rename(tensors: Tensors, change: Callable[[str], str]) -> None:
    for name in list(tensors):
        tensors[change(name)] = tensors.pop(name)


def loaded_by_peft(base: transformers.PreTrainedModel, folder: Path) -> Tensors:
    model = peft.PeftModel.from_pretrained(copy.deepcopy(base), str(folder))
    return {name: layer.get_delta_weight("default") for name, layer in layers_of(model).items()}


# --- settings ------------------------------------------------------------------------------------------------------


def test_each_field_of_peft_is_read_or_refused_or_has_no_part_in_inference() -> None:
    """A new version of PEFT may bring fields: look at each before it is added to one of these."""
    groups = [*map(set, (peft_files.CHECKS, peft_files.REFUSED, peft_files.IRRELEVANT))]
    groups.append({"peft_type", "bias", "init_lora_weights"})
    assert set.union(*groups) == {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert sum(map(len, groups)) == len(set.union(*groups))


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
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=targets, task_type="CAUSAL_LM")
    peft.get_peft_model(copy.deepcopy(oracle(checkpoint("llama"))), config).save_pretrained(tmp_path)
    with pytest.raises(AdapterError, match=f"target_modules=.*: targets {name}"):
        read_adapter(tmp_path, network_of(checkpoint("llama")))


# --- tensors -------------------------------------------------------------------------------------------------------


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


def test_an_adapter_of_another_model_says_which(saved: Path, checkpoint: Checkpoint, folder: Path) -> None:
    wider = load_model(checkpoint("llama", intermediate_size=128), kernels="torch").model
    message = refusal(saved, wider)
    assert f"{key(0, 'mlp.down_proj')}: shape [4, 96], must be [4, 128]" in message
    assert message.endswith(f"(the adapter was trained with {checkpoint('llama')})")
    assert "layers.0.self_attn.q_proj.lora_A.weight: surplus" in refusal(saved, network_of(checkpoint("phi3")))
    change_config(folder, target_modules=["q_proj"])
    message = refusal(folder, network_of(checkpoint("phi3")))
    assert message.startswith("target_modules=")
    assert "qkv_proj, o_proj, gate_up_proj, down_proj" in message


def test_a_config_that_does_not_fit_its_tensors_is_refused(folder: Path, llama: LlamaForCausalLM) -> None:
    change_config(folder, rank_pattern={"layers.1.mlp.down_proj": 2})
    assert f"{key(1, 'mlp.down_proj')}: shape [4, 96], must be [2, 96]" in refusal(folder, llama)
    change_config(folder, rank_pattern={}, layers_to_transform=[0, 1])
    assert f"{key(2)}: surplus" in refusal(folder, llama)
    change_config(folder, layers_to_transform=None, target_modules=[])
    assert refusal(folder, llama).startswith("target_modules=()")


# --- files ---------------------------------------------------------------------------------------------------------


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


def test_files_that_are_not_there_are_named(
    folder: Path, saved: Path, llama: LlamaForCausalLM, checkpoint: Checkpoint
) -> None:
    (folder / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors" in refusal(folder, llama)
    (folder / "adapter_model.bin").write_bytes(b"PK")
    assert refusal(folder, llama).startswith("adapter_model.bin is pickled")
    (folder / "adapter_config.json").unlink()
    assert "adapter_config.json" in refusal(folder, llama)
    for wrong in (saved / "adapter_config.json", folder / "nowhere", checkpoint("llama")):
        assert refusal(wrong, llama)
    with pytest.raises(AdapterError, match="adapter 5"):
        read_adapter(5, llama)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pointer_is_not_the_file(name: str, folder: Path, llama: LlamaForCausalLM) -> None:
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n")
    assert refusal(folder, llama).startswith(f"{name} is a git-LFS pointer")
