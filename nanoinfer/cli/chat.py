"""`python -m nanoinfer chat`: a conversation. The radix cache holds its earlier turns."""

import argparse
import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.cli.generate import note, read_text
from nanoinfer.cli.options import (
    add_engine_options,
    add_model,
    add_sampling_options,
    choose_model,
    load,
    sampling_params,
)
from nanoinfer.cli.terminal import filled, one_line, styled, table, terminal_width
from nanoinfer.sampling_params import SamplingParams

if TYPE_CHECKING:
    from nanoinfer import LLM

COMMANDS = {
    "/help": "show these commands",
    "/reset": "start again; the system message stays",
    "/system TEXT": "set the system message; without TEXT, show it",
    "/adapter NAME": "answer with it, bundled or loaded with --adapter; without NAME, list them",
    "/stats": "show the engine's numbers",
    "/save FILE": "write the conversation to FILE as JSON",
    "/quit": "end the chat (Ctrl-D does the same)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_model(parser)
    parser.add_argument("--system", help="the system message at the beginning of the conversation")
    parser.set_defaults(run=run)
    add_sampling_options(parser)
    add_engine_options(parser, but=["model"])


def run(args: argparse.Namespace) -> None:
    """Read turns and answer them until the input ends. An error or Ctrl-C ends the turn in a terminal, else the command."""
    choose_model(args)
    params = sampling_params(args)
    llm = load(args, needs_text=True)
    chat = Chat(llm, params, args.system, next(iter(llm.adapters), None))
    in_terminal = sys.stdin.isatty()
    if in_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 - input() edits and recalls lines with it once it is loaded
        print(styled("Chat with the model. Ctrl-C stops an answer, and Ctrl-D ends the chat.", "dim"))
        print(styled("/help lists the commands.", "dim"))
    while True:
        try:
            if not chat.handle(read_text(lambda: input("> " * in_terminal))):
                return
        except EOFError:
            print("\n" * in_terminal, end="")
            return
        except KeyboardInterrupt:  # clears the line, or the turn that had not begun
            if not in_terminal:
                raise
            print()
        except (ValueError, OSError, RuntimeError) as error:  # the conversation is as it was before this turn
            if not in_terminal:
                raise
            print(styled(filled(f"[{one_line(error)}]", terminal_width()), "red"))


class Chat:
    """A conversation with a model: its messages, and what a line of input does to them.

    `adapter`: the name of the adapter that answers; None: the base model. Raises ValueError if the model cannot chat, or
    does not take this system message.
    """

    def __init__(self, llm: "LLM", params: SamplingParams, system: str | None = None, adapter: str | None = None):
        self.llm, self.params, self.adapter = llm, params, adapter
        self.messages: list[dict[str, str]] = []
        self._used = 0  # tokens of the conversation so far
        self._saved: set[Path] = set()
        if system:
            self.set_system(system)
        else:
            llm.chat_prompt([{"role": "user", "content": "Hello"}])  # says at once that there is no chat template

    def handle(self, line: str) -> bool:
        """Answer a line, or do what its slash command says; False for /quit. If it raises, the messages are as before.

        A blank line does nothing. A line that begins with a space is never a command.
        """
        text = line.strip()
        if not line.startswith("/"):
            if text:
                self.answer(text)
            return True
        command, _, argument = text.partition(" ")
        argument = argument.strip()
        if command == "/quit":
            return False
        does = {
            "/help": lambda: print(table(["", ""], COMMANDS.items(), left=(0, 1))),
            "/reset": self.reset,
            "/system": lambda: self.set_system(argument) if argument else print(filled(self._system, terminal_width())),
            "/adapter": lambda: self.set_adapter(argument) if argument else self.show_adapters(),
            "/stats": self.show_stats,
            "/save": lambda: self.save(argument),
        }
        if command not in does:
            raise ValueError(f"there is no command {command}; /help lists them, and a space before / sends it as text")
        does[command]()
        return True

    @property
    def limit(self) -> int:
        """The most tokens that a conversation may have."""
        return min(self.llm.config.max_context_len, self.llm.config.max_total_tokens)

    def answer(self, text: str) -> None:
        """Send the user's message, and print the model's answer while it is computed. If Ctrl-C stops the answer, the part
        that was printed is kept; if it had not begun, neither message is kept.

        ValueError if the conversation is full.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self.llm.chat_prompt(messages)
        if (left := self.limit - len(prompt)) < 1:
            raise ValueError(
                f"this conversation is full: {len(prompt)} tokens with your message, and at most {self.limit} fit "
                f"(--max-context-len, --max-total-tokens). /reset starts a new one, /save FILE keeps this one"
            )
        params = replace(self.params, max_new_tokens=min(self.params.max_new_tokens, left))
        options: Any = {} if self.adapter is None else {"adapter": self.adapter}
        stream: Any = self.llm.stream(prompt, params, **options)
        pieces, stopped = [], False
        try:
            for piece in stream:
                pieces.append(piece)
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            if not pieces or not sys.stdin.isatty():
                raise
            stopped = True
        finally:
            stream.close()  # which frees the request's slots
        print()
        self.messages = [*messages, {"role": "assistant", "content": "".join(piece.text for piece in pieces)}]
        last = pieces[-1]
        self._used = last.prompt_tokens + sum(len(piece.token_ids) for piece in pieces)
        about = note(last.prompt_tokens, last.cached_tokens, last.finish_reason) + ", stopped" * stopped
        if (left := self.limit - self._used) < self.params.max_new_tokens:  # the next answer may have to be shorter
            about += f"; {left} of {self.limit} tokens left"
        print(styled(filled(f"[{about}]", terminal_width()), "cyan"))

    def reset(self) -> None:
        """Forget all messages except the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]
        self._used = 0
        print(styled("[new conversation]", "cyan"))

    def set_system(self, text: str) -> None:
        """Set the system message. ValueError if the model's chat template does not take one."""
        others = [message for message in self.messages if message["role"] != "system"]
        messages = [{"role": "system", "content": text}, *others]
        self.llm.chat_prompt(messages if others else [*messages, {"role": "user", "content": "Hello"}])
        self.messages = messages

    def set_adapter(self, name: str) -> None:
        """Answer with this adapter from now on; "base" is the base model, and a bundled one is loaded if it is not yet.
        ValueError if there is no such adapter."""
        if name in self._bundled():
            self.llm.load_adapter(name, name)
        self.llm.engine.adapters.find(name)
        self.adapter = name
        print(styled(f"[answers by {name} from now on]", "cyan"))

    def show_adapters(self) -> None:
        """Print the names of adapters, with a star at the one that answers."""
        names = ["base", *self.llm.adapters, *(self._bundled() if self.llm.model.name == "story" else ())]
        shown = ", ".join(f"{each} *" if each == (self.adapter or "base") else each for each in names)
        print(filled(shown, terminal_width()))

    def show_stats(self) -> None:
        """Print how many tokens the conversation uses, and the engine's numbers."""
        turns = sum(message["role"] == "user" for message in self.messages)
        stats = {"conversation": f"{turns} turns, {self._used} of {self.limit} tokens", **self.llm.engine.stats()}
        rows = [(name, f"{value:.3g}" if isinstance(value, float) else value) for name, value in stats.items()]
        print(table(["", ""], rows, left=(0, 1)))

    def save(self, file: str) -> None:
        """Write the messages as JSON, for `LLM.chat`. ValueError or OSError if no FILE is given, or if it already exists
        and is not one that this chat has written."""
        if not file:
            raise ValueError("/save needs the name of a file: /save FILE")
        path = Path(os.path.expanduser(file))
        if path.exists() and path.resolve() not in self._saved:
            raise FileExistsError(f"{path}: already exists, so nothing was written; choose another name")
        path.write_text(json.dumps(self.messages, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        self._saved.add(path.resolve())
        print(styled(f"[saved: {path}]", "cyan"))

    def _bundled(self) -> list[str]:
        from nanoinfer.model.lora.peft_files import BUNDLED_ADAPTERS  # it loads torch, and `--help` does not

        return [name for name in BUNDLED_ADAPTERS if name not in self.llm.adapters]

    @property
    def _system(self) -> str:
        found = (message["content"] for message in self.messages if message["role"] == "system")
        return next(found, "there is no system message")
