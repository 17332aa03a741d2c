"""The check of notebook 00: one small exercise that shows how exercises work."""

from notebooks.course.exercises import Given, exercise
from notebooks.course.tables import expect_rows


@exercise("0.1", "Count the tokens that an EXTEND pass computes")
def _(given: Given) -> str:
    cached = (
        "The K/V of the cached tokens is already in its slots. The pass only reads it and computes the other tokens"
    )
    expect_rows(
        given["tokens_to_compute"],
        [
            (14, 0, 14, "No token of this prompt is in the tree, so every token has to be computed"),
            (14, 10, 4, cached),
            (5, 4, 1, "Other prompts need other answers: compute the number from the function's arguments"),
        ],
    )
    return "14 for the first request, 4 for the second"
