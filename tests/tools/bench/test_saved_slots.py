"""llama.cpp's peer for `bench tiers`, over a llama.cpp without a model: what it saves, restores and computes."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.bench.peers import worker
from nanoinfer.bench.tiers import tier_peers
from tests.helpers.fake_llama_cpp import FakeLlamaCpp

FILE = tier_peers(["llamacpp"])[0].file
NEW = 3
FIRST = [[slot, *range(10, 19)] for slot in range(1, 7)]  # six chats, 10 tokens each


def peer_of(where: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    monkeypatch.setitem(sys.modules, "llama_cpp", FakeLlamaCpp())  # type: ignore[arg-type]
    (where / "model.gguf").touch()
    return worker.load_peer(FILE, {"model": str(where / "model"), "dtype": "float32", "threads": 1, **options})


def turn(peer: Any, prompts: Sequence[list[int]], together: int = 4) -> tuple[list[list[int]], list[int]]:
    """The answers, and how many tokens of each prompt were restored."""
    tokens, cached = [], []
    for start in range(0, len(prompts), together):
        requests = [{"prompt": each, "new_tokens": NEW, "arrival": 0} for each in prompts[start : start + together]]
        answer = worker.run(peer, {"requests": requests})
        tokens += answer["tokens"]
        cached += answer["cached_tokens"]
    return tokens, cached


def longer(prompts: Sequence[list[int]]) -> list[list[int]]:
    """Each with an answer that is not the engine's, and a question."""
    return [[*prompt, 60, 61, 62, 5, 4] for prompt in prompts]


def test_each_chat_goes_on_from_its_own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = peer_of(tmp_path, monkeypatch, slots=4)
    _, cached = turn(peer, FIRST)
    assert cached == [0] * 6
    calls, computed = peer.context.calls, peer.context.computed
    assert calls == ["get"] * 6
    computed.clear()
    answers, cached = turn(peer, longer(FIRST)[::-1])
    assert cached == [10] * 6
    assert sum(computed) == 6 * (5 + NEW - 1), "only what is new"
    assert calls == ["get"] * 6 + ["set"] * 4 + ["get"] * 4 + ["set"] * 2 + ["get"] * 2
    assert len(peer._states) == 6, "one per chat"
    fresh, none = turn(peer_of(tmp_path, monkeypatch), longer(FIRST)[::-1])
    assert (answers, [0] * 6) == (fresh, none)


def test_chats_that_begin_alike_have_states_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = peer_of(tmp_path, monkeypatch)
    alike = [[1, 2, 3, *range(other, other + 7)] for other in (10, 20)]
    assert turn(peer, alike, together=1)[1] == [0, 0]
    assert turn(peer, longer(alike), together=1)[1] == [10, 10]


def test_a_prompt_that_is_all_saved_computes_its_last_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = peer_of(tmp_path, monkeypatch)
    answers, _ = turn(peer, FIRST)
    assert turn(peer, FIRST) == (answers, [9] * 6)


def test_a_new_process_goes_on_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kv"
    peer = peer_of(tmp_path, monkeypatch, slots=4, folder=str(folder))
    turn(peer, FIRST)
    peer.save()
    assert len(json.loads((folder / "states.json").read_text())) == len(list(folder.glob("*.state"))) == 6
    later = peer_of(tmp_path, monkeypatch, slots=4, folder=str(folder))
    answers, cached = turn(later, longer(FIRST))
    assert cached == [10] * 6
    assert later.context.calls == ["load"] * 4 + ["get"] * 4 + ["load"] * 2 + ["get"] * 2
    assert answers == turn(peer, longer(FIRST))[0] == turn(peer_of(tmp_path, monkeypatch), longer(FIRST))[0]
    later.save()
    last = peer_of(tmp_path, monkeypatch, folder=str(folder))
    assert turn(last, longer(longer(FIRST)))[1] == [15] * 6


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = peer_of(tmp_path, monkeypatch)
    turn(peer, FIRST)
    peer.save()
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]


def test_a_file_that_is_lost_or_another_chats_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kv"
    peer = peer_of(tmp_path, monkeypatch, folder=str(folder))
    turn(peer, FIRST)
    peer.save()
    names = {tuple(tokens): name for name, tokens in json.loads((folder / "states.json").read_text()).items()}
    first, second = (folder / name for name in list(names.values())[:2])
    first.write_text(second.read_text())
    second.unlink()
    for number, message in ((0, f"{first}: has other tokens"), (1, "could not restore a state of 12 tokens")):
        with pytest.raises(RuntimeError, match=message):
            turn(peer_of(tmp_path, monkeypatch, folder=str(folder)), longer(FIRST[number : number + 1]))
