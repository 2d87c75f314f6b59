"""Which initial states to add to those that a controller was trained on, and what that is expected to gain."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from offspan.controllers import Linear
from offspan.exploration import coverage
from offspan.host import own_errors
from offspan.problems.base import Problem
from offspan.rollout import rollout

NEAR = 0.1  # of the region's width in each coordinate: this close to what training visits is near
MATTERS = 0.02  # a share of the region below which adding a state is not worth it
BINS = 8  # of the curve over distance
PREDICTS = 0.2  # the least rank correlation between distance and failure at which distance counts as a predictor
CANDIDATES = 400  # failing states among which those to add are chosen, at most


class Curve(NamedTuple):
    """Success against the distance to what training visits, in widths of the region: bins of equally many states."""

    distance: np.ndarray  # (b,): the middle of each bin
    success: np.ndarray  # (b,)
    correlation: float  # Spearman's, between distance and failure; NaN where all succeed or all fail


class Suggestion(NamedTuple):
    """States to add to those that are trained on, and by how much the share of the region that succeeds is expected to grow."""

    states: np.ndarray  # (k, n)
    gain: float
    note: str


def listed(states: Any) -> str:
    """As `seen_states` of a spec takes them, with four digits."""
    return ", ".join("[" + ", ".join(f"{value:.4g}" for value in state) + "]" for state in np.asarray(states))


def success_by_distance(distances: np.ndarray, successes: np.ndarray) -> Curve:
    from scipy.stats import spearmanr  # which `import offspan` must not load

    bins = np.array_split(np.argsort(distances, kind="stable"), min(BINS, len(distances)))
    varied = len(np.unique(distances)) > 1 and len(np.unique(successes)) > 1
    correlation = float(spearmanr(distances, 1 - successes).statistic) if varied else float("nan")  # pyright: ignore[reportAttributeAccessIssue]
    middle, success = (np.array([values[one].mean() for one in bins]) for values in (distances, successes))
    return Curve(middle, success, correlation)


def expected_gain(distances: np.ndarray, successes: np.ndarray, closer: np.ndarray) -> float:
    """mean p(closer) − p(distances), where p, success as a function of distance, is the best fit that never increases.

    Exact where success depends on the distance to what training visits alone, and training does for the new states what it did for the old.
    """
    from scipy.optimize import isotonic_regression

    at, which, counts = np.unique(distances, return_inverse=True, return_counts=True)
    means = np.bincount(which, successes) / counts
    fitted = isotonic_regression(means, weights=counts, increasing=False).x
    return float(np.interp(closer, at, fitted).mean() - successes.mean())  # the fit has the mean of what it fits


def suggest(
    problem: Problem,
    controller: Any,
    states: np.ndarray,
    successes: np.ndarray,
    distances: np.ndarray,
    *,
    scale: np.ndarray,
    count: int,
    trained: float,
    possible: np.ndarray | None = None,
) -> Suggestion:
    """Greedily, the failing states whose trajectories come near to most of the failing states that are not near to one already.

    `trained` is the share of the seen states that succeeds, `possible` (q,) from which states another controller may succeed: others are
    not suggested.
    """
    fails = successes < 0.5
    share = float(fails.mean())
    if share < MATTERS:
        note = f"It hardly matters here: {1 - share:.1%} of the region succeeds already, so that no state is worth adding."
        return Suggestion(np.empty((0, states.shape[1])), 0.0, note)
    out_of_reach = np.zeros_like(fails) if possible is None else fails & ~possible
    failing = states[fails & ~out_of_reach]
    if not len(failing):
        note = "Where it fails, the trajectory ends at its start or the reference fails, too, so that no state is suggested."
        return Suggestion(np.empty((0, states.shape[1])), 0.0, note)
    candidates = failing[np.linspace(0, len(failing) - 1, min(len(failing), CANDIDATES)).astype(int)]
    covers = _reached(problem, controller, candidates, failing, scale)
    chosen, left = [], np.ones(len(failing), bool)
    while len(chosen) < count and left.any():
        best = int(np.argmax((covers & left[None]).sum(axis=1)))
        if not np.any(covers[best] & left):
            break
        chosen.append(best)
        left &= ~covers[best]
    added = candidates[chosen]
    closer = np.minimum(distances, np.asarray(coverage(problem, controller, added, states, scale=scale)))
    closer = np.where(out_of_reach, distances, closer)  # nothing is gained there
    gain = expected_gain(distances, successes, closer)
    these = listed(added)
    correlation = success_by_distance(distances, successes).correlation
    if trained < 0.5:
        note = f"It fails from the states that it was trained on, too ({trained:.0%} succeed): train it further before you add {these}."
        if isinstance(controller, Linear):
            note += " If its gain is that of an lqr or dlqr, where u = −K x, change its sign."
    elif gain >= MATTERS and correlation >= PREDICTS:
        note = f"Add {these} to those it is trained on: as distance predicts success, {100 * gain:.0f} percentage points should be gained."
    elif gain < MATTERS and np.median(distances[fails]) <= NEAR:
        note = f"It hardly matters which states are added: what fails ({share:.0%} of the region) lies near the trajectories of training."
    else:
        note = f"Add {these} to those it is trained on; the distance to the trajectories of training does not predict the gain here."
    return Suggestion(added, gain, note)


def _reached(problem: Problem, controller: Any, candidates: np.ndarray, failing: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """(c, f): whether the trajectory from a candidate comes near to a failing state."""
    from scipy.spatial import KDTree  # which `import offspan` must not load

    with own_errors() as finished:
        X = np.asarray(finished(_states(problem, controller, jnp.asarray(candidates)))) / scale
    finite = [one[np.isfinite(one).all(axis=1)] for one in X]  # of trajectories that grow beyond all bounds
    return np.stack([KDTree(one).query(failing / scale, distance_upper_bound=2 * NEAR)[0] <= NEAR for one in finite])


@eqx.filter_jit
def _states(problem, controller, x0s):
    return jax.vmap(lambda x0: rollout(problem, controller, x0).states)(x0s)
