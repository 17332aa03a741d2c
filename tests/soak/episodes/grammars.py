"""Episodes of an engine whose requests have grammars: the bundled model, under pressure, with and without drafts.

Every output is looked at three times. The same request is served alone, without drafts, without a cache and with room for
everything: the tokens are the same. An output that has ended by itself is what its grammar asks for, as `re`, `jsonschema`
or a few lines of code see it (tests/helpers/random_grammars.py). One that was cut off is the beginning of such an output.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from nanoinfer import Engine, RequestOutput, SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.errors import NoTokenAllowedError
from nanoinfer.llm import make_engine
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.outputs import CompletionOutput
from nanoinfer.speculative.load import load_draft_model
from tests.helpers.engines import Clock, assert_all_free
from tests.helpers.grammars import EOS
from tests.helpers.random_grammars import RandomGrammar, random_grammar

MAX_PROMPT, MAX_NEW_TOKENS = 12, 52
REQUESTS_PER_EPISODE = 20
ADAPTERS = ("sea", "rhymes")  # bundled
STEMS = ("Once upon a time there was", "A user:", "Tell me: 1+2", 'The "old" fox said {', " ")
STOPS = ("the", "a", "1", '"', ")", " ")
DRAFTERS: tuple[Any, ...] = (None, "grammar", "model", "ngram", ("grammar", "model"), ("tree", "ngram", "grammar"))


class Ticks(Clock):
    """A clock on which each look takes a millisecond."""

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Models:
    """The bundled model with its adapters and its draft model, and an engine in which requests are alone. `executor`: what
    fetches adapters; None: a thread, so that it depends on the machine when they are there."""

    def __init__(self, executor: Executor | None = None):
        self.executor = executor

    @cached_property
    def model(self) -> LoadedModel:
        return load_model("story", max_context_len=MAX_PROMPT + MAX_NEW_TOKENS)

    @cached_property
    def draft_model(self) -> LoadedModel:
        return load_draft_model("story-draft", self.model)

    @cached_property
    def alone(self) -> Engine:
        return self.engine({"max_running_requests": 4, "max_total_tokens": 2048, "disable_radix_cache": True})

    def engine(self, config: dict[str, Any]) -> Engine:
        """An engine with these fields of EngineConfig, on a clock that tells how often it was asked: by a real one, what an
        adaptive drafter does would not follow from the seed."""
        made = EngineConfig(max_context_len=MAX_PROMPT + MAX_NEW_TOKENS, **config)
        engine = make_engine(self.model, made, Ticks(), self.draft_model if "model" in made.drafters else None)
        engine.adapters.pool._executor = self.executor
        for name in ADAPTERS:
            engine.load_adapter(name, name)
        return engine


@dataclass
class Asked:
    """A request, and what has come of it so far."""

    prompt: str
    params: SamplingParams
    adapter: str | None
    grammar: RandomGrammar
    seen: list[list[int]] = field(default_factory=list)  # the tokens of each completion


def random_config(rng: np.random.Generator) -> dict[str, Any]:
    """A configuration with little room: some requests are retracted, and cached tokens evicted."""

    def pick(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    page_size = pick(1, 1, 4, 8)
    drafter = pick(*DRAFTERS)
    return {
        "max_running_requests": pick(2, 4, 8),
        "max_total_tokens": MAX_PROMPT
        + MAX_NEW_TOKENS
        + page_size * int(rng.integers(0, 1 + pick(0, 16, 96) // page_size)),
        "page_size": page_size,
        "chunked_prefill_size": pick(None, 8, 16),
        "schedule_conservativeness": pick(0.001, 0.001, 1.0),
        "disable_radix_cache": bool(rng.random() < 0.1),
        "random_seed": int(rng.integers(2**31)),
        "num_scheduler_steps": 1 if drafter else pick(1, 3),
        "drafter": drafter,
        "num_draft_tokens": pick(1, 3, 7),
        "adaptive_drafts": bool(rng.random() < 0.3),
        "max_adapters_on_device": pick(1, 2),
    }


def random_request(rng: np.random.Generator) -> Asked:
    """With a grammar of its own, and now and then with whatever else may decide about tokens and ends."""

    def at_times(share: float, value: Any, otherwise: Any) -> Any:
        return value if rng.random() < share else otherwise

    grammar = random_grammar(rng)
    sampled = bool(rng.random() < 0.6)
    most = int(rng.integers(3, MAX_NEW_TOKENS + 1)) if rng.random() < 0.4 else MAX_NEW_TOKENS
    banned = rng.choice(np.arange(3, 2048), size=200, replace=False).tolist()
    params = SamplingParams(
        **grammar.fields,
        max_new_tokens=most,
        min_new_tokens=at_times(0.2, int(rng.integers(0, most + 1)), 0),
        temperature=float(rng.choice([0.5, 1.0, 2.0])) if sampled else 0.0,
        seed=int(rng.integers(100)),
        n=at_times(0.4, int(rng.integers(2, 4)), 1) if sampled else 1,
        top_k=at_times(0.2, 5, -1),
        top_p=at_times(0.2, 0.9, 1.0),
        repetition_penalty=at_times(0.2, 1.3, 1.0),
        logit_bias=at_times(0.15, dict.fromkeys(banned, -np.inf), None),
        logprobs=at_times(0.2, 1, None),
        stop=at_times(0.2, [STOPS[int(rng.integers(len(STOPS)))]], []),
        ignore_eos=at_times(0.1, True, False),
    )
    prompt = STEMS[int(rng.integers(len(STEMS)))] + at_times(0.3, " and", "")
    return Asked(prompt, params, at_times(0.4, ADAPTERS[int(rng.integers(2))], None), grammar, [[]] * params.n)


class Episode:
    """One engine, and what its caller knows of the requests."""

    def __init__(self, models: Models, rng: np.random.Generator, config: dict[str, Any]):
        self.models, self.rng = models, rng
        self.engine = models.engine(config)
        self.open: dict[int, Asked] = {}
        self.counts: Counter[str] = Counter()

    def add(self, asked: Asked) -> None:
        request_id = self.engine.add_request(asked.prompt, asked.params, adapter=asked.adapter)
        self.open[request_id] = asked
        self.counts["added"] += 1

    def step(self) -> None:
        outputs = self.engine.step()
        self.counts["steps"] += 1
        self.engine.check_integrity()
        for output in outputs:
            self.look_at(output)

    def abort(self) -> None:
        """One of those that have not ended."""
        output = self.engine.abort(self._any())
        assert output is not None
        self.counts["aborted"] += 1
        self.engine.check_integrity()
        self.look_at(output)

    def pause(self) -> None:
        """One of those that have not ended, for a step."""
        request_id = self._any()
        self.engine.pause(request_id)
        self.step()
        if self.engine.is_unfinished(request_id):
            self.engine.resume(request_id)
        self.counts["paused"] += 1

    def _any(self) -> int:
        return int(self.rng.choice(list(self.open)))

    def look_at(self, output: RequestOutput) -> None:
        """Tokens only ever follow the tokens of before; of a request that has ended, everything is checked."""
        asked = self.open[output.request_id]
        for i, completion in enumerate(output.outputs):
            assert completion.token_ids[: len(asked.seen[i])] == asked.seen[i], "a token has changed or been lost"
            asked.seen[i] = completion.token_ids
        if output.finished:
            del self.open[output.request_id]
            self.check_tokens(output, asked)
            for completion in output.outputs:
                self.check_grammar(completion, asked)

    def check_tokens(self, output: RequestOutput, asked: Asked) -> None:
        """They are those of the same request alone; up to where it was aborted, if it was."""
        alone = self.models.alone
        alone.add_request(asked.prompt, asked.params, adapter=asked.adapter)
        outputs: Sequence[RequestOutput] = []
        while alone.has_unfinished():
            outputs = alone.step() or outputs
        (wanted,) = outputs
        stuck = isinstance(wanted.error, NoTokenAllowedError)
        assert isinstance(output.error, NoTokenAllowedError) <= stuck
        assert output.error is None or stuck, output.error
        for got, want in zip(output.outputs, wanted.outputs, strict=True):
            if got.finish_reason == "abort" and not (stuck and got.token_ids == want.token_ids):
                assert got.token_ids == want.token_ids[: len(got.token_ids)], "other tokens than alone"
            else:
                assert (got.token_ids, got.text) == (want.token_ids, want.text), "other tokens than alone"
                assert (got.finish_reason, got.stop_reason) == (want.finish_reason, want.stop_reason)
                assert [list(each) for each in got.logprobs or []] == [list(each) for each in want.logprobs or []]
            self.counts[str(got.finish_reason)] += 1
        self.counts["stuck"] += output.error is not None

    def check_grammar(self, completion: CompletionOutput, asked: Asked) -> None:
        """It is a whole output, or the beginning of one."""
        grammar, tokens, params = asked.grammar, completion.token_ids, asked.params
        text, (kind,) = grammar.text_of(tokens), grammar.fields
        assert len(tokens) <= params.max_new_tokens
        if EOS in tokens:
            assert tokens.index(EOS) == len(tokens) - 1 >= params.min_new_tokens - 1
            assert not params.ignore_eos
        if completion.finish_reason == "stop" and completion.stop_reason is None:
            assert completion.text == text
            assert grammar.matches(text), f"{grammar.fields}: {text!r}"
            self.counts[kind] += 1
            return
        if completion.stop_reason is not None:
            assert text.startswith(f"{completion.text}{completion.stop_reason}")
            assert params.min_new_tokens or str(completion.stop_reason) not in completion.text
        whole = grammar.completed(tokens)
        assert whole.startswith(text.rstrip("\ufffd"))
        assert grammar.matches(whole), f"{grammar.fields}: {whole!r}"
        self.counts[f"beginnings of {kind}"] += 1


def run_episode(models: Models, rng: np.random.Generator, config: dict[str, Any]) -> tuple[Engine, Counter[str]]:
    """About REQUESTS_PER_EPISODE requests, some of which are aborted or paused; then to the end. The engine, and counts."""
    episode = Episode(models, rng, config)
    engine, busy = episode.engine, rng.uniform(0.3, 0.9)
    ratio = engine.scheduler.new_token_ratio
    while episode.counts["added"] < REQUESTS_PER_EPISODE or episode.open:
        chance = rng.random()
        if chance < busy and episode.counts["added"] < REQUESTS_PER_EPISODE:
            episode.add(random_request(rng))
        elif chance > 0.98 and episode.open:
            episode.abort()
        elif chance > 0.96 and episode.open:
            episode.pause()
        if engine.config.schedule_conservativeness < 1:
            ratio.value = ratio.floor  # admission gambles again: more retractions
        episode.step()
    assert engine.step() == []
    assert_all_free(engine)
    return engine, episode.counts
