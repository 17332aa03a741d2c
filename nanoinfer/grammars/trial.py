"""Whether a grammar is surely safe to compile in this process; any other is tried in a helper process first.

llguidance compiles by recursion, over brackets and from name to name (`$ref`, rules, terminals), with ten kilobytes of
stack for each level at most. So a long chain of names overflows any stack, which ends the process. It compares patterns
that may meet with each other, and a few lines of Lark can double a terminal again and again, which may take any time and
memory. The numbers below are bounds that are quick to find, and a JSON schema within them takes a quarter of a MadeOnce's
stack, and a second.

    this process                      trial_program.py
    text ───────── its stdin ───────► compiles it, in a thread with half of the stack that there is here
    waits                             follows it for a few tokens
         ◄── exit status, or the signal by which it died

What the helper survives is compiled here, again: compiling takes the same way every time, and has twice the stack here.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoinfer.grammars.grammar import Grammar, Refusal
from nanoinfer.grammars.json_names import levels
from nanoinfer.grammars.making import STACK_BYTES

# What is said of depth here was measured with llguidance 1.9, as the least stack that chains of 1,000 levels need: objects
# 9.1 KiB a level, prefixItems 9.7, each object with properties of all kinds 10.1, lists 7.9, anyOf 8.1, allOf 6.4.
SAFE_LEVELS = 1_500
SAFE_LENGTH = 20_000  # characters
SAFE_PATTERNS = 8  # in a schema in which they may meet
PATTERNS = ("pattern", "format", "propertyNames", "minLength", "maxLength", "multipleOf")
MERGED = ("allOf", "anyOf", "oneOf", "$ref")  # beside another keyword, they make the compiler put schemas together

PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("trial_program.py")))
CPU_S = 5  # of the helper's computing time
MOST_S = 30  # that the helper may take on a busy machine, or where computing time has no limit
MEMORY_BYTES = 2 * 2**30  # of the helper's address space
FATAL = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGXCPU")  # what the grammar itself is to blame for


def is_safe(grammar: Grammar) -> bool:
    """Whether a grammar, of which the rest of its checks is done, is within the bounds."""
    if grammar.kind in ("regex", "choice"):
        return True  # by their own limits: nothing in them is deep, and they take a tenth of a second
    if grammar.kind == "grammar" or len(grammar.text) > SAFE_LENGTH:
        return False
    if grammar.text.count("(?=") > SAFE_PATTERNS:  # each becomes a pattern
        return False
    given = json.loads(grammar.text)
    schemas = list(given[0].values()) if grammar.kind == "tool_calls" else [given]
    return all(_deepest(schema) <= SAFE_LEVELS for schema in schemas) and (
        not any(map(_meet, schemas)) or sum(map(_num_patterns, schemas)) <= SAFE_PATTERNS
    )


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    return (part for level in levels([schema]) for part in level if isinstance(part, dict))


def _deepest(schema: Any) -> int:
    """How deep the compiler may go: through the whole depth of the schema, and again from every target of a `$ref`. It
    does not enter a target again in which it is already."""
    targets = {part["$ref"] for part in _objects(schema) if isinstance(part.get("$ref"), str)}
    return (len(targets) + 1) * sum(1 for _ in levels([schema]))


def _meet(schema: Any) -> bool:
    """Whether patterns of the schema may meet each other: several may be asked of one string, or of one key."""
    return any(
        "patternProperties" in part or "allOf" in part or (len(part) > 1 and any(keyword in part for keyword in MERGED))
        for part in _objects(schema)
    )


def _num_patterns(schema: Any) -> int:
    return sum(
        sum(keyword in part for keyword in PATTERNS) + len(part.get("patternProperties", ()))
        for part in _objects(schema)
    )


def tried(text: str, limits: Mapping[str, Any], program: Sequence[str] = PROGRAM) -> Refusal | None:
    """Why the grammar `text` cannot be compiled; None if it can. Raises Refusal when it could not be tried, which says
    nothing about the grammar. `program`: the helper's command."""
    job = {
        "path": sys.path,
        "text": text,
        "limits": dict(limits),
        "stack_bytes": STACK_BYTES // 2,
        "memory_bytes": MEMORY_BYTES,
        "cpu_s": CPU_S,
    }
    try:
        status = subprocess.run(
            program,
            input=json.dumps(job).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
            timeout=MOST_S,
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refusal(f"must be tried in a process of its own, which failed: {error}") from error
    if not status:
        return None
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    if how not in FATAL:
        raise Refusal(f"must be tried in a process of its own, which failed: {how}")
    return Refusal(f"is too deep or too large: compiling it takes more stack, memory or time than is safe ({how})")
