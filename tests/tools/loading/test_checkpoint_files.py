"""What is found at a name: folders, the bundled model, the Hub, and files that are no checkpoint of ours."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from nanoinfer import LLM
from tests.helpers.checkpoints import edited, greedy
from tests.helpers.loading import PROMPT, Checkpoint, Oracle, tokens_of


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
    asked: list[str] = []

    def snapshot_download(repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        wanted = ["model.safetensors", "config.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
        others = ["consolidated.safetensors", "original/model.safetensors", "original/params.json", "a.bin", "b.pth"]
        patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        assert list(filter_repo_objects([*others, *wanted], **patterns)) == wanted
        asked.append(repo_id)
        return str(path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert tokens_of("Owner/Model-0.6B") == greedy(oracle(path), PROMPT, 6)
    assert asked == ["Owner/Model-0.6B"]


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("no\nconnection"), OSError("disk full")])
def test_a_hub_failure_names_the_model(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(FileNotFoundError, match="'owner/model'") as caught:
        LLM("owner/model")
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__cause__ is error


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


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4096\n"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "config.json"),
        ({"model-Q4_K_M.gguf": b"GGUF", "model-Q8_0.gguf": b"GGUF"}, "model-Q4_K_M.gguf, model-Q8_0.gguf"),
        ({"pytorch_model.bin": b"PK"}, "safetensors"),
        ({"model.pth": b"PK"}, "safetensors"),
        ({"adapter_config.json": b"{", "adapter_model.safetensors": b""}, "LLM(model, adapters"),
        ({"config.json": LFS_POINTER, "model.safetensors": LFS_POINTER}, "config.json, model.safetensors"),
    ],
    ids=str,
)
def test_what_is_no_checkpoint_is_refused_by_what_is_there(files: dict[str, bytes], named: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileNotFoundError) as caught:
        LLM(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_git_lfs_pointer_in_a_checkpoint_is_named(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("llama"), tmp_path / "cloned")
    (path / name).write_bytes(LFS_POINTER)
    with pytest.raises(FileNotFoundError, match=f"{path}: {name} .*git lfs pull"):
        LLM(path)


def test_a_tilde_is_the_home_directory(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").symlink_to(checkpoint("llama"))
    assert tokens_of("~/model") == tokens_of(checkpoint("llama"))  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="'~/other'"):
        LLM("~/other")
