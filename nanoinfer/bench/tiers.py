"""What storeys below the pool bring: chats of several turns over a pool for a few of them, the last turn after a restart.

Every way to keep K/V serves the same chats in processes of its own. A few chats take a turn together, then the next few,
until each has had its turn; so with many chats, the pool has forgotten a chat before its next turn. Before the last turn,
the process ends, and a new one continues. Answers in prompts are drawn, not the model's own, so that all prompts are equal.
"""

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.engines import PEERS, EngineFailure, EngineSpec, Worker, parse_engine
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.metrics import same_requests
from nanoinfer.bench.session import reported
from nanoinfer.bench.workloads import Job, Request, warm_up

NO_TIERS = {
    "nanoinfer": "is always measured",
    **dict.fromkeys(("transformers", "peft", "openvino"), "has nothing below its cache"),
}
WITHOUT, HOST, DISK = "without", "host memory", "files"
WAYS = (WITHOUT, HOST, DISK)
TOGETHER = 4  # chats that take a turn together, and for which the pool has room
VLLM_BLOCK = 32  # tokens: the smallest of its CPU build
BELOW = {  # what is below the pool, by way or by the file of a peer
    WITHOUT: "nothing",
    HOST: "host memory",
    DISK: "host memory, files",
    "llamacpp_slots": "saved slots: memory, then files",
}


@dataclass(frozen=True)
class TierSettings:
    """What to measure. `conversations`: how many chats there are. `turns`: of a chat, the last of them after a restart.

    A chat begins with `first_tokens`, each later turn adds the last answer and a question of `question_tokens`, and
    `new_tokens` are generated. `dtype` None: the checkpoint's. `timeout`: seconds that an engine may take for an answer.
    """

    conversations: Sequence[int] = (4, 16, 64)
    turns: int = 3
    first_tokens: int = 256
    question_tokens: int = 24
    new_tokens: int = 32
    rounds: int = 3
    threads: int = 1
    seed: int = 0
    dtype: str | None = None
    peers: Sequence[EngineSpec] = ()
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for option, numbers, least in (
            ("--conversations", self.conversations, 1),
            ("--turns", [self.turns], 2),
            ("--first-tokens", [self.first_tokens], 1),
            ("--question-tokens", [self.question_tokens], 1),
            ("--new-tokens", [self.new_tokens], 1),
            ("--rounds", [self.rounds], 1),
            ("--threads", [self.threads], 1),
        ):
            for number in numbers:
                if number < least:
                    raise ValueError(f"{option} {number}: must be at least {least}")

    @property
    def longest(self) -> int:
        """Tokens of a chat at its end."""
        return self.first_tokens + (self.turns - 1) * (self.question_tokens + self.new_tokens) + self.new_tokens

    @property
    def pool(self) -> int:
        """Slots: for `TOGETHER` chats, in whole pages of 16."""
        return TOGETHER * (-(-self.longest // 16) * 16)


def tier_peers(compare: Sequence[str]) -> list[EngineSpec]:
    """The engines of `--compare`. ValueError naming one that cannot be compared, or that is named twice."""
    engines: list[EngineSpec] = []
    for text in compare:
        spec = parse_engine(text)
        if spec.file.stem in NO_TIERS:
            raise ValueError(
                f"--compare {spec.name}: {NO_TIERS[spec.file.stem]}; must be vllm, llamacpp or a file PEER.py"
            )
        if spec.name in [other.name for other in engines]:
            raise ValueError(f"--compare {spec.name}: given twice")
        if spec.file.stem == "llamacpp":
            spec = replace(spec, file=PEERS / "llamacpp_slots.py")
        engines.append(spec)
    return engines


def our_way(way: str, settings: TierSettings, conversations: int, folder: Path) -> EngineSpec:
    """nanoinfer with a pool for a few chats, and what is below it: nothing, host memory for all chats, or files."""
    options: dict[str, Any] = {"max_total_tokens": settings.pool, "max_running_requests": TOGETHER}
    if way == HOST:
        options["host_cache_tokens"] = max(conversations, TOGETHER) * settings.pool // TOGETHER
    if way == DISK:
        options["cache_dir"] = str(folder)
    return replace(parse_engine("nanoinfer"), name=way, options=options)


def their_way(spec: EngineSpec, settings: TierSettings, folder: Path) -> EngineSpec:
    """A peer with room for as many tokens, or chats, as our pool has, and its folder for files. Its own options prevail."""
    options: dict[str, Any] = {}
    if spec.file.stem == "vllm":  # it keeps one block for itself
        blocks = settings.pool // int(spec.options.get("block_size", VLLM_BLOCK)) + 1
        options = {"block_size": VLLM_BLOCK, "num_gpu_blocks_override": blocks, "max_num_seqs": TOGETHER}
    if spec.file.stem == "llamacpp_slots":
        options = {"slots": TOGETHER, "folder": str(folder)}
    return replace(spec, options={**options, **spec.options})


def below(spec: EngineSpec) -> str:
    """What an engine has below its pool, in words; empty if it is not known."""
    if spec.file.stem == "vllm":
        offloads = {"kv_offloading_size", "kv_transfer_config"} & spec.options.keys()
        return "as its options say" if offloads else "nothing"
    return BELOW.get(spec.file.stem, "")


def chats(settings: TierSettings, conversations: int, vocab_size: int, number: int) -> list[list[Request]]:
    """For each turn, the request of each chat. `number`: the round, with which token ids change."""
    rng, low = random.Random(f"tiers/{settings.seed}/{number}/{conversations}"), min(300, vocab_size // 2)

    def draw(count: int) -> list[int]:
        return [rng.randrange(low, vocab_size) for _ in range(count)]

    prompts = [draw(settings.first_tokens) for _ in range(conversations)]
    turns = []
    for _ in range(settings.turns):
        turns.append([Request(prompt, settings.new_tokens) for prompt in prompts])
        prompts = [prompt + draw(settings.new_tokens + settings.question_tokens) for prompt in prompts]
    return turns


def measure_tiers(
    path: Path, settings: TierSettings, keep: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """Measure all ways and engines in every round, in shuffled order. `keep` is called with the results after each run.

    ValueError if a chat does not fit into the model's context, or if a peer's file has another dtype. An engine that fails
    has runs with an `error`.
    """
    checkpoint = Checkpoint.read(path)
    if settings.longest > checkpoint.context_len:
        raise ValueError(
            f"--first-tokens {settings.first_tokens}: a chat would have {settings.longest} tokens at its end, but the "
            f"context of {checkpoint.name} has {checkpoint.context_len}"
        )
    dtype = settings.dtype or checkpoint.dtype
    for spec in settings.peers:
        if spec.converts and dtype != checkpoint.dtype:
            raise ValueError(
                f"--dtype {dtype}: {spec.name} reads a converted file, whose dtype is {checkpoint.dtype}; must be that, "
                f"or without {spec.name}"
            )
    results: dict[str, Any] = {
        "format": "tiers",
        "model": {**checkpoint.as_dict(), "dtype": dtype},
        "settings": {
            name: getattr(settings, name)
            for name in ("turns", "first_tokens", "question_tokens", "new_tokens", "rounds", "threads", "seed", "pool")
        },
        "below": {**{way: BELOW[way] for way in WAYS}, **{spec.name: below(spec) for spec in settings.peers}},
        "versions": {},
        "runs": [],
    }
    names = [*WAYS, *(spec.name for spec in settings.peers)]
    others = {spec.name: spec for spec in settings.peers}
    blocks = [(number, count) for number in range(settings.rounds) for count in settings.conversations]
    with tqdm(total=len(blocks) * len(names), desc=f"bench tiers {checkpoint.name}", unit="run") as bar:
        for number, count in blocks:
            turns = chats(settings, count, checkpoint.vocab_size, number)
            runs = []
            for name in random.Random(f"{number}/{count}").sample(names, len(names)):
                bar.set_postfix_str(f"{count} chats, {name}")
                with tempfile.TemporaryDirectory() as folder:
                    kv = Path(folder, "kv")
                    ours = name not in others
                    spec = our_way(name, settings, count, kv) if ours else their_way(others[name], settings, kv)
                    run = {"round": number, "conversations": count, "way": name}
                    runs.append({**run, **_one_run(spec, checkpoint, dtype, settings, turns, results["versions"])})
                bar.update(1)
            _compare_tokens(runs)
            results["runs"] += runs
            keep(results)
    return results


def _one_run(
    spec: EngineSpec,
    checkpoint: Checkpoint,
    dtype: str,
    settings: TierSettings,
    turns: Sequence[Sequence[Request]],
    versions: dict[str, Any],
) -> dict[str, Any]:
    """Figures of the turns before the restart, and of the last. The first turn is left out: no way has anything to find."""
    command, env = spec.command(checkpoint.path, dtype, settings.threads), spec.environment(settings.threads)
    warm = warm_up(checkpoint.context_len, checkpoint.vocab_size).as_message()
    parts: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    try:
        for part, some in (("before", turns[:-1]), ("after", turns[-1:])):
            with ExitStack() as stack:
                worker = stack.enter_context(Worker(command, env, settings.timeout))
                versions[spec.name] = worker.about["versions"]
                worker.ask(warm)
                for requests in some:
                    groups = [requests[i : i + TOGETHER] for i in range(0, len(requests), TOGETHER)]
                    answers = [worker.ask(Job(list(group), [], shared=False).as_message()) for group in groups]
                    parts[part].append(figures(requests, answers))
                worker.ask({"save": True})
    except EngineFailure as failure:
        return {"error": reported(spec, failure)}
    tokens = [answer for each in (*parts["before"], *parts["after"]) for answer in each.pop("tokens")]
    before = parts["before"][1:]
    return {
        "before": _medians(before) if before else None,
        "after": _medians(parts["after"]),
        "tokens": tokens,
    }


def figures(requests: Sequence[Request], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one turn of all chats: median seconds to the first token, output tokens per second, the share of the prompts'
    tokens that were cached (None: unknown), and the tokens."""
    cached = [each for answer in answers for each in answer["cached_tokens"]]
    total = sum(len(request.prompt) for request in requests)
    return {
        "ttft_s": median(times[0] for answer in answers for times in answer["times"]),
        "output_tok_s": sum(request.new_tokens for request in requests) / sum(answer["wall_s"] for answer in answers),
        "cached": None if None in cached else sum(cached) / total,
        "tokens": [tokens for answer in answers for tokens in answer["tokens"]],
    }


def _medians(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = ("ttft_s", "output_tok_s", "cached")
    return {name: None if turns[0][name] is None else median(turn[name] for turn in turns) for name in names}


def _compare_tokens(runs: Sequence[dict[str, Any]]) -> None:
    """Note how many answers equal those of nanoinfer without storeys, and forget them."""
    tokens = {run["way"]: run.pop("tokens") for run in runs if "tokens" in run}
    for run in runs:
        if WITHOUT in tokens and run["way"] in tokens:
            run["same_answers"] = [same_requests(tokens[WITHOUT], tokens[run["way"]]), len(tokens[WITHOUT])]
