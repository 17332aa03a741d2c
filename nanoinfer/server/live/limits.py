"""How much a frame of the live page may hold, how often there is one, and how many browsers may watch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What is beyond a limit is left out of the frame, and the frame says how much that is.

    - `frames_per_second`: at most so many frames; and making them takes at most `share_of_time` of a core.
      `sends_per_second`: at most so many frames for all browsers together. A frame is made once for all of them, but sent
      to each, which takes 50 microseconds of a core: with 10 browsers there are 10 frames per second, with 30 there are 3.
    - `watchers`: so many browsers at the same time. `send_seconds`: one that does not take a frame for so long is dropped.
    - `running`, `waiting`, `paused`, `ended`: requests in a frame. `rows`: those of which the slots are given.
    - `tape_steps`, `tape_seconds`: what the tape holds at most; then it begins anew.
    - `nodes`: nodes of the tree. `cells`: of the map of slots. `runs`: runs of neighbouring slots of a row or a node.
    - `characters`: of a text in a frame, which is made of `node_tokens` or `prompt_tokens` tokens at most. `text_tokens`:
      tokens of a node whose text a reader asks for.
    """

    frames_per_second: float = 10.0
    share_of_time: float = 0.01
    sends_per_second: float = 100.0
    watchers: int = 64
    send_seconds: float = 30.0
    tape_steps: int = 3000
    tape_seconds: float = 180.0
    running: int = 128
    waiting: int = 16
    paused: int = 8
    ended: int = 12
    rows: int = 16
    nodes: int = 80
    cells: int = 2048
    runs: int = 36
    characters: int = 240
    node_tokens: int = 32
    prompt_tokens: int = 96
    text_tokens: int = 4096
