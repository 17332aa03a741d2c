"""Loading a checkpoint: where it is looked for, what is read from it, and how everything that does not fit is named."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from nanoinfer import LLM, InvalidRequestError, SamplingParams, UnsupportedModelError, WeightMismatchError
from nanoinfer.llm import make_engine
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import load_model, resolve_model_path
from nanoinfer.model.weights import load_weights
from nanoinfer.registry import MODEL_FAMILIES
from tests.helpers.checkpoints import FAMILIES, REMOVED, edited, greedy, save_checkpoint

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
Tensors = dict[str, torch.Tensor]

PROMPT = [5, 9, 200, 31, 7, 7, 250, 11, 64]
GREEDY = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True)


def rewritten(source: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of a checkpoint with `change` done to its tensors."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def shard(path: Path, *files: Tensors) -> None:
    """Put these tensors, a dictionary a file, in the place of what `path` holds."""
    (path / "model.safetensors").unlink(missing_ok=True)
    weight_map = {}
    for i, tensors in enumerate(files):
        save_file(tensors, path / f"part-{i}.safetensors")
        weight_map.update(dict.fromkeys(tensors, f"part-{i}.safetensors"))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def tokens_of(model: Path | str, **options: object) -> list[int]:
    return LLM(model, max_total_tokens=64, **options).generate(PROMPT, GREEDY)[0].token_ids  # type: ignore[arg-type]


# --- where it is ---------------------------------------------------------------------------------------------------


def test_a_local_directory_is_given_as_path_or_text(checkpoint: Checkpoint, oracle: Oracle) -> None:
    path = checkpoint("llama")
    expected = greedy(oracle(path), PROMPT, 6)
    assert tokens_of(path) == expected
    assert tokens_of(f"{path}/") == expected


def test_the_bundled_name_works_from_any_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    path = resolve_model_path("story")
    assert ModelConfig.from_pretrained(path).architecture == "LlamaForCausalLM"
    assert (path / "tokenizer.json").is_file()


@pytest.mark.parametrize("name", ["", "nowhere", "./no/where", "/no/where", "~/nowhere", "a/b/c"])
def test_a_name_that_is_nothing_is_refused_without_asking_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the Hub"))
    with pytest.raises(FileNotFoundError) as caught:
        LLM(name)
    assert repr(name) in str(caught.value)
    assert "story" in str(caught.value), "says what is bundled"


def test_a_hub_name_goes_through_huggingface_hub(
    checkpoint: Checkpoint, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("qwen3")
    asked: list[tuple[str, list[str]]] = []

    def snapshot_download(repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        offered = [
            "model.safetensors",
            "consolidated.safetensors",
            "original/model.safetensors",
            "config.json",
            "a.bin",
        ]
        patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        assert list(filter_repo_objects(offered, **patterns)) == ["model.safetensors", "config.json"]
        asked.append((repo_id, allow_patterns))
        return str(path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert tokens_of("Owner/Model-0.6B") == greedy(oracle(path), PROMPT, 6)
    [(repo_id, patterns)] = asked
    assert repo_id == "Owner/Model-0.6B"
    assert {"*.json", "*.safetensors"} <= set(patterns)
    assert not {"*.bin", "*.pth", "*"} & set(patterns)


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("no\nconnection"), OSError("disk full"), OSError()])
def test_a_hub_failure_names_the_model(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(FileNotFoundError, match="'owner/model'") as caught:
        LLM("owner/model")
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__cause__ is error


# --- weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen2", True)])
def test_a_sharded_checkpoint_is_the_same_model(family: str, tied: bool, tmp_path: Path, oracle: Oracle) -> None:
    path = save_checkpoint(tmp_path / "sharded", family, max_shard_size="20KB", tie_word_embeddings=tied)
    assert len(list(path.glob("*.safetensors"))) > 3
    assert tokens_of(path) == greedy(oracle(path), PROMPT, 6)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "sharded", max_shard_size="20KB")
    gone = sorted(path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=gone.name):
        LLM(path)


def test_a_checkpoint_without_safetensors_says_so(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "pickled")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="only safetensors"):
        LLM(path)


def pickled(path: Path, name: str = "pytorch_model.bin") -> Path:
    """The checkpoint with its weights as torch.save writes them."""
    torch.save(load_file(path / "model.safetensors"), path / name)
    (path / "model.safetensors").unlink()
    return path


def test_the_advice_for_pickled_weights_works(checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    path = pickled(edited(checkpoint("llama"), tmp_path / "pickled"))
    with pytest.raises(FileNotFoundError) as caught:
        LLM(path)
    advice = re.search(r"(AutoModelForCausalLM\.\S+) and AutoTokenizer\.\S+; then give", str(caught.value))
    assert advice is not None
    new = advice[1].replace("'new'", repr(str(tmp_path / "new")))
    exec(new, {"AutoModelForCausalLM": transformers.AutoModelForCausalLM})
    assert tokens_of(tmp_path / "new") == greedy(oracle(checkpoint("llama")), PROMPT, 6)


def test_what_a_trainer_leaves_beside_a_checkpoint_is_no_other_format(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "trained")
    for name in ("training_args.bin", "optimizer.pt", "model-Q4.gguf", "adapter_config.json"):
        (path / name).write_bytes(b"{}")
    assert tokens_of(path)
    (path / "model.safetensors").unlink()
    for name in ("model-Q4.gguf", "adapter_config.json"):
        (path / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors there"):
        LLM(path)


LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4096\n"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "model-00001-of-00002.safetensors"]
)
def test_a_git_lfs_pointer_says_how_to_get_the_file(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "cloned")
    (path / name).write_text(LFS_POINTER)
    with pytest.raises(FileNotFoundError, match="git lfs pull") as caught:
        LLM(path)
    assert f"{path}: {name} is a git-LFS pointer, not the file itself; " in str(caught.value)


def test_several_git_lfs_pointers_are_named_together(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(LFS_POINTER)
    with pytest.raises(
        FileNotFoundError, match=r"config\.json, model\.safetensors are git-LFS pointers, not the files; "
    ):
        LLM(tmp_path)


def test_a_folder_without_a_config_is_said_to_be_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json there, so this is not a Hugging Face checkpoint$"):
        LLM(tmp_path)


def test_a_gguf_file_or_folder_says_how_to_convert_it(tmp_path: Path) -> None:
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(b"GGUF")
    for path in (file, tmp_path):
        with pytest.raises(FileNotFoundError, match="is a GGUF file") as caught:
            LLM(path)
        assert f"from_pretrained({str(tmp_path)!r}, gguf_file='model-Q4_K_M.gguf')" in str(caught.value)
        assert "save_pretrained" in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "consolidated.00.pth", "epoch.ckpt"])
def test_a_pickled_file_or_its_folder_says_how_to_convert_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK")
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(FileNotFoundError, match="convert it with transformers: AutoModel") as caught:
            LLM(path)
        assert f"from_pretrained({str(tmp_path)!r})" in str(caught.value)


@pytest.mark.parametrize("config", ['{"base_model_name_or_path": "Qwen/Qwen3-0.6B"}', "[]", "{"])
def test_an_adapter_says_what_it_is_for_and_how_to_load_it(config: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(config)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"is an adapter \(PEFT\).*; load the model and give it") as caught:
        LLM(tmp_path)
    call = f"adapters={{'name': {str(tmp_path)!r}}})"
    if "Qwen" in config:
        assert "for Qwen/Qwen3-0.6B, without" in str(caught.value)
        assert str(caught.value).endswith(f"LLM('Qwen/Qwen3-0.6B', {call}")
    else:
        assert str(caught.value).endswith(f"LLM(model, {call}")


def test_a_file_of_a_checkpoint_is_no_checkpoint(checkpoint: Checkpoint) -> None:
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(FileNotFoundError, match="give the folder that it is in"):
            LLM(checkpoint("llama") / name)


def test_a_tilde_is_the_home_directory(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").symlink_to(checkpoint("llama"))
    assert tokens_of("~/model") == tokens_of(checkpoint("llama"))  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="'~/other'"):
        LLM("~/other")


@pytest.mark.parametrize("size", [0, 5, 1000, -1])
def test_a_file_cut_short_is_named(size: int, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "short")
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:size])
    with pytest.raises(WeightMismatchError, match=r"short/model\.safetensors"):
        LLM(path)


def test_missing_surplus_and_misshaped_tensors_are_all_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        del tensors["model.layers.1.self_attn.k_proj.weight"], tensors["model.norm.weight"], tensors["lm_head.weight"]
        tensors["model.layers.3.mlp.up_proj.weight"] = torch.zeros(96, 64)
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(96, 63)
        tensors["model.layers.2.self_attn.v_proj.weight"] = torch.zeros(64, 32)
        tensors["model.layers.2.input_layernorm.weight"] = torch.zeros(64, 1)

    path = rewritten(checkpoint("llama"), tmp_path / "bad", change)
    with pytest.raises(WeightMismatchError) as caught:
        LLM(path)
    problems = dict(problem.split(": ", 1) for problem in str(caught.value).removeprefix(f"{path}: ").split("; "))
    assert problems.pop("model.layers.1.self_attn.k_proj.weight") == "missing"
    assert problems.pop("model.norm.weight") == "missing"
    assert problems.pop("lm_head.weight") == "missing"
    assert problems.pop("model.layers.3.mlp.up_proj.weight").startswith("surplus")
    assert problems.pop("model.layers.0.self_attn.q_proj.bias").startswith("surplus")
    assert problems.pop("model.layers.0.mlp.up_proj.weight") == "shape [96, 63], must be [96, 64]"
    assert problems.pop("model.layers.2.self_attn.v_proj.weight") == "shape [64, 32], must be [32, 64]"
    assert problems.pop("model.layers.2.input_layernorm.weight") == "shape [64, 1], must be [64]"
    assert problems == {}


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen2", "model.layers.2.self_attn.v_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.k_norm.weight"),
        ("mistral", "model.layers.1.mlp.gate_proj.weight"),
        ("gemma3", "model.layers.1.post_feedforward_layernorm.weight"),
        ("phi3", "model.layers.1.self_attn.qkv_proj.weight"),
    ],
)
def test_what_only_one_family_has_is_not_optional_there(
    family: str, name: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = rewritten(checkpoint(family), tmp_path / "bad", lambda tensors: tensors.pop(name))
    with pytest.raises(WeightMismatchError, match=f"bad: {name}: missing$"):
        LLM(path)


@pytest.mark.parametrize(("num_missing", "rest"), [(10, ""), (11, "; and 1 more"), (18, "; and 8 more")])
def test_at_most_ten_problems_are_named_and_the_others_counted(
    num_missing: int, rest: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    def change(tensors: Tensors) -> None:
        for name in list(tensors)[:num_missing]:
            del tensors[name]

    path = rewritten(checkpoint("llama"), tmp_path / "bad", change)
    with pytest.raises(WeightMismatchError) as caught:
        LLM(path)
    assert str(caught.value).count(": missing") == 10
    assert str(caught.value).endswith(f": missing{rest}")


def test_whole_numbers_are_no_weights(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Quantized weights whose config does not say so would be read as nonsense."""

    def change(tensors: Tensors) -> None:
        name = "model.layers.1.mlp.down_proj.weight"
        tensors[name] = tensors[name].to(torch.int8)

    path = rewritten(checkpoint("llama"), tmp_path / "int", change)
    with pytest.raises(WeightMismatchError, match=r"layers\.1\.mlp\.down_proj\.weight: I8 numbers"):
        LLM(path)


@pytest.mark.parametrize("index", ["{}", "[]", "{", '{"weight_map": 3}'])
def test_an_index_that_maps_nothing_is_named(index: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "bad")
    (path / "model.safetensors").rename(path / "part-0.safetensors")
    (path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightMismatchError, match=r"model\.safetensors\.index\.json"):
        LLM(path)


def test_an_index_may_not_lead_out_of_the_checkpoint(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "bad")
    (path / "model.safetensors").rename(tmp_path / "other.safetensors")
    index = {"weight_map": {"model.norm.weight": "../other.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightMismatchError, match=r"'\.\./other\.safetensors' must be in the same folder"):
        LLM(path)


def test_a_single_file_goes_before_an_index(checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    """As in transformers: an index may be left over from before the shards were merged."""
    path = edited(checkpoint("llama"), tmp_path / "both")
    index = {"weight_map": {"model.norm.weight": "gone.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert tokens_of(path) == greedy(oracle(path), PROMPT, 6)


def test_a_tensor_in_two_shards_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "twice")
    tensors = load_file(path / "model.safetensors")
    shard(path, tensors, {"model.norm.weight": tensors["model.norm.weight"]})
    with pytest.raises(WeightMismatchError, match=r"model\.norm\.weight: in both part-0.* and part-1"):
        LLM(path)


def test_nothing_is_written_into_a_model_that_a_checkpoint_does_not_fit(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = ModelConfig.from_pretrained(checkpoint("llama"))
    model = LlamaForCausalLM(config, 16, torch.float32, torch.device("cpu"))
    for parameter in model.parameters():
        parameter.data.fill_(7.0)
    bad = rewritten(checkpoint("llama"), tmp_path / "bad", lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(WeightMismatchError):
        load_weights(model, bad)
    assert all(bool((parameter == 7.0).all()) for parameter in model.parameters())
    load_weights(model, checkpoint("llama"))
    assert not any(bool((parameter == 7.0).any()) for parameter in model.parameters())


@pytest.mark.parametrize("in_another_shard", [False, True])
def test_a_tied_checkpoint_may_store_the_head_again(
    in_another_shard: bool, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    source = checkpoint("llama", tie_word_embeddings=True)
    path = edited(source, tmp_path / "tied")
    tensors = load_file(path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    shard(path, *((tensors, head) if in_another_shard else (tensors | head,)))
    assert tokens_of(path) == greedy(oracle(source), PROMPT, 6)


def test_a_tied_checkpoint_with_another_head_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source = checkpoint("llama", tie_word_embeddings=True)

    def add_another(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["lm_head.weight"][-1, -1] += 1

    def add_smaller(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][:-1].clone()

    for i, change in enumerate((add_another, add_smaller)):
        with pytest.raises(WeightMismatchError, match=r"lm_head\.weight: surplus"):
            LLM(rewritten(source, tmp_path / str(i), change))


def test_stored_rotary_frequencies_are_ignored(checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    path = rewritten(checkpoint("llama"), tmp_path / "old", change)
    assert tokens_of(path) == greedy(oracle(checkpoint("llama")), PROMPT, 6)


# --- what is not supported -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "GPT2LMHeadModel"),
        ({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}, "MixtralForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": ["NewestForCausalLM"], "model_type": "newest"}, "NewestForCausalLM"),
        (
            {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
            "Gemma3ForConditionalGeneration",
        ),
        ({"architectures": REMOVED, "model_type": "gpt2"}, "architectures: missing.*model_type='gpt2'.*phi3"),
        ({"architectures": [], "model_type": REMOVED}, "architectures: missing.*model_type=None"),
    ],
)
def test_an_unsupported_architecture_is_refused_with_what_is_supported(
    changes: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        LLM(path)
    assert {"LlamaForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM"} <= set(MODEL_FAMILIES)
    assert all(architecture in str(caught.value) for architecture in MODEL_FAMILIES)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized with gptq"),
        ({"quantization_config": {"bits": 4}}, "quantized with an unknown method"),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, "a mixture of experts"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}, "a mixture of experts"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}, "a model with vision"),
        (
            {
                "architectures": ["Llama4ForConditionalGeneration"],
                "vision_config": {},
                "text_config": {"num_local_experts": 16},
            },
            "a mixture of experts and a model with vision",
        ),
    ],
)
def test_a_kind_of_model_that_is_refused_is_named_with_its_folder(
    changes: dict[str, object], kind: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=f"^{re.escape(str(path))}: is {kind}, which is not supported; "):
        LLM(path)


@pytest.mark.parametrize(
    "changes", [{"hidden_act": "gelu"}, {"architectures": ["NewestForCausalLM"]}, {"head_dim": "a"}]
)
def test_whatever_is_refused_the_folder_is_named(
    changes: dict[str, object], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=f"^{re.escape(str(path))}: "):
        LLM(path)


@pytest.mark.parametrize("unsaid", [REMOVED, [], None])
def test_an_architecture_that_is_not_said_is_the_one_of_the_model_type(
    unsaid: object, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    path = edited(checkpoint("qwen3"), tmp_path / "unsaid", architectures=unsaid)
    assert ModelConfig.from_pretrained(path) == ModelConfig.from_pretrained(checkpoint("qwen3"))
    assert tokens_of(path) == greedy(oracle(path), PROMPT, 6)


def test_an_architecture_is_not_guessed_where_two_families_have_the_model_type(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(MODEL_FAMILIES, "MyForCausalLM", LlamaForCausalLM)
    path = edited(checkpoint("llama"), tmp_path / "unsaid", architectures=REMOVED)
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM \(model_type llama\), MyForCausalLM") as caught:
        ModelConfig.from_pretrained(path)
    assert "Qwen2" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bidirectional_model_is_refused(family: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """transformers then masks nothing: its numbers would be others than ours."""
    path = edited(checkpoint(family), tmp_path / "bidirectional", is_causal=False)
    with pytest.raises(UnsupportedModelError, match="is_causal=False: must be True"):
        LLM(path)


@pytest.mark.parametrize("family", ["mistral", "phi3", "gemma3"])
@pytest.mark.parametrize("window", [0, -1])
def test_a_window_without_tokens_is_refused(family: str, window: int, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint(family), tmp_path / "window", sliding_window=window)
    with pytest.raises(UnsupportedModelError, match=f"sliding_window={window}: must be at least 1"):
        LLM(path)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
WRONG_YARN: list[tuple[dict[str, object], str]] = [
    ({"factor": 0.5}, r"factor=0\.5: must be at least 1"),
    ({"factor": None}, "factor=None: must be a number"),
    ({"original_max_position_embeddings": -16}, "original_max_position_embeddings=-16: must be above 0"),
    ({"original_max_position_embeddings": 0}, r"config\.json: ZeroDivisionError: division by zero"),
    ({"factor": "4"}, "factor='4': must be a number"),
    ({"attention_factor": -0.5}, r"attention_factor=-0\.5: must be above 0"),
    ({"attention_factor": 0.0}, r"attention_factor=0\.0: must be above 0"),
    ({"beta_fast": 1, "beta_slow": 32}, "beta_fast=1: must be at least beta_slow=32"),
    ({"beta_slow": -1}, "beta_slow=-1 > 0"),
    ({"mscale": "1"}, "mscale='1': must be a number"),
    ({"truncate": "no"}, "truncate='no': must be true or false"),
    ({"rope_theta": 1.0}, r"rope_theta=1\.0: must be above 1"),
]
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_theta": 1e4, **LONGROPE}}, "rope_type='longrope': must be one of .*yarn"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ({"rope_parameters": REMOVED, "rope_theta": 1e4, "rope_scaling": LONGROPE}, "rope_type='longrope'"),
        ({"rope_parameters": REMOVED, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3.*num_attention_heads=4"),
        ({"head_dim": 15}, "even rotary dimension"),
        ({"num_attention_heads": 3, "head_dim": 16}, "number of attention heads"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 0.5}}, r"factor=0\.5"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 0.0}}, r"factor=0\.0"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            r"high_freq_factor=1\.0.*low_freq_factor=1\.0",
        ),
        *(({"rope_parameters": {"rope_theta": 1e4, **YARN, **wrong}}, message) for wrong, message in WRONG_YARN),
        ({"model_type": "mistral"}, "model_type='mistral': must be 'llama' with architecture LlamaForCausalLM"),
        ({"model_type": REMOVED}, "model_type=None: must be 'llama'"),
    ],
)
def test_what_the_engine_does_not_implement_is_refused_by_name(
    changes: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    (path / "model.safetensors").unlink()  # said from the configuration alone
    with pytest.raises(UnsupportedModelError, match=message):
        LLM(path)


DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True: must be False"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation='gelu': must be one of silu, gelu_pytorch_tanh"),
        ("gemma3", {"sliding_window": None}, "sliding_window=None: must be a number"),
        ("gemma3", {"layer_types": ["chunked_attention"] + 2 * ["full_attention"]}, "chunked_attention"),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": DEFAULT_ROPE, "sliding_attention": {**DEFAULT_ROPE, **LINEAR}}},
            "rope_type='linear' of sliding_attention",
        ),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": DEFAULT_ROPE, "sliding_attention": {"rope_theta": 1e4, **YARN}}},
            "rope_type='yarn' of sliding_attention",
        ),
        ("phi3", {"rope_parameters": {"rope_theta": 1e4, **LONGROPE}}, "rope_type='longrope'"),
        ("phi3", {"rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 0.75}}, r"partial_rotary_factor=0\.75"),
        ("phi3", {"hidden_act": "relu"}, "hidden_act='relu'"),
    ],
)
def test_what_a_family_does_not_implement_is_refused_by_name(
    family: str, changes: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint(family), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        ModelConfig.from_pretrained(path)


def test_a_rope_scaling_that_is_refused_says_which_are_not(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("qwen3"), tmp_path / "long", rope_parameters={"rope_theta": 1e4, **LONGROPE})
    with pytest.raises(UnsupportedModelError, match=r"'longrope': must be one of default, linear, llama3, yarn$"):
        ModelConfig.from_pretrained(path)


# --- what is read from config.json ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"sliding_window": 3}),
        ("llama", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 3}),
        ("mistral", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {"mlp_bias": True, "sliding_window": 3}),
        ("gemma3", {"attn_logit_softcapping": 0.1, "hidden_act": "relu"}),
        ("phi3", {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_a_key_that_the_family_does_not_read_changes_nothing(
    family: str, changes: dict[str, object], checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    path = edited(checkpoint(family), tmp_path / "stray", **changes)
    assert tokens_of(path) == greedy_without_cache(oracle(path))
    assert tokens_of(path) == tokens_of(checkpoint(family))


def test_mistral_layers_may_have_windows_one_by_one(checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    """Newer ones (Ministral) say so in `layer_types`; transformers then has another class for them."""
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    path = edited(checkpoint("mistral"), tmp_path / "ministral", layer_types=layer_types, sliding_window=3)
    assert ModelConfig.from_pretrained(path).sliding_windows == (3, None, 3)
    assert tokens_of(path) == greedy_without_cache(oracle(path))
    assert tokens_of(path) != tokens_of(checkpoint("mistral"))


@torch.no_grad()
def greedy_without_cache(model: transformers.PreTrainedModel) -> list[int]:
    """`greedy` computed anew for every token: the K/V cache of transformers follows a stray window, its Llama does not."""
    tokens = list(PROMPT)
    for _ in range(GREEDY.max_new_tokens):
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        ({"rope_type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope_type": "llama3", **LLAMA3}, {"rope_type": "llama3", **LLAMA3}),
        ({"rope_type": "default"}, None),
    ],
)
def test_an_old_style_config_is_the_same_model(
    new: dict[str, object], old: dict[str, object] | None, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """`rope_theta`, `rope_scaling` and `torch_dtype`, as files from before transformers 5 say it."""
    path = checkpoint("llama", rope_parameters={"rope_theta": 500.0, **new}, dtype="bfloat16")
    as_before = edited(
        path,
        tmp_path / "old",
        rope_parameters=REMOVED,
        dtype=REMOVED,
        rope_theta=500.0,
        rope_scaling=old,
        torch_dtype="bfloat16",
    )
    config = ModelConfig.from_pretrained(as_before)
    assert config == ModelConfig.from_pretrained(path)
    assert config.rope_theta == 500.0
    assert config.rope_scaling.rope_type == new["rope_type"]
    assert config.dtype == torch.bfloat16
    assert tokens_of(as_before) == tokens_of(path)


def test_an_old_style_gemma_config_is_the_same_model(checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path) -> None:
    """A pattern for the layers, one theta for far and one for near, a scaling for far: as the files on the Hub say it."""
    path = edited(
        checkpoint("gemma3"),
        tmp_path / "old",
        layer_types=REMOVED,
        sliding_window_pattern=3,
        rope_parameters=REMOVED,
        rope_theta=500.0,
        rope_local_base_freq=30.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    config = ModelConfig.from_pretrained(path)
    assert config.sliding_windows == (5, 5, None)
    assert (config.rope_theta, config.local_rope_theta, config.rope_scaling.factor) == (500.0, 30.0, 8.0)
    assert tokens_of(path) == greedy(oracle(path), PROMPT, 6)
    assert tokens_of(path) != tokens_of(checkpoint("gemma3"))


def test_a_llama3_scaling_may_leave_the_original_context_to_the_models(
    checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}
    del rope["original_max_position_embeddings"]
    path = edited(checkpoint("llama"), tmp_path / "unsaid", max_position_embeddings=32, rope_parameters=rope)
    assert ModelConfig.from_pretrained(path).rope_scaling.original_max_position_embeddings == 32
    assert tokens_of(path) == greedy(oracle(path), PROMPT, 6)


@pytest.mark.parametrize(
    ("stored", "asked", "served"),
    [
        ("float32", None, torch.float32),
        ("bfloat16", None, torch.bfloat16),
        ("float32", "bfloat16", torch.bfloat16),
        ("float32", torch.bfloat16, torch.bfloat16),
        ("float32", "float16", torch.float16),
        ("bfloat16", "float32", torch.float32),
    ],
)
def test_dtype_is_the_checkpoints_unless_asked_for(
    stored: str, asked: str | torch.dtype | None, served: torch.dtype, checkpoint: Checkpoint
) -> None:
    path = checkpoint("qwen2", dtype=stored)
    llm = LLM(path, dtype=asked, max_total_tokens=64)
    assert llm.model.dtype == served
    assert {parameter.dtype for parameter in llm.model.model.parameters()} == {served}
    pool = llm.engine.model_runner.token_to_kv_pool
    assert pool.get_key_buffer(2).dtype == pool.get_value_buffer(0).dtype == served
    assert len(llm.generate(PROMPT, GREEDY)[0].token_ids) == 6
    [weight] = [w for name, w in load_file(path / "model.safetensors").items() if name == "model.embed_tokens.weight"]
    assert torch.equal(llm.model.model.model.embed_tokens.weight, weight.to(served))


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_a_config_without_dtype_leaves_it_to_the_weights(stored: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("qwen2", dtype=stored), tmp_path / "unsaid", dtype=REMOVED)
    assert ModelConfig.from_pretrained(path).dtype is None
    assert load_model(path).dtype == getattr(torch, stored)
    assert load_model(path, dtype="float16").dtype == torch.float16


def test_a_dtype_that_is_not_served_can_be_loaded_as_another(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "double", dtype="float64")
    with pytest.raises(ValueError, match=r"dtype=torch\.float64"):
        LLM(path)
    assert tokens_of(path, dtype="float32") == tokens_of(checkpoint("llama"))


@pytest.mark.parametrize("as_list", [False, True])
def test_an_end_token_of_generation_config_stops(as_list: bool, checkpoint: Checkpoint, tmp_path: Path) -> None:
    expected = tokens_of(checkpoint("llama"))
    last = next(i for i in range(1, 6) if expected[i] not in expected[:i])
    path = edited(checkpoint("llama"), tmp_path / "eos", eos_token_id=2)
    eos: object = [319, expected[last]] if as_list else expected[last]
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    llm = LLM(path, max_total_tokens=64)
    assert llm.engine.builder.eos_token_ids == ({319, expected[last]} if as_list else {expected[last]})
    out = llm.generate(PROMPT, SamplingParams(max_new_tokens=6, temperature=0))[0]
    assert (out.token_ids, out.finish_reason) == (expected[: last + 1], "stop")
    out = llm.generate(PROMPT, GREEDY)[0]
    assert (out.token_ids, out.finish_reason) == (expected, "length")


@pytest.mark.parametrize(
    ("config", "generation_config", "expected"),
    [
        (7, None, (7,)),
        ([7, 8], None, (7, 8)),
        (7, {}, (7,)),
        (7, {"eos_token_id": None}, (7,)),
        (7, {"eos_token_id": 0}, (0,)),
        (0, None, (0,)),
        (None, None, ()),
        (None, {"eos_token_id": [4, 5]}, (4, 5)),
    ],
)
def test_end_tokens_come_from_generation_config_before_config(
    config: object, generation_config: object, expected: tuple[int, ...], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "eos", eos_token_id=config)
    (path / "generation_config.json").unlink()
    if generation_config is not None:
        (path / "generation_config.json").write_text(json.dumps(generation_config))
    assert ModelConfig.from_pretrained(path).eos_token_ids == expected


def test_a_tokenizer_gives_the_end_token_that_the_configs_do_not(story: LLM) -> None:
    assert story.tokenizer is not None
    unsaid = dataclasses.replace(story.model, config=dataclasses.replace(story.model.config, eos_token_ids=()))
    small = dataclasses.replace(story.config, max_total_tokens=64)
    assert make_engine(unsaid, small).builder.eos_token_ids == {story.tokenizer.eos_token_id}


# --- without a tokenizer -------------------------------------------------------------------------------------------


def test_a_checkpoint_without_tokenizer_files_serves_token_ids_only(checkpoint: Checkpoint, oracle: Oracle) -> None:
    path = checkpoint("llama")
    llm = LLM(path, max_total_tokens=64)
    assert llm.tokenizer is None
    with pytest.raises(InvalidRequestError, match=r"prompt 1: is text.*tokenizer"):
        llm.generate([PROMPT, "Once"], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"stop=\('end',\).*tokenizer"):
        llm.generate(PROMPT, SamplingParams(stop="end"))
    with pytest.raises(ValueError, match=r"chat.*tokenizer"):
        llm.chat([{"role": "user", "content": "Hello"}])
    with pytest.raises(InvalidRequestError, match="is text"):
        llm.engine.add_request("Once")
    assert not llm.engine.has_unfinished()

    out = llm.generate(PROMPT, GREEDY)[0]
    assert out.token_ids == greedy(oracle(path), PROMPT, 6)
    assert out.text == ""
    pieces = list(llm.stream(PROMPT, GREEDY))
    assert [token for piece in pieces for token in piece.token_ids] == out.token_ids
    assert pieces[-1].finish_reason == "length"
    stopped = llm.generate(PROMPT, SamplingParams(max_new_tokens=6, temperature=0, stop_token_ids=[out.token_ids[0]]))[
        0
    ]
    assert (stopped.token_ids, stopped.finish_reason) == (out.token_ids[:1], "stop")
    llm.engine.check_integrity()


def test_rotary_tables_reach_as_far_as_the_context_asked_for(checkpoint: Checkpoint) -> None:
    path = checkpoint("llama")
    assert len(load_model(path).model.rotary.cos) == 256
    assert len(load_model(path, max_context_len=10).model.rotary.cos) == 10
