"""Static shuffles without ``max_sources``: memory of a fixed size, as ranks alone decide all
sizes, and what calls of exact sizes promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.engine.agreement import Agreement
from fuscoc_runtime.engine.dispatch import dispatch
from fuscoc_runtime.engine.node.engine import NodeDispatched, NodeEngine, Ready
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.state import NodeKernels
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import (
    FuscoRuntimeError,
    HopTimeoutError,
    NetworkError,
    PreparationError,
)
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.agree import attempt


class StaticEngine(NodeEngine):
    """This process's rank of one static shuffle; construction is collective.

    Hosts agree on a dispatch before they launch it, so that all raise what is wrong with the
    arguments of any; nobody waits for a GPU, but for what the first dispatch has found: a relation
    that moves one whole moves all. Every dispatch has the same routing, so one whose memory others
    have taken is that of the latest: handles last. What a CUDA graph captures is as with
    ``max_sources``.

    Args:
        general: opens the general engine, which says what is wrong with a relation; collective.
    """

    def __init__(
        self,
        shuffle: ShuffleSpec,
        members: Membership,
        node: NodeKernels,
        backend: Literal["cuda", "triton"],
        general: Callable[[], ProcessEngine],
    ) -> None:
        super().__init__(shuffle, members, node, backend)
        self._agreement, self._open_general = Agreement(members), general
        self._is_whole = self._has_opened = False
        self._latest: dict[bool, Launched] = {}  # captured, and not

    @cached_property
    def _general(self) -> ProcessEngine:
        opened = self._open_general()
        self._has_opened = True
        return opened

    def dispatch(
        self,
        positional: Sequence[Tensor],
        named: Mapping[str, Any],
        earlier: NodeHandle | None = None,
        problem: FuscoRuntimeError | None = None,
    ) -> NodeDispatched:
        """See `NodeEngine.dispatch`. All ranks raise the mistakes of any, and nothing is moved."""
        done = super().dispatch(positional, named, earlier, problem)
        launched = done.handle.launched
        self._latest[launched.entry.captured] = launched
        if not (self._is_whole or launched.entry.captured):
            self._find_mistakes(positional, named)
        return done

    def is_live(self, launched: Launched) -> bool:
        """Always: see `current`."""
        return True

    def current(self, launched: Launched) -> Launched:
        """The same routing in memory that no dispatch has taken since."""
        is_own = super().is_live(launched)
        return launched if is_own else self._latest[launched.entry.captured]

    @property
    def is_stuck(self) -> bool:
        """As of `NodeEngine`, and of the general engine."""
        return super().is_stuck or (self._has_opened and self._general.is_stuck)

    def check_can_follow(self) -> None:
        """As of `NodeEngine`, and of the general engine."""
        super().check_can_follow()
        if self._has_opened:
            self._general.raise_loss()

    def close(self) -> None:
        super().close()
        if self._has_opened:
            self._general.close()

    def _ready(self, prepare: Callable[[], Ready]) -> Ready:
        if self.is_capturing:
            return super()._ready(prepare)
        ready = attempt(self.members.rank, prepare)
        self._agreement.meet(ready if isinstance(ready, FuscoRuntimeError) else None)
        assert isinstance(ready, Ready)
        return ready

    def _find_mistakes(self, positional: Sequence[Tensor], named: Mapping[str, Any]) -> None:
        """Raise what is wrong with the relation, on all ranks, as the general engine says it."""
        found = None
        while isinstance(problem := attempt(self.members.rank, self.check), FuscoRuntimeError):
            self.check_can_follow()  # a rank that was lost cannot agree
            found = found or problem
            if isinstance(problem, PreparationError):
                break  # no mistake that a call has found: it would be there again
        try:
            self._agreement.meet(found)
        except (HopTimeoutError, NetworkError) as error:
            self.lose(error)
            raise
        except PreparationError:
            raise
        except FuscoRuntimeError:
            self.check_can_follow()
            general = self._general
            general.run("dispatch", dispatch(general.machine, positional, named))
            raise
        self._is_whole = True
