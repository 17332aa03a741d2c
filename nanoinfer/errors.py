"""Named exceptions. A wrong input raises a ValueError; a state of the engine that forbids the call, a RuntimeError."""


class UnsupportedModelError(ValueError):
    """The checkpoint needs something that is not implemented; the message names it and what is supported."""


class WeightMismatchError(ValueError):
    """A checkpoint does not fit the model: a tensor is missing, surplus or has another shape. The message names each."""


class InvalidRequestError(ValueError):
    """A request was refused on arrival: the message names the field, its value and the limit. Nothing was queued."""


class KernelsUnavailableError(ValueError):
    """The requested kernels cannot run: no compiler, or an unsupported CPU or dtype. The message says which."""


class ShapeMismatchError(ValueError):
    """The shapes of tensors do not fit together; the message names the tensor that does not fit."""


class UnknownArgumentError(TypeError, ValueError):
    """A keyword that a function does not have, or an argument under two names.

    A TypeError, as in Python, and a ValueError, as all wrong inputs here.
    """


class QueueFullError(RuntimeError):
    """A request was refused because `max_queue` requests wait already. Nothing was changed; it may be sent again later."""


class EngineClosedError(RuntimeError):
    """A request was refused because the engine has been shut down."""


class StepFailedError(RuntimeError):
    """A step that computed the request raised, which ended the request. `__cause__` is the exception."""
