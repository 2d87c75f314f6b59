"""The three objectives of a network experiment as one program: what fills a GPU no more than one of them does, at a third of the time.

Every run descends Σ_i w_i J(π; x_i towards g_i) and reports Σ_i v_i J(π; x_i towards g_i), with states, targets and weights of its own:

    policy gradient    w = v = 1/|S| on S           non-extrapolating   w = 1/|S| on S and λ/|U| on U, v = 1/|S| on S
    J̃*(U)              w = v = 1/|U| on U           a place that an objective does not use has weight 0 and a state that it does use
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from offspan.problems import Problem
from offspan.problems.variants import Variant
from offspan.rollout import cost
from offspan.training import Estimate, Estimator


class Aimed(Variant):
    """A problem with a target, and what a run makes of it: a target and two weights for each of its states."""

    targets: Float[Array, "s n"]
    descended: Float[Array, "s"]
    reported: Float[Array, "s"]

    def __init__(self, problem: Problem, targets: Any, descended: Any, reported: Any):
        self._copy_fields(problem)
        self.targets, self.descended, self.reported = (jnp.asarray(values) for values in (targets, descended, reported))

    def costs(self, controller: Any, x0s: Float[Array, "s n"]) -> Float[Array, "s"]:
        """J from each state towards its target."""
        target_of = lambda problem: problem.target  # noqa: E731
        return jax.vmap(lambda x, g: cost(eqx.tree_at(target_of, self.problem, g), controller, x[None]))(x0s, self.targets)


class WeightedCosts(Estimator):
    """The exact gradient of the weighted costs of an `Aimed` problem."""

    def __call__(self, key: Any, problem: Any, controller: Any, x0s: Any):
        def objective(controller):
            costs = problem.costs(controller, x0s)
            return problem.descended @ costs, problem.reported @ costs

        (value, J), gradient = eqx.filter_value_and_grad(objective, has_aux=True)(controller)
        return Estimate(J, gradient, len(x0s), value)

    def recorded_cost(self, key: Any, problem: Any, controller: Any, x0s: Any):
        return problem.reported @ problem.costs(controller, x0s)

    def objective(self, key: Any, problem: Any, controller: Any, x0s: Any):
        return problem.descended @ problem.costs(controller, x0s)


def aimed(
    problem: Any, seen: np.ndarray, unseen: np.ndarray, targets: np.ndarray, coefficient: float
) -> dict[str, tuple[Aimed, np.ndarray]]:
    """The problem and the states of each objective."""
    S, U, dtype = len(seen), len(unseen), seen.dtype
    on_seen, on_unseen = (np.repeat(weights, (S, U)).astype(dtype) for weights in ([1 / S, 0], [0, 1 / U]))
    own = np.broadcast_to(np.asarray(problem.target, dtype), (S + U, seen.shape[1]))

    def towards(targets: np.ndarray, descended: np.ndarray, reported: np.ndarray, states: list[np.ndarray]) -> tuple[Aimed, np.ndarray]:
        return Aimed(problem, targets, descended, reported), np.concatenate(states)

    return {
        "policy_gradient": towards(own, on_seen, on_seen, [seen, seen[:1].repeat(U, axis=0)]),
        "non_extrapolating": towards(
            np.concatenate([own[:S], targets]), (on_seen + coefficient * on_unseen).astype(dtype), on_seen, [seen, unseen]
        ),
        "minimal_cost": towards(own, on_unseen, on_unseen, [unseen[:1].repeat(S, axis=0), unseen]),
    }
