"""Commands on a model: what each prints and writes, that it fits a terminal, and that every error is one line and exit
code 2."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.cli.main import main
from nanoinfer.cli.terminal import styled, table
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.viz.trace import Trace
from notebooks.tools.files import ROOT
from tests.helpers.command_line import run


def test_generate_streams_one_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "Once upon a time", "--max-new-tokens", "12", "--temperature", "0"]
    code, out, err = run(argv, capsys)
    assert code == 0
    assert re.fullmatch(r"\[\d+ prompt tokens, 0 cached, cut off \(--max-new-tokens\)\]\n", err)
    assert out.startswith("Once upon a time")
    assert len(out) > len("Once upon a time\n")
    assert run(argv, capsys)[1] == out


def test_generate_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["generate", "-", "--max-new-tokens", "5", "--temperature", "0"]
    outs = []
    for text in ("There was a little", "There was a little\n", "There was a little\n\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text, newline=""))
        code, out, _ = run(argv, capsys)
        assert code == 0
        outs.append(out)
    assert outs[0].startswith("There was a little ")
    assert outs[0] == outs[1]
    assert outs[2].startswith("There was a little\n"), "the final newline only"


@pytest.mark.parametrize("argv", [["generate", "-"], ["chat"]])
def test_standard_input_that_is_not_utf_8_is_called_so(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"One d\xe4y\n"), "utf-8"))
    code, out, err = run(argv, capsys)
    assert (code, out, "UTF-8" in err) == (2, "", True)


@pytest.mark.parametrize(
    "argv", [["generate", "x"], ["chat"], ["trace", "x"], ["demo"], ["demo", "adapters"], ["demo", "paged"]]
)
def test_a_model_without_tokenizer_files_is_named(
    argv: list[str], checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint("llama")
    code, out, err = run([*argv, "--model", str(path)], capsys)
    assert (code, out) == (2, "")
    assert str(path) in err


def test_generate_gives_n_completions_of_each_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "One day", "--n", "3", "--max-new-tokens", "6", "--seed", "1"]
    code, out, err = run(argv, capsys)
    assert code == 0
    expected = LLM("story").generate("One day", SamplingParams(n=3, max_new_tokens=6, seed=1, temperature=0.7))[0]
    assert out == "".join(f"One day{completion.text}\n" for completion in expected.outputs)
    assert len({completion.text for completion in expected.outputs}) > 1
    assert re.findall(r"completion (\d of 3): ", err) == ["1 of 3", "2 of 3", "3 of 3"]


@pytest.mark.parametrize("module", ["nanoinfer.cli.main", pytest.param("transformers", marks=pytest.mark.slow)])
def test_ctrl_c_while_the_program_is_loaded_shows_no_traceback(module: str) -> None:
    code = f"""import runpy, signal, sys
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
sys.argv = ["nanoinfer", "info"]
runpy.run_module("nanoinfer", run_name="__main__")"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\n")


def test_info_says_what_is_served_and_what_computes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["info", "--max-total-tokens", "640", "--dtype", "float16", "--adapter", "x=sea"], capsys)
    assert code == 0
    parameters = Checkpoint.read(resolve_model_path("story")).parameters  # of the file, not of the packed model
    for text in ("LlamaForCausalLM", f" {parameters:,} in float16", "1,280 bytes", "640 slots"):
        assert text in out
    rows = dict(re.findall(r"^  (\w+) +(\S.*)$", out, re.MULTILINE))
    assert (rows["rope_scaling"], rows["max_position_embeddings"]) == ("none", "1024")
    assert rows["weights"].startswith("float16, ")
    assert re.search(r"adapter x +rank 4, \d+ projections", out)
    words = " ".join(out.split())
    assert re.search(r"kernels torch \(not cpp: .*float16.*; not onednn: .*float16", words)
    assert re.search(r"attention torch_native \(not cpp: .*float16", words)


def test_trace_tells_and_writes_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = {"json": "run.json", "perfetto": "perfetto.json", "out": "run.html", "png": "run.png"}
    files = {option: tmp_path / name for option, name in names.items()}
    argv = ["trace", "One day", "One day, a fox", "--max-new-tokens", "3", "--title", "Two & two"]
    code, out, _ = run([*argv, *(word for name, path in files.items() for word in (f"--{name}", str(path)))], capsys)
    assert code == 0
    assert "Step 1 EXTEND: request 0 is admitted" in out
    assert len(Trace.load(files["json"])) == out.count("Step ")
    assert "traceEvents" in files["perfetto"].read_text()
    assert "<title>Two &amp; two</title>" in files["out"].read_text()
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    again = ["trace", "--load", str(files["json"]), "--out", str(tmp_path / "again.html")]
    assert run(again, capsys)[1].splitlines()[:-1] == [
        line for line in out.splitlines() if not line.startswith("written")
    ]
    assert "--load run.json" in run(["trace", "x", "--load", "run.json"], capsys)[2]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["bench", "nothing"], "nothing"),
        (["generate", "-", "-"], "prompt -"),
        (["trace", "x", "--out", "no-such-folder/run.html"], "no-such-folder"),
        (["surf"], "surf"),
        (["demo", "paged", "--steps", "0"], "--steps 0"),
        (["generate", "x", "--temperature", "nan"], "temperature=nan"),
        (["generate", "x", "--model", "nowhere"], "nowhere"),
        (["generate", "x", "--page-size", "0"], "page_size=0"),
        (["generate", "x", "--adapter", "sky"], "--adapter: 'sky'"),
        (["generate", "x", "--adapter", "a=sea", "--adapter", "a=rhymes"], "--adapter: "),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(argv, capsys)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err


def test_generate_allows_only_what_a_grammar_allows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"enum": [{"a": true}, {"a": false}]}')
    grammar.write_text('start: "(" start ")" | "!"')
    for options, pattern in (
        (["--json-schema", str(schema)], r'\{"a":(true|false)\}'),
        (["--grammar", str(grammar)], r"\(*!\)*"),
        (["--regex", "(x|y){3}"], "[xy]{3}"),
        (["--choice", "red", "--choice", "blue"], "red|blue"),
    ):
        assert main(["generate", "A user:", "--seed", "1", *options]) == 0
        assert re.fullmatch(f"A user:({pattern})\n", capsys.readouterr().out)
    for options, message in (
        (["--regex", "("], "error: --regex: "),
        (["--json-schema", str(tmp_path / "none")], str(tmp_path / "none")),
        (["--json-schema", str(grammar)], f"error: --json-schema {grammar}: "),
    ):
        assert main(["generate", "A user:", *options]) == 2
        assert message in capsys.readouterr().err


def test_generate_writes_in_the_style_of_each_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "data" / "adapters" / "rhymes"
    both = ["--adapter", f"mine={folder}", "--adapter", "sea=sea"]
    greedy = ["generate", "Once upon a time, there was a little fox", "--temperature", "0", "--max-new-tokens", "24"]
    code, out, err = run([*greedy, *both], capsys)
    assert code == 0
    assert err.count("adapter mine: ") == err.count("adapter sea: ") == 1
    _, alone, _ = run([*greedy, "--adapter", "rhymes"], capsys)
    _, base, _ = run(greedy, capsys)
    assert alone.strip() in out
    assert base.strip() not in out


# --- in a terminal -----------------------------------------------------------------------------------------------------


def test_a_table_is_as_wide_as_its_cells_and_wraps_them_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    head, rows = ("name", "size", "text"), [("a", 1, "a few words"), (styled("b", "red"), 20, "none")]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table(head, rows, left=(0, 2)) == "name  size  text\na        1  a few words\nb       20  none"
    monkeypatch.setenv("COLUMNS", "18")
    narrow = table(head, rows, left=(0, 2))
    assert max(map(len, narrow.splitlines())) <= 18
    assert set("afewords20none") <= set(narrow), "nothing is left out"


@pytest.mark.parametrize("what", ["demo", "info"])
def test_what_a_command_prints_fits_a_terminal_of_60_columns(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run([what], capsys)
    assert code == 0
    assert max(map(len, out.split("What the model wrote")[0].splitlines())) <= 60
