"""The live page: a chat beside the engine that answers it, drawn while it works.

    engine's thread                        event loop                                    browsers
    Recorder and StepNotes, after every pass
    View, a few times per second ──────►   Feed: text, difference, one encoding  ────►   live_state.js → live_draw.js

Nothing of this runs while nobody watches.
"""

from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.routes import routes

__all__ = ["Limits", "routes"]
