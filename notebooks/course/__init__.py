"""What the notebooks teach with: classes that grow cell by cell, exercises, and checks whose hints explain.

In a notebook:

    @extend(RadixCache)              adds the function below it to the class, as if it had been written inside
    with attempt("8.1"):             runs the student's code, to draw what it did; one line if the exercise is not written
    check("8.1", globals())          prints one line if the exercise is right, else raises a Hint
    with answer():                   folds what its block prints and displays under "Show the answer"
    with if_real():                  runs SmolLM2: `LLM(real_model())`; one line where it is not installed (real.py)
    FOX, RIVER, BEAR, HELLO, STORY   the prompts that run through the series (prompts.py)

Workloads, counted in steps or by the clock, are in workloads.py: `from notebooks.course.workloads import Request, serve`.
Pictures of single notebooks are in pictures/: `from notebooks.course import pictures`.
A live widget is in widgets.py, which loads ipywidgets and matplotlib: `from notebooks.course.widgets import try_slots`.

In `notebooks/course/checks/nb08.py`, the checks of notebook 08: `@exercise("8.1", "Split a node")`, `expect`,
`expect_equal`, and `compare` (tables.py), which runs cases, and knows usual mistakes by what they give.
"""

from notebooks.course.answers import answer
from notebooks.course.checking import attempt, check
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, NotWritten, expect, expect_equal
from notebooks.course.growing import extend
from notebooks.course.prompts import BEAR, FOX, FOX_PROMPTS, HELLO, RIVER, STORY
from notebooks.course.real import if_real, real_model

__all__ = [
    "BEAR",
    "FOX",
    "FOX_PROMPTS",
    "HELLO",
    "RIVER",
    "STORY",
    "Given",
    "Hint",
    "NotWritten",
    "answer",
    "attempt",
    "check",
    "exercise",
    "expect",
    "expect_equal",
    "extend",
    "if_real",
    "real_model",
]
