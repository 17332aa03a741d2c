"""Refusal: why a grammar cannot be served."""


class Refusal(ValueError):
    """Why a grammar cannot be served, in words that follow its name. As a result it is the compiler's verdict, which is
    kept. Raised, it says nothing about the grammar itself, and the next request with it is tried again."""
