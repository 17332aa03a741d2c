"""What the notebooks teach with: classes that grow cell by cell, exercises, and checks whose hints explain.

In a notebook:

    @extend(RadixCache)              adds the function below it to the class, as if it had been written inside
    with attempt("7.1"):             runs the reader's code, to draw what it did; one line if the exercise is not written
    check("7.1", globals())          prints one line if the exercise is right, else raises a Hint

In `nanoinfer/teaching/checks/nb07.py`, the checks of notebook 07: `@exercise("7.1", "Match a prefix")`, `expect`,
`expect_equal`, and `several` and `find_mistakes` (several.py) where an answer may have two mistakes at once.
"""

from nanoinfer.teaching.checking import attempt, check
from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import Hint, NotWritten, expect, expect_equal
from nanoinfer.teaching.growing import extend

__all__ = ["Given", "Hint", "NotWritten", "attempt", "check", "exercise", "expect", "expect_equal", "extend"]
