"""`python -m nanoinfer info`: what a model's configuration says, and how much memory it takes to serve it."""

import argparse
import platform
from dataclasses import fields
from typing import Any

import nanoinfer
from nanoinfer.cli.options import add_engine_options, add_model, choose_model, load
from nanoinfer.cli.terminal import styled, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_model(parser)
    parser.set_defaults(run=run)
    add_engine_options(parser, but=["model"])


def run(args: argparse.Namespace) -> None:
    """Load the model and print a table."""
    import torch
    import transformers

    from nanoinfer.engine.stats import captured, selections
    from nanoinfer.model.layers.linear import weight_bytes
    from nanoinfer.model.loader import in_words

    choose_model(args)
    llm = load(args)
    runner = llm.engine.model_runner
    kernels, attention = selections(runner)
    if runner.captured is not None:
        runner.captured.try_out()  # some reasons against it show only in a pass
    model, config = llm.model, llm.model.config
    kv_bytes = model.kv_bytes_per_token(llm.config.kv_cache_dtype)
    print(styled(f"{model.name}  ({model.path})", "bold"))
    rows: list[tuple[str, object]] = [
        *([] if model.split is None else [("share of the model", f"that of 1 of {model.split.size} processes")]),
        ("implementation", model.implementation),
        ("parameters", f"{model.model.num_parameters:,} in {model.dtype}, on {model.device}".replace("torch.", "")),
        ("weights", f"{_in_bits(model)}, {weight_bytes(model.model) / 2**20:,.1f} MiB"),
        *config.facts().items(),
        ("sampling defaults", in_words(model.sampling_defaults) or "none"),
        ("tokenizer", "yes" if model.tokenizer else "none: takes token ids only"),
        ("K/V per token", f"{kv_bytes:,} bytes"),
        ("K/V pool", f"{llm.config.max_total_tokens:,} slots, {llm.config.max_total_tokens * kv_bytes / 2**20:,.1f} MiB"),
        *((field.name, getattr(llm.config, field.name)) for field in fields(llm.config)),
        ("computed with", f"kernels {kernels}"),
        ("", f"attention {attention}"),
        ("captured graphs", captured(runner)),
        *((f"adapter {name}", _adapter(each)) for name, each in llm.adapters.items()),
        ("versions", f"nanoinfer {nanoinfer.__version__}, torch {torch.__version__}, transformers "
         f"{transformers.__version__}, Python {platform.python_version()}"),
    ]  # fmt: skip
    print(table(["", ""], [(f"  {styled(name, 'cyan')}", _compact(value)) for name, value in rows], left=(0, 1)))


def _adapter(adapter: Any) -> str:
    ranks = ", ".join(map(str, adapter.ranks))
    return f"rank {ranks}, {len(adapter.parts)} projections, {adapter.num_bytes / 2**20:,.1f} MiB, {adapter.path}"


def _in_bits(model: Any) -> str:
    """In what the weights are kept, which a checkpoint or a file may have in fewer bits."""
    kind, dtype = model.model.quantization, str(model.dtype).removeprefix("torch.")
    return f"{kind}, embeddings and norms in {dtype}" if kind.name else dtype


def _compact(value: object) -> str:
    """A tuple of equal values as one value and their number; "none" for a rope that is not scaled."""
    if getattr(value, "rope_type", None) == "default":
        return "none"
    if isinstance(value, tuple) and len(value) > 1 and len(set(value)) == 1:
        return f"{value[0]} in each of {len(value)} layers"
    return str(value)
