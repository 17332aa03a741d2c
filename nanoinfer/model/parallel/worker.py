"""A rank other than 0: `python -m nanoinfer.model.parallel.worker RANK SIZE PORT PARENT`. It has a share of weights and of
K/V, and obeys rank 0."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.errors import RankError
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.attention.base import wanted_features
from nanoinfer.model.loader import LoadedModel, load_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.model.parallel.communicator import Communicator, GroupCommunicator
from nanoinfer.model.parallel.load import ModelShare, device_of
from nanoinfer.model.parallel.messages import Message, ReceivedAdapters, received_pass
from nanoinfer.model.parallel.ranks import LOST
from nanoinfer.model.parallel.rendezvous import Rendezvous

SECONDS_BETWEEN_LOOKS = 0.5  # whether the parent is still there


class Worker:
    """What a rank does. Its pools have rank 0's slot numbers; which of them are free, only rank 0 knows."""

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self._model: LoadedModel | None = None
        self._runner: ModelRunner | None = None
        self._adapters: ReceivedAdapters | None = None

    def run(self) -> None:
        """Do what rank 0 says, until it says that this is the end. Raises what any of it raises."""
        actions: dict[str, Callable[[Message], None]] = {
            "load": self._load,
            "serve": self._serve,
            "adapter": self._put_adapter,
            "pass": self._compute,
        }
        while (message := Message.decode(self._communicator.receive())).kind != "end":
            with self._communicator.together():
                actions[message.kind](message)

    def _load(self, message: Message) -> None:
        """Load this rank's share of a model. `values`: the arguments of `load_model`, and `threads`, this rank's processors
        (None: leave them as they are)."""
        options = dict(message.values)
        options["device"] = device_of(options["device"], self._communicator.shard.rank)
        if (threads := options.pop("threads")) is not None:
            torch.set_num_threads(threads)
        self._model = load_model(**options, split=ModelShare(self._communicator))
        self._communicator.barrier()

    def _serve(self, message: Message) -> None:
        """Make room for K/V: as many slots as rank 0 has, each with this rank's heads."""
        assert self._model is not None
        values, model = message.values, self._model
        pool = model.new_kv_pool(values["max_total_tokens"], values["page_size"], values["kv_cache_dtype"])
        wanted = wanted_features(model.model, pool.kv_storage)
        backend = select_attention_backend(values["attention_backend"], model.dtype, model.device, wanted)
        self._runner = ModelRunner(model.model, ReqToTokenPool(1, 1), pool, backend)
        self._adapters = ReceivedAdapters(model.model, values["max_adapters_on_device"])
        self._communicator.barrier()

    def _put_adapter(self, message: Message) -> None:
        assert self._adapters is not None
        self._adapters.put(message)

    def _compute(self, message: Message) -> None:
        assert self._runner is not None
        assert self._adapters is not None
        self._runner.run(*received_pass(message, self._runner, self._adapters.tables))


def main(rank: int, size: int, port: int, parent: int) -> int:
    """Serve rank 0, and return the exit code. `port`: of rank 0's store, where the ranks find each other. `parent`: the
    process that this one must not outlive."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    return serve_rank(Rendezvous.at_port(rank, size, port))


def _end_with(parent: int) -> None:
    """End this process soon after its parent, whatever it is doing. Usually the lost connection has ended it before; but
    not while it loads a model, nor if the parent has forked processes that keep the connection."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def serve_rank(rendezvous: Rendezvous) -> int:
    """Be the rank of `rendezvous` until rank 0 ends it, and return the exit code: 0, or LOST when the connection is lost,
    because another rank has ended. If this rank fails, it says why on standard error.

    Ctrl-C is for rank 0, which then decides.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        communicator = GroupCommunicator(rendezvous)
        Worker(communicator).run()
        communicator.close()
    except RankError as error:
        print(f"nanoinfer: rank {rendezvous.shard.rank}: {error}", file=sys.stderr)
        return LOST
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main(*map(int, sys.argv[1:]))
    if code:
        # Threads of a connection that was never closed are still there: if Python ends in good order, C++ aborts it.
        sys.stderr.flush()
        os._exit(code)
