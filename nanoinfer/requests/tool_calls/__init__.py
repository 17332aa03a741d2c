"""What a model's reply is made of: text, reasoning, and tool calls, which each family of models writes in its own way.

`reply.py` reads a reply piece by piece, with a CallFormat (`call_format.py`) and a ReasoningFormat (`reasoning.py`). To add
a format: a file like `hermes.py`, and a line in `registry.py`. The server, the grammars that demand calls, and requests
that end with one use it then.
"""
