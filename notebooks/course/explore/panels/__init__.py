"""The kinds of panels: for each a file that says what it shows (.py) and one that draws it in the page (.js)."""
