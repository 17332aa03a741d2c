"""EngineLoop: the thread that owns an engine. It runs commands between two steps, and steps while there is work.

clients (LLM: any thread; AsyncEngine: any event loop)    the loop's thread
──────────────────────────────────────────────────────    ─────────────────────────────────────────
`post(command)`                   ──────────────►         runs commands, steps, runs commands, steps …
`Client.dispatch(updates)`        ◄──────────────         gives each client the outputs of its requests
"""

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

import torch

from nanoinfer.engine.engine import Engine
from nanoinfer.errors import EngineClosedError
from nanoinfer.outputs import RequestOutput
from nanoinfer.requests.request_group import RequestGroup, Update, materialize

Command = Callable[[], object]
logger = logging.getLogger("nanoinfer.engine")

SECONDS_IN_ONE_SLEEP = 3600.0  # a deadline may be further away than threads can wait


class Client(Protocol):
    """Whoever requests come from. Its methods are called while no pass runs."""

    def dispatch(self, updates: Sequence[Update]) -> None:
        """What is new of requests of this client: of those that have ended, their last outputs."""

    def lose(self, failure: BaseException) -> None:
        """Because of a bug, no more outputs of its requests come."""


class EngineLoop:
    """Serves with an engine whatever its clients ask for, in passes that they share (`loop_of` returns it).

    Its thread starts with the first command, sleeps while there is no work, and ends with `end`, at exit, or when garbage
    collection finds that nothing refers to the engine any more. `after_step`: functions of the engine, called in that
    thread after every step, before its outputs are handed out. `is_closed`: it runs no more commands.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._commands: SimpleQueue[Command | None] = SimpleQueue()  # None only wakes the thread
        self._clients: dict[int, Client] = {}  # by request id, until its last output
        self._posting = threading.RLock()  # held to start the thread, to post a command, and to accept no more
        self._thread: threading.Thread | None = None
        self._num_threads = torch.get_num_threads()
        self.after_step: list[Callable[[Engine], object]] = []
        self.is_closed = False
        weakref.finalize(self, self._commands.put, None).atexit = False
        _loops.add(self)

    # --- for any thread ----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """EngineClosedError when it runs no more commands."""
        self._engine.check_process()
        if self.is_closed:
            raise EngineClosedError("this engine has been shut down; it takes no more requests")

    def post(self, command: Command, may_wait: bool = True) -> None:
        """Have the thread run `command` between two steps. EngineClosedError when it runs no more. With `may_wait`, because
        the caller waits for what comes of it, RuntimeError in a thread that is in the engine: it would wait for itself."""
        if may_wait and self._engine.is_mine:
            raise RuntimeError("this thread is in the engine, which cannot serve a call before it has left")
        with self._posting:
            self.check_open()
            if self._thread is None:  # or is about to begin: a signal handler may have raised while it was started
                args = weakref.ref(self), self._commands
                threading.Thread(target=_serve, args=args, name="nanoinfer-engine", daemon=True).start()
            self._commands.put(command)

    def post_soon(self, command: Command) -> None:
        """As `post`, for what is needless once the thread has ended. Never waits: garbage collection may call it."""
        self._commands.put(command)

    def wake(self) -> None:
        """Have the thread look whether there is work."""
        if self._clients:
            self._commands.put(None)

    def use_threads_of_caller(self) -> None:
        """Compute the passes with as many threads as this one does (`torch.set_num_threads` is of one thread)."""
        self._num_threads = torch.get_num_threads()

    def end(self) -> None:
        """Abort the requests of all clients, which get their last outputs, and stop the thread. Python calls it at exit."""
        with self._engine.visit():
            with self._posting:
                self.is_closed = True
            for request_id in list(self._clients):
                self._engine.abort(request_id)
        self._commands.put(None)
        thread = self._thread
        if thread not in (None, threading.current_thread()) and thread.is_alive() and not self._engine.is_mine:
            thread.join()

    def close_runner(self) -> None:
        """End what the model's passes need, once the thread has ended."""
        self._engine.model_runner.close()

    def request_ids(self) -> set[int]:
        """The requests of clients that have not ended. May be called at any time."""
        return {*list(self._clients)}

    # --- between two steps, with the engine's lock held --------------------------------------------------------------

    def submit(self, groups: Sequence[RequestGroup], client: Client) -> list[int]:
        """Queue requests, all or none, and return their ids; `client` gets their outputs. Errors as `Engine.submit_all`."""
        self.check_open()
        request_ids = self._engine.submit_all(groups)
        self._clients.update(dict.fromkeys(request_ids, client))
        return request_ids

    def drop(self, request_id: int) -> RequestOutput | None:
        """Abort a request whose client wants no output of it any more."""
        self._clients.pop(request_id, None)
        return self._engine.abort(request_id)

    def has_work(self) -> bool:
        """True while a request of a client has something to do, or has ended and its last output is not handed out.

        A paused one has something to do when its deadline has passed.
        """
        groups, paused = self._engine.open_requests.groups, self._engine.scheduler.paused
        for request_id in list(self._clients):
            group = groups.get(request_id)
            if group is None or any(not (req.finished or req in paused) for req in group.reqs):
                return True
        return bool(self._clients) and self._engine.seconds_to_deadline() == 0

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        """Dispatch updates to the clients of their requests; returns the outputs of requests of manual steps."""
        others, by_client = list[RequestOutput](), dict[Client, list[Update]]()
        for update in updates:
            client = self._clients.get(update.request_id)
            if client is None:
                others.append(materialize(update))
                continue
            by_client.setdefault(client, []).append(materialize(update) if update.finished else update)
            if update.finished:
                del self._clients[update.request_id]
        for client, its_updates in by_client.items():
            try:
                client.dispatch(its_updates)
            except Exception as error:  # a bug, and no other client is to suffer from it
                logger.exception("outputs could not be handed out")
                self._lose(client, error)
        return others

    def _lose(self, client: Client, failure: BaseException) -> None:
        """Give up all requests of a client."""
        client.lose(failure)
        for request_id in [request_id for request_id, its in self._clients.items() if its is client]:
            self.drop(request_id)

    # --- in the thread -----------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Whether this thread is the one that serves: the first to begin."""
        with self._posting:
            if self._thread is None:
                self._thread = threading.current_thread()
            return self._thread is threading.current_thread()

    def work(self, command: Command | None) -> float | None:
        """Run the posted commands, this one first, and step until there is no work. Returns how many seconds later to look
        again; None: when it is woken."""
        try:
            self._run(command)
            while not self.is_closed:
                self._run_commands()
                if not self._step() and not self.is_closed:
                    return self._engine.seconds_to_deadline() if self._clients else None
        except BaseException as error:  # a bug, but even then no caller may wait for a thread that has ended
            logger.exception("the engine's thread ends unexpectedly")
            with self._posting:
                self.is_closed = True
            with self._engine.visit():
                for client in dict.fromkeys(self._clients.values()):
                    self._lose(client, error)
        self._run_commands()  # posted before the end: whoever waits for one gets an answer
        return None

    def _run_commands(self) -> None:
        with suppress(Empty):
            while True:
                self._run(self._commands.get_nowait())

    def _run(self, command: Command | None) -> None:
        if command is not None:
            try:
                with self._engine.visit():
                    command()
            except Exception:  # no caller waits for this command
                logger.exception("a command failed")

    def _step(self) -> bool:
        """Make a step; False if there is no work."""
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
        self._engine.let_others_in()
        with self._engine.lock:
            if self.is_closed or not self.has_work():
                return False
            try:
                updates = self._engine.make_step()
            except BaseException:  # whose requests have ended with it; it is in their last outputs
                updates = self._engine.open_requests.deliver_updates()
            self._show_step()
            self._engine.deliver_later(self.deliver(updates))
        return True

    def _show_step(self) -> None:
        for look in list(self.after_step):
            try:
                look(self._engine)
            except Exception:  # requests go on without it
                logger.exception("after_step failed, and is not called any more")
                with suppress(ValueError):  # whoever set it has removed it meanwhile
                    self.after_step.remove(look)


def loop_of(engine: Engine) -> EngineLoop:
    """The loop that owns this engine. One is made if there is none yet."""
    with engine.visit():
        if not isinstance(engine.loop, EngineLoop):
            engine.loop = EngineLoop(engine)
        return engine.loop


def _serve(reference: "weakref.ref[EngineLoop]", commands: SimpleQueue[Command | None]) -> None:
    """What the thread does. While it sleeps, it keeps neither the loop nor its engine."""
    seconds: float | None = None
    if (loop := reference()) is None or not loop.begin():
        return
    del loop
    while True:
        try:
            command = commands.get(timeout=None if seconds is None else min(seconds, SECONDS_IN_ONE_SLEEP))
        except Empty:
            command = None
        loop = reference()
        if loop is None:
            return
        seconds = loop.work(command)
        if loop.is_closed:
            return
        del loop, command


_loops: "weakref.WeakSet[EngineLoop]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """At exit, no thread may be inside compiled code any more, and the processes of a split model end."""
    for loop in list(_loops):
        with suppress(EngineClosedError):  # in a forked process, which has no such thread
            loop.end()
            loop.close_runner()
