"""check and attempt: what an exercise's cells call; and name_meant, which attribute was meant where there is none."""

import linecache
import logging
import re
import warnings
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import TracebackType
from typing import Any

from notebooks.course.exercises import Exercise, Given, find
from notebooks.course.expectations import CannotBeRead, Hint, NotWritten

_STUB = re.compile(r"(?:exercise (\d+\.\d+))?")  # the message of a stub; nbgrader's stub has none
_logger = logging.getLogger("nanoinfer.engine")


def check(id: str, namespace: Mapping[str, Any]) -> None:
    """Check exercise `id` ("5.1") in a notebook's namespace (`globals()`): prints one line if it is right.

    Raises Hint if it is not: the exercise is not written yet, Python cannot read its cell or its code raises (the hint
    shows the line), or its answer is wrong. ValueError if there is no such exercise.
    """
    exercise = find(id)
    cells = namespace.get("In")  # IPython's: the sources of the cells, in the order in which they were run
    proved = run_check(exercise, namespace, cells if isinstance(cells, list) else ())
    print(f"✓ {exercise.id} {exercise.title}" + (f": {proved}" if proved else ""))


def run_check(exercise: Exercise, namespace: Mapping[str, Any], cells: Sequence[object] = ()) -> str | None:
    """Run one checker; returns its text about what is proved, if any. Raises only Hint, whatever the notebook's code does
    (except KeyboardInterrupt). `cells`: the sources that were run, for the hint about one that Python cannot read: what was
    checked then is what its name meant before, a stub or nothing."""
    given = Given(namespace)
    try:
        return _checked(exercise, namespace, given)
    except Hint:
        if problem := unread(cells, given.asked):
            said = f"{exercise.id} {exercise.title}: Python can't read your code, so it didn't run\n  {problem}"
            raise CannotBeRead(said) from None
        raise


def _checked(exercise: Exercise, namespace: Mapping[str, Any], given: Given) -> str | None:
    head = f"{exercise.id} {exercise.title}"
    try:
        return exercise.checker(given)
    except Hint as hint:
        raise type(hint)(f"{head}: {hint}") from None
    except NotImplementedError as error:
        if stub := _STUB.fullmatch(str(error)):
            raise NotWritten(f"{head}: {_unwritten(exercise.id, stub[1])}") from None
        raise Hint(_described(head, error, namespace)) from error
    except (Exception, SystemExit) as error:
        raise Hint(_described(head, error, namespace)) from error


class attempt:
    """`with attempt("5.1"):` runs its block; where that needs an exercise that is not written yet, prints one line.

    Every other exception passes through: it comes from the student's code, and its traceback shows where. To one
    that asks for an unknown attribute a note is added, which names the attribute that was meant. What the engine logs about
    an exception meanwhile says the same, so it is not shown.
    """

    def __init__(self, id: str):
        self.id = id

    def __enter__(self) -> None:
        self._was_disabled, _logger.disabled = _logger.disabled, True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        _logger.disabled = self._was_disabled
        stub = _STUB.fullmatch(str(error)) if isinstance(error, NotImplementedError) else None
        if stub is None:
            if error is not None and (meant := name_meant(error)):
                error.add_note(meant)
            return False
        print(f"{self.id}: {_unwritten(self.id, stub[1])}")
        return True


def _unwritten(id: str, stub: str | None) -> str:
    return "not written yet." if stub in (id, None) else f"needs exercise {stub}, which isn't written yet."


def _described(head: str, error: BaseException, namespace: Mapping[str, Any]) -> str:
    """The exception and the student's lines that led to it; if there are none, the checker failed on the answer."""
    message = str(error)[:1000]
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if meant := name_meant(error):
        what = f"{what}. {meant}"
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals is namespace:
            code = linecache.getline(frame.f_code.co_filename, traceback.tb_lineno).strip()
            place = f"in {frame.f_code.co_name}, line {traceback.tb_lineno} of its cell"
            lines.append(f"\n  {place}: {code}" if code else f"\n  {place}")
        traceback = traceback.tb_next
    if lines:
        return f"{head}: your code raises {what}{''.join(lines[-3:])}"
    return f"{head}: the check can't work with what your code gives: {what}"


def unread(cells: Sequence[object], names: Collection[str]) -> str | None:
    """Where and why Python cannot read the newest of these `cells` (sources, in the order in which they were run) that
    gives one of `names` a value or a member. None if it can, or there is no such cell."""
    any_name = "|".join(map(re.escape, names))
    others = rf"@extend\(\s*(?:{any_name})\b|(?:{any_name})\s*(?::[^=]*)?=(?!=)"
    gives = re.compile(rf"^(?:(?:async\s+)?(?:def|class)\s+(?:{any_name})\b|{others})", re.MULTILINE)
    # Also `deff name(...):`, which is no definition.
    misspelt = re.compile(rf"^(?:(?:\w+\s+){{1,2}}(?:{any_name})\b|{others})", re.MULTILINE)
    for cell in reversed(cells) if names else ():
        if not isinstance(cell, str):
            continue
        if misspelt.search(cell) and (problem := _problem(cell)):
            return problem
        if gives.search(cell):
            return None
    return None


def _problem(cell: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(cell, "<cell>", "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        if error.lineno is None:
            return f"{type(error).__name__}: {error.msg}"
        line = (cell.splitlines()[error.lineno - 1 : error.lineno] or [""])[0].strip()
        return f"line {error.lineno} of its cell: {line}\n  {type(error).__name__}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):  # of what no notebook's cell says
        pass
    return None


# Names that libraries, papers and this package have for the same thing; an object has one of each line at most.
SAME_THING = (
    "num_attention_heads num_heads n_heads n_head num_q_heads num_query_heads heads H",
    "num_key_value_heads num_kv_heads n_kv_heads n_kv_head n_head_kv kv_heads num_query_groups head_num Hk",
    "num_hidden_layers num_layers n_layers n_layer layers layer_num L",
    "head_dim head_size d_head dim_head dim_per_head d_k D",
    "hidden_size d_model n_embd embed_dim embedding_dim dim hidden_dim model_dim",
    "intermediate_size d_ff ffn_dim ffn_hidden_size mlp_dim n_inner",
    "vocab_size n_vocab vocab V",
    "max_position_embeddings max_context_len max_model_len max_seq_len context_length n_ctx n_positions block_size max_len",
    "rms_norm_eps norm_eps layer_norm_eps layer_norm_epsilon eps epsilon",
    "rope_theta rope_base rotary_base theta base",
    "tie_word_embeddings tied_embeddings weight_tying",
    "page_size block_size tokens_per_block P",
    "seq_lens context_lens kv_lens cache_seqlens sequence_lengths",
    "prefix_lens cached_lens num_computed_tokens",
    "out_cache_loc slot_mapping slots slot_indices",
    "req_to_token block_tables block_table page_table",
    "req_pool_indices req_indices row_indices rows",
    "qo_indptr query_start_loc cu_seqlens_q",
    "kv_indptr cu_seqlens_k cu_seqlens_kv",
    "available_size num_free num_free_blocks free_size num_available",
    "key tokens token_ids",
    "value values slots indices",
    "lock_ref ref_count refcount ref_cnt locks",
    "hit_count hits access_count",
)
_LISTED = 12  # an object with more attributes than these is not listed
_BRACKETS = re.compile(r"'[\w.]+' object is not subscriptable")
_WITHOUT_FIELDS = re.compile(r"'(NoneType|bool|int|float|complex|generator|function|method|builtin\w*)'")


def name_meant(error: BaseException) -> str:
    """A sentence that names the attribute that was meant where an AttributeError arose, or the few there are, or "".

    Where an object was taken for a dict, says how a field is read. Never raises, whatever the object of the error is.
    """
    if type(error) is TypeError and _BRACKETS.fullmatch(str(error)) and not _WITHOUT_FIELDS.match(str(error)):
        return 'A field of an object is read with a dot: `x.name`, not `x["name"]`.'
    if not isinstance(error, AttributeError) or not error.name or error.obj is None:
        return ""
    try:
        present = [name for name in dir(error.obj) if not name.startswith("_")]
        if meant := _meant(error.name, present):
            is_method = callable(getattr(error.obj, meant))
            return f"The {'method' if is_method else 'field'} is called `{meant}`."
        fields = [name for name in vars(error.obj) if not name.startswith("_")]
    except Exception:  # the object is the student's, and may raise whatever it is asked
        return ""
    return f"It has {', '.join(f'`{name}`' for name in fields)}." if 0 < len(fields) <= _LISTED else ""


def _meant(name: str, present: list[str]) -> str | None:
    """That of the names `present` that means the same as `name`, or else that is spelt like it or like a name for it.

    None where `name` means, or is spelt most like, something that the object does not have: `head_size` looks like
    `hidden_size` and is something else.
    """
    names = {
        other: field for line in SAME_THING for field in line.split() if field in present for other in line.split()
    }
    if name in names:
        return names[name]
    words = set(" ".join(SAME_THING).split())
    others = set(present) - words  # fields that no line has, so that only their spelling tells
    close = get_close_matches(name, others, 1, 0.85) or get_close_matches(name, words | others, 1)
    return next((names.get(word, word if word in others else None) for word in close), None)
