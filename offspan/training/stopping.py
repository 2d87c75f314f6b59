"""How a run ends: its status, and the rules that stop it before all updates are made."""

import abc
import enum

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from offspan.errors import as_count, as_floats


class Status(enum.IntEnum):
    """How a run ended: finished ⟺ all updates were made, converged ⟺ a stopping rule fired, diverged ⟺ a cost or an update was not finite.

    An integer, which is what results store; it also compares with its name, and prints as it. In a set or as a key it is found by its name,
    not by its integer: count `batch.status`, not `batch.codes`. A run of a batch that `on_chunk` gets may be `running` still.

    >>> import offspan
    >>> status = offspan.train_lqr(offspan.identity(1, horizon=2), offspan.basis(1), learning_rate=10.0, iterations=100).status
    >>> print(status, int(status), status == "diverged")
    diverged 2 True
    """

    finished = 0
    converged = 1
    diverged = 2
    running = 3  # stored as `RUNNING`

    def __str__(self) -> str:
        return self.name

    def __format__(self, form: str) -> str:
        return format(self.name, form)

    def __eq__(self, other: object) -> bool:
        return self.name == other if isinstance(other, str) else int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.name)

    @classmethod
    def _missing_(cls, value: object) -> "Status | None":
        return next((status for status in cls if status.name == value), None)


ENDS = (Status.finished, Status.converged, Status.diverged)  # what a result stores
RUNNING = int(Status.finished)  # a run that is still running when all updates are made has finished


class StoppingRule(eqx.Module):
    """Decides when a run stops, and which controller it returns: (memory, stop) ← update(memory, iteration, J(π; S), π).

    `update` is called before each update of the controller, inside the compiled loop; what it must remember is its memory.

    >>> import offspan
    >>> rule = offspan.CostBelow(1.1)
    >>> [rule.update(rule.init(None), i, J, None) for i, J in enumerate([2.0, 1.25, 1.0625])]  # it needs no memory
    [((), False), ((), False), ((), True)]
    """

    def init(self, controller: PyTree) -> PyTree:
        """The memory before the first iteration."""
        return ()

    @abc.abstractmethod
    def update(
        self, memory: PyTree, iteration: Int[Array, ""], cost: Float[Array, ""], controller: PyTree
    ) -> tuple[PyTree, Bool[Array, ""]]:
        """The new memory, and whether to stop before this update."""

    def result(self, memory: PyTree, cost: Float[Array, ""], controller: PyTree) -> PyTree:
        """The controller that a run which did not diverge returns, given its last one; compiled, as `update` is."""
        return controller


class Never(StoppingRule):
    """Makes every update, returns the last controller."""

    def update(self, memory, iteration, cost, controller):
        return memory, jnp.asarray(False)


class CostBelow(StoppingRule):
    """Stops at the first controller with J(π; S) ≤ `threshold`.

    >>> import optax, offspan
    >>> problem, zero, stop = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), offspan.CostBelow(1.1)
    >>> run = offspan.train(problem, zero, offspan.basis(1), optimizer=optax.sgd(0.25), iterations=100, stop=stop)
    >>> run.cost.tolist()  # 1 + (1 + K)², where 1 + K halves with each update
    [2.0, 1.25, 1.0625]
    """

    threshold: float

    def __check_init__(self):
        as_floats("CostBelow", "threshold", self.threshold, shape=(), meaning="one number")

    def update(self, memory, iteration, cost, controller):
        return memory, cost <= self.threshold


class NoImprovement(StoppingRule):
    """Evaluates J every `every` iterations; stops after more than `patience` evaluations in a row without an improvement.

    An evaluation improves where J(π; S) < J_best − `gain`; then J_best ← J(π; S). The controller of the best evaluation is returned. The
    defaults are the rule of the paper's network experiments: 1e-5 over 5,000 iterations  [R24, app:experiments:details:nn:pend].

    >>> import optax, offspan
    >>> problem, zero, stop = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), offspan.NoImprovement(every=1, patience=0, gain=0.2)
    >>> run = offspan.train(problem, zero, offspan.basis(1), optimizer=optax.sgd(0.25), iterations=100, stop=stop)
    >>> run.cost.tolist(), run.controller.K.tolist()  # 1.0625 is no improvement by 0.2, so the evaluation before it is the best
    ([2.0, 1.25, 1.0625], [[-0.5]])
    """

    every: int = 100
    patience: int = 50
    gain: float = 1e-5

    def __check_init__(self):
        as_count("NoImprovement", "every", self.every, least=1)
        as_count("NoImprovement", "patience", self.patience, least=0)
        as_floats("NoImprovement", "gain", self.gain, shape=(), meaning="one number")

    def init(self, controller):
        return jnp.asarray(jnp.inf), controller, jnp.asarray(0)

    def update(self, memory, iteration, cost, controller):
        best_cost, best, stale = memory
        evaluated = iteration % self.every == 0
        better = evaluated & (cost < best_cost - self.gain)
        stale = jnp.where(better, 0, stale + evaluated)
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), controller, best)
        return (jnp.where(better, cost, best_cost), best, stale), stale > self.patience

    def result(self, memory, cost, controller):
        best_cost, best, _ = memory
        better = cost < best_cost - self.gain  # the last controller is evaluated, too
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), controller, best)
