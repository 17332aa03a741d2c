"""`python -m nanoinfer demo ...`: what each shows is what happened."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from nanoinfer import LLM
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.cli.demos import SESSION_TOKENS, SESSIONS
from nanoinfer.sessions.inference import InferenceEngine
from tests.helpers.command_line import run

ROW = re.compile(r" +(\d)  (first|new, with its files|new, without) +(\d+) +(\d+) +(\d+) +(\d+) +[\d.]+ ms")


def test_requests_with_a_common_prefix_compute_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["demo"], capsys)
    assert code == 0
    assert "\033[" not in out, "colours only on a terminal"
    rows = [line.split() for line in out.splitlines() if re.match(r" *\d +\d+ +\d+ ", line)]
    assert len(rows) == 5
    for i, (number, prompt, cached, extended, *_) in enumerate(rows):
        assert int(number) == i
        assert int(prompt) == int(cached) + int(extended)
        assert (int(cached) > 0) == (i > 0)
    assert out.count("in slots") > 5


def test_adapters_share_k_v_only_with_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["demo", "adapters"], capsys)
    assert code == 0
    rows = re.findall(r"^\d +(base|rhymes|sea) +(\d+) +(\d+)", out, re.MULTILINE)
    assert [row[0] for row in rows] == ["base", "rhymes", "sea"] * 2
    for name in ("base", "rhymes", "sea"):  # whichever of its two requests comes first
        none, most = sorted(int(cached) for adapter, _, cached in rows if adapter == name)
        assert none == 0
        assert most > 32
    assert re.findall(r"^(base|rhymes|sea)$", out, re.MULTILINE) == ["base", "rhymes", "sea"]


def test_paged_shows_every_step_and_ends_with_the_engines_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["demo", "paged"], capsys)
    assert code == 0
    table = out.split("slot_mapping  sampled\n")[1].split("\n\n")[0].splitlines()
    assert len(table) == 8
    for step, line in enumerate(table, start=1):
        first, *numbers = map(int, line.split())
        assert (first, len(numbers)) == (step, 4 * 4 + 3)
        tokens, positions, lengths, slots = (numbers[i : i + 4] for i in (0, 4, 8, 12))
        assert (tokens[3], positions[3], lengths[3], slots[3]) == (0, 0, 0, -1)
        assert lengths[:3] == [position + 1 for position in positions[:3]]
        assert [slot % 4 for slot in slots[:3]] == [position % 4 for position in positions[:3]]


def test_paged_fails_when_the_tokens_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = GeneratorTorch.forward_tensor
    monkeypatch.setattr(GeneratorTorch, "forward_tensor", lambda *args, **kwargs: -forward(*args, **kwargs))
    code, out, _ = run(["demo", "paged", "--steps", "2", "--block-size", "16"], capsys)
    assert (code, out.count("DIFFERENT")) == (1, 3)


def test_sessions_are_the_run_of_the_seed(story: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["demo", "sessions"], capsys)
    assert code == 0
    blocks = out.rstrip("\n").split("\n\n### ")
    engine = InferenceEngine(story.model)
    for i, (prompt, block) in enumerate(zip(SESSIONS, blocks, strict=True)):
        head, text = block.removeprefix("### ").split("\n", 1)
        tokens = engine.generate(prompt, SESSION_TOKENS, do_sample=False)
        assert head == f"request {i}"
        assert text == (prompt + story.tokenizer.decode(tokens)).rstrip()  # type: ignore[union-attr]
        words = re.findall(r"[A-Za-z]+", text)
        assert len(set(words)) > len(words) / 2, "it repeats itself"


@pytest.mark.slow
def test_an_agents_rounds_begin_with_the_round_before(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["demo", "agent", "--model", "story"], capsys)
    assert code == 0
    assert "with and without the cache: equal" in out
    rows = [
        [int(each) for each in row] for row in re.findall(r"^ +(\d+)  \w+ +(\d+) +(\d+) +(\d+) ", out, re.MULTILINE)
    ]
    assert [row[0] for row in rows] == [*range(1, 11)]
    assert rows[0][2] < 10, "the first one finds nothing of its system prompt"
    for (_, before, _, _), (_, prompt, cached, computed) in pairwise(rows):
        assert prompt > cached >= before
        assert prompt == cached + computed
    (found, total) = re.search(r"(\S+) of (\S+) prompt tokens came from the cache", out).groups()  # type: ignore[union-attr]
    assert int(found.replace(",", "")) == sum(row[2] for row in rows)
    assert int(total.replace(",", "")) == sum(row[1] for row in rows)


@pytest.mark.slow
def test_restart_continues_a_chat_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["demo", "restart", "--cache-dir", str(tmp_path / "kv")], capsys)
    assert code == 0
    rows = [(turn, process, *map(int, numbers)) for turn, process, *numbers in ROW.findall(out)]
    assert [row[:2] for row in rows] == [
        *((str(turn), "first") for turn in (1, 2, 3)),
        ("4", "new, with its files"),
        ("4", "new, without"),
    ]
    for _, _, total, memory, files, computed in rows:
        assert total == memory + files + computed
    first, second, third, with_files, without = (row[2:] for row in rows)
    assert first[1] == first[2] == 0
    assert first[0] < second[1] < second[0] < third[1], "a turn's prompt and answer are cached for the next"
    assert (with_files[1], with_files[2] % 16, without[1:3]) == (0, 0, (0, 0))
    assert with_files[2] > third[0] - 16, "whole blocks of what the first process had"
    assert with_files[0] == without[0] == without[3]
