"""The difference of two states, which is what most frames carry. static/live_state.js has the inverse."""

from typing import Any

State = dict[str, Any]


def difference(before: State, after: State) -> State:
    """What must be set in `before` to make it `after`: fields that are new or different, and None for those that are gone.

    Dicts within are compared field by field, everything else as a whole. No field of a state may be None itself.
    """
    changes: State = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                changes[name] = inner
        elif value != old or name not in before:
            changes[name] = value
    changes.update((name, None) for name in before if name not in after)
    return changes
