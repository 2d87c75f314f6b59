"""Which initial states to train on: one call for every method of choosing k of them, and one for the effect of adding a state."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from offspan.controllers import Linear
from offspan.errors import OffspanError, as_count, as_floats, as_key, as_states, check_known
from offspan.exploration import as_scale, cosine, state_gradients, visited_count
from offspan.host import own_errors
from offspan.problems.base import Problem, as_problem
from offspan.problems.lqr import LQR
from offspan.problems.variants import as_noise_key, is_noisy, without_noise
from offspan.rollout import Controller, lqr_gradient
from offspan.selection.criteria import starts
from offspan.selection.evaluations import Setting, states_visited
from offspan.selection.methods import METHODS, Task
from offspan.selection.pilots import SAMPLES, Training, costs_from
from offspan.sizes import Rows
from offspan.states import unseen_directions
from offspan.training import Estimator, Status, StoppingRule, train_batch
from offspan.training.estimators import check_estimator

UNSTABLE = 1e3  # trajectories of an untrained system that grow by more say little about those of a trained one


class Selection(NamedTuple):
    """k chosen candidates. `scores` (c,) is what each candidate is worth to the method (`offspan.selection.methods.METHODS` says how).

    `rollouts` counts the trajectories that the method simulated to choose, one for each state in each gradient. `note` is not empty where
    there is something to know about the choice. `controllers` are what the method trained on the chosen states, from each start, if it
    trained; None stands in place of one that diverged. `states` = candidates[`indices`]  [beyond R24].

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
    explores: bool = True  # False where the system stays put from every candidate


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
    gradient: Estimator | None = None,
    horizons: Sequence[int] | None = None,
    discounts: Sequence[float] | None = None,
    sets: int = 32,
) -> Selection:
    """Chooses k of the candidates (c, n) to train on, so that the trained controller does well from all of them.

    S ⊂ candidates with |S| = k, and J(π_S; candidates) is what should be small  [beyond R24; sec:conclusion asks for it].

    `controllers` are the starts that training may begin with: one, or a list, over which medians are taken; by default K = 0 for an LQR and
    the paper's network, drawn with `key`, elsewhere. `scale` is the unit of length in each coordinate.

    Methods that train ("pilot", "adaptive", "replay", "exhaustive") need an optax `optimizer` and `iterations`, the length of their longest
    run; "flow" takes the same, but trains nothing. "pilot" begins with `sets` sets. `gradient`, `horizons` and `discounts` are those of
    `train`; a curriculum applies to the first stretch of training, and later ones have the whole horizon. Of a `Noisy` problem,
    training has the noise, the cost that sets are compared by is a mean over the same 16 draws of it, and criteria take the problem
    without it.

    >>> import jax, offspan
    >>> chosen = offspan.select(offspan.shift(4, horizon=2), offspan.basis(4), 2, method="gramian-logdet", key=jax.random.key(0))
    >>> chosen.indices.tolist(), chosen.rollouts
    ([0, 2], 4)
    """
    where = "select"
    n = as_problem(where, problem).state_dim
    plain = without_noise(problem)
    candidates = as_states(where, "candidates", candidates, n)
    k = as_count(where, "k", k, least=1)
    key_of_training, key_of_choice, key_of_starts = jax.random.split(as_key(where, key), 3)
    setting = Setting(plain, candidates, starts(where, plain, controllers, key_of_starts), as_scale(where, scale, n))
    check_pool(where, np.asarray(candidates), k, is_linear=_are_linear(plain, setting.controllers))
    check_known(f"{where}: there is no method", method, METHODS)
    training = None
    if METHODS[method].trains:
        if optimizer is None or iterations is None:
            raise OffspanError(
                f"{where}: {method!r} needs `optimizer`, such as optax.sgd(1e-3), and `iterations`, the length of its longest run."
            )
        if not isinstance(optimizer, optax.GradientTransformation):
            raise OffspanError(f"{where}: `optimizer` is {optimizer!r}, but must be an optax optimiser, such as optax.sgd(1e-3).")
        if any(not jax.tree.leaves(eqx.filter(controller, eqx.is_inexact_array)) for controller in setting.controllers):
            raise OffspanError(f"{where}: {method!r} trains `controllers`, but one of them holds no weights; pass a Linear or an MLP, say.")
        if gradient is not None:
            check_estimator(where, gradient)
        length = as_count(where, "iterations", iterations, least=1)
        training = Training(problem, key_of_training, optimizer, length, stop, gradient, horizons, discounts)
    task = Task(setting, k, key_of_choice, training, as_count(where, "sets", sets, least=1))
    with own_errors(), np.errstate(over="ignore", invalid="ignore"):  # `_exploration` says what overflows
        choice, (explores, remark) = METHODS[method].choose(task), _exploration(setting, before_training=training is None)
    note = " ".join(one for one in (remark, choice.note) if one)
    if note:
        warnings.warn(f"{where}: {note}", stacklevel=2)
    indices = np.asarray(choice.indices, int)
    return Selection(candidates[indices], indices, choice.scores, method, choice.rollouts, note, choice.controllers, explores)


def _are_linear(problem: Problem, controllers: Sequence[Controller]) -> bool:
    """Whether n independent seen states leave nothing unseen, and a zero state is never left."""
    return isinstance(problem, LQR) and all(isinstance(controller, Linear) for controller in controllers)


def check_pool(where: str, candidates: np.ndarray, k: int, *, is_linear: bool) -> None:
    """Whether k of the candidates (c, n) can be chosen, and something stays unseen by linear controllers of an LQR (`is_linear`)."""
    count, n = candidates.shape
    if k >= count:
        reason = "leaves nothing unseen" if k == count else "is more than there are"
        raise OffspanError(f"{where}: `k` is {k}, which {reason}, as there are {count} candidates; choose fewer, or offer more.")
    distinct, first = np.unique(candidates, axis=0, return_index=True)
    if len(distinct) < count:
        again = min(set(range(count)) - set(first.tolist()))
        raise OffspanError(f"{where}: `candidates` has row {again} twice, {candidates[again].tolist()}; list each state once.")
    if not is_linear:
        return
    if not np.all(np.any(candidates, axis=1)):
        raise OffspanError(f"{where}: `candidates` has a zero state, from which a linear system never moves; leave it out.")
    if k >= n and np.linalg.matrix_rank(candidates) == n:
        raise OffspanError(
            f"{where}: `k` is {k}, so that the chosen states can span all {n} dimensions and leave nothing unseen; choose fewer than {n}."
        )


def _exploration(setting: Setting, before_training: bool) -> tuple[bool, str]:
    """Whether any candidate explores, under the starts, and for a linear one of an LQR after a step of training, too; and a remark where
    none does, where that cannot be decided, or where the trajectories before training diverge, so that scores say little."""
    problem, candidates = setting.problem, setting.candidates
    tolerance = 100 * float(jnp.finfo(candidates.dtype).eps)
    remark = ""
    for controller in setting.controllers:
        rows = Rows(
            lambda which, pi=controller: _movement(setting, pi, candidates[which]),
            len(candidates),
            3,
            (problem.horizon + 1) * problem.state_dim,
        )
        first, longest, moved = np.max([block.max(axis=0) for _, block in rows], axis=0)
        growth = longest / max(first, float(np.finfo(float).tiny))
        if before_training and UNSTABLE < growth < np.inf:
            remark = (
                f"before training, trajectories grow to {growth:.0e} times the candidates' length, so that scores describe how an unstable "
                "system diverges; begin with `controllers` that stabilise it, such as stationary_controller's, or shorten the horizon."
            )
        if not np.isfinite(moved):
            remark = (
                "trajectories overflow at the start, so nothing can be compared; shorten the horizon, or begin with a better controller."
            )
            return True, remark
        if moved > tolerance:
            return True, remark
    where = "on the line through it" if _are_linear(problem, setting.controllers) else "where it is"
    return (
        False,
        f"no choice explores: from every candidate, the system stays {where}, so training learns nothing beyond the states it sees.",
    )


def _movement(setting: Setting, controller: Controller, some: Float[Array, "i n"]) -> np.ndarray:
    """(i, 3): the length of each candidate, that of the longest state visited from it, and how far it moves: for a linear controller of an
    LQR, which learns nothing more on the line through it, away from that line, at length 1."""
    problem, scale = setting.problem, np.asarray(setting.scale)[None, None]
    X = np.asarray(states_visited(problem, controller, some)[:, : visited_count(problem)], float)
    lengths = np.linalg.norm(X / scale, axis=2)
    if isinstance(problem, LQR) and isinstance(controller, Linear):
        stepped = jax.vmap(lambda x: problem.B @ lqr_gradient(problem, controller.K, x[None]) @ x)(some)
        X = np.concatenate([X, np.asarray(stepped, float)[:, None]], axis=1)
        own = np.linalg.norm(X, axis=2, keepdims=True)
        X = X / np.where(own > 0, own, 1)
        line = X[:, :1]
        moved = np.linalg.norm(X - np.sum(X * line, axis=2, keepdims=True) * line, axis=2)
    else:
        moved = np.linalg.norm((X - X[:, :1]) / scale, axis=2)
    return np.stack([lengths[:, 0], lengths.max(axis=1), moved.max(axis=1)], axis=1)


class Effect(NamedTuple):
    """What adding a state to S does to the cost on U; below 0 it helps. `predicted` is a difference of cosines, from −2 to 2.

    `measured` = J(π_{S∪{x}}; U) − J(π_S; U) for the trained controllers; None where it was not asked for, ±∞ where one training diverged,
    and NaN where both did  [beyond R24].

    >>> import offspan
    >>> e = offspan.basis(4)
    >>> effect = offspan.effect_of_adding(offspan.shift(4, horizon=2), e[:1], e[1], unseen=e[2:3])
    >>> round(effect.predicted, 4), effect.measured  # 0 − 8/√(56·20): from e_2, e_3 is visited
    (-0.239, None)
    """

    predicted: float
    measured: float | None


def effect_of_adding(
    problem: Problem,
    x0s: Any,
    x: Any,
    *,
    unseen: Any = None,
    controllers: Any = None,
    key: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    iterations: int | None = None,
    stop: StoppingRule | None = None,
) -> Effect:
    """Would training on S and x, in place of S alone, help or hurt on U? Predicted before training, and measured where it can be trained.

    `predicted` = cos(∇J(S), ∇J(U)) − cos(∇J(S ∪ {x}), ∇J(U)) at the start, so a guess about the first steps. `measured`, with an
    `optimizer` and `iterations`: J(U) after training on S ∪ {x} less J(U) after training on S. Both are medians over starts. U is by
    default, for an LQR, a basis of the directions that neither S nor x has  [beyond R24; sec:conclusion asks for it].

    Of a `Noisy` problem, which needs a `key`, training has the noise, costs are means over the same 16 draws of it, and the prediction is
    without it.

    >>> import offspan
    >>> e = offspan.basis(4)
    >>> effect = offspan.effect_of_adding(offspan.shift(4, horizon=2), e[:1], e[3], unseen=e[1:2])
    >>> round(effect.predicted, 4)  # 8/20 − 8/√(56·20) > 0: from e_4, e_4 and e_1 alone are visited
    0.161
    """
    where = "effect_of_adding"
    n = as_problem(where, problem).state_dim
    plain = without_noise(problem)
    S = as_states(where, "x0s", x0s, n)
    more = jnp.concatenate([S, as_floats(where, "x", x, shape=(n,), meaning=f"shape ({n},): one state")[None]])
    if unseen is None and not isinstance(plain, LQR):
        raise OffspanError(f"{where}: pass `unseen`, the states (u, {n}) on which the effect is wanted.")
    U = unseen_directions(more) if unseen is None else as_states(where, "unseen", unseen, n)
    if not len(U):
        raise OffspanError(f"{where}: `x0s` and `x` span the space and leave nothing unseen; pass `unseen` states, or fewer seen ones.")
    if (optimizer is None) != (iterations is None):
        raise OffspanError(f"{where}: to measure, pass both `optimizer` and `iterations`; to predict only, neither.")
    key_of_starts, key_of_training, key_of_costs = (None,) * 3 if key is None else jax.random.split(as_key(where, key), 3)
    begin = starts(where, plain, controllers, key_of_starts)
    predicted = float(np.median([_fall_of_cosine(plain, controller, S, more, U) for controller in begin]))
    if optimizer is None or iterations is None:
        return Effect(predicted, None)
    as_noise_key(where, problem, key)
    samples = SAMPLES if is_noisy(problem) else 1

    def cost_after(X: Float[Array, "s n"]) -> np.ndarray:
        batch = train_batch(problem, begin, X, optimizer=optimizer, iterations=iterations, stop=stop, key=key_of_training)
        costs = costs_from(problem, batch.controllers, U, key_of_costs, samples).mean(axis=1)
        return np.where(batch.codes == Status.diverged, np.inf, costs)

    costs = [cost_after(X) for X in (S, more)]
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        return Effect(predicted, float(np.median(costs[1] - costs[0])))


@eqx.filter_jit
def _fall_of_cosine(problem, controller, S, more, U):
    on_S, on_more, on_U = (state_gradients(problem, controller, states).mean(axis=0) for states in (S, more, U))
    return cosine(on_S, on_U) - cosine(on_more, on_U)
