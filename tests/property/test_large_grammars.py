"""Random grammars: those that would end the process or take for ever, and any under pressure, with and without drafts."""

import gc
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanoinfer.sampling.grammar.compiler import MAX_LENGTH, Compiler, Grammar, Refusal
from tests.helpers.fetches import Fetches
from tests.helpers.grammars import EOS, allowed, story_compiler
from tests.helpers.waiting import HANG_S
from tests.soak.episodes import grammars

Schema = dict[str, Any]
LINKS: dict[str, Callable[[Any], Schema]] = {
    "required property": lambda to: {"type": "object", "properties": {"k": to}, "required": ["k"]},
    "property": lambda to: {"type": "object", "properties": {"k": to}, "additionalProperties": False},
    "items": lambda to: {"type": "array", "items": to},
    "prefixItems": lambda to: {"type": "array", "prefixItems": [to], "items": False, "minItems": 1},
    "anyOf": lambda to: {"anyOf": [to, {"type": "integer"}]},
    "allOf": lambda to: {"allOf": [to]},
    "sibling": lambda to: {**to, "type": "null"},
    "additional": lambda to: {"type": "object", "additionalProperties": to},
    "pattern": lambda to: {"type": "object", "patternProperties": {"^a$": to}, "additionalProperties": False},
}
RULES: dict[str, str] = {  # of a Lark grammar; {i} is a rule's number and {next} the one that it leads to
    "right": 'r{i}: "k{i}" r{next}',
    "left": 'r{i}: r{next} "k{i}"',
    "alone": "r{i}: r{next}",
    "either": 'r{i}: r{next} | "k{i}"',
    "optional": 'r{i}: (r{next} "k")?',
}


def chain_of_refs(link: str, length: int) -> str:
    """A JSON schema in which each of `length` definitions leads to the next."""
    refs = [{"$ref": f"#/$defs/r{i}"} for i in range(length + 1)]
    definitions = {f"r{i}": LINKS[link](refs[i + 1]) for i in range(length)}
    return json.dumps({"$defs": {**definitions, f"r{length}": {"type": "null"}}, "$ref": "#/$defs/r0"})


def chain_of_rules(rule: str, length: int) -> str:
    """A Lark grammar in which each of `length` rules leads to the next."""
    rules = [RULES[rule].format(i=i, next=i + 1) for i in range(length)]
    return "\n".join(["start: r0", *rules, f'r{length}: "z"'])


def large_grammar(rng: np.random.Generator) -> tuple[str, str]:
    """A kind of grammar, and its text."""

    def size(most: int) -> int:
        return int(10 ** rng.uniform(1, np.log10(most)))

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def patterns(most: int) -> list[str]:
        return [
            one(f"^k{i}x", f"[a-z]{i}", f"a.{{{i % 50}}}b{i}", f"(ab|c){{{i % 20}}}{i}$") for i in range(size(most))
        ]

    def refs() -> tuple[str, str]:
        return "json_schema", chain_of_refs(one(*LINKS), size(15_000))

    def calls() -> tuple[str, str]:
        schemas = {f"f{i}": json.loads(chain_of_refs(one(*LINKS), size(500))) for i in range(size(30))}
        return "tool_calls", json.dumps([schemas, True])

    def rules() -> tuple[str, str]:
        return "grammar", chain_of_rules(one(*RULES), size(30_000))

    def doubled() -> tuple[str, str]:
        rules = [f"r{i}: r{i + 1} r{i + 1}" for i in range(size(100))]
        return "grammar", "\n".join(["start: r0", *rules, f'r{len(rules)}: "z"'])

    def pattern_properties() -> tuple[str, str]:
        return "json_schema", json.dumps(
            {"type": "object", "patternProperties": {each: {} for each in patterns(1_000)}}
        )

    def all_patterns() -> tuple[str, str]:
        return "json_schema", json.dumps({"type": "string", "allOf": [{"pattern": each} for each in patterns(200)]})

    def alternatives() -> tuple[str, str]:
        groups = [
            [{"properties": {f"k{i}{j}": {}}, "required": [f"k{i}{j}"]} for j in range(2)] for i in range(size(30))
        ]
        return "json_schema", json.dumps({"type": "object", "allOf": [{"anyOf": each} for each in groups]})

    def properties() -> tuple[str, str]:
        names = [f"key{i}" for i in range(size(10_000))]
        return "json_schema", json.dumps(
            {"type": "object", "properties": {name: {} for name in names}, "required": names[::2]}
        )

    def cross() -> tuple[str, str]:
        all_refs = {f"k{j}": {"$ref": f"#/$defs/r{j}"} for j in range(size(200))}
        definitions = {f"r{i}": {"type": "object", "properties": all_refs} for i in range(len(all_refs))}
        return "json_schema", json.dumps({"$defs": definitions, "$ref": "#/$defs/r0"})

    def nested() -> tuple[str, str]:
        begin, end = one(('{"items":', "}"), ('{"anyOf":[{"type":"null"},', "]}"), ('{"allOf":[', "]}"))
        depth = size(1_000)
        return "json_schema", begin * depth + "{}" + end * depth

    def enum() -> tuple[str, str]:
        return "json_schema", json.dumps({"enum": [f"value {i}" for i in range(size(50_000))]})

    def choice() -> tuple[str, str]:
        return "choice", json.dumps([f"option {i}" for i in range(size(100_000))])

    def regex() -> tuple[str, str]:
        part = one("(ab|c)?", "[a-z]*x", "(?:a|b){9}", "a.{50}b|", "((((a)*)*)*)*", "\\w+")
        return "regex", (part * size(2 * MAX_LENGTH))[: size(2 * MAX_LENGTH)]

    def brackets() -> tuple[str, str]:
        depth = size(1_000)
        return one(
            ("regex", "(" * depth + "a" + ")" * depth), ("grammar", "start: " + "(" * depth + '"a"' + ")?" * depth)
        )

    makers: list[Callable[[], tuple[str, str]]] = [
        *(refs, refs, calls, rules, rules, doubled, pattern_properties, all_patterns, alternatives, properties),
        *(cross, nested, enum, choice, regex, brackets),
    ]
    made: tuple[str, str] = one(*makers)()
    return made


SEEDS = 400  # of the soak
STOPPED_S = 0.2  # for so long no other thread may be kept from running
DEADLINE_S = 20.0


def verdict(compiler: Compiler, kind: str, text: str, timeout_s: float = HANG_S) -> str:
    """Why a grammar is refused; empty if it can be followed for a few tokens."""
    try:
        matcher = compiler.compile(Grammar(kind, text), timeout_s).matcher(frozenset([EOS]))
    except Refusal as refusal:
        return str(refusal)
    for _ in range(4):
        ids = sorted(allowed(matcher))
        if not ids or not matcher.accept(ids[len(ids) // 2]):
            break
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_a_chain_of_refs_is_compiled_or_refused(link: str) -> None:
    compiler = Compiler(story_compiler().vocabulary)
    for length in (90, 950):
        said = verdict(compiler, "json_schema", chain_of_refs(link, length))
        assert not said or (link, length) == ("pattern", 950)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_chain_of_rules_is_compiled_or_refused(rule: str) -> None:
    compiler = Compiler(story_compiler().vocabulary)
    for length in (400, 2_000):
        assert not verdict(compiler, "grammar", chain_of_rules(rule, length))


@pytest.mark.slow
def test_a_chain_that_no_stack_is_large_enough_for_is_refused() -> None:
    compiler = Compiler(story_compiler().vocabulary)
    for before in ("", "", "<[1999]> | "):  # a token that the trial's vocabulary does not have
        grammar = chain_of_rules("alone", 13_000).replace("start: ", f"start: {before}")
        assert verdict(compiler, "grammar", grammar).endswith("than is safe (SIGSEGV)")


@pytest.mark.soak
def test_random_grammars_up_to_ten_times_every_limit_are_compiled_or_refused_in_time() -> None:
    gaps, ended = [0.0], threading.Event()

    def watch() -> None:
        """How long this thread did not run while the process did: on a busy machine, the whole process may have to wait."""
        last, computed = time.perf_counter(), time.process_time()
        while not ended.wait(0.001):
            now, by_now = time.perf_counter(), time.process_time()
            gaps.append(min(now - last, by_now - computed))
            last, computed = now, by_now

    watcher = threading.Thread(target=watch)
    watcher.start()
    verdicts: list[str] = []
    try:
        for seed in range(SEEDS):
            kind, text = large_grammar(np.random.default_rng(seed))
            compiler = Compiler(story_compiler().vocabulary)
            gc.collect()
            gaps.clear()
            began = time.perf_counter()
            try:
                said = verdict(compiler, kind, text, DEADLINE_S)
            except TimeoutError:
                said = "deadline"
            verdicts.append(said)
            seconds, stopped = time.perf_counter() - began, max(gaps, default=0.0)
            print(
                f"{seed} {kind} {len(text)} {seconds:.2f} s, stopped {stopped:.3f} s, {said[:100] or 'compiled'}",
                flush=True,
            )
            assert seconds < DEADLINE_S + 2, (seed, kind, text[:200])
            assert stopped < STOPPED_S, (seed, kind, text[:200])
    finally:
        ended.set()
        watcher.join()
    assert "" in verdicts
    assert any("safe (SIG" in said for said in verdicts)


@pytest.mark.slow
def test_random_grammars_hold_under_pressure_and_drafts_change_no_token() -> None:
    models, counts = grammars.Models(), Counter[str]()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        config = grammars.random_config(rng) | {"drafter": grammars.DRAFTERS[seed]}
        config |= {"max_total_tokens": 72, "page_size": (1, 8)[seed % 2], "max_running_requests": 4 + seed}
        config |= {"schedule_conservativeness": 0.001, "disable_radix_cache": False, "num_scheduler_steps": 1}
        engine, of_one = grammars.run_episode(models, rng, config)
        stats = engine.stats()
        of_one |= {name: getattr(stats, name) for name in ("retractions", "evicted_tokens", "accepted_tokens")}
        counts += of_one
    wanted = ["retractions", "evicted_tokens", "accepted_tokens", "stop", "length", "abort", "stuck", "paused"]
    kinds = ["regex", "json_schema", "choice", "grammar"]
    assert all(counts[name] for name in [*wanted, *kinds, *(f"beginnings of {kind}" for kind in kinds)]), counts


@pytest.mark.slow
def test_an_episode_follows_from_its_seed() -> None:
    models, found = grammars.Models(Fetches()), []
    for _ in range(2):
        rng = np.random.default_rng(7)
        config = grammars.random_config(rng) | {"drafter": ("grammar", "model"), "adaptive_drafts": True}
        engine, counts = grammars.run_episode(models, rng, config | {"num_scheduler_steps": 1})
        stats = engine.stats()
        found.append((counts, stats.drafted_tokens, stats.accepted_tokens, stats.retractions))
    assert found[0] == found[1]
