"""The kinds of panels: what each shows, in words and on paper. In the page, panels.js draws them."""
