"""Pictures of a trace show which cached tokens came from host memory and from files: in lanes of its timeline, in rows."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("matplotlib")

from matplotlib.patches import Rectangle

from nanoinfer import LLM, RequestOutput, SamplingParams, viz
from nanoinfer.engine.stats import EngineStats
from nanoinfer.trace import Trace, record
from nanoinfer.trace.events import Fetch
from nanoinfer.trace.fetches import fetched_prefixes
from nanoinfer.trace.final import final_state
from nanoinfer.viz.palette import FETCHED, REQUESTS, ROLES
from tests.helpers.engines import greedy, make_engine, serve
from tests.helpers.pictures import assert_readable, faces, named, texts
from tests.helpers.storeys import SlowStore, storey_of, with_files
from tests.tools.trace.test_fetches import ASKS_AGAIN, LONG, PROMPTS, admitted_again, small

WHERE = {"host": "host memory", "disk": "files"}


class Run(NamedTuple):
    """A recorded run. `output`: of its last request, of which K/V was fetched."""

    trace: Trace
    output: RequestOutput
    stats: EngineStats

    @property
    def name(self) -> str:
        return f"request {self.output.request_id}"

    @property
    def tokens(self) -> dict[str, int]:
        """How many cached tokens came from which storey, as the engine says."""
        return {tier: n for tier, n in self.output.cached_tokens_by_tier.items() if n and tier != "device"}

    @property
    def step(self) -> int:
        """The step that admits the request, as the trace says in words."""
        lines = self.trace.describe().splitlines()
        return next(i for i, line in enumerate(lines) if f"{self.name} is admitted" in line)


def run(host_cache_tokens: int, files: bool = False, between: tuple[int, ...] = ()) -> Run:
    """Prompts of which the pool holds one, and the first one again. `between`: another prompt just before that."""
    clock = map(float, range(10_000)).__next__
    engine = make_engine(slots=56, host_cache_tokens=host_cache_tokens, clock=clock)
    storey_of(engine)
    if files:
        with_files(engine)
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        if between:
            serve(engine, between, max_new_tokens=1)
        (output,) = serve(engine, ASKS_AGAIN, max_new_tokens=6)
    return Run(trace, output, engine.stats())


def from_host() -> Run:
    return run(128)


def from_files() -> Run:
    return run(64, files=True)


def from_both() -> Run:
    """Host memory has room for one block more than two of the prompts."""
    made = run(80, files=True)
    assert set(made.tokens) == {"host", "disk"}
    return made


def from_pool_and_host() -> Run:
    """The beginning is in the pool again when the request comes: another one has needed it."""
    made = run(128, between=(*LONG[:18], 99))
    assert made.output.cached_tokens_by_tier["device"]
    return made


Make = Callable[[], Run]
RUNS = pytest.mark.parametrize("make", [from_host, from_files, from_both, from_pool_and_host])


def box(picture: viz.Picture, name: str) -> Rectangle:
    (found,) = [each for each in named(picture, name) if each.get_gid() == name]
    return found


def right_of(shape: Rectangle) -> float:
    return shape.get_x() + shape.get_width()


# --- the timeline ----------------------------------------------------------------------------------------------------


@RUNS
@pytest.mark.parametrize("options", [{}, {"by": "time"}, {"steps": 100}, {"occupancy": True, "last": 6}])
def test_the_pass_that_admits_a_request_has_a_strip_with_a_part_for_each_storey(
    make: Make, options: dict[str, object]
) -> None:
    made = make()
    picture = viz.timeline(made.trace, **options)
    extend = box(picture, f"extend {made.step}-{made.step}")
    parts = [box(picture, f"fetched {storey} {made.step}") for storey in made.tokens]
    assert right_of(parts[-1]) == pytest.approx(right_of(extend))
    across = right_of(parts[-1]) - parts[0].get_x()
    assert across >= extend.get_width() - 1e-6
    assert [part.get_width() for part in parts] == pytest.approx([across / len(parts)] * len(parts)), (
        "as many tokens each"
    )
    for storey, part in zip(made.tokens, parts, strict=True):
        assert part.get_width() >= 9, "or else no hatch would be seen"
        assert faces(picture, f"fetched {storey} {made.step}") == [FETCHED[storey].face]
        assert extend.get_y() < part.get_y(), "the number is above it"
        assert part.get_y() + part.get_height() == pytest.approx(extend.get_y() + extend.get_height())
    assert_readable(picture)


def test_the_storey_that_gave_more_has_the_wider_part_and_none_is_too_narrow_to_be_seen() -> None:
    made = from_both()
    made.trace.step(made.step).fetched[:] = [Fetch(4, 0, 1, 32)]
    picture = viz.timeline(made.trace)
    host, disk = (box(picture, f"fetched {storey} {made.step}").get_width() for storey in ("host", "disk"))
    assert 9 <= host < disk / 2
    assert f"{made.name} in step {made.step}: 1 token from host memory and 31 from files" in picture.alt


@RUNS
def test_alt_says_where_tokens_came_from_and_the_legend_how_many(make: Make) -> None:
    made = make()
    (first, number), *more = made.tokens.items()
    words = f"{number} tokens from {WHERE[first]}" + "".join(f" and {n} from {WHERE[storey]}" for storey, n in more)
    for picture in (viz.timeline(made.trace), viz.timeline(made.trace, by="time"), final_state(made.trace)):
        assert f"{made.name} in step {made.step}: {words}" in picture.alt
    entries = [text for text in texts(viz.timeline(made.trace)) if text.startswith("admitted with")]
    files = made.stats.disk_fetched_tokens
    in_all = {"host memory": made.stats.host_fetched_tokens - files, "files": files}
    assert entries == [
        f"admitted with K/V of {n} tokens from {where}, locked in the tree" for where, n in in_all.items() if n
    ]


def test_the_lanes_label_is_in_alt_and_what_came_before_the_last_steps_is_not() -> None:
    made = from_files()
    assert (
        f"Admitted with fetched K/V: again in step {made.step}: 32" in viz.timeline(made.trace, labels={4: "again"}).alt
    )
    after = viz.timeline(made.trace, last=len(made.trace) - made.step)
    assert "fetched" not in after.alt
    assert not named(after, "fetched")
    assert not [text for text in texts(after) if text.startswith("admitted")]


def test_a_strip_that_is_wider_than_its_pass_stays_right_of_the_labels() -> None:
    engine = small()
    serve(engine, *PROMPTS, max_new_tokens=1)
    with record(engine) as trace:
        serve(engine, ASKS_AGAIN, max_new_tokens=6)
    picture = viz.timeline(trace, steps=400)
    assert box(picture, "fetched host 1").get_x() == pytest.approx(box(picture, "pass 1").get_x())
    assert_readable(picture)


@pytest.mark.usefixtures("patient_files")
def test_a_request_that_waits_for_files_is_seen_to_wait(tmp_path: Path) -> None:
    one, more = (SamplingParams(max_new_tokens=n, temperature=0, ignore_eos=True) for n in (1, 12))

    def start() -> LLM:
        return LLM("story", max_total_tokens=96, max_context_len=80, host_cache_tokens=64, cache_dir=tmp_path / "kv")

    before, prompt = start(), [5, *range(100, 163)]
    before.generate(prompt, one, use_tqdm=False)
    before.save_cache()
    engine = start().engine
    slow = SlowStore(engine)
    with record(engine) as trace:
        engine.add_request([6, 7, 8], more)
        engine.step()
        waits = engine.add_request(prompt, one)
        for _ in range(3):
            engine.step()
        slow.read_all()
        outputs = [output for _ in range(12) for output in engine.step()]
    tiers = next(output for output in outputs if output.request_id == waits).cached_tokens_by_tier
    assert tiers["disk"] > 0 == tiers["host"]
    picture = viz.timeline(trace)
    (fetched,) = named(picture, "fetched disk")
    (waiting,) = named(picture, "waiting")
    step = int((fetched.get_gid() or "").split()[-1])
    assert waiting.get_gid() == f"waiting 2-{step - 1}"
    assert step > 4
    assert f"request 1 waits {step - 2} steps · extends {len(prompt) - tiers['disk']}" in picture.alt
    assert f"request 1 in step {step}: {tiers['disk']} tokens from files" in picture.alt


def test_what_is_fetched_when_a_request_is_admitted_again_is_in_its_lane_but_in_no_row() -> None:
    trace = admitted_again()
    picture = final_state(trace)
    assert "Admitted with fetched K/V: request 1 again in step 3: 32 tokens from host memory." in picture.alt
    assert named(picture, "fetched host 3")
    assert not [text for text in texts(picture) if text.startswith("Prompts")]


def test_a_fetch_may_come_steps_before_the_admission() -> None:
    """As when there was room in the pool, but none in the pass."""
    made = from_both()
    event, before = made.trace.step(made.step), next(event for event in made.trace.events if 4 in event.arrived)
    assert event is not before
    before.fetched, event.fetched = event.fetched, []
    (prefix,) = fetched_prefixes(made.trace)
    assert (prefix.request, prefix.step, prefix.tokens, prefix.again) == (4, made.step, made.tokens, False)
    event.fetched = [Fetch(0, 0, 32, 32)]  # for another request, which has ended
    assert fetched_prefixes(made.trace) == [prefix]


# --- rows ------------------------------------------------------------------------------------------------------------


@RUNS
def test_a_row_has_the_parts_of_a_prompt(make: Make) -> None:
    made = make()
    picture, tiers = final_state(made.trace), made.output.cached_tokens_by_tier
    counts = {"tree": tiers["device"], "host": tiers["host"], "disk": tiers["disk"]}
    counts["rest"] = len(ASKS_AGAIN) - sum(counts.values())
    counts = {where: tokens for where, tokens in counts.items() if tokens}
    looks = FETCHED | {"tree": ROLES["tree_locked"], "rest": REQUESTS[made.output.request_id]}
    words = {"tree": "in the tree", "host": "from host memory", "disk": "from files", "rest": "left to compute"}
    at, x, said = 0, box(picture, f"{made.name} {next(iter(counts))}").get_x(), []
    for where, tokens in counts.items():
        part = box(picture, f"{made.name} {where}")
        assert faces(picture, f"{made.name} {where}") == [looks[where].face]
        assert part.get_x() == pytest.approx(x)
        inside = [
            text.get_text()
            for text in picture.axes[0].texts
            if x < text.get_position()[0] < right_of(part)
            and part.get_y() - 12 < text.get_position()[1] < part.get_y() + part.get_height()
        ]
        assert inside == [str(tokens), f"{at}-{at + tokens - 1}"]
        said.append(f"{at}-{at + tokens - 1} {words[where]}")
        at, x = at + tokens, right_of(part)
    assert at == len(ASKS_AGAIN)
    assert (
        f"{made.name}: {', '.join(said)}." in picture.alt.partition("Positions of prompts whose K/V was fetched: ")[2]
    )
    assert_readable(picture)


def test_what_was_fetched_before_the_trace_began_has_a_row_and_no_strip() -> None:
    engine = small()
    serve(engine, *PROMPTS, max_new_tokens=1)
    request_id = engine.add_request(ASKS_AGAIN, greedy(5))
    engine.step()
    with record(engine) as trace:
        engine.step()
    picture = final_state(trace)
    assert f"request {request_id}: 0-31 from host memory, 32-40 left to compute." in picture.alt
    assert "Admitted" not in picture.alt
    assert not named(picture, "fetched")


def test_of_many_requests_the_first_rows_are_drawn_and_the_others_are_counted() -> None:
    engine = small()
    with record(engine) as trace:
        serve(engine, *PROMPTS, max_new_tokens=1)
        for i in range(11):
            (output,) = serve(engine, [*PROMPTS[i % 2], 120 + i % 3], max_new_tokens=1)
            assert output.cached_tokens_by_tier["host"]
    picture = final_state(trace)
    assert len(named(picture, "request ")) == len([t for t in texts(picture) if t == "position"]) * 2 == 16
    assert "… and 3 more requests." in texts(picture)
    assert picture.alt.endswith("; and 3 more.")
    assert "; and 3 more. In the end" in picture.alt, "of the timeline"


# --- traces without fetches ------------------------------------------------------------------------------------------


def test_with_storeys_but_no_fetch_pictures_are_those_without_storeys() -> None:
    def pictures(host_cache_tokens: int | None) -> list[viz.Picture]:
        clock = map(float, range(10_000)).__next__
        engine = make_engine(slots=56, host_cache_tokens=host_cache_tokens, clock=clock)
        with record(engine) as trace:
            serve(engine, *PROMPTS[:2], max_new_tokens=1)
        assert bool(trace.storeys) == bool(host_cache_tokens)
        return [viz.timeline(trace), viz.timeline(trace, by="time", occupancy=True), final_state(trace)]

    for plain, other in zip(pictures(None), pictures(128), strict=True):
        assert plain.alt == other.alt
        assert texts(plain) == texts(other)
        shapes = [[(p.get_gid(), p.get_bbox().bounds) for p in named(each, "")] for each in (plain, other)]
        assert shapes[0] == shapes[1]


@RUNS
def test_a_loaded_trace_has_the_same_pictures(make: Make, tmp_path: Path) -> None:
    made = make()
    made.trace.save(tmp_path / "a.json")
    loaded = Trace.load(tmp_path / "a.json")
    assert viz.timeline(loaded).alt == viz.timeline(made.trace).alt
    assert texts(final_state(loaded)) == texts(final_state(made.trace))
    assert final_state(loaded).alt == final_state(made.trace).alt
