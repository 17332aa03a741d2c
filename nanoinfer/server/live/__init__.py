"""The live page: a chat beside the engine that answers it, drawn while it works.

    engine's thread           event loop                                        browsers
    Recorder, every pass ──►  Recording: what is new, ten times per second ──►  state.js → draw.js, as in the trace player
                              Feed: the same messages for all who watch

Nothing of this runs while nobody watches. Where the feed hides tokens, a page puts in the texts of its own requests
(static/live.js); the server tells nobody what others have written.
"""

from nanoinfer.server.live.routes import routes

__all__ = ["routes"]
