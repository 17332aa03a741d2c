"""What the pages about tokens show is what the engine does: how one is sampled, drafts of several, and the life of one."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.requests.request_builder import RequestBuilder
from nanoinfer.sampling.sampler import Sampler
from nanoinfer.sessions.inference import InferenceEngine
from notebooks.course.explore import Bars, Cells, InteractiveFigure, Numbers, double_free, query_moves, token_life
from notebooks.course.explore.runs import Arrival, serve
from notebooks.course.explore.sampling import distributions
from notebooks.course.explore.token_life import lives_of
from notebooks.course.explore.verify_steps import COPY, DRAFTS, Pass, record_passes, verify_steps
from notebooks.course.prompts import FOX
from tests.tools.pages.conftest import PROMPT, Recorded, live, sampled

# --- sampling --------------------------------------------------------------------------------------------------------


def cut(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution, written a second way: the likeliest one by one, until there are enough."""
    weights = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-weights)[: top_k or None]
    shares = weights[order] / weights[order].sum()
    kept = order[: int(np.searchsorted(np.cumsum(shares), top_p) + 1)] if top_p < 1 else order
    result = np.zeros_like(weights)
    result[kept] = weights[kept] / weights[kept].sum()
    return result


@pytest.mark.parametrize("setting", [(0.3, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.7), (2.5, 8, 0.5), (1.5, 1, 0.9)])
def test_probabilities_are_those_with_which_the_sampler_draws(story: LLM, setting: tuple[float, int, float]) -> None:
    temperature, top_k, top_p = setting
    engine = InferenceEngine(story.model)
    logits, _ = engine.extend(engine.builder.prompt_ids(PROMPT), keep=False)
    _, after = distributions(logits, temperature, top_k, top_p)
    assert after.numpy() == pytest.approx(cut(logits[0].double().numpy(), temperature, top_k, top_p), abs=1e-5)

    draws, builder = 2000, RequestBuilder(story.model.config.vocab_size, (), None)
    params = SamplingParams(temperature=temperature, top_k=top_k or -1, top_p=top_p)
    reqs = [builder.build(i, builder.prompt_ids([1]), params)[0] for i in range(draws)]
    drawn = Sampler().sample(logits.expand(draws, -1), reqs)
    counts = torch.bincount(drawn, minlength=len(after))
    assert bool((after[counts > 0] > 0).all())
    assert float((counts / draws - after).abs().max()) < 0.06


def test_bars_and_numbers_are_of_the_distribution(recorded: Recorded, story: LLM) -> None:
    figure = recorded(sampled)
    engine = InferenceEngine(story.model)
    logits, _ = engine.extend(engine.builder.prompt_ids(PROMPT), keep=False)
    for chosen, frame in figure.frames.items():
        values = [control.values[i] for control, i in zip(figure.controls, chosen, strict=True)]
        _, after = distributions(logits, *values)
        bars, numbers = frame.panels
        assert isinstance(bars, Bars)
        assert isinstance(numbers, Numbers)
        assert sum(bar.value for bar in bars.bars) == pytest.approx(1, abs=1e-3)
        likeliest = after.sort(descending=True).values[:12].tolist()
        assert [bar.value for bar in bars.bars[:12]] == pytest.approx(likeliest, abs=1e-4)
        assert [bar.off for bar in bars.bars[:12]] == [share == 0 for share in likeliest]
        assert numbers.numbers[0].value == f"{int((after > 0).sum()):,} of 2,048"


def test_the_weights_of_a_moved_query_are_those_of_attention(story: LLM) -> None:
    figure = query_moves.query_moves(story)
    for chosen, frame in figure.frames.items():
        direction, length, token = (control.values[i] for control, i in zip(figure.controls, chosen, strict=True))
        query = length * torch.tensor([[np.cos(np.deg2rad(direction)), np.sin(np.deg2rad(direction))]]).float()
        (bars, numbers), seen = frame.panels, slice(token + 1)
        assert isinstance(bars, Bars)
        assert isinstance(numbers, Numbers)
        args = query, query_moves.KEYS[seen], query_moves.VALUES[seen]
        result = torch.nn.functional.scaled_dot_product_attention(*args)[0]
        assert [float(part) for part in numbers.numbers[-1].value.strip("[]").split(",")] == pytest.approx(
            result.tolist(), abs=6e-3
        )
        assert [bar.off for bar in bars.bars] == [i > token for i in range(3)]


def test_only_owners_notice_every_second_free() -> None:
    figure = double_free.double_free()
    wrong = {key[:2] for key, frame in figure.frames.items() if frame.sentence.endswith("which request 2 wrote.")}
    assert wrong == {(0, 0), (1, 0), (1, 1)}, "(when the second cancel comes, how free slots are kept)"
    for (_, kind, _), frame in figure.frames.items():
        (cells,) = frame.panels
        assert isinstance(cells, Cells)
        free = [cell.text for cell in cells.rows[-1].cells if cell.text]
        assert kind == 0 or len(free) == len(set(free))


# --- drafts ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def passes(recorded: Callable[[Callable[[LLM], dict[int, Pass]]], dict[int, Pass]]) -> dict[int, Pass]:
    return recorded(record_passes)


def test_there_is_a_pass_for_each_number_of_right_drafts_and_its_tokens_are_those_without_drafts(
    passes: dict[int, Pass], story: LLM
) -> None:
    (output,) = story.generate(COPY, SamplingParams(max_new_tokens=180, temperature=0, ignore_eos=True), use_tqdm=False)
    text = [*story.tokenizer.encode(COPY), *output.token_ids]
    assert sorted(passes) == list(range(1 + DRAFTS))
    for number, each in passes.items():
        assert each.got == text[each.start + 1 : each.start + 1 + len(each.got)]
        right = next((j for j in range(DRAFTS) if each.tokens[1 + j] != text[each.start + 1 + j]), DRAFTS)
        assert each.accepted == right == number
        assert each.kv_len == each.start + 1 + right
        assert each.next_tokens[0] == each.got[-1]
        wrong = each.slots[1 + right :]
        assert each.next_slots[: len(wrong)] == wrong[: len(each.next_slots)], "a wrong draft's slot is used again"


def test_each_row_reads_one_token_more_and_wrong_slots_are_written_again(
    passes: dict[int, Pass], recorded: Callable[[Callable[[LLM], InteractiveFigure]], InteractiveFigure]
) -> None:
    figure = recorded(verify_steps)
    for (i, step), frame in figure.frames.items():
        each, (cells, outcomes, *_) = passes[i], frame.panels
        assert isinstance(cells, Cells)
        assert isinstance(outcomes, Numbers)
        looks = [[cell.look for cell in row.cells] for row in cells.rows]
        for j in range(1 + DRAFTS):
            reads = looks[3 + j].count("in-use"), looks[3 + j].count("new")
            assert reads == ((1 + j, 1) if step > j else (0, 0))
        seen = [number.value for number in outcomes.numbers]
        assert [value == "doesn't count" for value in seen] == [step > j > each.accepted for j in range(1 + DRAFTS)]
        again = sum(cell.mark == "written" for cell in cells.rows[1].cells)
        last = step == len(figure.controls[1].values) - 1
        assert again == (len({*each.slots} & {*each.next_slots}) if last else 0)


# --- the life of a token ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_number", "position"), token_life.TOKENS)
def test_the_slot_and_the_owner_of_a_token_are_those_of_the_live_engine(
    request_number: int, position: int, story: LLM, recorded: Recorded
) -> None:
    trace = recorded(token_life.record_lives).trace
    lives = lives_of(trace, request_number, position)[1:]  # from the first step on
    for engine, life in zip(live(story, token_life.ARRIVALS, token_life.SLOTS), lives, strict=True):
        running = {req.request_id: req for req in engine.scheduler.running}
        rows = {number: engine.cache.rows[req.req_pool_idx, : req.kv_len].tolist() for number, req in running.items()}
        row = rows.get(request_number, [])
        if len(row) > position:
            assert life.slot == row[position]
            in_tree = position < running[request_number].tree_len
            assert life.owner == ("tree" if in_tree else "request")
        for sharer in life.sharers:
            assert rows[sharer][position] == life.slot
        tokens = trace.state().requests[request_number].tokens[: position + 1]
        match, _ = engine.radix_cache.peek_prefix(tokens)
        assert (life.owner == "tree") == (match == position + 1)


@pytest.mark.parametrize(("request_number", "position"), token_life.TOKENS)
def test_a_token_is_read_by_every_query_from_its_own_position_on(
    request_number: int, position: int, recorded: Recorded
) -> None:
    trace = recorded(token_life.record_lives).trace
    life = lives_of(trace, request_number, position)[-1]
    expected: dict[int, int] = {}
    tokens = trace.state().requests[request_number].tokens[: position + 1]
    for event in trace.events:
        for entry in event.batch:
            same = trace.state().requests[entry.request].tokens[: position + 1] == tokens
            queries = sum(place >= position for place in range(entry.start, entry.end))
            if same and queries:
                expected[event.step] = expected.get(event.step, 0) + queries
    assert life.reads == expected


def test_a_token_computed_twice_is_read_through_the_slot_that_the_tree_keeps(story: LLM) -> None:
    trace = serve(story, [Arrival(0, FOX, 3), Arrival(3, FOX, 3)], 64).trace
    known, last = lives_of(trace, 0, 12)[-1], lives_of(trace, 0, 13)[-1]
    assert known.reads == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}
    # A prompt's last token is always computed: in step 4 into a second slot, which the tree does not take.
    assert last.reads == {1: 1, 2: 1, 3: 1, 5: 1, 6: 1}
