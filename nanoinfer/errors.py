"""Named exceptions. What was wrong with an input is a ValueError; what is the engine's own state, a RuntimeError."""


class UnsupportedModelError(ValueError):
    """The checkpoint needs something this engine does not implement; the message names it and what is supported."""


class WeightMismatchError(ValueError):
    """A checkpoint and the model disagree: a tensor is missing, surplus or has another shape. Each one is named."""


class InvalidRequestError(ValueError):
    """A request was refused on arrival: the message names the field, its value and the limit. Nothing was queued."""


class KernelsUnavailableError(ValueError):
    """The kernels that were asked for cannot run here: no compiler, a CPU or a dtype they are not for. The message says."""


class ShapeMismatchError(ValueError):
    """Tensors do not have the shapes that they must have together; the message names the one that does not fit."""


class UnknownArgumentError(TypeError, ValueError):
    """A keyword that a function does not have. Both what Python raises for it and, as all refusals here, a ValueError."""


class QueueFullError(RuntimeError):
    """A request was refused because `max_queue` others wait. Nothing was changed: it may be tried again later."""


class EngineClosedError(RuntimeError):
    """A request was refused because the engine has been shut down."""


class StepFailedError(RuntimeError):
    """The step that a request was in raised, and the request ended with it. `__cause__` is what was raised."""
