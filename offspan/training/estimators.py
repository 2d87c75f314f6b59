"""Where the gradient comes from. An estimator is a value that training calls in every iteration, with a random key of that iteration."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from offspan.controllers import Linear
from offspan.errors import OffspanError
from offspan.problems.base import Problem
from offspan.problems.lqr import as_lqr
from offspan.rollout import Controller, cost, lqr_cost_and_gradient

Loss = Callable[[Problem, Any, Array], Array | tuple[Array, Array]]


class Estimate(NamedTuple):
    """J(π; S), a gradient by the controller's floating-point arrays, and the number of rollouts that were made for it.

    `value` is what the gradient is of, where that is not J.

    >>> import jax, offspan
    >>> problem, controller, seen = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), offspan.basis(1)
    >>> estimate = offspan.Exact()(jax.random.key(0), problem, controller, seen)  # J = 1 + (1 + K)²
    >>> float(estimate.cost), estimate.gradient.K.tolist(), estimate.rollouts
    (2.0, [[2.0]], 1)
    """

    cost: Float[Array, ""]
    gradient: PyTree
    rollouts: int
    value: Float[Array, ""] | None = None


class Estimator(eqx.Module):
    """(key, problem, controller, x0s) ↦ Estimate: pure, so that it can be compiled and mapped over runs.

    `draws` says whether it uses the key. A new one is a class with `__call__`:

    >>> import jax, offspan
    >>> class Halved(offspan.Estimator):
    ...     def __call__(self, key, problem, controller, x0s):
    ...         exact = offspan.Exact()(key, problem, controller, x0s)
    ...         return exact._replace(gradient=jax.tree.map(lambda g: g / 2, exact.gradient))
    >>> problem, zero, seen = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), offspan.basis(1)
    >>> Halved()(jax.random.key(0), problem, zero, seen).gradient.K.tolist()
    [[1.0]]
    """

    draws: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, key: PRNGKeyArray, problem: Problem, controller: Controller, x0s: Float[Array, "s n"]) -> Estimate:
        """One estimate of the gradient at `controller` over the seen states `x0s`."""


class Exact(Estimator):
    """∇J(π_w; S) by the weights w, through the costates of the rollout; of `loss(problem, controller, x0s)` in place of J if one is given.

    A loss that has computed J on its way may return the pair (value, J), which saves computing it again  [R24, eq:policy_grad].

    >>> import jax, jax.numpy as jnp, offspan
    >>> seen = offspan.basis(2, 1)
    >>> gradient = offspan.Exact()(jax.random.key(0), offspan.shift(2, horizon=1), offspan.Linear(jnp.zeros((2, 2))), seen).gradient
    >>> gradient.K.tolist()  # 2 e_2 e_1ᵀ
    [[0.0, 0.0], [2.0, 0.0]]
    """

    loss: Loss | None = None

    def __call__(self, key, problem, controller, x0s):
        def objective(controller):
            """What is descended, and J."""
            value = (cost if self.loss is None else self.loss)(problem, controller, x0s)
            if isinstance(value, tuple):
                return value
            return value, value if self.loss is None else cost(problem, controller, x0s)

        (value, J), gradient = eqx.filter_value_and_grad(objective, has_aux=True)(controller)
        return Estimate(J, gradient, len(x0s), value)


class Adjoint(Estimator):
    """∇J(K; S) of a linear controller in an LQR, by the adjoint recursion of `lqr_gradient`  [R24, lem:lqr_gradient].

    >>> import jax, jax.numpy as jnp, offspan
    >>> problem, zero, seen = offspan.shift(2, horizon=1), offspan.Linear(jnp.zeros((2, 2))), offspan.basis(2, 1)
    >>> offspan.Adjoint()(jax.random.key(0), problem, zero, seen).gradient.K.tolist()
    [[0.0, 0.0], [2.0, 0.0]]
    """

    def __call__(self, key, problem, controller, x0s):
        if not isinstance(controller, Linear):
            raise OffspanError(f"Adjoint: the controller is a {type(controller).__name__}, but must be Linear; Exact() takes any.")
        J, gradient = lqr_cost_and_gradient(as_lqr("Adjoint", problem), controller.K, x0s)
        return Estimate(J, jax.tree.map(lambda _: gradient, controller), len(x0s))
