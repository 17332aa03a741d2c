"""The command line: what each command prints, and that every error is one line and exit code 2."""

import io
import re
import sys
from pathlib import Path

import pytest

from nanoinfer.bench.machine import Checkpoint
from nanoinfer.cli import main
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.trace import Trace


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `python -m nanoinfer ARGV`."""
    try:
        code = main(argv)
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_demo_shows_cached_tokens_and_a_faster_first_token(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["demo"], capsys)
    assert code == 0
    assert "\033[" not in out, "colours only on a terminal"
    rows = [line.split() for line in out.splitlines() if re.match(r" +\d  +\d+ +\d+ ", line)]
    assert len(rows) == 5
    for i, (number, prompt, cached, extended, *_) in enumerate(rows):
        assert int(number) == i
        assert int(prompt) == int(cached) + int(extended)
        assert (int(cached) > 0) == (i > 0)
    assert "radix tree" in out
    assert out.count("in slots") > 5
    first_words = out.split("What the model wrote")[1]
    assert all(f"{i}: ..." in first_words for i in range(5))


def test_demo_needs_a_tokenizer(capsys: pytest.CaptureFixture[str], checkpoint) -> None:
    code, out, err = run(["demo", "--model", str(checkpoint("llama"))], capsys)
    assert (code, out) == (2, "")
    assert "tokenizer" in err


def test_generate_streams_one_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "Once upon a time", "--max-new-tokens", "12", "--temperature", "0"]
    code, out, err = run(argv, capsys)
    assert code == 0
    assert re.fullmatch(r"\[\d+ prompt tokens, 0 cached, cut off at max_new_tokens\]\n", err)
    assert out.startswith("Once upon a time")
    assert len(out) > len("Once upon a time\n")
    assert run(argv, capsys)[1] == out


def test_generate_tells_cached_tokens_of_several_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "One day", "One day, a fox", "--max-new-tokens", "4", "--max-running-requests", "1"]
    code, out, err = run(argv, capsys)
    assert code == 0
    assert "cached" not in out
    cached = [int(n) for n in re.findall(r"prompt tokens, (\d+) cached", err)]
    assert cached[0] == 0
    assert cached[1] > 0


def test_generate_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("There was a little"))
    code, out, _ = run(["generate", "-", "--max-new-tokens", "3"], capsys)
    assert code == 0
    assert out.startswith("There was a little")


def test_chat_reuses_the_turns_before(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\nWhat color is the sky?\n"))
    code, out, _ = run(["chat", "--temperature", "0", "--max-new-tokens", "24"], capsys)
    assert code == 0
    counts = [(int(a), int(b)) for a, b in re.findall(r"\[(\d+) prompt tokens, (\d+) cached", out)]
    assert len(counts) == 2
    assert counts[0][1] == 0
    assert counts[1][1] >= counts[0][0], "the whole first prompt is cached in the second turn"


def test_chat_says_that_replies_get_shorter_and_that_the_context_is_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n" * 30))
    code, out, err = run(["chat", "--max-context-len", "60", "--temperature", "0"], capsys)
    assert code == 2
    assert out.count(" cached") >= 2
    assert "room for" in out
    assert "this conversation is full" in err


def test_info_names_the_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["info", "--max-total-tokens", "640", "--dtype", "bfloat16"], capsys)
    assert code == 0
    parameters = Checkpoint.read(resolve_model_path("story")).parameters  # of the file, not of the packed model
    for text in ("LlamaForCausalLM", f" {parameters:,} in bfloat16", "1,280 bytes", "640 slots"):
        assert text in out


def test_info_says_what_computes_and_why_nothing_faster_does(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["info", "--dtype", "float16"], capsys)
    words = " ".join(out.split())
    assert re.search(r"kernels torch \(not cpp: .*float16.*; not onednn: .*float16", words)
    assert re.search(r"attention torch_native \(not cpp: .*float16", words)


def test_trace_tells_and_writes_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = {"json": "run.json", "perfetto": "perfetto.json", "out": "run.html", "png": "run.png"}
    files = {option: tmp_path / name for option, name in names.items()}
    argv = ["trace", "One day", "One day, a fox", "--max-new-tokens", "3", "--title", "Two & two"]
    code, out, _ = run([*argv, *(word for name, path in files.items() for word in (f"--{name}", str(path)))], capsys)
    assert code == 0
    assert "Step 1 EXTEND: request 0 admitted" in out
    assert len(Trace.load(files["json"])) == out.count("Step ")
    assert "traceEvents" in files["perfetto"].read_text()
    assert "<title>Two &amp; two</title>" in files["out"].read_text()
    assert files["png"].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "command"),
        (["trace", "x", "--out", "run.txt"], "run.txt: must end in .html"),
        (["trace", "x", "--out", "no-such-folder/run.html"], "there is no folder no-such-folder"),
        (["serve"], "serve"),
        (["generate"], "prompt"),
        (["generate", "x", "--top-k", "many"], "--top-k"),
        (["generate", "x", "--top-k", "0"], "top_k=0"),
        (["generate", "x", "--temperature", "nan"], "temperature=nan"),
        (["generate", "x", "--model", "nowhere"], "nowhere"),
        (["generate", "x", "--max-new-tokens", "100000"], "max_context_len"),
        (["generate", "x", "--page-size", "0"], "page_size=0"),
        (["generate", "x", "--device", "tpu"], "device='tpu'"),
        (["generate", ""], "empty"),
        (["info", "--schedule-policy", "best"], "schedule_policy='best'"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(argv, capsys)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err


@pytest.mark.parametrize("command", ["demo", "generate", "chat", "trace", "info"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([command, "--help"], capsys)
    assert (code, err) == (0, "")
    assert "--model" in out
