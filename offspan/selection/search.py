"""The best of many sets of candidates, rows of indices (q, k): all of them where these are few, else by greedy choice and exchanges."""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from offspan.selection.criteria import Criterion

ALL_SETS = 5_000  # sets that are still valued one by one
ROUNDING = 1e-9  # a gain that is worth an exchange is larger; ties would go round in circles


class Best(NamedTuple):
    """The set that a criterion values most, what each candidate is worth to it (`worth`), and whether all sets that were valued tie."""

    indices: np.ndarray
    scores: np.ndarray
    is_tie: bool


def best_set(criterion: Criterion, count: int, k: int) -> Best:
    """The best of all sets, if there are at most ALL_SETS; else the greedy one, with one state exchanged for another while that helps."""
    if math.comb(count, k) <= ALL_SETS:
        sets = as_sets(itertools.combinations(range(count), k))
        values = _finite(criterion.value(sets))
        return Best(sets[np.argmax(values)], worth(sets, values, count), _tie(values))
    best = greedy_set(criterion, count, k)
    while True:
        others = np.setdiff1d(np.arange(count), best)
        without = np.stack([np.delete(best, i) for i in range(k)])
        value = extensions(criterion, without[-1:], best[-1:])[0, 0]  # its own, with the rounding of those that it is compared with
        values = extensions(criterion, without, others)  # (k, o)
        if not values.max() > value + _margin(value):
            return Best(best, worth_of_exchanges(best, others, value, values), _tie(np.append(values, value)))
        i, j = np.unravel_index(np.argmax(values), values.shape)
        best = np.append(without[i], others[j])


def greedy_set(criterion: Criterion, count: int, k: int) -> np.ndarray:
    """One state after another, each time the one with which the value is highest."""
    best = np.empty(0, int)
    for _ in range(k):
        others = np.setdiff1d(np.arange(count), best)
        best = np.append(best, others[np.argmax(extensions(criterion, best[None], others)[0])])
    return best


def extensions(criterion: Criterion, bases: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(b, o): the value of each of the sets `bases` (b, j) with each of the `others` added."""
    if criterion.extended is not None:
        return _finite(criterion.extended(bases)[:, others])
    sets = (np.concatenate([np.tile(base, (len(others), 1)), others[:, None]], axis=1) for base in bases)
    return _finite(np.stack([criterion.value(of_base) for of_base in sets]))


def _tie(values: np.ndarray) -> bool:
    best, least = float(values.max()), float(values.min())
    return best == least or best - least <= _margin(best)


def _margin(value: float) -> float:
    """What of a difference may be rounding; 0 about an infinite value, from which no finite one is near."""
    return ROUNDING * max(1.0, abs(value)) if np.isfinite(value) else 0.0


def as_sets(sets: Iterable) -> np.ndarray:
    return np.array([list(one) for one in sets], int)


def _finite(values: np.ndarray) -> np.ndarray:
    """A value that is not a number is the worst there is."""
    return np.where(np.isnan(values), -np.inf, values)


def worth(sets: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """For each candidate: the value of the best set with it, less that of the best set without it; −∞ for one that is in no set."""
    best_with, best_without = np.full(count, -np.inf), np.full(count, -np.inf)
    np.maximum.at(best_with, sets.ravel(), np.repeat(values, sets.shape[1]))
    left = np.arange(count)  # candidates that are in all of the better sets
    for i in np.argsort(-values, kind="stable"):
        best_without[np.setdiff1d(left, sets[i])] = values[i]
        left = np.intersect1d(left, sets[i])
        if not len(left):
            break
    return _difference(best_with, best_without)


def worth_of_exchanges(best: np.ndarray, others: np.ndarray, value: float, values: np.ndarray) -> np.ndarray:
    """`worth` for the set `best` of this value, and the sets with its state i in exchange for the other j, of the values (k, o)."""
    by_state, by_other = values.max(axis=1), values.max(axis=0)
    scores = np.empty(len(best) + len(others))
    scores[best] = _difference(np.maximum(_largest_of_the_rest(by_state), value), by_state)
    scores[others] = _difference(by_other, np.maximum(_largest_of_the_rest(by_other), value))
    return scores


def _largest_of_the_rest(values: np.ndarray) -> np.ndarray:
    """max_{j ≠ i} of the values, for each i; −∞ where there is no other."""
    first = int(np.argmax(values))
    rest = np.delete(values, first).max(initial=-np.inf)
    return np.where(np.arange(len(values)) == first, rest, values[first])


def _difference(best_with: np.ndarray, best_without: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # ∞ − ∞, where nothing is worth anything
        return np.nan_to_num(best_with - best_without, nan=0.0, posinf=np.inf, neginf=-np.inf)


def with_random_sets(informed: list[np.ndarray], sets: int, count: int, k: int, key: PRNGKeyArray) -> np.ndarray:
    """Distinct sets, each in ascending order."""
    distinct = {tuple(sorted(map(int, one))): None for one in informed[:sets]}
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    while len(distinct) < sets:
        distinct[tuple(sorted(rng.choice(count, k, replace=False).tolist()))] = None
    return as_sets(distinct)


def random_sets(key: PRNGKeyArray, count: int, k: int, sets: int) -> np.ndarray:
    """`sets` distinct sets (q, k) of `count` candidates, or all where there are no more."""
    if math.comb(count, k) <= sets:
        return as_sets(itertools.combinations(range(count), k))
    return with_random_sets([], sets, count, k, key)
