"""What the same four prompts cost in every notebook: one table, and each notebook that changes a number adds a column."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.llm import make_engine
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.loader import LoadedModel
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.scheduler.batch import Batch
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from notebooks.course.prompts import FOX_PROMPTS

NEW_TOKENS = 20  # per prompt


@dataclass(frozen=True)
class Cost:
    """One column. Bytes are of weights and of K/V in all layers, counted from the lengths of the requests in each pass.

    What attention collects into a rectangle counts as read. From "07" on, each slot is read where it is, as the C++ backend
    does."""

    passes: int  # of the model; each reads all weights once
    tokens_computed: int
    longest_pass: int  # tokens of the pass that computed the most: what all others had to wait for
    weights_read: int
    kv_read: int  # by the attention of DECODE passes: K/V of the requests' tokens
    padding_read: int  # the same for padding
    kv_copied: int  # between where a request keeps it and the rectangle of a pass, in and out
    kv_held: int  # at most, at one time; cached tokens that no request reads included


ROWS: dict[str, tuple[str, str]] = {  # field: its name in the table, its unit
    "passes": ("passes of the model", ""),
    "tokens_computed": ("tokens computed", ""),
    "longest_pass": ("tokens in the longest pass", ""),
    "weights_read": ("weights read", "MiB"),
    "kv_read": ("K/V read to decode", "KiB"),
    "padding_read": ("padding read to decode", "KiB"),
    "kv_copied": ("K/V copied in and out", "KiB"),
    "kv_held": ("K/V kept, at most", "KiB"),
}


class CostTable:
    """The columns up to one notebook's, the newest last: an HTML table in a notebook, plain text elsewhere."""

    def __init__(self, columns: dict[str, Cost]):
        self.columns = columns

    def rows(self) -> list[list[str]]:
        """The table as texts: a line of headings, then one line per row."""
        rows = [[f"{NEW_TOKENS} new tokens for each of {len(FOX_PROMPTS)} prompts", *self.columns]]
        for field, (name, unit) in ROWS.items():
            values = [_text(getattr(cost, field), unit) for cost in self.columns.values()]
            rows.append([f"{name}, {unit}" if unit else name, *values])
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for name, *values in rows:
            cells = [text.rjust(width) for text, width in zip(values, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *cells]))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = self.rows()

        def cells(row: list[str]) -> str:
            name, *values, newest = row
            cells = "".join(f'<td style="text-align:right">{text}</td>' for text in [*values, f"<b>{newest}</b>"])
            return f'<th style="text-align:left">{name}</th>{cells}'

        body = "".join(f"<tr>{cells(row)}</tr>" for row in rows)
        return f"<table><thead><tr>{cells(head)}</tr></thead><tbody>{body}</tbody></table>"


def cost_table(notebook: str, model: LoadedModel) -> CostTable:
    """What the four prompts cost, in every way up to that of `notebook` ("05"), each served now with `model`
    (`llm.model`)."""
    return CostTable({f"{number} {name}": way(model) for number, (name, way) in WAYS.items() if number <= notebook})


def _text(value: int, unit: str) -> str:
    return f"{value / {'': 1, 'KiB': 2**10, 'MiB': 2**20}[unit]:,.0f}"


def _without_cache(model: LoadedModel) -> Cost:
    engine = InferenceEngine(model)
    longest = 0
    for prompt in FOX_PROMPTS:
        tokens = engine.generate(prompt, NEW_TOKENS, temperature=0, stop_on_eos=False, use_cache=False)
        longest = max(longest, len(engine.builder.prompt_ids(prompt)) + len(tokens) - 1)
    return _of_account(engine, longest, kv_held=0)


def _with_sessions(model: LoadedModel, batched: bool) -> Cost:
    engine = InferenceEngine(model)
    scheduler = OfflineScheduler(engine, batched)
    longest = held = 0
    waiting = list(FOX_PROMPTS)
    while waiting or scheduler.has_unfinished():
        before = engine.account.decode_bytes_used
        if waiting and (batched or not scheduler.has_unfinished()):
            scheduler.add_request(waiting.pop(0), NEW_TOKENS, temperature=0, stop_on_eos=False)
            longest = max(longest, max(session.req.prompt_len for session in scheduler.sessions.values()))
        else:
            scheduler.step()
        read = engine.account.decode_bytes_used - before  # by the pass, of sessions that may have ended with it
        held = max(held, scheduler.kv_bytes, read)
    return _of_account(engine, longest, held)


def _of_account(engine: InferenceEngine, longest: int, kv_held: int) -> Cost:
    account = engine.account
    return Cost(
        passes=account.forwards,
        tokens_computed=account.tokens_computed,
        longest_pass=longest,
        weights_read=account.forwards * weight_bytes(engine.model),
        kv_read=account.decode_bytes_used,
        padding_read=account.decode_bytes_padding,
        kv_copied=account.bytes_copied,
        kv_held=kv_held,
    )


def _pooled(
    model: LoadedModel,
    one_by_one: bool = False,
    pads: bool = False,
    again: bool = False,
    max_total_tokens: int = 256,
    **options: Any,
) -> Cost:
    """Served by an Engine. `one_by_one`: each prompt is added after the pass of the one before; `pads`: attention reads a
    rectangle, as it does in plain torch; `again`: the engine has served the same prompts before."""
    assert model.tokenizer is not None
    context = max(len(model.tokenizer.encode(prompt)) for prompt in FOX_PROMPTS) + NEW_TOKENS
    config = EngineConfig(len(FOX_PROMPTS), max_total_tokens, context, **{"chunked_prefill_size": None, **options})
    engine = make_engine(model, config)
    if again:
        list(_serve(engine, one_by_one))
    runner, token_bytes = engine.model_runner, model.config.kv_bytes_per_token(model.dtype)
    forward_batch, pool, in_use = runner.forward_batch, runner.token_to_kv_pool, list[int]()

    def counted(*arguments: Any) -> Any:
        in_use.append(pool.size - pool.available_size())  # in the pass: requests that it ends still have their slots
        return forward_batch(*arguments)

    runner.forward_batch = counted  # type: ignore[assignment, method-assign]
    passes = computed = longest = read = padding = 0
    for batch in _serve(engine, one_by_one):
        lens, tokens = batch.seq_lens.tolist(), len(batch.out_cache_loc)
        passes, computed, longest = passes + 1, computed + tokens, max(longest, tokens)
        if batch.forward_mode is ForwardMode.DECODE:
            read += sum(lens) * token_bytes
            padding += (len(lens) * max(lens) - sum(lens)) * token_bytes if pads else 0
    kept = max(in_use) * token_bytes
    return Cost(passes, computed, longest, passes * weight_bytes(model), read, padding, 0, kept)


def _serve(engine: Engine, one_by_one: bool) -> Iterator[Batch]:
    """The four prompts, to their end: what each pass was about."""
    waiting = list(FOX_PROMPTS)
    while waiting or engine.has_unfinished():
        for prompt in waiting[: 1 if one_by_one else None]:
            engine.add_request(prompt, SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True))
            waiting.remove(prompt)
        engine.step()
        assert engine.last_batch is not None, "a step with requests makes a pass"
        yield engine.last_batch


def weight_bytes(model: LoadedModel) -> int:
    """Bytes of all weights of a model, as a pass reads them."""
    return model.model.num_parameters * model.dtype.itemsize


WAYS: dict[str, tuple[str, Callable[[LoadedModel], Cost]]] = {
    "02": ("no cache", _without_cache),
    "03": ("KV cache", partial(_with_sessions, batched=False)),
    "04": ("batched", partial(_with_sessions, batched=True)),
    "05": (
        "pools",
        partial(_pooled, one_by_one=True, pads=True, disable_radix_cache=True, attention_backend="torch_native"),
    ),
    "07": ("one EXTEND", partial(_pooled, disable_radix_cache=True)),
    "08": ("radix tree", partial(_pooled, one_by_one=True)),
    "09": ("asked again", partial(_pooled, again=True)),
    "10": ("64 slots", partial(_pooled, max_total_tokens=64)),
    "11": ("chunks of 8", partial(_pooled, chunked_prefill_size=8)),
}
