"""What is found at a name: folders, the bundled model, the Hub, and files that are no checkpoint of ours."""

import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file

from nanoinfer import LLM
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.checkpoints import edited, greedy
from tests.helpers.loading import PROMPT, Checkpoint, Oracle, tokens_of


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
            "original/params.json",
            "config.json",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
            "a.bin",
        ]
        patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        templates = ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
        assert list(filter_repo_objects(offered, **patterns)) == ["model.safetensors", "config.json", *templates]
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


def test_the_advice_for_a_gguf_asks_transformers_for_weights_that_can_be_saved(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(FileNotFoundError) as caught:
        LLM(tmp_path)
    advice = re.search(
        r"; (from transformers [^)]*)\): AutoModelForCausalLM\.(.*)\.save_pretrained\('new'\) and", str(caught.value)
    )
    assert advice is not None
    names: dict[str, Any] = {"from_pretrained": lambda folder, **options: (folder, options)}
    exec(advice[1], names)
    folder, options = eval(advice[2], names)
    assert (folder, options["gguf_file"]) == (str(tmp_path), "model.gguf")
    assert options["quantization_config"].dequantize is True


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
