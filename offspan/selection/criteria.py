"""What can be said of a set of initial states before any training: scores that are meant to rise with how far training on it will reach.

A criterion evaluates every candidate once, on its own, and then values any number of sets from these evaluations.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from offspan.controllers import MLP, Bounded, Linear
from offspan.errors import OffspanError, as_states
from offspan.exploration import as_scale, state_gradients, visited_count
from offspan.problems.base import Problem, as_problem
from offspan.problems.lqr import LQR
from offspan.rollout import Controller, rollout


class Criterion(NamedTuple):
    """`value(sets)` for index sets (q, k) of candidates: (q,) numbers, the higher the better. `rollouts` were made to know them."""

    value: Callable[[np.ndarray], np.ndarray]
    rollouts: int


class Setting(NamedTuple):
    """What is asked: candidates (c, n) to choose from, and the starts that training may begin with."""

    problem: Problem
    candidates: Float[Array, "c n"]
    controllers: Sequence[Controller]
    scale: Float[Array, "n"]


def distance(setting: Setting) -> Criterion:
    """− max_u min_{x∈S} ‖u − x‖ over all candidates u, in the coordinates x / scale: how far the farthest one is from S."""
    Z = _scaled(setting)
    return Criterion(_minimax(_distances(Z, Z)), 0)


def coverage(setting: Setting) -> Criterion:
    """The same from all states that are visited from S, in the mean over starts: − max_u min_{x∈S, h} ‖u − x_h‖."""
    Z, visits = _scaled(setting), _visits(setting)
    apart = np.stack([[_distances(Z, X).min(axis=1) for X in start] for start in visits])
    values = [_minimax(one.T) for one in apart]
    return Criterion(lambda sets: np.mean([value(sets) for value in values], axis=0), visits.shape[0] * len(Z))


def gramian_trace(setting: Setting) -> Criterion:
    """tr G for G = Σ_{x∈S} G_x, G_x = Σ_h x_h x_hᵀ: the squared length of what is visited. As a sum over S, greedy choice is exact."""
    G, rollouts = _gramians(setting)
    traces = np.trace(G, axis1=1, axis2=2)
    return Criterion(lambda sets: traces[sets].sum(axis=1), rollouts)


def gramian_logdet(setting: Setting) -> Criterion:
    """log det(I + G/ε), with ε the candidates' mean squared length: visits count in every direction, and less where there are many already.

    It is monotone and submodular in S, and zero for the empty set, so greedy choice reaches 1 − 1/e of the best value at least
    (Nemhauser, Wolsey and Fisher 1978). Without I it would be −∞ wherever a direction is left out.
    """
    G, rollouts = _gramians(setting)
    G = G / max(float(np.mean(np.sum(_scaled(setting) ** 2, axis=1))), np.finfo(float).tiny)

    def value(sets):
        some = (sets[first : first + 500] for first in range(0, len(sets), 500))  # n² numbers for each set
        return np.concatenate([np.linalg.slogdet(np.eye(G.shape[1]) + G[few].sum(axis=1))[1] for few in some])

    return Criterion(value, rollouts)


def covariance(setting: Setting) -> Criterion:
    """The trace of the covariance, about their mean, of all states visited from S (`visited_covariance`), in the mean over starts."""
    X = _visits(setting)
    mean, square = X.mean(axis=2), np.sum(X**2, axis=3).mean(axis=2)

    def value(sets):
        return np.mean(square[:, sets].mean(axis=2) - np.sum(mean[:, sets].mean(axis=2) ** 2, axis=2), axis=0)

    return Criterion(value, X.shape[0] * X.shape[1])


def alignment(setting: Setting) -> Criterion:
    """cos(∇J(π; S), ∇J(π; all candidates)) at the start: does the first step on S lower the cost everywhere? In the mean over starts."""
    products, rollouts = _gradient_products(setting)

    def value(sets):
        with_all, with_itself = products.sum(axis=2), products[:, sets[:, :, None], sets[:, None]].sum(axis=(2, 3))
        return np.mean([_ratio(a[sets].sum(axis=1), np.sqrt(s * a.sum())) for a, s in zip(with_all, with_itself, strict=True)], axis=0)

    return Criterion(value, rollouts)


def colearnability(setting: Setting) -> Criterion:
    """mean_u max_{x∈S} cos(∇J(π; x), ∇J(π; u)): is there, for every candidate, a state in S whose gradient agrees with its own?"""
    products, rollouts = _gradient_products(setting)
    lengths = np.sqrt(np.diagonal(products, axis1=1, axis2=2))
    cosines = _ratio(products, lengths[:, :, None] * lengths[:, None])
    return Criterion(lambda sets: cosines[:, :, sets].max(axis=3).mean(axis=(0, 1)), rollouts)


def tangent(setting: Setting) -> Criterion:
    """− Σ_u (k_uu − k_uS (k_SS + ρI)⁻¹ k_Su): what S leaves open of the controls at the candidates, as Gaussian regression sees it.

    k is the controller's tangent kernel at its start, k_uv = tr ∂π(u) ∂π(v)ᵀ by the weights, so this is coverage in the network's own
    features; ρ is a thousandth of the mean k_uu.
    """
    kernels = _tangent_kernels(setting)

    def value(sets):
        left = []
        for k in kernels:
            ridge = 1e-3 * max(np.mean(np.diag(k)), np.finfo(float).tiny) * np.eye(sets.shape[1])
            cross = k[:, sets].transpose(1, 0, 2)  # (q, c, k)
            inside = k[sets[:, :, None], sets[:, None]] + ridge
            left.append(np.trace(k) - np.einsum("qcs,qsc->q", cross, np.linalg.solve(inside, cross.transpose(0, 2, 1))))
        return -np.mean(left, axis=0)

    return Criterion(value, 0)


CRITERIA: dict[str, Callable[[Setting], Criterion]] = {
    "distance": distance,
    "coverage": coverage,
    "gramian-trace": gramian_trace,
    "gramian-logdet": gramian_logdet,
    "covariance": covariance,
    "alignment": alignment,
    "colearnability": colearnability,
    "tangent": tangent,
}


def extrapolation_scores(problem: Problem, x0s: Any, unseen: Any, *, controllers: Any = None, key: Any = None, scale: Any = 1.0) -> dict:
    """Every criterion's value for training on S and testing on U, before any training; higher is better.

    `scores[name]` = the criterion `name` of S, where S ∪ U are the candidates. How well each ranks sets is measured in
    `offspan reproduce selection`; none is good everywhere  [beyond R24; sec:conclusion asks for it].

    >>> import offspan
    >>> scores = offspan.extrapolation_scores(offspan.shift(4, horizon=4), offspan.basis(4, 1), offspan.basis(4)[1:])
    >>> round(scores["gramian-trace"], 6), round(scores["gramian-logdet"], 3)
    (4.0, 2.773)
    """
    where = "extrapolation_scores"
    S, U = (as_states(where, name, states, as_problem(where, problem).state_dim) for name, states in (("x0s", x0s), ("unseen", unseen)))
    both = jnp.concatenate([S, U])
    setting = Setting(problem, both, starts(where, problem, controllers, key), as_scale(where, scale, problem.state_dim))
    seen = np.arange(len(S))[None]
    return {name: float(criterion(setting).value(seen)[0]) for name, criterion in CRITERIA.items()}


def starts(where: str, problem: Problem, controllers: Any, key: Any) -> list[Controller]:
    """Where training begins: the controllers given; else K = 0 for an LQR, and elsewhere the paper's network, drawn with `key`."""
    if controllers is not None:
        given = list(controllers) if isinstance(controllers, Sequence) else [controllers]
        if not given:
            raise OffspanError(f"{where}: `controllers` is empty; pass the controllers that training may begin with, or leave it out.")
        return given
    if isinstance(problem, LQR):
        return [Linear(jnp.zeros((problem.control_dim, problem.state_dim)))]
    if key is None:
        raise OffspanError(f"{where}: pass `controllers=[…]` to begin with, or a `key` that the paper's network is drawn with.")
    network = MLP.init(key, problem.state_dim, problem.control_dim)
    return [network if problem.control_bounds is None else Bounded(network, *problem.control_bounds)]


def _scaled(setting: Setting) -> np.ndarray:
    return np.asarray(setting.candidates / setting.scale[None], float)


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    from scipy.spatial import distance  # which `import offspan` must not load

    return distance.cdist(a, b)


def _minimax(apart: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Values of sets of columns, for distances (rows: whom to be near to)."""
    return lambda sets: -apart[:, sets].min(axis=2).max(axis=0)


def _visits(setting: Setting) -> np.ndarray:
    """(e, c, v, n): what is visited from each candidate under each start, in the coordinates x / scale."""
    count = visited_count(setting.problem)  # outside jit, where the value of R is known
    visits = [_states(setting.problem, controller, setting.candidates)[:, :count] for controller in setting.controllers]
    return np.asarray(jnp.stack(visits) / setting.scale[None, None, None], float)


@eqx.filter_jit
def _states(problem, controller, candidates):
    return jax.vmap(lambda x0: rollout(problem, controller, x0).states)(candidates)


def _gramians(setting: Setting) -> tuple[np.ndarray, int]:
    """G_x of each candidate (c, n, n), in the mean over starts."""
    X = _visits(setting)
    return np.einsum("ecvi,ecvj->cij", X, X) / len(X), X.shape[0] * X.shape[1]


def _gradient_products(setting: Setting) -> tuple[np.ndarray, int]:
    """⟨∇J(π; u), ∇J(π; v)⟩ for each start: (e, c, c)."""
    gradients = [_gradients(setting.problem, controller, setting.candidates) for controller in setting.controllers]
    products = np.stack([g @ g.T for g in (np.asarray(gradient, float) for gradient in gradients)])
    return products, products.shape[0] * products.shape[1]


@eqx.filter_jit
def _gradients(problem, controller, candidates):
    return state_gradients(problem, controller, candidates)


def _tangent_kernels(setting: Setting) -> list[np.ndarray]:
    derivatives = (_tangents(controller, setting.candidates) for controller in setting.controllers)
    return [flat @ flat.T for flat in (np.asarray(one, float).reshape(len(setting.candidates), -1) for one in derivatives)]


@eqx.filter_jit
def _tangents(controller, candidates):
    weights, structure = eqx.partition(controller, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    return jax.vmap(lambda x: jax.jacrev(lambda flat: eqx.combine(unravel(flat), structure)(x))(flat))(candidates)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where there is nothing to divide by."""
    return np.where(below > 0, above / np.where(below > 0, below, 1), 0)
