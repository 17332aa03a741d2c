"""The fleets of this process: where Serve's router and the door find the same one."""

import threading
from collections.abc import Mapping
from typing import Any

from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policies import make_policy
from nanoinfer.cluster.serve.fleet import Fleet

_fleets: dict[str, Fleet] = {}
_making = threading.Lock()


def fleet_named(name: str, policy: str, options: Mapping[str, Any], costs: PassCosts | None = None) -> Fleet:
    """The one Fleet of this process that has this name; made at first use, with the policy of that name."""
    with _making:
        if name not in _fleets:
            _fleets[name] = Fleet(make_policy(policy, costs, options))
        return _fleets[name]
