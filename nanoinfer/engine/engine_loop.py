"""EngineLoop: the thread that owns an engine. It runs commands between two steps, and steps while there is work.

doors (LLM: any thread; AsyncEngine: any event loop)      the loop's thread
─────────────────────────────────────────────────────     ──────────────────────────────────────────
`submit`, or `post(command)`      ──────────────►         runs commands, steps, runs commands, steps …
`Door.hand_out(updates)`          ◄──────────────         gives each door the outputs of its requests
"""

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
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.request_group import RequestGroup, Update, made
from nanoinfer.threads.exit_gate import exit_gate
from nanoinfer.threads.signals import uninterrupted

Command = Callable[[], object]
logger = logging.getLogger("nanoinfer.engine")

EXITING = "Python is exiting: this engine takes no more requests"
SECONDS_IN_ONE_SLEEP = 3600.0  # a deadline may be further away than threads can wait


class Door(Protocol):
    """A front-end through which requests come. Its methods are called while no pass runs."""

    def hand_out(self, updates: Sequence[Update]) -> None:
        """What is new of requests that came through this door: of those that have ended, their last outputs."""

    def lose(self, failure: BaseException) -> None:
        """Because of a bug, no more outputs of its requests come."""

    def after_fork(self) -> None:
        """In a forked process: end the requests of threads that are not in it."""


class EngineLoop:
    """Serves with an engine whatever comes through its doors, in passes that they share (`loop_of` returns it).

    Its thread starts with the first request or command, sleeps while there is no work, and ends with `end`, at exit, or
    when garbage collection finds that nothing refers to the engine any more. `after_step`: functions of the engine, called
    in that thread after every step, before its outputs are handed out. `is_closed`: it accepts no more requests and
    commands.
    """

    def __init__(self, engine: Engine):
        self._engine, self._turns = engine, engine.turns
        self._commands: SimpleQueue[Command | None] = SimpleQueue()  # None only wakes the thread
        self._doors: dict[int, Door] = {}  # by request id, until its last output
        self._starting = threading.RLock()  # held to start the thread, to post a command, and to accept no more
        self._thread: threading.Thread | None = None
        self._num_threads = torch.get_num_threads()
        self.is_stepping = False  # True when the thread that has the turn is about to make a step of this loop
        self.after_step: list[Callable[[Engine], object]] = []
        self.is_closed = False
        self._turns.after_fork = self._after_fork
        exit_gate.before_closing(self.end)

    # --- for any thread ----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """EngineClosedError when no more requests and commands are accepted."""
        if self.is_closed:
            raise EngineClosedError(
                EXITING if exit_gate.is_closing else "this engine has been shut down; it takes no more requests"
            )

    def check_may_wait(self) -> None:
        """RuntimeError in a thread that is in the engine: the loop could not serve what it waits for."""
        if self._turns.is_mine:
            self._turns.check_between_passes()
            raise RuntimeError("this thread is in the engine, which cannot serve a call before it has left")

    def submit(self, groups: Sequence[RequestGroup], door: Door) -> list[int]:
        """Queue requests, all or none, and return their ids; `door` gets their outputs. Errors as `Engine.submit_all`."""
        with self._turns.visit():
            self._turns.check_between_passes()
            self.check_open()
            self._start()
            request_ids = self._engine.submit_all(groups)
            self._doors.update(dict.fromkeys(request_ids, door))
        self.wake()
        return request_ids

    def drop(self, request_id: int) -> RequestOutput | None:
        """Abort a request whose door wants no output of it any more. Call it between two passes."""
        self._doors.pop(request_id, None)
        return self._engine.abort(request_id)

    @uninterrupted()
    def post(self, command: Command) -> None:
        """Have the thread run `command` between two steps. EngineClosedError when it runs no more."""
        with self._starting:
            self.check_open()
            self._start()
            self._commands.put(command)

    def start(self) -> None:
        """Start the thread if there is none, for example in a forked process."""
        if self._thread is None:
            self.wake()

    @uninterrupted()
    def wake(self) -> None:
        """Have the thread look whether there is work."""
        with self._starting:
            if self._doors and not self.is_closed:
                self._start()
                self._commands.put(None)

    def use_threads_of_caller(self) -> None:
        """Compute the passes with as many threads as this one does (`torch.set_num_threads` is of one thread)."""
        self._num_threads = torch.get_num_threads()

    def end(self) -> None:
        """Abort the requests of all doors, which get their last outputs, and stop the thread. Python calls it at exit."""
        with self._turns.visit():
            with self._starting:
                self.is_closed = True
            for request_id in list(self._doors):
                self._engine.abort(request_id)
        thread = self._thread
        if thread is not None and not self._turns.is_mine and thread is not threading.current_thread():
            self._commands.put(None)
            thread.join()

    # --- for the engine, during a turn -------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """True while a request of a door has something to do, or has ended and its last output is not handed out.

        A paused one has something to do when its deadline has passed.
        """
        groups, paused = self._engine.open_requests.groups, self._engine.scheduler.paused
        for request_id in self._doors:
            group = groups.get(request_id)
            if group is None or any(not (req.finished or req in paused) for req in group.reqs):
                return True
        return bool(self._doors) and self._engine.seconds_to_deadline() == 0

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        """Hand out updates to the doors of their requests; returns the outputs of requests that were added by hand."""
        if self.is_stepping:
            self.is_stepping = False
            self._show_step()
        by_hand, by_door = list[RequestOutput](), dict[Door, list[Update]]()
        for update in updates:
            door = self._doors.get(update.request_id)
            if door is None:
                by_hand.append(made(update))
                continue
            by_door.setdefault(door, []).append(update)
            if update.finished:
                del self._doors[update.request_id]
        for door, its_updates in by_door.items():
            try:
                door.hand_out([made(update) if update.finished else update for update in its_updates])
            except BaseException as error:  # a bug, and no other door is to suffer from it
                logger.exception("outputs could not be handed out")
                self._lose(door, error)
        return by_hand

    def request_ids(self) -> set[int]:
        """The requests of doors that have not ended. May be called at any time."""
        return {*list(self._doors)}

    # --- in the thread -----------------------------------------------------------------------------------------------

    @uninterrupted()
    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            if exit_gate.is_closing:
                raise EngineClosedError(EXITING)
            args = weakref.ref(self), self._commands
            thread = threading.Thread(target=_serve, args=args, name="nanoinfer-engine", daemon=True)
            thread.start()
            self._thread = thread
            weakref.finalize(self, self._commands.put, None).atexit = False

    def work(self, command: Command | None) -> float | None:
        """Run the posted commands, this one first, and step until there is no work. Returns how many seconds later to look
        again; None: when it is woken."""
        try:
            self._run(command)
            while not self.is_closed:
                self._run_commands()
                if not self._step() and not self.is_closed:
                    return self._engine.seconds_to_deadline() if self._doors else None
            self._run_commands()  # posted before the end: whoever waits for one gets an answer
        except BaseException as error:  # a bug, but even then no caller may wait for a thread that has ended
            logger.exception("the engine's thread ends unexpectedly")
            self._fail(error)
        return None

    def _run_commands(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            self._run(command)

    def _run(self, command: Command | None) -> None:
        if command is not None:
            try:
                with self._turns.visit():
                    command()
            except Exception:  # no caller waits for this command
                logger.exception("a command failed")

    def _step(self) -> bool:
        """Make a step; False if there is no work."""
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
        with self._turns.visit():
            if self.is_closed or not self.has_work():
                return False
            self.is_stepping = True
            try:
                by_hand = self._engine.step()
            except BaseException as error:  # the requests of the pass have ended with it, and their callers raise it
                by_hand = self._after_failed_step(error)
            finally:
                self.is_stepping = False
            self._engine.deliver_later(by_hand)
        return True

    def _after_failed_step(self, error: BaseException) -> list[RequestOutput]:
        doors = self.request_ids()
        if not self._engine.scheduler.planned:  # no request can be blamed, and every further step would fail as well
            outputs = self._engine.abort_all(error)
            return [output for output in outputs if output.request_id not in doors]
        self.is_stepping = False
        return self.deliver(self._engine.open_requests.deliver())

    def _show_step(self) -> None:
        for look in list(self.after_step):
            try:
                look(self._engine)
            except BaseException:  # requests go on without it
                logger.exception("after_step failed, and is not called any more")
                with suppress(ValueError):  # whoever set it has removed it meanwhile
                    self.after_step.remove(look)

    def _fail(self, failure: BaseException) -> None:
        with self._starting:
            self.is_closed = True  # no command is posted after this
        with self._turns.visit():
            doors = dict.fromkeys(self._doors.values())
            try:
                self._engine.abort_all(failure)
                self._engine.shutdown()
            except BaseException:
                logger.exception("the engine could not be shut down")
            for door in doors:
                self._lose(door, failure)
        self._run_commands()

    def _lose(self, door: Door, failure: BaseException) -> None:
        """Give up all requests of a door."""
        request_ids = [request_id for request_id, its_door in self._doors.items() if its_door is door]
        try:
            door.lose(failure)
            for request_id in request_ids:
                self.drop(request_id)
        except BaseException:
            logger.exception("the requests of a door could not be given up")

    def _after_fork(self) -> None:
        """In a forked process, which has not got the thread."""
        self._commands, self._starting, self._thread = SimpleQueue(), threading.RLock(), None
        for door in dict.fromkeys(self._doors.values()):
            door.after_fork()


def loop_of(engine: Engine) -> EngineLoop:
    """The loop that owns this engine. One is made if there is none yet."""
    with engine.turns.visit():
        if not isinstance(engine.loop, EngineLoop):
            engine.loop = EngineLoop(engine)
        return engine.loop


def _serve(reference: "weakref.ref[EngineLoop]", commands: SimpleQueue[Command | None]) -> None:
    """What the thread does. While it sleeps, it keeps neither the loop nor its engine."""
    seconds: float | None = None
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
