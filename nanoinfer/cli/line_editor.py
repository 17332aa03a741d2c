"""Reading standard input. In a terminal, lines can be edited and recalled, with prompt_toolkit or readline."""

import sys
from collections.abc import Callable
from contextlib import suppress

from nanoinfer.terminal import styled


def read_text(read: Callable[[], str]) -> str:
    """What `read` reads from standard input. UnicodeError if it is not text in the input's encoding, usually UTF-8."""
    try:
        text = read()
        text.encode()  # some locales let other bytes through as surrogates
    except UnicodeError as error:
        raise UnicodeError("standard input is not UTF-8 text") from error
    return text


def line_reader(prompt: str) -> Callable[[], str]:
    """A function that reads the next line; EOFError at the end of input, KeyboardInterrupt for Ctrl-C.

    In a terminal it shows `prompt`, and earlier lines can be recalled and edited. Otherwise it just reads.
    """
    if not sys.stdin.isatty():
        return input
    if not sys.stdout.isatty():
        return lambda: input(prompt)
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.formatted_text import ANSI
    except ImportError:
        return _plain_reader(prompt)
    session: PromptSession[str] = PromptSession(ANSI(styled(prompt, "bold")), enable_suspend=True)
    return session.prompt


def _plain_reader(prompt: str) -> Callable[[], str]:
    before, after = "", ""
    with suppress(ImportError):
        import readline  # noqa: F401 - input() edits with it once it is loaded

        before, after = "\001", "\002"  # around what takes no room on the line
    start, bold, end = styled(prompt, "bold").partition(prompt)
    shown = f"{before}{start}{after}{bold}{before}{end}{after}" if start else prompt

    def read() -> str:
        try:
            return input(shown)
        except (EOFError, KeyboardInterrupt):
            print()  # leaves the line that was being typed
            raise

    return read
