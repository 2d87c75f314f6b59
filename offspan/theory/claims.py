"""A claim: what a statement predicts, what was measured by another route, and whether they agree.

A statement is a function of `Settings` that yields claims; its docstring is the statement. Where it tries several systems, it yields a
claim of the same text for each of them, and `verify` keeps the one that is closest to failing.
"""

import math
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from offspan.problems.lqr import LQR
from offspan.rollout import lqr_gradient
from offspan.theory.monte_carlo import estimate

NONE = ""  # in place of a relation, where a statement does not fit the settings


class Claim(NamedTuple):
    """`measured` stands in `relation` (=, ≤ or ≥) to `predicted`, up to `tolerance` · max(1, |predicted|)."""

    text: str
    predicted: float
    relation: str
    measured: float
    tolerance: float
    route: str
    label: str = ""

    @property
    def excess(self) -> float:
        """By how much the relation fails, over max(1, |predicted|); infinite for NaN."""
        difference = self.measured - self.predicted
        excess = {"=": abs(difference), "≤": difference, "≥": -difference}[self.relation] / max(1.0, abs(self.predicted))
        return math.inf if math.isnan(excess) else excess

    @property
    def holds(self) -> bool:
        return self.relation == NONE or self.excess <= self.tolerance

    @property
    def verdict(self) -> str:
        return "does not apply" if self.relation == NONE else "holds" if self.holds else "FAILS"


class Settings(NamedTuple):
    """What a statement is tried on: its dimension and horizon, and how many random systems, starts and controllers."""

    dim: int = 5
    horizon: int = 10
    seeds: int = 5

    def keys(self, statement: str) -> Iterator[PRNGKeyArray]:
        """A random key for each seed; other keys for other statements."""
        key = jax.random.key(zlib.crc32(statement.encode()))
        return (jax.random.fold_in(key, seed) for seed in range(self.seeds))


def _worst(relation: str, text: str, pairs: Iterable[tuple[Any, Any]], route: str, tolerance: float = 1e-9) -> Claim:
    """Of all entries of all (predicted, measured), the pair that is closest to failing: if that one holds, all do."""
    both = (np.broadcast_arrays(np.asarray(predicted, float), np.asarray(measured, float)) for predicted, measured in pairs)
    entries = (entry for predicted, measured in both for entry in zip(predicted.flat, measured.flat, strict=True))
    claims = (Claim(text, float(predicted), relation, float(measured), tolerance, route) for predicted, measured in entries)
    return max(claims, key=lambda claim: claim.excess)


def within_errors(text: str, simulated: Iterable[tuple[Any, np.ndarray, str]], route: str) -> Claim:
    """Of (exact, samples, case), the mean that is most standard errors from its exact value; it holds within four of them."""
    claims = []
    for exact, samples, case in simulated:
        exact, (mean, error) = float(exact), estimate(samples)
        away = abs(mean - exact) / error if error else (0.0 if mean == exact else math.inf)
        claim = Claim(f"{text}; {case}", exact, "=", mean, 4 * error / max(1.0, abs(exact)), route)
        claims.append((math.inf if math.isnan(away) else away, claim))
    return max(claims, key=lambda pair: pair[0])[1]


equal, at_most, at_least = partial(_worst, "="), partial(_worst, "≤"), partial(_worst, "≥")


def random_lqr(key: PRNGKeyArray, settings: Settings, *, rank: int | None = None) -> LQR:
    """A, B and Z Gaussian with variance 1/D, Q = Z Zᵀ of the given rank (full by default), R = 0."""
    D = settings.dim
    shapes = (D, D), (D, D), (D, rank or D)
    A, B, Z = (jax.random.normal(k, shape) / D**0.5 for k, shape in zip(jax.random.split(key, 3), shapes, strict=True))
    return LQR(A, B, Z @ Z.T, horizon=settings.horizon)


def random_orthogonal(key: PRNGKeyArray, dim: int) -> Float[Array, "n n"]:
    return jnp.linalg.qr(jax.random.normal(key, (dim, dim)))[0]


@partial(jax.jit, static_argnames="iterations")
def iterates(problem: LQR, x0s: Float[ArrayLike, "s n"], learning_rate: ArrayLike, iterations: int) -> Float[Array, "t m n"]:
    """K(1) = 0, K(2), …: every iterate of a training run."""
    start = jnp.zeros((problem.control_dim, problem.state_dim), problem.A.dtype)
    return jax.lax.scan(lambda K, _: (K - learning_rate * lqr_gradient(problem, K, x0s), K), start, length=iterations)[1]


def careful_rate(problem: LQR, x0s: Float[ArrayLike, "s n"], length: float = 0.02) -> Float[Array, ""]:
    """A learning rate whose first step has the given length: small enough to train any of the random systems here."""
    return length / jnp.linalg.norm(lqr_gradient(problem, jnp.zeros((problem.control_dim, problem.state_dim)), x0s))
