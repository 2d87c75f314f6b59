"""Policy gradient: from a problem, a controller and the seen states to a learned controller.

Each function checks what it was given, and calls the engine.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, PyTree

from offspan.controllers import Linear
from offspan.errors import OffspanError, as_count, as_floats, as_key, as_positive, as_states
from offspan.host import own_errors
from offspan.problems.base import Problem, as_problem
from offspan.problems.lqr import as_lqr
from offspan.problems.variants import is_noisy, without_noise
from offspan.rollout import Controller, as_gain
from offspan.training.batch import Batch, Run
from offspan.training.diagnosis import warn_if_stuck
from offspan.training.engine import Given, Settings, Stages, run_batch
from offspan.training.estimators import Adjoint, Estimator, Exact, Loss, check_estimator
from offspan.training.lqr_kernels import clipped
from offspan.training.stopping import Never, StoppingRule


def train(
    problem: Problem,
    controller: Controller,
    x0s: Float[ArrayLike, "s n"],
    *,
    optimizer: optax.GradientTransformation,
    iterations: int,
    gradient: Estimator | None = None,
    key: Any = None,
    loss: Loss | None = None,
    stop: StoppingRule | None = None,
    horizons: Sequence[int] | np.ndarray | None = None,
    discounts: Sequence[float] | np.ndarray | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Run:
    """w ← w − η ∇J(π_w; S), with the optimiser's own rule for η∇J  [R24, eq:policy_grad].

    The gradient comes from an estimator, `Exact()` by default; one that draws random numbers needs a `key`. With `loss`, that function is
    minimised in place of J (it is `Exact(loss)`); `Run.cost` and the stopping rule still use J(π; S). `progress` is called with the
    number of updates made. Each optimiser value compiles a program, so make it once when you train in a loop. There is a warning for
    a run that ends finite but stuck.

    `horizons`, such as (10, 50, 200), is a curriculum: each has an equal share of the iterations, and J is the cost up to that time step.
    `discounts`, such as (0.3, 0.9, 1), likewise weighs time step h by γ^h. Stopping rules apply to the last stage alone.

    >>> import jax.numpy as jnp, optax, offspan
    >>> run = offspan.train(
    ...     offspan.shift(3, horizon=3), offspan.Linear(jnp.zeros((3, 3))), offspan.basis(3, 1),
    ...     optimizer=optax.sgd(0.1), iterations=200, stop=offspan.CostBelow(1.001),
    ... )
    >>> print(run.status)
    converged
    """
    x0s = as_states("train", "x0s", x0s, as_problem("train", problem).state_dim)[None]
    settings = as_settings("train", problem, [controller], x0s, optimizer, gradient, key, loss, stop)
    settings = settings._replace(stages=as_stages("train", problem, iterations, horizons, discounts))
    run = _run_alone("train", settings, controller, x0s, iterations, key, progress)
    if getattr(settings.estimator, "loss", None) is None:  # with a loss, J may rise on purpose
        noisy = is_noisy(problem)
        exact = isinstance(settings.estimator, Exact) and not noisy
        warn_if_stuck("train", without_noise(problem), run, x0s[0], exact=exact, noisy=noisy)
    return run


def train_batch(
    problem: Problem | Sequence[Problem],
    controllers: Sequence[Controller],
    x0s: Any,
    *,
    optimizer: optax.GradientTransformation | Sequence[optax.GradientTransformation],
    iterations: int,
    gradient: Estimator | None = None,
    key: Any = None,
    loss: Loss | None = None,
    stop: StoppingRule | None = None,
    horizons: Sequence[int] | np.ndarray | None = None,
    discounts: Sequence[float] | np.ndarray | None = None,
    record_every: int = 100,
    resume: Batch | None = None,
    on_chunk: Callable[[Batch], Any] | None = None,
    devices: Sequence[Any] | None = None,
) -> Batch:
    """w_r ← w_r − η ∇J(π_{w_r}; S_r) for every run r at once, each as in `train`  [R24, eq:policy_grad].

    The controllers differ in their weights alone; they have the same seen states (s, n), or each its own (r, s, n). The problem is the
    same for all, or a list of one for each run, which differ in their arrays alone (the A of an LQR, the mass of a pendulum). So is the
    optimiser; several make every run pay for the updates of all of them.

    A run that diverges or stops early does not affect the others. `on_chunk` is called with the batch after each chunk of iterations, and
    `resume` continues such a batch bit for bit. The runs are shared out over `devices`, by default all of this process. An optimiser that
    draws random numbers draws the same ones for every run; an estimator draws others for each.

    >>> import optax, offspan
    >>> problem, starts, seen = offspan.identity(1, horizon=1), [offspan.Linear([[0.0]])] * 2, [[[1.0]], [[2.0]]]
    >>> batch = offspan.train_batch(problem, starts, seen, optimizer=optax.sgd(0.125), iterations=1)
    >>> [float(pi.K[0, 0]) for pi in batch.controllers]  # −η 2x², as J(K; x) = x² (1 + (1 + K)²)
    [-0.25, -1.0]
    """
    where = "train_batch"
    if not isinstance(controllers, Sequence) or not controllers or not _differ_in_arrays_alone(controllers):
        raise OffspanError(f"{where}: `controllers` must be a list of controllers that differ in the values of their weights alone.")
    problem, arrays = _shared_problem(where, problem, len(controllers))
    n = problem.state_dim
    try:
        sets = jnp.ndim(jnp.asarray(x0s)) == 3
    except (TypeError, ValueError):
        sets = False  # `as_states` says what is wrong with it
    if sets:
        x0s = as_floats(where, "x0s", x0s, shape=(len(controllers), None, n), meaning=f"one set of states (s, {n}) for each run")
    else:
        x0s = jnp.repeat(as_states(where, "x0s", x0s, n)[None], len(controllers), axis=0)
    shared, own_optimizer = shared_optimizer(where, optimizer, len(controllers))
    settings = as_settings(where, problem, controllers, x0s, shared, gradient, key, loss, stop)
    settings = settings._replace(stages=as_stages(where, problem, iterations, horizons, discounts))
    with own_errors():
        return run_batch(
            where,
            settings,
            controllers,
            Given(x0s, arrays, own_optimizer),
            key=_key(where, key),
            iterations=as_count(where, "iterations", iterations, least=0),
            record_every=as_count(where, "record_every", record_every, least=1),
            resume=resume,
            on_chunk=on_chunk,
            devices=devices,
        )


def train_lqr(
    problem: Problem,
    x0s: Float[ArrayLike, "s n"],
    *,
    learning_rate: float,
    iterations: int,
    K0: Float[ArrayLike, "m n"] | None = None,
    clip: float | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Run:
    """K ← K − η ∇J(K; S), from K(1) = 0 unless `K0` says otherwise, by the adjoint gradient  [R24, eq:policy_grad].

    With `clip`, a gradient of larger norm is scaled down to it, as by `optax.clip_by_global_norm`. On a `Noisy` LQR, J is the expected
    cost.

    >>> import offspan
    >>> run = offspan.train_lqr(offspan.identity(2, horizon=2), offspan.basis(2, 1), learning_rate=0.1, iterations=100)
    >>> print(run.status, run.K.round(2).tolist())
    finished [[-1.0, 0.0], [0.0, 0.0]]
    """
    run = descend_lqr(problem, x0s, learning_rate=learning_rate, iterations=iterations, K0=K0, clip=clip, progress=progress)
    warn_if_stuck("train_lqr", without_noise(problem), run, x0s, exact=not is_noisy(problem))
    return run


def descend_lqr(
    problem: Problem,
    x0s: Any,
    *,
    learning_rate: float,
    iterations: int,
    K0: Any = None,
    clip: float | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Run:
    """`train_lqr` without its warnings."""
    where = "train_lqr"
    lqr = as_lqr(where, without_noise(problem))
    x0s = as_states(where, "x0s", x0s, lqr.state_dim)
    K = jnp.zeros((lqr.control_dim, lqr.state_dim)) if K0 is None else as_gain(where, lqr, K0, "K0")
    K = K.astype(jnp.result_type(lqr.A, x0s))
    rate = jnp.asarray(as_positive(where, "learning_rate", learning_rate), K.dtype)
    largest = None if clip is None else jnp.asarray(as_positive(where, "clip", clip), K.dtype)
    settings = Settings(problem, Adjoint(), GradientDescent(rate, largest), Never())
    return _run_alone(where, settings, Linear(K), x0s[None], iterations, None, progress)


class GradientDescent(eqx.Module):
    """optax's sgd of one matrix, after clip_by_global_norm where `clip` is given; its numbers are arrays, so others need no new program."""

    learning_rate: Float[Array, ""]
    clip: Float[Array, ""] | None

    def init(self, weights: PyTree) -> tuple[()]:
        return ()

    def update(self, gradient: PyTree, state: tuple[()], weights: PyTree = None) -> tuple[PyTree, tuple[()]]:
        clip = self.clip
        if clip is not None:
            gradient = jax.tree.map(lambda leaf: clipped(leaf, clip), gradient)
        return jax.tree.map(lambda leaf: -self.learning_rate * leaf, gradient), state


def _run_alone(
    where: str,
    settings: Settings,
    controller: Controller,
    x0s: Float[Array, "1 s n"],
    iterations: int,
    key: Any,
    progress: Callable[[int], Any] | None,
) -> Run:
    """One run, with the cost before each of its updates."""
    on_chunk = None if progress is None else lambda batch: progress(int(batch.iterations[0]))
    count = as_count(where, "iterations", iterations, least=0)
    options: dict[str, Any] = {"key": _key(where, key), "record_every": 1, "record_last": False}
    with own_errors():
        return run_batch(where, settings, [controller], Given(x0s), iterations=count, on_chunk=on_chunk, **options).run(0)


def as_stages(
    where: str,
    problem: Problem,
    iterations: int,
    horizons: Sequence[int] | np.ndarray | None,
    discounts: Sequence[float] | np.ndarray | None,
) -> Stages | None:
    if horizons is None and discounts is None:
        return None
    listed = lambda values: list(values) if isinstance(values, np.ndarray | jax.Array) and values.ndim else values  # noqa: E731
    H, given = problem.horizon, {"horizons": listed(horizons), "discounts": listed(discounts)}
    for name, values in given.items():
        if values is not None and (not isinstance(values, Sequence) or isinstance(values, str) or not values):
            raise OffspanError(f"{where}: `{name}` is {values!r}, but must be a sequence of numbers, one a stage.")
    count = len(given["horizons"] or given["discounts"] or ())
    lasts = [as_count(where, "horizons", one, least=1) for one in given["horizons"] or [H] * count]
    factors = [as_positive(where, "discounts", one) for one in given["discounts"] or [1.0] * count]
    if len(lasts) != len(factors):
        raise OffspanError(f"{where}: `horizons` has {len(lasts)} stages and `discounts` {len(factors)}; give one of each for every stage.")
    if max(lasts) > H or lasts[-1] != H:
        raise OffspanError(f"{where}: `horizons` is {tuple(lasts)}, but must end with the problem's, {H}, and not exceed it.")
    if max(factors) > 1 or factors[-1] != 1:
        raise OffspanError(f"{where}: `discounts` is {tuple(factors)}, but must be at most 1 and end with 1.")
    total = max(as_count(where, "iterations", iterations, least=0), 1)
    return Stages(jnp.asarray(lasts), jnp.asarray(factors), jnp.asarray(total))


def _key(where: str, key: Any) -> Array:
    return jax.random.key(0) if key is None else as_key(where, key)


def _shared_problem(where: str, problem: Any, runs: int) -> tuple[Problem, PyTree]:
    """What all runs share of their problems, and the arrays of each, stacked, where there are several."""
    if isinstance(problem, Problem):
        return problem, None
    if not isinstance(problem, Sequence) or len(problem) != runs or not all(isinstance(one, Problem) for one in problem):
        raise OffspanError(f"{where}: `problem` must be one problem, or a list of one for each of the {runs} runs.")
    if not _differ_in_arrays_alone(problem):
        raise OffspanError(f"{where}: `problem` is a list of problems that differ in more than the values of their arrays.")
    arrays = [eqx.filter(one, eqx.is_inexact_array) for one in problem]
    return problem[0], jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)


def shared_optimizer(where: str, optimizer: Any, runs: int) -> tuple[Any, Any]:
    """One optimiser for all runs, and which part of it each uses, where there are several."""
    if isinstance(optimizer, optax.GradientTransformation) or not isinstance(optimizer, Sequence):
        return optimizer, None
    if len(optimizer) != runs or not all(isinstance(one, optax.GradientTransformation) for one in optimizer):
        raise OffspanError(f"{where}: `optimizer` must be one optax optimiser, or a list of one for each of the {runs} runs.")
    different = tuple(dict.fromkeys(optimizer))
    return _one_of(different), jnp.asarray([different.index(one) for one in optimizer])


@functools.lru_cache(maxsize=64)
def _one_of(several: tuple[optax.GradientTransformation, ...]) -> optax.GradientTransformationExtraArgs:
    """The update of number `which` of them; the states of the others stay as they are."""

    def init(params):
        return tuple(one.init(params) for one in several)

    def update(updates, state, params=None, **extra):
        which = extra.pop("which")
        made = [optax.with_extra_args_support(one).update(updates, own, params, **extra) for one, own in zip(several, state, strict=True)]
        change = jax.tree.map(lambda *leaves: jnp.stack(leaves)[which], *(change for change, _ in made))
        kept = [
            jax.tree.map(lambda new, old, i=i: jnp.where(which == i, new, old), after, before)
            for i, ((_, after), before) in enumerate(zip(made, state, strict=True))
        ]
        return change, tuple(kept)

    return optax.GradientTransformationExtraArgs(init, update)


def _differ_in_arrays_alone(several: Sequence[Any]) -> bool:
    first, *others = [eqx.partition(one, eqx.is_inexact_array) for one in several]
    shapes = lambda weights: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(weights)]  # noqa: E731
    return all(
        jax.tree.structure(weights) == jax.tree.structure(first[0])
        and shapes(weights) == shapes(first[0])
        and bool(eqx.tree_equal(rest, first[1]))
        for weights, rest in others
    )


def as_settings(
    where: str,
    problem: Problem,
    controllers: Sequence[Controller],
    x0s: Float[Array, "r s n"],
    optimizer: optax.GradientTransformation,
    gradient: Estimator | None,
    key: Any,
    loss: Loss | None,
    stop: StoppingRule | None,
) -> Settings:
    """What the engine needs, after checks of every option."""
    stop = Never() if stop is None else stop
    if not isinstance(stop, StoppingRule):
        raise OffspanError(f"{where}: `stop` is {stop!r}, but must be a stopping rule, such as NoImprovement() or CostBelow(0.1).")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise OffspanError(f"{where}: `optimizer` is {optimizer!r}, but must be an optax optimiser, such as optax.sgd(1e-3).")
    if not jax.tree.leaves(eqx.filter(controllers[0], eqx.is_inexact_array)):
        raise OffspanError(
            f"{where}: the controller (a {type(controllers[0]).__name__}) has no floating-point arrays to train; "
            "pass a Linear, an MLP or another pytree that holds its weights."
        )
    if loss is not None and is_noisy(problem):
        raise OffspanError(
            f"{where}: `loss` is given, but the problem is Noisy, and a loss has no key to draw noise from; leave one of them out."
        )
    if loss is not None and gradient is not None:
        raise OffspanError(f"{where}: `loss` and `gradient` are both given; pass `gradient=Exact(loss)`.")
    estimator = Exact(loss) if gradient is None else gradient
    check_estimator(where, estimator)
    if (estimator.draws or is_noisy(problem)) and key is None:
        drawn = type(estimator).__name__ if estimator.draws else "a Noisy problem"
        raise OffspanError(f"{where}: `key` is missing: {drawn} draws random numbers; pass `key=jax.random.key(0)`.")
    if isinstance(estimator, Exact) and estimator.loss is not None:
        _check_loss(where, estimator.loss, problem, controllers[0], x0s[0])
    return Settings(problem, estimator, optimizer, stop)


def _check_loss(where: str, loss: Loss, problem: Problem, controller: Controller, x0s: Array) -> None:
    if not callable(loss):
        raise OffspanError(f"{where}: `loss` is {loss!r}, but must be a function of problem, controller and seen states.")
    value = eqx.filter_eval_shape(loss, problem, controller, x0s)
    parts = value if isinstance(value, tuple) else (value, value)
    if [getattr(part, "shape", None) for part in parts] != [(), ()] or not all(jnp.issubdtype(part.dtype, jnp.floating) for part in parts):
        raise OffspanError(f"{where}: `loss` must return one real number, or a pair of that and J(π; S), but returned {value}.")
