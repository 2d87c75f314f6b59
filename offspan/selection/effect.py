"""Would adding this state hurt?"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax

from offspan.errors import OffspanError, as_floats, as_states
from offspan.exploration import cosine, state_gradients
from offspan.problems.base import Problem
from offspan.problems.lqr import LQR
from offspan.selection.criteria import starts
from offspan.selection.pilots import costs_from
from offspan.states import unseen_directions
from offspan.training import Status, StoppingRule, train_batch


class Effect(NamedTuple):
    """What adding a state to S does to the cost on U; below 0 it helps. `predicted` is a difference of cosines, from −2 to 2.

    `measured` = J(π_{S∪{x}}; U) − J(π_S; U) for the trained controllers; None where it was not asked for, ±∞ where one training diverged,
    and NaN where both did  [beyond R24].

    >>> import offspan
    >>> e = offspan.basis(4)
    >>> effect = offspan.effect_of_adding(offspan.shift(4, horizon=2), e[:1], e[1], unseen=e[2:3])
    >>> round(effect.predicted, 4), effect.measured  # 0 − 8/√(56·20): from e_2, it hears of e_3
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

    >>> import offspan
    >>> e = offspan.basis(4)
    >>> effect = offspan.effect_of_adding(offspan.shift(4, horizon=2), e[:1], e[3], unseen=e[1:2])
    >>> round(effect.predicted, 4)  # 8/20 − 8/√(56·20) > 0: from e_4, it hears of e_4 and e_1 alone
    0.161
    """
    where, n = "effect_of_adding", problem.state_dim
    S = as_states(where, "x0s", x0s, n)
    more = jnp.concatenate([S, as_floats(where, "x", x, shape=(n,), meaning=f"shape ({n},): one state")[None]])
    if unseen is None and not isinstance(problem, LQR):
        raise OffspanError(f"{where}: pass `unseen`, the states (u, {n}) on which the effect is wanted.")
    U = unseen_directions(more) if unseen is None else as_states(where, "unseen", unseen, n)
    if not len(U):
        raise OffspanError(f"{where}: `x0s` and `x` span the space and leave nothing unseen; pass `unseen` states, or fewer seen ones.")
    if (optimizer is None) != (iterations is None):
        raise OffspanError(f"{where}: to measure, pass both `optimizer` and `iterations`; to predict only, neither.")
    begin = starts(where, problem, controllers, key)
    predicted = float(np.median([_fall_of_cosine(problem, controller, S, more, U) for controller in begin]))
    if optimizer is None or iterations is None:
        return Effect(predicted, None)
    trained = [train_batch(problem, begin, X, optimizer=optimizer, iterations=iterations, stop=stop) for X in (S, more)]
    costs = [np.where(batch.status == Status.diverged, np.inf, costs_from(problem, batch.controllers, U).mean(axis=1)) for batch in trained]
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        return Effect(predicted, float(np.median(costs[1] - costs[0])))


@eqx.filter_jit
def _fall_of_cosine(problem, controller, S, more, U):
    on_S, on_more, on_U = (state_gradients(problem, controller, states).mean(axis=0) for states in (S, more, U))
    return cosine(on_S, on_U) - cosine(on_more, on_U)
