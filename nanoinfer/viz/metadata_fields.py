"""The fields of an InputMetadata that a picture of it draws, and what it says of them."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.viz.facts import Facts
from nanoinfer.viz.words import abridged, count, slots, slots_of_several

TABLE = (
    "req_pool_indices",
    "seq_lens",
    "prefix_lens",
    "extend_seq_lens",
    "start_loc",
    "extend_start_loc",
    "kv_last_page_len",
)
PER_NEW_TOKEN = ("positions", "out_cache_loc", "qo_indptr")
PER_TOKEN = ("kv_indices", "kv_indptr")
SINGLE = (
    "forward_mode",
    "batch_size",
    "total_num_tokens",
    "max_seq_len",
    "max_extend_len",
    "other_kv_index",
    "out_cache_cont_start",
    "out_cache_cont_end",
    "return_normalized_logprob",
    "req_to_token_pool",
    "token_to_kv_pool",
    "batch",
    "logit_rows",
    "only_likeliest",
    "adapters",
    "attention_mask",
    "attention_backend",
    "attention_plan",
)
ALL = (*PER_NEW_TOKEN, *PER_TOKEN, *TABLE, *SINGLE)
USUAL = (*PER_NEW_TOKEN, *PER_TOKEN, "req_pool_indices", "seq_lens", "prefix_lens")


def drawn_fields(m: Facts, fields: Sequence[str] | None) -> set[str]:
    """The fields to draw."""
    if fields == "all":
        return set(ALL)
    if isinstance(fields, str) or not isinstance(fields, Sequence | None):
        raise ValueError(f"fields={fields!r}: must be names of fields, 'all' or None")
    for name in fields or ():
        if name not in ALL:
            raise ValueError(f"fields: {name!r} must be one of {', '.join(ALL)}")
    return {name for name in fields or USUAL if getattr(m.of, name) is not None}


def sharers_of(m: Facts) -> dict[int, list[int]]:
    """Slot → the requests that read K/V from it, for slots that more than one of those drawn reads."""
    read = {str(i): np.array(m.kv_indices[m.kv_indptr[i] : m.kv_indptr[i + 1]]) for i in range(m.shown)}
    return {slot: list(map(int, of)) for slot, of in slots_of_several(read).items() if slot >= 0}


def single_value(of: InputMetadata, name: str) -> str:
    """A field of the whole pass as text."""
    value = getattr(of, name)
    if value is None:
        return "None"
    objects = {"attention_backend": "the model runner's", "attention_plan": "the backend's"}
    match name:
        case "forward_mode":
            return str(of.forward_mode.name)
        case "req_to_token_pool":
            return f"{value.size:,} rows × {value.max_context_len:,}"
        case "token_to_kv_pool":
            return f"{value.size:,} slots, page_size={value.page_size}"
        case "logit_rows":
            return short(value.tolist())
        case "adapters":
            used = sorted({place for place in value.of_rows.tolist() if place >= 0})
            return f"in places {short(used)}"
        case "attention_mask":
            return str(list(value.shape))
    return objects.get(name, str(value))


def in_words(m: Facts, drawn: Collection[str], sharers: Mapping[int, object]) -> str:
    of, parts = m.of, list[str]()
    for name in dict.fromkeys(
        ("req_pool_indices", "seq_lens", "prefix_lens", *PER_NEW_TOKEN, *TABLE, *PER_TOKEN, *SINGLE)
    ):
        value = getattr(of, name)
        if name not in drawn or name in ("forward_mode", "batch_size", "total_num_tokens"):
            continue
        if name == "kv_indices":
            stored = [slot for slot in m.kv_indices if slot >= 0]
            parts.append(f"kv_indices in {slots(stored, 8)}")
        elif name in SINGLE:
            parts.append(f"{name}={single_value(of, name)}")
        else:
            parts.append(f"{name}={None if value is None else short(value.tolist())}")
    if sharers:
        parts.append(f"several requests read {slots(sorted(sharers), 8)}")
    folded = len(set(ALL) - set(drawn))
    others = f"; {count(folded, 'other field')} not drawn" if folded else ""
    new = f"{count(m.num_new, 'new token')} of {of.total_num_tokens:,} in all"
    return f"{of.forward_mode.name} of {count(m.batch_size, 'request')}, {new}; {'; '.join(parts)}{others}."


def short(values: list[int]) -> str:
    return "[" + ", ".join("…" if i is None else str(values[i]) for i in abridged(len(values), 16)) + "]"
