"""`python -m nanoinfer demo sessions`: the run of seed 004."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nanoinfer import LLM
from nanoinfer.cli.main import main
from nanoinfer.cli.sessions_demo import MAX_NEW_TOKENS, PROMPTS
from nanoinfer.sessions.inference import InferenceEngine


def test_demo_sessions_prints_the_run_of_the_seed(story: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "sessions"]) == 0
    blocks = capsys.readouterr().out.rstrip("\n").split("\n\n### ")
    assert len(blocks) == len(PROMPTS) == 3
    engine = InferenceEngine(story.model)
    for i, (prompt, block) in enumerate(zip(PROMPTS, blocks, strict=True)):
        head, text = block.removeprefix("### ").split("\n", 1)
        assert head == f"request {i}"
        assert text.startswith(prompt)
        assert len(text) > len(prompt) + 20
        tokens = engine.generate(prompt, MAX_NEW_TOKENS, do_sample=False)
        assert text == (prompt + story.tokenizer.decode(tokens)).rstrip()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--steps", "3"], "only demo paged has these options"), (["--model", "llama"], "no tokenizer files")],
)
def test_demo_sessions_refuses_in_one_line(
    options: list[str], message: str, checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "sessions", *(str(checkpoint("llama")) if each == "llama" else each for each in options)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)
    assert message in captured.err
