"""Scores of sets of initial states, computed before any training, that are meant to rise with how far training on a set extrapolates.

A criterion evaluates every candidate on its own, and then values any number of sets from these evaluations; in blocks, so that pools of
ten thousand fit.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from offspan.controllers import MLP, Bounded, Linear
from offspan.errors import OffspanError, as_states
from offspan.exploration import as_scale
from offspan.problems.base import Problem, as_problem
from offspan.problems.lqr import LQR
from offspan.problems.variants import without_noise
from offspan.rollout import Controller
from offspan.selection.evaluations import Setting, distances, gradients, gramians, products, scaled, tangents, visited_from
from offspan.sizes import Rows, blocks


class Criterion(NamedTuple):
    """`value(sets)` for index sets (q, k) of candidates: (q,) numbers, the higher the better. `rollouts` were made to know them.

    `extended(bases)`, for sets (b, j): the values (b, c) of each base with each candidate added, without writing out the sets. None where
    there is no shorter way than `value`.
    """

    value: Callable[[np.ndarray], np.ndarray]
    rollouts: int
    extended: Callable[[np.ndarray], np.ndarray] | None = None


class _Values(NamedTuple):
    """`value` and `extended` of a criterion under one start."""

    value: Callable[[np.ndarray], np.ndarray]
    extended: Callable[[np.ndarray], np.ndarray]


def _mean_over_starts(every: Sequence[_Values], rollouts: int) -> Criterion:
    return Criterion(
        lambda sets: np.mean([one.value(sets) for one in every], axis=0),
        rollouts,
        lambda bases: np.mean([one.extended(bases) for one in every], axis=0),
    )


def distance(setting: Setting) -> Criterion:
    """− max_u min_{x∈S} ‖u − x‖ over all candidates u, in the coordinates x / scale: how far the farthest one is from S."""
    Z = scaled(setting)
    return _by_the_best_of_each([Rows(lambda which: -distances(Z[which], Z), len(Z), len(Z))], LOWEST, 0)


def coverage(setting: Setting) -> Criterion:
    """− max_u min_{x∈S, h} ‖u − x_h‖ / scale, in the mean over starts: how far the farthest candidate is from all states visited from S."""
    Z, work = scaled(setting), (setting.problem.horizon + 1) * setting.candidates.shape[1]

    def nearness(visits: Callable[[np.ndarray], np.ndarray]) -> Rows:
        return Rows(lambda which: np.stack([-distances(Z, X).min(axis=1) for X in visits(which)]), len(Z), len(Z), work)

    return _by_the_best_of_each([nearness(visits) for visits in visited_from(setting)], LOWEST, setting.rollouts)


def gramian_trace(setting: Setting) -> Criterion:
    """tr G for G = Σ_{x∈S} G_x, G_x = Σ_h x_h x_hᵀ: the squared length of what is visited. As a sum over S, greedy choice is exact."""
    n = setting.candidates.shape[1]
    traces = np.concatenate([np.trace(rows.reshape(-1, n, n), axis1=1, axis2=2) for _, rows in gramians(setting)])
    return Criterion(
        lambda sets: traces[sets].sum(axis=1), setting.rollouts, lambda bases: traces[bases].sum(axis=1, keepdims=True) + traces[None]
    )


def gramian_logdet(setting: Setting) -> Criterion:
    """log det(I + G/ε), with ε the candidates' mean squared length: visits count in every direction, and less where there are many already.

    It is monotone and submodular in S, and zero for the empty set, so greedy choice reaches 1 − 1/e of the best value at least
    (Nemhauser, Wolsey and Fisher 1978). Without I it would be −∞ wherever a direction is left out.
    """
    n = setting.candidates.shape[1]
    G, mean_square = gramians(setting), max(float(np.mean(np.sum(scaled(setting) ** 2, axis=1))), np.finfo(float).tiny)

    def log_det(sums: np.ndarray) -> np.ndarray:
        return np.linalg.slogdet(np.eye(n) + (sums / mean_square).reshape(-1, n, n))[1]

    def sums(sets: np.ndarray) -> np.ndarray:
        used, positions = _used(sets)
        rows = G[used]
        return np.stack([rows[one].sum(axis=0) for one in positions])

    def extended(bases: np.ndarray) -> np.ndarray:
        of_bases, values = sums(bases), np.empty((len(bases), G.count))
        for which, rows in G:
            for b, base in enumerate(of_bases):
                values[b, which] = log_det(base + rows)
        return values

    return Criterion(lambda sets: _in_blocks(lambda some: log_det(sums(some)), sets, n * n), setting.rollouts, extended)


def covariance(setting: Setting) -> Criterion:
    """The trace of the covariance, about their mean, of all states visited from S (`visited_covariance`), in the mean over starts."""
    count, n = setting.candidates.shape

    def moments(visits: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """(c, n + 1): the mean of the states visited from each candidate, and of their squared lengths."""
        of_some = lambda X: np.concatenate([X.mean(axis=1), np.sum(X**2, axis=2).mean(axis=1)[:, None]], axis=1)  # noqa: E731
        return np.concatenate(
            [rows for _, rows in Rows(lambda which: of_some(visits(which)), count, n + 1, (setting.problem.horizon + 1) * n)]
        )

    every = [moments(visits) for visits in visited_from(setting)]
    traces = lambda sums, k: sums[..., n] / k - np.sum((sums[..., :n] / k) ** 2, axis=-1)  # noqa: E731

    def value(sets: np.ndarray) -> np.ndarray:
        return np.mean([traces(each[sets].sum(axis=1), sets.shape[1]) for each in every], axis=0)

    def extended(bases: np.ndarray) -> np.ndarray:
        k = bases.shape[1] + 1
        return np.mean([[traces(each[base].sum(axis=0) + each, k) for base in bases] for each in every], axis=0)

    return Criterion(lambda sets: _in_blocks(value, sets, sets.shape[1] * (n + 1)), setting.rollouts, extended)


def alignment(setting: Setting) -> Criterion:
    """cos(∇J(π; S), ∇J(π; all candidates)) at the start, in the mean over starts.

    Where it is positive, the first step on S lowers the mean cost over the candidates; single candidates may still get worse.
    """

    def of_start(g: Rows) -> _Values:
        whole = np.sum([rows.sum(axis=0) for _, rows in g], axis=0)
        with_all, squares = (
            np.concatenate(parts) for parts in zip(*((rows @ whole, np.sum(rows**2, axis=1)) for _, rows in g), strict=True)
        )

        def value(sets: np.ndarray) -> np.ndarray:
            used, positions = _used(sets)
            rows = g[used]
            with_itself = np.array([one @ one for one in (rows[S].sum(axis=0) for S in positions)])
            return _ratio(with_all[sets].sum(axis=1), np.sqrt(with_itself * (whole @ whole)))

        def extended(bases: np.ndarray) -> np.ndarray:
            sums, squared_norms = np.stack([g[base].sum(axis=0) for base in bases]), np.empty((len(bases), g.count))
            for which, rows in g:
                squared_norms[:, which] = np.sum(sums**2, axis=1)[:, None] + 2 * sums @ rows.T + squares[None, which]
            of_each = with_all[bases].sum(axis=1)[:, None] + with_all[None]
            return _ratio(of_each, np.sqrt(np.maximum(squared_norms, 0) * (whole @ whole)))

        return _Values(value, extended)

    return _mean_over_starts([of_start(g) for g in gradients(setting)], setting.rollouts)


def colearnability(setting: Setting) -> Criterion:
    """mean_u max_{x∈S} cos(∇J(π; x), ∇J(π; u)): is there, for every candidate, a state in S whose gradient agrees with its own?"""

    def cosines(g: Rows) -> Rows:
        lengths = np.concatenate([np.linalg.norm(rows, axis=1) for _, rows in g])
        return Rows(lambda which: _ratio(products(g, which), lengths[which, None] * lengths[None]), g.count, g.count)

    return _by_the_best_of_each([cosines(g) for g in gradients(setting)], MEAN, setting.rollouts)


def tangent(setting: Setting) -> Criterion:
    """− Σ_u (k_uu − k_uS (k_SS + ρI)⁻¹ k_Su): minus the summed Gaussian-process posterior variance at the candidates, with the controller's
    empirical tangent kernel at its start.

    k_uv = tr (∂π_w(u)/∂w) (∂π_w(v)/∂w)ᵀ, so this is coverage in the network's own features; ρ is a thousandth of the
    mean k_uu. With r_uv = k_uv − k_uS (k_SS + ρI)⁻¹ k_Sv, a state x more closes Σ_u r_ux² / (r_xx + ρ).
    """

    def of_start(t: Rows) -> _Values:
        kernel = Rows(lambda which: products(t, which), t.count, t.count)
        trace = sum(float(np.sum(rows**2)) for _, rows in t)
        ridge = 1e-3 * max(trace / t.count, float(np.finfo(float).tiny))

        def solved(k_S: np.ndarray, S: np.ndarray) -> np.ndarray:
            """(k_SS + ρI)⁻¹ k_Su (j, c), from k_Su."""
            return np.linalg.solve(k_S[:, S] + ridge * np.eye(len(S)), k_S)

        def value(sets: np.ndarray) -> np.ndarray:
            used, positions = _used(sets)
            rows = kernel[used]
            return np.array([np.sum(rows[one] * solved(rows[one], S)) - trace for one, S in zip(positions, sets, strict=True)])

        def extended(bases: np.ndarray) -> np.ndarray:
            k_of = [kernel[base] for base in bases]
            parts = [solved(k_S, S) for k_S, S in zip(k_of, bases, strict=True)]
            values = np.empty((len(bases), t.count))
            for which, rows in kernel:
                for b, (S, k_S, part) in enumerate(zip(bases, k_of, parts, strict=True)):
                    r = rows - rows[:, S] @ part
                    closed = np.sum(r**2, axis=1) / (r[np.arange(len(which)), which] + ridge)
                    values[b, which] = np.sum(k_S * part) - trace + closed
            return values

        return _Values(value, extended)

    return _mean_over_starts([of_start(t) for t in tangents(setting)], 0)


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
    `offspan reproduce selection`; none is good everywhere. Of a `Noisy` problem, the noise is left out  [beyond R24; sec:conclusion asks
    for it].

    >>> import offspan
    >>> scores = offspan.extrapolation_scores(offspan.shift(4, horizon=4), offspan.basis(4, 1), offspan.basis(4)[1:])
    >>> round(scores["gramian-trace"], 6), round(scores["gramian-logdet"], 3)
    (4.0, 2.773)
    """
    where, problem = "extrapolation_scores", without_noise(problem)
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


class _OverCandidates(NamedTuple):
    """What is made of a number for each candidate u: of one row t, and of max(base_u, t_u) for each row t, given the base."""

    of_row: Callable[[np.ndarray], Any]
    with_base: Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]


def _by_the_best_of_each(tables: Sequence[Rows], over_candidates: _OverCandidates, rollouts: int) -> Criterion:
    """Sets S by max_{x∈S} t_x(u), taken over the candidates u, in the mean over tables (c, c) whose row x is t_x."""

    def best(table: Rows, sets: np.ndarray) -> Iterator[np.ndarray]:
        used, positions = _used(sets)
        rows = table[used]
        return (rows[one].max(axis=0, initial=-np.inf) for one in positions)

    def value(sets: np.ndarray) -> np.ndarray:
        return np.mean([[over_candidates.of_row(one) for one in best(table, sets)] for table in tables], axis=0)

    def extended(bases: np.ndarray) -> np.ndarray:
        values = np.zeros((len(bases), tables[0].count))
        for table in tables:
            of_bases = [over_candidates.with_base(base) for base in best(table, bases)]
            for which, rows in table:
                for b, with_base in enumerate(of_bases):
                    values[b, which] += with_base(rows)
        return values / len(tables)

    return Criterion(value, rollouts, extended)


def _mean(base: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """mean_u max(base_u, t_u) for each row t."""
    return lambda rows: np.maximum(base[None], rows).mean(axis=1)


def _lowest(base: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """min_u max(base_u, t_u) for each row t: the u of lowest base first, and only while a base is lower than the least value so far."""
    order = np.argsort(base)

    def of_rows(rows: np.ndarray) -> np.ndarray:
        least, left = np.full(len(rows), np.inf), np.arange(len(rows))
        for first in range(0, len(order), 64):
            some = order[first : first + 64]
            lowest = np.maximum(base[None, some], rows[np.ix_(left, some)]).min(axis=1)
            least[left] = np.minimum(least[left], lowest)
            left = left[least[left] > base[some[-1]]]
            if not len(left):
                break
        return least

    return of_rows


LOWEST, MEAN = _OverCandidates(np.min, _lowest), _OverCandidates(np.mean, _mean)


def _used(sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The candidates that occur in the sets, and the sets as positions among these."""
    used, positions = np.unique(sets, return_inverse=True)
    return used, positions.reshape(sets.shape)


def _in_blocks(value: Callable[[np.ndarray], np.ndarray], sets: np.ndarray, numbers: int) -> np.ndarray:
    """`value` of all sets, in blocks that fit into memory where each set takes so many numbers."""
    return np.concatenate([value(sets[some]) for some in blocks(len(sets), numbers)])


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where there is nothing to divide by."""
    return np.where(below > 0, above / np.where(below > 0, below, 1), 0)
