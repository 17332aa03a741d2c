"""TreeObserver: is notified of what happens to a radix tree, while it happens."""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence

from nanoinfer.cache.tree_node import TreeNode

logger = logging.getLogger(__name__)


def path_to(node: TreeNode) -> list[TreeNode]:
    """`node` and everything above it up to the root, which is left out."""
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path


class TreeObserver:
    """Inherit from it, write the methods that you need, and join: `tree.observers.add(mine)`. The others do nothing.

    Whenever one is called, links and sizes of the tree are in order, so it may look at the tree. It must not change it, nor
    keep the lists that it gets. Tokens and slots of a node are `node.key` and `node.value`, its namespace `node.edge[0]`;
    `path_to(node)` is the node and what is above it.

    Only `check_key` may raise. If another method raises an Exception, that is logged with its traceback, and the observer
    is notified no more, unless it `stays`. The operation, its caller and the other observers must not fail over who
    listens.
    """

    stays = False

    def check_key(self, extra_key: Hashable) -> None:
        """Something is about to be inserted under `extra_key`. Nothing has changed yet; if this raises, nothing will."""

    def used(self, node: TreeNode) -> None:
        """A match or an insert has walked down to `node`: the whole path to it has a new `last_access_time`."""

    def hit(self, node: TreeNode) -> None:
        """The whole path to `node` has one hit more. In a match, this comes after `used`."""

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """The node `lower` has given its first tokens to `upper`, a new node above it with the same locks and hits.

        It comes in the middle of a walk: `used` follows. If that is an insert's walk, the pool counts the slots that come
        next as the tree's already.
        """

    def inserted(self, leaf: TreeNode) -> None:
        """`leaf` is a new leaf below `leaf.parent`. The tree owns its slots."""

    def grew(self, leaf: TreeNode, count: int) -> None:
        """`leaf` has `count` tokens more than before. The tree owns their slots."""

    def locked(self, node: TreeNode) -> None:
        """The whole path to `node` has one lock more. The path is empty if `node` is the root."""

    def unlocked(self, node: TreeNode) -> None:
        """The whole path to `node` has one lock less. The path is empty if `node` is the root."""

    def evicting(self, leaf: TreeNode) -> None:
        """`evict` is about to free the slots of `leaf`: the last moment at which their K/V is sure to be there.

        The leaf is still in the tree, with its parent; only the eviction queue has let go of it. Should the pool refuse its
        slots, then it stays, and `evicted` does not name it. `evict_keys` and `reset` do not call this: nobody wants that
        K/V any more.
        """

    def evicted(self, nodes: Sequence[TreeNode]) -> None:
        """`evict` or `evict_keys` is over, and `nodes` have left the tree in this order, children before parents.

        There may be none. Their slots are free. They still have `key` and `value`, but no parent.
        """

    def reset(self, nodes: Sequence[TreeNode]) -> None:
        """The tree is empty. `nodes`, parents before children, are what it held. Their slots are free; see `evicted`."""


def _passed_on(method: str) -> Callable[..., None]:
    def notify(observers: "Observers", *args: object) -> None:
        if observers._all:  # otherwise this was a look at an empty tuple
            observers.notify(method, *args)

    return notify


class Observers:
    """Those who observe one tree. It notifies this object, which notifies them in the order in which they joined."""

    used, hit, split = _passed_on("used"), _passed_on("hit"), _passed_on("split")
    inserted, grew = _passed_on("inserted"), _passed_on("grew")
    locked, unlocked = _passed_on("locked"), _passed_on("unlocked")
    evicting, evicted, reset = _passed_on("evicting"), _passed_on("evicted"), _passed_on("reset")

    def __init__(self, *observers: TreeObserver):
        self._all = observers

    def __iter__(self) -> Iterator[TreeObserver]:
        return iter(self._all)

    def add(self, observer: TreeObserver) -> None:
        """From now on, notify `observer`, too, but not of what the tree holds already: see `RadixCache.nodes`."""
        self._all = (*self._all, observer)

    def remove(self, observer: TreeObserver) -> None:
        """Notify `observer` no more. Nothing happens if it is not there."""
        self._all = tuple(kept for kept in self._all if kept is not observer)

    def check_key(self, extra_key: Hashable) -> None:
        """The only method that may raise."""
        for observer in self._all:
            observer.check_key(extra_key)

    def notify(self, method: str, *args: object) -> None:
        """Call this method of each."""
        for observer in self._all:
            try:
                getattr(observer, method)(*args)
            except Exception:
                logger.exception("%r failed in %r", observer, method)
                if not observer.stays:
                    self.remove(observer)
