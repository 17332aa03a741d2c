"""ServeReplicas: how a door reaches the replicas, by a handle of Serve."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from ray import serve

from nanoinfer.cluster.serve.fleet import Fleet
from nanoinfer.cluster.serve.messages import Addressed, Call, Description

T = TypeVar("T")


class ServeReplicas:
    """Calls go where Serve's router sends them (see FleetRouter); what is addressed goes to one replica by its name.

    `fleet`: what the router knows; None with one of Ray's own routers.
    """

    def __init__(self, application: str, fleet: Fleet | None):
        self.fleet = fleet
        self._handle = serve.get_deployment_handle("Replica", app_name=application)

    def generate(self, call: Call) -> Any:
        """Send a call: its answers, which can be iterated over and cancelled."""
        return self._handle.options(method_name="generate", stream=True).remote(call)

    async def ask(self, method: str, message: Addressed, timeout_s: float) -> Any:
        """What a method of one replica returns. TimeoutError, or what Ray and Serve raise when it is gone."""

        async def call() -> Any:
            return await self._handle.options(method_name=method).remote(message)

        return await asyncio.wait_for(start_task(call), timeout_s)

    async def describe(self, timeout_s: float) -> Description:
        """The model, told by any replica."""
        answer: Description = await self.ask("describe", Addressed(""), timeout_s)
        return answer

    def note_first_token(self, call_id: str, cached_tokens: int) -> None:
        """Pass it on to the fleet."""
        if self.fleet is not None:
            self.fleet.note_first_token(call_id, cached_tokens)

    def note_end(self, call_id: str, output_tokens: int | None = None) -> str | None:
        """Pass it on to the fleet."""
        return None if self.fleet is None else self.fleet.note_end(call_id, output_tokens)


def start_task(coroutine: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
    """A task that does not belong to the request during which it begins. Serve tells calls of one request apart by an id
    that it finds in the context, and a request here may have many calls at once."""
    return asyncio.get_running_loop().create_task(coroutine(), context=Context())
