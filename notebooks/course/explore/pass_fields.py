"""pass_fields: the InputMetadata of each pass of the worked example, also where its second request comes sooner."""

from itertools import pairwise

import torch

from nanoinfer.config import EngineConfig
from nanoinfer.llm import LLM, make_engine
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.viz import last_input_metadata
from nanoinfer.viz.words import count, runs
from notebooks.course.explore import Cell, CellRow, Cells, Control, Frame, InteractiveFigure, Number, Numbers, padded
from notebooks.course.explore.runs import one_thread

TEXTS = ["<s>", "␣", *"1234512345"]
REQUEST_1 = [1, *range(10, 16)]  # any tokens will do: what counts is where both requests have the same
PROMPTS, NEW_TOKENS = (REQUEST_1, REQUEST_1 + REQUEST_1[2:]), (10, 3)
ARRIVALS = {"with request 1": 0, "after three passes": 3, "after request 1 has ended": 10}
PASSES, COLUMNS = 13, 16
LEGEND = [("new", "computed in this pass"), ("r1", "request 1, K/V from before"), ("r2", "request 2, K/V from before")]
FIELDS = "Its InputMetadata (a | between the requests)"

Pass = tuple[InputMetadata, list[int]]  # and which requests are in it: 0 for request 1, 1 for request 2


def record_passes(llm: LLM, arrival: int) -> list[Pass]:
    """The passes of both requests. Request 2 comes after `arrival` of them."""
    config = EngineConfig(max_running_requests=4, max_context_len=48, max_total_tokens=64)
    engine, passes = make_engine(llm.model, config), list[Pass]()
    with one_thread():
        while not passes or engine.has_unfinished() or len(passes) == arrival:
            for prompt, new_tokens, step in zip(PROMPTS, NEW_TOKENS, (0, arrival), strict=True):
                if step == len(passes):
                    params = SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True)
                    engine.add_request(prompt, params)
            engine.step()
            assert engine.last_batch is not None
            passes.append((last_input_metadata(engine), [req.request_id for req in engine.last_batch.reqs]))
    return passes


def pass_fields(llm: LLM) -> InteractiveFigure:
    """When request 2 arrives and pass → the requests' tokens and slots, and the fields that say it."""
    passes = {name: record_passes(llm, arrival) for name, arrival in ARRIVALS.items()}
    return InteractiveFigure(
        "What does the model get to know about each pass?",
        "The two requests of the worked example. Step through the passes, and let request 2 come sooner: which tokens are "
        "new, which slots do they get, and what is read?",
        [
            Control("arrival", "request 2 arrives", list(ARRIVALS), start=1),
            Control("pass", "pass", list(range(1, PASSES + 1)), start=3),
        ],
        lambda name, number: _frame(*(*passes[name], *[(None, [])] * PASSES)[number - 1]),
        still=(1, 4),
        height=1080,
        runs=len(ARRIVALS),
    )


def _frame(metadata: InputMetadata | None, requests: list[int]) -> Frame:
    if metadata is None:
        empty = [CellRow(f"request {request}", [Cell()] * COLUMNS) for request in (1, 2)]
        return Frame([Cells("No pass", empty)], "All requests have ended, and there is no pass.")
    new = _parts(metadata.out_cache_loc, metadata.qo_indptr)
    read = _parts(metadata.kv_indices, metadata.kv_indptr)
    shared = set(read[0]).intersection(*read) if len(read) > 1 else set[int]()
    rows = []
    for request, slots, written in zip(requests, read, new, strict=True):
        looks = [f"r{request + 1}"] * (len(slots) - len(written)) + ["new"] * len(written)
        texts = [*TEXTS[: len(PROMPTS[request])], *(f"+{n}" for n in range(1, NEW_TOKENS[request]))]
        tokens = [Cell(look, text) for look, text in zip(looks, texts, strict=False)]
        cells = [Cell(look, str(slot), "shared" * (slot in shared)) for look, slot in zip(looks, slots, strict=True)]
        rows += [
            CellRow(f"request {request + 1}", padded(tokens, COLUMNS)),
            CellRow("its slots", padded(cells, COLUMNS)),
        ]
    legend = [each for each in LEGEND if each[0] in {cell.look for row in rows for cell in row.cells}]
    note = "+1 is the first output token." + " Both requests read the framed slots." * bool(shared)
    fields = [
        Number("forward_mode", metadata.forward_mode.name),
        *(Number(name, _values(getattr(metadata, name))) for name in ("req_pool_indices", "seq_lens", "prefix_lens")),
        Number("positions", _runs(_parts(metadata.positions, metadata.qo_indptr)), strong=True),
        Number("out_cache_loc (write)", _runs(new), strong=True),
        Number("kv_indices (read)", _runs(read), strong=True),
        *(Number(name, _values(getattr(metadata, name))) for name in ("qo_indptr", "kv_indptr", "logit_rows")),
    ]
    positions = [str(position) for position in range(COLUMNS)]
    panels = [Cells("The requests in this pass, by position", rows, legend, positions, note), Numbers(FIELDS, fields)]
    return Frame(panels, _sentence(requests, read, new))


def _parts(numbers: torch.Tensor, pointers: torch.Tensor) -> list[list[int]]:
    """Of each request, its part of a flat list."""
    return [numbers[start:end].tolist() for start, end in pairwise(pointers.tolist())]


def _runs(parts: list[list[int]]) -> str:
    return " | ".join(map(runs, parts))


def _values(numbers: torch.Tensor | None) -> str:
    return "None" if numbers is None else str(numbers.tolist())


def _sentence(requests: list[int], read: list[list[int]], new: list[list[int]]) -> str:
    said = []
    for request, slots, written in zip(requests, read, new, strict=True):
        before = len(slots) - len(written)
        after = f" after {count(before, 'token')} that have K/V" if before else ""
        said.append(f"Request {request + 1} computes {count(len(written), 'token')}{after}.")
    tokens, different = sum(map(len, read)), len({slot for slots in read for slot in slots})
    several = f", in {count(different, 'slot')}" if different < tokens else ""
    return f"{' '.join(said)} Attention reads the K/V of {count(tokens, 'token')}{several}."
