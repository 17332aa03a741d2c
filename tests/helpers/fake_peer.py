"""An engine for the benchmark's tests that needs no model: one token per request and step, known in advance."""

import os
import signal
import sys


class Peer:
    """`trouble` (fail, die, hang, short): what to do when a prompt has `when` tokens. `noise`: print where answers must not
    go. `release`: its version. `flat`: how far its logits are from sure."""

    def __init__(
        self,
        model,
        dtype,
        threads,
        when=-1,
        trouble="",
        off_by=0,
        prefix_cache=True,
        noise=False,
        refuse=False,
        release="1.0",
        flat=0.0,
        adapters=None,
        refuse_adapters=False,
        **settings,  # such as `weights`, which only sort an engine into a table
    ):
        if refuse:
            raise FileNotFoundError(f"{model}.fake: not found; make it")
        if refuse_adapters and adapters:
            raise ValueError("this build has no adapters")
        self.when, self.trouble, self.off_by, self.prefix_cache = when, trouble, off_by, prefix_cache
        self.live, self.primed = {}, []
        self.versions, self.flat, self.adapters = {"fake": release}, flat, adapters or {}
        if noise:
            print("from Python")
            os.write(1, b"from C\n")

    def prepare(self, shared):
        self.live.clear()

    def logits(self, tokens):
        """After token t comes t + 1, of 8 tokens; `flat` moves logits to the token after that."""
        import numpy as np

        rows = np.zeros((len(tokens), 8))
        rows[np.arange(len(tokens)), (np.array(tokens) + 1) % 8] = 2.0 - self.flat
        rows[np.arange(len(tokens)), (np.array(tokens) + 2) % 8] = self.flat
        return rows

    def add(self, index, prompt, new_tokens, adapter=None):
        if adapter is not None:
            assert os.path.isfile(os.path.join(self.adapters[adapter], "adapter_config.json"))
        if len(prompt) == self.when:
            if self.trouble == "fail":
                raise MemoryError("no room")
            if self.trouble == "die":
                print("first line\nthe last words", file=sys.stderr)
                os._exit(7)
            if self.trouble == "hang":
                while True:
                    signal.pause()
            if self.trouble == "short":
                new_tokens -= 1
        self.live[index] = [sum(prompt) + self.off_by, new_tokens]

    def busy(self):
        return bool(self.live)

    def step(self, emit):
        for index, state in list(self.live.items()):
            state[0], state[1] = state[0] + 1, state[1] - 1
            emit(index, [state[0] % 1000])
            if not state[1]:
                del self.live[index]
