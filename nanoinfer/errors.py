"""Named exceptions: a ValueError for wrong input, a RuntimeError if the engine's state does not allow the call."""


class UnsupportedModelError(ValueError):
    """The checkpoint needs something that is not implemented; the message names it and what is supported."""


class WeightMismatchError(ValueError):
    """A checkpoint does not fit the model: tensors are missing, surplus or have another shape. The message names them."""


class AdapterError(ValueError):
    """An adapter cannot be used with the model: its files are missing, damaged, do not fit, or ask for something that is
    not implemented. The message names the adapter and what is wrong with it."""


class InvalidRequestError(ValueError):
    """A request was refused on arrival, and nothing was queued. The message names the field, its value and the limit.
    `field`: the field by itself, in our words, where one is to blame."""

    def __init__(self, message: str, field: str | None = None):
        super().__init__(message)
        self.field = field


class ContextLengthError(InvalidRequestError):
    """A prompt, or prompt and output together, are too long for the context."""


class KernelsUnavailableError(ValueError):
    """The requested kernels cannot run: no compiler, or an unsupported CPU or dtype. The message says which."""


class ShapeMismatchError(ValueError):
    """The shapes of tensors do not fit together; the message names the tensor that does not fit."""


class UnknownArgumentError(TypeError, ValueError):
    """A call has a keyword that the function does not have, or gives an argument under two names.

    It is a TypeError, as in Python, and also a ValueError, like all wrong input here.
    """


class QueueFullError(RuntimeError):
    """A request was refused because `max_queue` requests are already waiting. Nothing was changed; send it again later."""


class EngineClosedError(RuntimeError):
    """A request was refused because the engine has been shut down."""


class ReplicaLostError(EngineClosedError):
    """A request of a cluster ended because one replica after the other was lost while it was there, or none could be
    reached. Send it again later."""


class NoTokenAllowedError(RuntimeError):
    """A request ended because no token was left to choose: its grammar allows only tokens that its other parameters
    forbid, or it takes too much time or memory to follow the grammar."""


class RankError(RuntimeError):
    """A process of a model that is split over several has ended, and with it the engine. The message says which one, and
    how it ended."""


class StepFailedError(RuntimeError):
    """A step that computed the request raised an exception, and so the request ended. `__cause__` is that exception."""


class UnknownReplicaError(ValueError):
    """A router was told of a replica that it does not have, or has removed. The message names it and those that it has."""


class NoReplicaError(RuntimeError):
    """A router has no replica to send the request to. Nothing was changed; add one, or ask again later."""
