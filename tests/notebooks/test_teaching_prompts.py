"""The running example: what its prompts share, and how the bundled model goes on."""

from itertools import takewhile

from nanoinfer import LLM, SamplingParams
from notebooks.course import BEAR, FOX, FOX_PROMPTS, HELLO, RIVER, STORY


def shared(llm: LLM, first: str, second: str) -> int:
    """Tokens that two prompts have in common at their beginning, `<s>` included."""
    assert llm.tokenizer is not None
    pairs = zip(llm.tokenizer.encode(first), llm.tokenizer.encode(second), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_the_prompts_share_the_beginnings_that_the_series_speaks_of(story: LLM) -> None:
    assert story.tokenizer is not None
    assert [len(story.tokenizer.encode(prompt)) for prompt in FOX_PROMPTS] == [14, 19, 14, 8]
    assert shared(story, FOX, RIVER) == 14
    assert shared(story, FOX, BEAR) == shared(story, RIVER, BEAR) == 10
    assert {shared(story, HELLO, other) for other in (FOX, RIVER, BEAR, STORY)} == {1}
    assert shared(story, STORY, RIVER) == shared(story, STORY, FOX) == 14
    assert 240 <= len(story.tokenizer.encode(STORY)) <= 260


def test_the_likeliest_continuations_are_sentences_about_the_same_animals(story: LLM) -> None:
    greedy = SamplingParams(max_new_tokens=20, temperature=0)
    texts = {prompt: story.generate(prompt, greedy)[0].text for prompt in (*FOX_PROMPTS, STORY)}
    assert texts[FOX].startswith(" She lived in a den in the forest. Lily loved")
    assert texts[RIVER].startswith(". Lily loved")
    assert texts[BEAR].startswith(" He lived in a cave in the hills. Max loved")
    assert texts[HELLO].startswith(" named Noah. Noah had a good friend")
    assert texts[STORY].startswith(" It grew and grew, until it was a tall sunflower.")
