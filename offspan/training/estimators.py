"""Where the gradient comes from. An estimator is a value that training calls in every iteration, with a random key of that iteration."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from offspan.controllers import Linear, flat_weights
from offspan.errors import OffspanError, as_count, as_key, as_positive, as_states
from offspan.problems.base import Problem, as_problem
from offspan.problems.variants import Noisy, Truncated, is_noisy, layers
from offspan.rollout import Controller, cost, lqr_cost_and_gradient, rollout

Loss = Callable[[Problem, Any, Array], Array | tuple[Array, Array]]


class Estimate(NamedTuple):
    """J(π; S), a gradient with respect to the controller's floating-point arrays, and the number of rollouts that were made for it.

    `value` is the quantity whose gradient this is, where that is not J.

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

    def recorded_cost(self, key: PRNGKeyArray, problem: Problem, controller: Controller, x0s: Float[Array, "s n"]) -> Float[Array, ""]:
        """J(π; S) as in its estimates."""
        return cost(problem, controller, x0s, key=key)

    def objective(self, key: PRNGKeyArray, problem: Problem, controller: Controller, x0s: Float[Array, "s n"]) -> Float[Array, ""]:
        """A draw whose mean is what the estimator descends; its derivative is the other route to that gradient."""
        return cost(problem, controller, x0s, key=key)


class Exact(Estimator):
    """∇_w J(π_w; S) for the weights w, through the costates of the rollout; of `loss(problem, controller, x0s)` instead if one is given.

    A loss that has computed J on its way may return the pair (value, J), which saves computing it again. On a `Noisy` problem it descends
    the mean over `samples` trajectories from each state, with new noise in each iteration: its mean is ∇E J  [R24, eq:policy_grad].

    >>> import jax, jax.numpy as jnp, offspan
    >>> seen = offspan.basis(2, 1)
    >>> gradient = offspan.Exact()(jax.random.key(0), offspan.shift(2, horizon=1), offspan.Linear(jnp.zeros((2, 2))), seen).gradient
    >>> gradient.K.tolist()  # 2 e_2 e_1ᵀ
    [[0.0, 0.0], [2.0, 0.0]]
    """

    loss: Loss | None = None
    samples: int = 1

    def __check_init__(self):
        as_count("Exact", "samples", self.samples, least=1)

    def __call__(self, key, problem, controller, x0s):
        def objective(controller):
            """What is descended, and J."""
            if self.loss is None:
                J = cost(problem, controller, x0s, key=key, samples=self.samples)
                return J, J
            value = self.loss(problem, controller, x0s)
            return value if isinstance(value, tuple) else (value, cost(problem, controller, x0s, key=key, samples=self.samples))

        (value, J), gradient = eqx.filter_value_and_grad(objective, has_aux=True)(controller)
        return Estimate(J, gradient, (self.samples if is_noisy(problem) else 1) * len(x0s), value)

    def recorded_cost(self, key, problem, controller, x0s):
        return cost(problem, controller, x0s, key=key, samples=self.samples)

    def objective(self, key, problem, controller, x0s):
        if self.loss is None:
            return cost(problem, controller, x0s, key=key)
        value = self.loss(problem, controller, x0s)
        return value[0] if isinstance(value, tuple) else value


class Adjoint(Estimator):
    """∇J(K; S) of a linear controller in an LQR, by the adjoint recursion of `lqr_gradient`  [R24, lem:lqr_gradient].

    Of a `Noisy` LQR, the gradient of the expected cost, exactly.

    >>> import jax, jax.numpy as jnp, offspan
    >>> problem, zero, seen = offspan.shift(2, horizon=1), offspan.Linear(jnp.zeros((2, 2))), offspan.basis(2, 1)
    >>> offspan.Adjoint()(jax.random.key(0), problem, zero, seen).gradient.K.tolist()
    [[0.0, 0.0], [2.0, 0.0]]
    """

    def __call__(self, key, problem, controller, x0s):
        if not isinstance(controller, Linear):
            raise OffspanError(f"Adjoint: the controller is a {type(controller).__name__}, but must be Linear; Exact() takes any.")
        J, gradient = lqr_cost_and_gradient(problem, controller.K, x0s)
        return Estimate(J, jax.tree.map(lambda K: gradient.astype(K.dtype), controller), len(x0s))

    def recorded_cost(self, key, problem, controller, x0s):
        return self(key, problem, controller, x0s).cost


class TwoPoint(Estimator):
    """1/k Σ_i (J(w + r v_i) − J(w − r v_i)) / (2r) · v_i with v_i ~ N(0, I): pairs of rollouts, no derivatives  [beyond R24].

    Its mean is ∇J_r(w), where J_r(w) = E_v J(w + r v) is J smoothed over weights at distance r√d; for a quadratic J it is ∇J itself. r is
    `radius` and k is `directions`; d is the number of weights. Its variance is about (d/k) ‖∇J‖², so a network needs small steps. All
    perturbed controllers and states are one batch of rollouts, with the same noise where the problem has any. One more rollout a state
    gives the recorded J(π; S).

    >>> import jax, jax.numpy as jnp, offspan
    >>> problem, one, seen = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), offspan.basis(1)  # J = 1 + (1 + K)²
    >>> estimate = offspan.TwoPoint(radius=0.1, directions=10_000)(jax.random.key(0), problem, one, seen)
    >>> round(float(estimate.gradient.K[0, 0]), 1), estimate.rollouts
    (2.0, 20001)
    """

    radius: float
    directions: int
    draws: ClassVar[bool] = True

    def __check_init__(self):
        as_positive("TwoPoint", "radius", self.radius)
        as_count("TwoPoint", "directions", self.directions, least=1)

    def __call__(self, key, problem, controller, x0s):
        w, with_weights = flat_weights(controller)
        key_directions, key_noise = jax.random.split(key)
        v = jax.random.normal(key_directions, (self.directions, len(w)), w.dtype)
        radius = jnp.asarray(self.radius, w.dtype)
        moved = w[None] + radius * jnp.concatenate([v, -v, jnp.zeros_like(v[:1])])
        *pairs, J = jnp.split(jax.vmap(lambda w: cost(problem, with_weights(w), x0s, key=key_noise))(moved), [len(v), 2 * len(v)])
        gradient = (((pairs[0] - pairs[1]) / (2 * radius)) @ v / len(v)).astype(w.dtype)
        return Estimate(J[0], eqx.filter(with_weights(gradient), eqx.is_inexact_array), len(moved) * len(x0s), jnp.mean(jnp.stack(pairs)))

    def objective(self, key, problem, controller, x0s):
        w, with_weights = flat_weights(controller)
        key_directions, key_noise = jax.random.split(key)
        return cost(problem, with_weights(w + self.radius * jax.random.normal(key_directions, w.shape, w.dtype)), x0s, key=key_noise)


class Reinforce(Estimator):
    """1/(|S|k) Σ_i Σ_h (G_{i,h} − b_{i,h}) ∂π(x_{i,h})ᵀ ξ_{i,h} / std² with u = π(x) + ξ, ξ ~ N(0, std² I): REINFORCE  [beyond R24].

    G_{i,h} = cost_scale Σ_{t≥h} c(x_{i,t}, u_{i,t}) is the cost to go of rollout i, of which there are k = `rollouts` from each seen state.
    Its mean is ∇J_std(w), where J_std(w) = E J is the expected cost under that noise, as of `Noisy(problem, control=std)`; on a problem
    whose controls are noisy already, both noises add up. The baseline b_{i,h} is the mean cost to go at time h of the *other* rollouts from
    the same state: it does not depend on ξ_i, so it changes the variance and not the mean (the mean over all rollouts would shrink the
    gradient by 1 − 1/k). One more rollout a state, without this noise, gives the recorded J(π; S).

    >>> import jax, jax.numpy as jnp, offspan
    >>> problem, one, seen = offspan.identity(1, horizon=1), offspan.Linear([[0.0]]), offspan.basis(1)  # J_std = 1 + (1 + K)² + std²
    >>> estimate = offspan.Reinforce(std=0.5, rollouts=40_000)(jax.random.key(0), problem, one, seen)
    >>> round(float(estimate.gradient.K[0, 0]), 1), estimate.rollouts
    (2.0, 40001)
    """

    std: float
    rollouts: int
    baseline: bool = True
    draws: ClassVar[bool] = True

    def __check_init__(self):
        as_positive("Reinforce", "std", self.std)
        if as_count("Reinforce", "rollouts", self.rollouts, least=1) == 1 and self.baseline:
            raise OffspanError("Reinforce: `rollouts` is 1, but the baseline is the mean of the others; pass 2 or more, or baseline=False.")

    def __call__(self, key, problem, controller, x0s):
        noisy, covariance = self._noisy(problem)
        rolled = _as_short(noisy, problem)
        key_noise, key_cost = jax.random.split(key)
        keys = jax.random.split(key_noise, (len(x0s), self.rollouts))

        def roll(x0, key):
            noise = cast(Array, noisy.draw(key, 1)[0])  # that of the rollout, as the key is the same
            return rollout(rolled, controller, x0, key=key), noise[0]

        trajectories, noise = jax.vmap(lambda x0, keys: jax.vmap(lambda key: roll(x0, key))(keys))(x0s, keys)
        to_go = jnp.flip(jnp.cumsum(jnp.flip(trajectories.costs, 2), axis=2), 2)
        advantage = to_go
        if self.baseline:
            advantage = (to_go - to_go.mean(axis=1, keepdims=True)) * (self.rollouts / (self.rollouts - 1))
        if isinstance(rolled, Truncated):  # while the state stands still, controls have no effect
            h = jnp.arange(problem.horizon + 1)
            advantage *= ((h < rolled.last) | (h == problem.horizon))[None, None]
        score = jax.lax.stop_gradient(advantage[..., None] * (noise @ jnp.linalg.inv(covariance)))
        X = jax.lax.stop_gradient(trajectories.states)

        def surrogate(controller):
            controls = jax.vmap(jax.vmap(jax.vmap(controller)))(X)
            return problem.cost_scale * jnp.sum(score * controls, axis=(2, 3)).mean()

        J, value = cost(problem, controller, x0s, key=key_cost), problem.cost_scale * to_go[..., 0].mean()
        return Estimate(J, eqx.filter_grad(surrogate)(controller), (self.rollouts + 1) * len(x0s), value)

    def objective(self, key, problem, controller, x0s):
        return cost(_as_short(self._noisy(problem)[0], problem), controller, x0s, key=key)

    def _noisy(self, problem: Problem) -> tuple[Noisy, Float[Array, "m m"]]:
        """The problem with the noise of the controls added, and the covariance of all noise in the controls."""
        plain, noisy, _ = layers(problem)
        covariance = self.std**2 * jnp.eye(problem.control_dim)
        if noisy is not None and noisy.control is not None:
            covariance += noisy.control @ noisy.control.T
        process = 0.0 if noisy is None or noisy.process is None else noisy.process
        return Noisy(plain, control=jnp.linalg.cholesky(covariance), process=process), covariance


def _as_short(problem: Problem, as_this: Problem) -> Problem:
    return Truncated(problem, as_this.last, as_this.discount) if isinstance(as_this, Truncated) else problem


def check_estimator(where: str, gradient: Any) -> None:
    if not isinstance(gradient, Estimator):
        raise OffspanError(f"{where}: `gradient` is {gradient!r}, but must be an estimator, such as Exact().")


class GradientQuality(NamedTuple):
    """How good an estimator's gradients g are against the gradient ∇ of what it descends, relative to ‖∇‖.

    `bias` = ‖mean g − ∇‖ / ‖∇‖, which for an unbiased estimator is about `error`, from the number of draws alone;
    `variance` = E‖g − mean g‖² / ‖∇‖²; `cosine` = E cos(g, ∇)  [beyond R24].

    >>> import jax, jax.numpy as jnp, offspan
    >>> problem, zero, seen = offspan.shift(3, horizon=3), offspan.Linear(jnp.zeros((3, 3))), offspan.basis(3, 1)
    >>> exact = offspan.gradient_quality(problem, zero, seen, offspan.Exact(), key=jax.random.key(0), repeats=2)
    >>> exact.bias, exact.variance, round(exact.cosine, 6)
    (0.0, 0.0, 1.0)
    """

    bias: float
    variance: float
    cosine: float
    error: float


def gradient_quality(
    problem: Problem, controller: Controller, x0s: Float[Array, "s n"], estimator: Estimator, *, key: Any, repeats: int = 1000
) -> GradientQuality:
    """Compares `repeats` estimates with the gradient of the estimator's own objective, the mean of as many exact ones  [beyond R24].

    For problems with derivatives. The objective is J for `Exact`, and what their docstrings say for the others.

    >>> import jax, jax.numpy as jnp, offspan
    >>> problem, zero, seen = offspan.shift(3, horizon=3), offspan.Linear(jnp.zeros((3, 3))), offspan.basis(3, 1)
    >>> pairs = offspan.TwoPoint(radius=0.01, directions=1)
    >>> quality = offspan.gradient_quality(problem, zero, seen, pairs, key=jax.random.key(0), repeats=20_000)
    >>> quality.bias < 2 * quality.error, round(quality.variance)  # d + 1, for d = 9 weights
    (True, 10)
    """
    where = "gradient_quality"
    if not isinstance(estimator, Estimator):
        raise OffspanError(f"{where}: `estimator` is {estimator!r}, but must be an estimator, such as TwoPoint(radius=0.1, directions=8).")
    x0s = as_states(where, "x0s", x0s, as_problem(where, problem).state_dim)
    repeats = as_count(where, "repeats", repeats, least=2)
    estimates, exact = map(np.asarray, _gradients(problem, controller, x0s, estimator, as_key(where, key), repeats))
    target, mean = exact.mean(axis=0), estimates.mean(axis=0)
    length = np.linalg.norm(target)
    if not length > 0:
        raise OffspanError(f"{where}: the gradient at this controller has norm {length:g}, so nothing can be compared with it.")
    variance, of_target = (((some - some.mean(axis=0)) ** 2).sum(axis=1).sum() / (repeats - 1) for some in (estimates, exact))
    norms = np.linalg.norm(estimates, axis=1)
    cosine = np.mean(estimates @ target / np.where(norms > 0, norms * length, 1))
    error = np.sqrt((variance + of_target) / repeats) / length
    return GradientQuality(float(np.linalg.norm(mean - target) / length), float(variance / length**2), float(cosine), float(error))


@eqx.filter_jit
def _gradients(problem, controller, x0s, estimator, key, repeats):
    """Estimates, and gradients of draws of the objective, each (repeats, d)."""

    def one(keys):
        estimate = estimator(keys[0], problem, controller, x0s).gradient
        exact = eqx.filter_grad(lambda controller: estimator.objective(keys[1], problem, controller, x0s))(controller)
        return ravel_pytree(estimate)[0], ravel_pytree(exact)[0]

    return jax.lax.map(one, jax.random.split(key, (repeats, 2)), batch_size=min(repeats, 100))
