"""Sets of candidates, as rows of indices (q, k): all of them, random ones, and the best by a criterion."""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from offspan.selection.criteria import Criterion

ALL_SETS = 5_000  # sets that are still looked at one by one
ROUNDING = 1e-9  # a gain that is worth an exchange is larger; ties would go round in circles


class Best(NamedTuple):
    """The set that a criterion values most, what each candidate is worth to it (`worth`), and whether all sets that were looked at tie."""

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
        sets = as_sets([best, *(np.append(np.delete(best, i), other) for i in range(k) for other in others)])
        values = _finite(criterion.value(sets))
        if values.max() <= values[0] + ROUNDING * max(1.0, abs(values[0])):
            return Best(best, worth(sets, values, count), _tie(values))
        best = sets[np.argmax(values)]


def greedy_set(criterion: Criterion, count: int, k: int) -> np.ndarray:
    """One state after another, each time the one with which the value is highest."""
    best = np.empty(0, int)
    for _ in range(k):
        sets = as_sets(np.append(best, other) for other in np.setdiff1d(np.arange(count), best))
        best = sets[np.argmax(_finite(criterion.value(sets)))]
    return best


def _tie(values: np.ndarray) -> bool:
    return bool(values.max() == values.min() or np.ptp(values) <= ROUNDING * max(1.0, abs(values.max())))


def as_sets(sets: Iterable) -> np.ndarray:
    return np.array([list(one) for one in sets], int)


def _finite(values: np.ndarray) -> np.ndarray:
    """A value that is not a number is the worst there is."""
    return np.where(np.isnan(values), -np.inf, values)


def worth(sets: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """For each candidate: the value of the best set with it, less that of the best set without it; −∞ for one that is in no set."""
    has = np.zeros((len(sets), count), bool)
    has[np.arange(len(sets))[:, None], sets] = True
    best_with = np.where(has, values[:, None], -np.inf).max(axis=0)
    best_without = np.where(has, -np.inf, values[:, None]).max(axis=0)
    with np.errstate(invalid="ignore"):  # ∞ − ∞, where nothing is worth anything
        return np.nan_to_num(best_with - best_without, nan=0.0, posinf=np.inf, neginf=-np.inf)


def with_random_sets(informed: list[np.ndarray], sets: int, count: int, k: int, key: PRNGKeyArray) -> np.ndarray:
    """Distinct sets, each in ascending order."""
    found = {tuple(sorted(map(int, one))): None for one in informed[:sets]}
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    while len(found) < sets:
        found[tuple(sorted(rng.choice(count, k, replace=False).tolist()))] = None
    return as_sets(found)


def random_sets(key: PRNGKeyArray, count: int, k: int, sets: int) -> np.ndarray:
    """`sets` distinct sets (q, k) of `count` candidates, or all where there are no more."""
    if math.comb(count, k) <= sets:
        return as_sets(itertools.combinations(range(count), k))
    return with_random_sets([], sets, count, k, key)
