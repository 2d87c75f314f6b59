"""What training returns: one run, or a batch of runs, which also holds all that is needed to resume them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from offspan.controllers import unstack_weights
from offspan.errors import OffspanError
from offspan.rollout import Controller
from offspan.training.stopping import RUNNING, Status


class Run(NamedTuple):
    """A training run; `iterations` updates were made, and a diverged run failed at the iteration of that number.

    `cost[q]` = J(π; S) before update `recorded[q]`. A diverged run keeps its last finite controller  [R24, eq:policy_grad].

    >>> import optax, offspan
    >>> problem, zero = offspan.identity(1, horizon=1), offspan.Linear([[0.0]])
    >>> run = offspan.train(problem, zero, offspan.basis(1), optimizer=optax.sgd(0.25), iterations=2)
    >>> run.cost.tolist(), run.K.tolist()  # 1 + (1 + K)², where 1 + K halves with each update
    ([2.0, 1.25], [[-0.75]])
    """

    controller: Any
    cost: np.ndarray  # (q,)
    status: Status
    iterations: int
    recorded: np.ndarray  # (q,)
    since: int = 0  # costs before this iteration are of other horizons or discounts

    @property
    def K(self) -> Float[Array, "m n"]:
        """Of a linear controller."""
        return self.controller.K


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Training runs r, `done` iterations in: their result, and all that is needed to resume them.

    `cost[r, q]` = J(π_r; S_r) before update `recorded[q]`: every `record_every` iterations from 0, and after the last update; NaN
    after the end of a run. `train_lqr_batch` records both normalised measures as well  [R24, eq:policy_grad, sec:prelim:extrapolation].

    >>> import optax, offspan
    >>> starts = [offspan.Linear([[0.0]]), offspan.Linear([[-1.0]])]  # J(K) = 1 + (1 + K)², least at −1
    >>> batch = offspan.train_batch(
    ...     offspan.identity(1, horizon=1), starts, offspan.basis(1), optimizer=optax.sgd(0.25), iterations=2, record_every=1
    ... )
    >>> batch.cost.tolist(), batch.run(0).controller.K.tolist()
    ([[2.0, 1.25, 1.0625], [1.0, 1.0, 1.0]], [[-0.75]])
    """

    weights: PyTree  # of the controllers, with a leading axis of runs
    structure: PyTree  # of a controller, without its weights
    codes: np.ndarray  # (r,): status as integers; that of `finished` while a run is running
    iterations: np.ndarray  # (r,): updates made
    done: int
    recorded: np.ndarray  # (q,)
    cost: np.ndarray  # (r, q)
    measures: Mapping[str, np.ndarray] = field(default_factory=dict)  # each (r, q), of a sweep of LQRs
    carried: tuple[np.ndarray, ...] = ()  # the leaves of the loop's state
    since: int = 0  # the first iteration of the last stage: earlier costs are of other horizons or discounts
    asked: int = 0  # how many iterations are to be made

    def __repr__(self) -> str:
        counts = ", ".join(f"{np.sum(self.status == status)} {status}" for status in Status if np.any(self.status == status))
        return f"Batch({len(self.codes)} runs, {self.done} iterations: {counts})"

    @cached_property
    def controllers(self) -> list[Any]:
        """What each run returns; while the batch is not done, the current ones."""
        return unstack_weights(self.weights, self.structure)

    @cached_property
    def status(self) -> np.ndarray:
        """(r,), of Status."""
        still = (self.codes == RUNNING) & (self.iterations < self.asked)
        return np.array([Status.running if on else Status(code) for on, code in zip(still, self.codes.tolist(), strict=True)], object)

    @property
    def K(self) -> np.ndarray:
        """Of linear controllers, (r, m, n)."""
        return self.weights.K

    @property
    def normalized_optimality(self) -> np.ndarray:
        """E_opt(K) / E_opt(K_no-ext), (r, q)."""
        return self._measure("normalized_optimality")

    @property
    def normalized_cost(self) -> np.ndarray:
        """E_cost(K) / E_cost(K_no-ext), (r, q)."""
        return self._measure("normalized_cost")

    def _measure(self, name: str) -> np.ndarray:
        if name not in self.measures:
            raise OffspanError(f"Batch: `{name}` was not recorded; `train_lqr_batch` records it, for other runs call `offspan.{name}`.")
        return self.measures[name]

    def run(self, r: int) -> Run:
        """Run r of the batch."""
        made = int(self.iterations[r])
        kept = self.recorded <= made
        return Run(self.controllers[r], self.cost[r, kept], self.status[r], made, self.recorded[kept], self.since)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All of it as arrays, for a checkpoint."""
        parts = {
            "weights": dict(enumerate(jax.tree.leaves(self.weights))),
            "measures": self.measures,
            "carried": dict(enumerate(self.carried)),
        }
        several = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        return {name: np.asarray(value) for name, value in {**{name: getattr(self, name) for name in FIELDS}, **several}.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], controller: Controller) -> "Batch":
        """The batch whose `to_arrays` these are, of controllers that differ from `controller` in their weights alone."""
        parts: dict[str, dict[str, np.ndarray]] = {"weights": {}, "measures": {}, "carried": {}}
        for name, value in arrays.items():
            part, _, rest = name.partition(".")
            if rest:
                parts[part][rest] = value
        weights, structure = eqx.partition(controller, eqx.is_inexact_array)
        stored = jax.tree.unflatten(jax.tree.structure(weights), [parts["weights"][str(i)] for i in range(len(parts["weights"]))])
        carried = tuple(parts["carried"][str(i)] for i in range(len(parts["carried"])))
        numbers = {name: int(arrays.get(name, 0)) for name in ("done", "since", "asked")}  # earlier checkpoints have the first alone
        fields: dict[str, Any] = {name: arrays[name] for name in FIELDS if name not in numbers} | numbers
        return cls(stored, structure, measures=parts["measures"], carried=carried, **fields)


FIELDS = ("codes", "iterations", "done", "since", "asked", "recorded", "cost")  # of a batch that are one array
