"""The check of notebook 00: one small exercise that shows how exercises work."""

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect_equal


@exercise("0.1", "Count the tokens that an EXTEND pass computes")
def tokens_to_compute(given: Given) -> str:
    student = given["tokens_to_compute"]
    expect_equal(student(14, 0), 14, "No token of this prompt is in the tree, so every token has to be computed")
    expect_equal(
        student(14, 10),
        4,
        "The K/V of the cached tokens is already in its slots. The pass only reads it and computes the other tokens",
    )
    expect_equal(student(5, 4), 1, "Other prompts need other answers: compute the number from the function's arguments")
    return "14 for the first request, 4 for the second"
