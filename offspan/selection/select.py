"""One call for every method of choosing initial states."""

import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from offspan.controllers import Linear
from offspan.errors import OffspanError, as_count, as_key, as_states, nearest
from offspan.exploration import as_scale, visited_states
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR
from offspan.rollout import lqr_gradient
from offspan.selection.criteria import Setting, starts
from offspan.selection.methods import METHODS, NEED_TRAINING, Task
from offspan.selection.pilots import Training
from offspan.training import StoppingRule


class Selection(NamedTuple):
    """k chosen candidates. `scores` (c,) is what each candidate is worth to the method (`offspan.selection.methods.MEANING` says how).

    `rollouts` counts the trajectories that the method simulated, one for each state in each gradient. `note` is not empty where there is
    something to know about the choice. `controllers` are what the method trained on the chosen states, from each start, if it trained; None
    stands in place of one that diverged. `states` = candidates[`indices`]  [beyond R24].

    >>> import jax, jax.numpy as jnp, offspan
    >>> candidates = jnp.array([[1.0, 0.0], [1.0, 1.0], [1.0, 3.0]])
    >>> chosen = offspan.select(offspan.shift(2, horizon=2), candidates, 1, method="farthest", key=jax.random.key(0))
    >>> chosen.states.tolist(), chosen.rollouts  # none is farther from it than 2
    ([[1.0, 1.0]], 0)
    """

    states: Float[Array, "k n"]
    indices: np.ndarray  # (k,)
    scores: np.ndarray  # (c,)
    method: str
    rollouts: int
    note: str = ""
    controllers: list[Any] | None = None


def select(
    problem: Problem,
    candidates: Any,
    k: int,
    *,
    method: str,
    key: Any,
    controllers: Any = None,
    scale: Any = 1.0,
    optimizer: optax.GradientTransformation | None = None,
    iterations: int | None = None,
    stop: StoppingRule | None = None,
    sets: int = 32,
) -> Selection:
    """Chooses k of the candidates (c, n) to train on, so that the trained controller does well from all of them.

    S ⊂ candidates with |S| = k, and J(π_S; candidates) is what should be small  [beyond R24; sec:conclusion asks for it].

    `controllers` are the starts that training may begin with: one, or a list, over which medians are taken; by default K = 0 for an LQR and
    the paper's network, `MLP.init(key, n, m)`, elsewhere. `scale` says what counts as far in each coordinate.

    Methods that train ("pilot", "adaptive", "replay", "exhaustive") need an optax `optimizer` and `iterations`, the length of their longest
    run; "flow" takes the same, but trains nothing. "pilot" begins with `sets` sets.

    >>> import jax, offspan
    >>> chosen = offspan.select(offspan.shift(4, horizon=2), offspan.basis(4), 2, method="gramian-logdet", key=jax.random.key(0))
    >>> chosen.indices.tolist(), chosen.rollouts
    ([0, 2], 4)
    """
    where = "select"
    n = problem.state_dim
    candidates = as_states(where, "candidates", candidates, n)
    k = as_count(where, "k", k, least=1)
    check_pool(where, problem, np.asarray(candidates), k)
    if method not in METHODS:
        raise OffspanError(f"{where}: there is no method {method!r}{nearest(str(method), list(METHODS))}; there are {', '.join(METHODS)}.")
    key_of_choice = jax.random.split(as_key(where, key))[1]
    setting = Setting(problem, candidates, starts(where, problem, controllers, key), as_scale(where, scale, n))
    training = None
    if method in NEED_TRAINING:
        if optimizer is None or iterations is None:
            raise OffspanError(
                f"{where}: {method!r} needs `optimizer`, such as optax.sgd(1e-3), and `iterations`, the length of its longest run."
            )
        if not isinstance(optimizer, optax.GradientTransformation):
            raise OffspanError(f"{where}: `optimizer` is {optimizer!r}, but must be an optax optimiser, such as optax.sgd(1e-3).")
        if any(not jax.tree.leaves(eqx.filter(controller, eqx.is_inexact_array)) for controller in setting.controllers):
            raise OffspanError(f"{where}: {method!r} trains `controllers`, but one of them holds no weights; pass a Linear or an MLP, say.")
        training = Training(optimizer, as_count(where, "iterations", iterations, least=1), stop)
    task = Task(setting, k, key_of_choice, training, as_count(where, "sets", sets, least=1))
    choice = METHODS[method](task)
    note = " ".join(note for note in (_note(setting), choice.note) if note)
    if note:
        warnings.warn(f"{where}: {note}", stacklevel=2)
    indices = np.asarray(choice.indices, int)
    return Selection(candidates[indices], indices, choice.scores, method, choice.rollouts, note, choice.controllers)


def check_pool(where: str, problem: Problem, candidates: np.ndarray, k: int) -> None:
    """Whether k of the candidates (c, n) can be chosen, and something stays unseen."""
    count, n = candidates.shape
    if k >= count:
        said = "leaves nothing unseen" if k == count else "is more than there are"
        raise OffspanError(f"{where}: `k` is {k}, which {said}, as there are {count} candidates; choose fewer, or offer more.")
    distinct, first = np.unique(candidates, axis=0, return_index=True)
    if len(distinct) < count:
        again = min(set(range(count)) - set(first.tolist()))
        raise OffspanError(f"{where}: `candidates` has row {again} twice, {candidates[again].tolist()}; list each state once.")
    if not isinstance(problem, LQR):
        return
    if not np.all(np.any(candidates, axis=1)):
        raise OffspanError(f"{where}: `candidates` has a zero state, from which a linear system never moves; leave it out.")
    if k >= n and np.linalg.matrix_rank(candidates) == n:
        raise OffspanError(
            f"{where}: `k` is {k}, so that the chosen states can span all {n} dimensions and leave nothing unseen; choose fewer than {n}."
        )


def _note(setting: Setting) -> str:
    """Where no candidate explores: under the starts, and for an LQR after a step of training, too; or where that cannot be told."""
    problem, candidates = setting.problem, setting.candidates
    tolerance = 100 * float(jnp.finfo(candidates.dtype).eps)
    for controller in setting.controllers:
        X = np.asarray(visited_states(problem, controller, candidates), float)
        if isinstance(problem, LQR):
            if isinstance(controller, Linear):
                stepped = [problem.B @ lqr_gradient(problem, controller.K, x[None]) @ x for x in candidates]
                X = np.concatenate([X, np.asarray(stepped, float)[:, None]], axis=1)
            lengths = np.linalg.norm(X, axis=2, keepdims=True)
            X = X / np.where(lengths > 0, lengths, 1)
            line = X[:, :1]
            moved = np.linalg.norm(X - np.sum(X * line, axis=2, keepdims=True) * line, axis=2)
        else:
            moved = np.linalg.norm((X - X[:, :1]) / np.asarray(setting.scale)[None, None], axis=2)
        if not np.all(np.isfinite(moved)):
            return "trajectories overflow at the start, so nothing can be compared; shorten the horizon, or begin with a better controller."
        if np.max(moved) > tolerance:
            return ""
    where = "on the line through it" if isinstance(problem, LQR) else "where it is"
    return f"no choice explores: from every candidate, the system stays {where}, so training learns nothing beyond the states it sees."
