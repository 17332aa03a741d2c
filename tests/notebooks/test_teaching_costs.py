"""The cost table of the notebooks: its columns are what the engines did."""

import pytest

from nanoinfer import LLM
from notebooks.course.costs import NEW_TOKENS, WAYS, CostTable, cost_table
from notebooks.course.prompts import FOX_PROMPTS


@pytest.fixture(scope="module")
def table(story: LLM) -> CostTable:
    return cost_table("11", story.model)


def test_every_way_computes_what_its_idea_says(table: CostTable, story: LLM) -> None:
    lens = [len(story.tokenizer.encode(prompt)) for prompt in FOX_PROMPTS]
    cost = {name[:2]: column for name, column in table.columns.items()}
    assert list(cost) == list(WAYS)
    assert cost["02"].tokens_computed == sum(sum(range(n, n + NEW_TOKENS)) for n in lens)
    once = sum(lens) + len(lens) * (NEW_TOKENS - 1)
    assert [cost[number].tokens_computed for number in ("03", "04", "05", "07")] == [once] * 4
    assert (cost["02"].passes, cost["03"].passes) == (len(lens) * NEW_TOKENS,) * 2
    assert (cost["04"].passes, cost["07"].passes) == (len(lens) + NEW_TOKENS - 1, NEW_TOKENS)
    assert cost["04"].padding_read == cost["05"].padding_read > cost["07"].padding_read == 0
    assert cost["04"].kv_copied > cost["05"].kv_copied == 0
    assert cost["09"].tokens_computed < cost["08"].tokens_computed < once
    token = story.model.config.kv_bytes_per_token(story.model.dtype)
    everything = sum(lens) + len(lens) * (NEW_TOKENS - 1)
    assert [cost[number].kv_held // token for number in ("04", "05", "07")] == [everything] * 3
    assert cost["03"].kv_held // token == max(lens) + NEW_TOKENS - 1
    assert cost["10"].kv_held // token <= 64
    assert cost["10"].passes > cost["07"].passes
    assert cost["11"].longest_pass == 8 < cost["07"].longest_pass == sum(lens)
    reading = story.model.config.kv_bytes_per_token(story.model.dtype) * sum(
        sum(range(n + 1, n + NEW_TOKENS)) for n in lens
    )
    assert {column.kv_read for name, column in cost.items() if name != "02"} == {reading}


def test_the_table_is_text_and_html(table: CostTable, story: LLM) -> None:
    short = cost_table("04", story.model)
    assert [name[:2] for name in short.columns] == ["02", "03", "04"]
    head, *rows = str(short).splitlines()
    assert head.split("  ")[0] == f"{NEW_TOKENS} new tokens for each of 4 prompts"
    assert len(rows) == 8
    assert all(f"{column.tokens_computed:,}" in rows[1] for column in short.columns.values())
    assert short._repr_html_().count("<tr>") == 9
