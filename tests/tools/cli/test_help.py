"""Help, versions, options and Ctrl-C: what the command line does before it loads anything."""

import subprocess
import sys

import pytest

import nanoinfer
from nanoinfer.cli.main import build_parser
from notebooks.tools.files import ROOT
from tests.helpers.command_line import run


@pytest.mark.parametrize("argv", [[], ["--help"], ["--version"], ["chat", "--help"], ["bench", "run", "--help"]])
def test_help_and_version_load_no_torch(argv: list[str]) -> None:
    code = f"""import sys
from nanoinfer.cli.main import main
try:
    main({argv})
finally:
    print(*sys.modules, file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout
    assert not {"torch", "numpy", "transformers"} & set(done.stderr.split())


def test_the_demos_help_says_what_it_does_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Without arguments, demo serves five requests" in run(["demo", "--help"], capsys)[1]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["generate", "Once", "--max-newtokens", "3"], "--max-newtokens; did you mean --max-new-tokens?"),
        (["generate", "Once", "--max-newtokens=3"], "--max-newtokens; did you mean --max-new-tokens?"),
        (["chat", "--temprature", "3"], "--temprature; did you mean --temperature?"),
        (["bench", "decode", "--pagesize", "4"], "--pagesize; did you mean --page-size?"),
        (["demo", "--temperature", "1"], "--temperature"),
        (["info", "--top-k", "1"], "--top-k"),
    ],
)
def test_an_unknown_option_is_answered_by_the_commands_own_help(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = " ".join(argv[:2]) if argv[0] == "bench" else argv[0]
    program = f"python -m nanoinfer {command}"
    message = f"{program}: error: unrecognized argument: {said} (see {program} --help)\n"
    assert run(argv, capsys) == (2, "", message)


def test_options_in_short_and_texts_that_look_like_options_are_understood() -> None:
    args = build_parser().parse_args(["generate", "--max-new", "3", "--stop=--max-tokens", "-- he said", "--", "--no"])
    assert (args.max_new_tokens, args.stop, args.prompt) == (3, ["--max-tokens"], ["-- he said", "--no"])


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([], capsys)
    assert (code, err) == (0, "")
    assert out == run(["--help"], capsys)[1]


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], capsys) == (0, f"nanoinfer {nanoinfer.__version__}\n", "")
