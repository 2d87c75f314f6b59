"""A mistake of the caller is an OffspanError: one sentence that names the function and the argument. Anything else is a bug."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import offspan
import offspan.cli
from offspan.exploration import krylov_rank
from offspan.report.maps import map_figure
from offspan.theory import closed_forms, riccati
from offspan.theory.claims import Settings
from offspan.theory.verify import verify

EYE, ZERO = np.eye(2), np.zeros((2, 2))
LQR2 = offspan.LQR(EYE, horizon=3)
LINEAR = offspan.Linear(ZERO)
E1 = np.array([[1.0, 0.0]])
KEY = jax.random.key(0)
SGD = optax.sgd(0.1)


@pytest.fixture(autouse=True)
def as_a_user():
    """Without the shape-checking hook of the tests, which would speak first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Drawing(offspan.Estimator):
    """An estimator that needs a key."""

    draws = True

    def __call__(self, key, problem, controller, x0s):
        raise AssertionError("called without a key")


# Each with one argument, or some, in place of good ones. `Any`, as what is passed is wrong on purpose.
def function_problem(step: Any = lambda x, u: x, stage_cost: Any = lambda x, u: x @ x, control_dim=1, **options: Any):
    return offspan.FunctionProblem(step, stage_cost, state_dim=2, control_dim=control_dim, horizon=3, **options)


def black_box(step: Any):
    cost = lambda X, U: np.sum(X**2, axis=1)  # noqa: E731
    return offspan.BlackBox(step, cost, state_dim=2, control_dim=1, horizon=3)


def train(controller: Any = LINEAR, x0s: Any = E1, optimizer: Any = SGD, iterations: Any = 1, **options: Any):
    return offspan.train(LQR2, controller, x0s, optimizer=optimizer, iterations=iterations, **options)


def train_batch(controllers: Any = (LINEAR,), x0s: Any = E1, iterations: Any = 1, **options: Any):
    return offspan.train_batch(LQR2, controllers, x0s, optimizer=SGD, iterations=iterations, **options)


def train_lqr(problem: Any = LQR2, learning_rate: Any = 0.1, iterations: Any = 1, **options: Any):
    return offspan.train_lqr(problem, E1, learning_rate=learning_rate, iterations=iterations, **options)


def train_lqr_batch(problems: Any = (LQR2,), x0s: Any = (E1,), learning_rate: Any = 0.1, iterations: Any = 1, **options: Any):
    return offspan.train_lqr_batch(problems, x0s, learning_rate=learning_rate, iterations=iterations, **options)


def select(
    candidates: Any = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), k=1, method="random", key: Any = KEY, problem: Any = LQR2, **options: Any
):
    return offspan.select(problem, candidates, k, method=method, key=key, **options)


def extrapolation_map(axes: Any, **options: Any):
    return offspan.extrapolation_map(LQR2, LINEAR, axes, **options)


def lqr(A: Any = EYE, B: Any = None, horizon: Any = 3, **matrices: Any):
    return offspan.LQR(A, B, horizon=horizon, **matrices)


def cost(controller: Any = LINEAR, x0s: Any = E1):
    return offspan.cost(LQR2, controller, x0s)


class Mine(offspan.Problem):
    """A system of one's own, with whatever is wrong about it."""

    returned: Any = eqx.field(static=True)

    def __init__(self, horizon: Any = 3, **returned: Any):
        self.returned = returned
        self.state_dim, self.control_dim, self.horizon, self.cost_scale, self.control_bounds = 2, 1, horizon, 1.0, None

    def step(self, x, u):
        return self.returned.get("step", lambda x: x)(x)

    def stage_cost(self, x, u):
        return self.returned.get("stage_cost", lambda x: x @ x)(x)


def unpacked(x):
    a, b, c = x
    return a + b + c


# What a sentence must name, after the function: the argument, in backticks, or where none is at fault a few words.
MISTAKES = {
    "A is not square": (lambda: lqr(np.ones((2, 3))), "LQR", "`A`"),
    "A is a vector": (lambda: lqr(np.ones(2)), "LQR", "`A`"),
    "A is a word": (lambda: lqr("shift"), "LQR", "`A`"),
    "A is ragged": (lambda: lqr([[1.0], [1.0, 2.0]]), "LQR", "`A`"),
    "A is empty": (lambda: lqr(np.zeros((0, 0))), "LQR", "`A`"),
    "A is complex": (lambda: lqr(1j * EYE), "LQR", "`A`"),
    "A has NaN": (lambda: lqr(EYE * np.nan), "LQR", "`A`"),
    "B has an infinity": (lambda: lqr(B=[[np.inf], [1.0]]), "LQR", "`B`"),
    "B is transposed": (lambda: lqr(B=np.ones((1, 2))), "LQR", "`B`"),
    "Q has the wrong size": (lambda: lqr(Q=np.eye(3)), "LQR", "`Q`"),
    "Q is not symmetric": (lambda: lqr(Q=[[1.0, 0.5], [0.0, 1.0]]), "LQR", "`Q`"),
    "Q is indefinite": (lambda: lqr(Q=np.diag([1.0, -0.1])), "LQR", "`Q`"),
    "R is indefinite": (lambda: lqr(R=np.diag([1.0, -2.0])), "LQR", "`R`"),
    "R is not symmetric": (lambda: lqr(R=[[1.0, 1.0], [0.0, 1.0]]), "LQR", "`R`"),
    "horizon is zero": (lambda: lqr(horizon=0), "LQR", "`horizon`"),
    "horizon is a fraction": (lambda: lqr(horizon=2.5), "LQR", "`horizon`"),
    "horizon is a truth value": (lambda: lqr(horizon=True), "LQR", "`horizon`"),
    "dim is zero": (lambda: offspan.identity(0, horizon=3), "identity", "`dim`"),
    "a number where a key is wanted": (lambda: offspan.gaussian(7, 2, horizon=3), "gaussian", "`key`"),  # pyright: ignore
    "a problem of one's own without time": (lambda: Mine(horizon=0), "Mine", "`horizon`"),
    "a problem of one's own whose step is short": (lambda: Mine(step=lambda x: x[:1]), "Mine", "`step` returned shape (1,)"),
    "a problem of one's own with several costs": (lambda: Mine(stage_cost=lambda x: x), "Mine", "`stage_cost` returned shape (2,)"),
    "a problem of one's own with an if": (lambda: Mine(step=lambda x: x if x[0] > 0 else -x), "Mine", "`step` cannot be traced"),
    "a problem of one's own that returns a pair": (lambda: Mine(step=lambda x: (x, x)), "Mine", "`step` returned a tuple"),
    "a step with a mask in it": (lambda: function_problem(step=lambda x, u: x[x > 0]), "FunctionProblem", "`step` cannot be traced"),
    "a step of one argument": (lambda: function_problem(step=lambda x: x), "FunctionProblem", "`step` fails for"),
    "a list indexed by a state": (lambda: cost(lambda x: x * [1.0, 2.0][x[0].astype(int)]), "rollout", "use jax.numpy in it"),
    "a mask of a state": (lambda: cost(lambda x: x[x > 0]), "rollout", "use jax.numpy in it"),
    "a state taken apart wrongly": (lambda: function_problem(stage_cost=lambda x, u: unpacked(x)), "FunctionProblem", "expected 3"),
    "a state taken apart wrongly by a controller": (lambda: cost(lambda x: unpacked(x) * x), "rollout", "expected 3"),
    "step returns the wrong shape": (lambda: function_problem(step=lambda x, u: x[:1]), "FunctionProblem", "`step`"),
    "a step with an if in it": (lambda: function_problem(step=lambda x, u: x if x[0] > 0 else -x), "FunctionProblem", "`step`"),
    "a step that is no function": (lambda: function_problem(step="euler"), "FunctionProblem", "`step`"),
    "stage_cost is not a number": (lambda: function_problem(stage_cost=lambda x, u: x**2), "FunctionProblem", "`stage_cost`"),
    "control bounds are crossed": (lambda: function_problem(control_bounds=(1.0, 0.0)), "FunctionProblem", "low < high"),
    "control bounds that are no pair": (lambda: function_problem(control_bounds=5.0), "FunctionProblem", "a pair (low, high)"),
    "bounds for more controls than there are": (
        lambda: function_problem(control_bounds=([-1.0] * 3, [1.0] * 3)),
        "FunctionProblem",
        "one number for each control",
    ),
    "coordinates that are no list": (lambda: function_problem(coordinates=2), "FunctionProblem", "`coordinates`"),
    "too few names of coordinates": (lambda: function_problem(coordinates=["x"]), "FunctionProblem", "`coordinates`"),
    "cost scale is negative": (lambda: function_problem(cost_scale=-1.0), "FunctionProblem", "`cost_scale`"),
    "a mass below zero": (lambda: offspan.Pendulum(mass=-1.0), "Pendulum", "`mass`"),
    "a pendulum with three weights": (lambda: offspan.Pendulum(weights=(1.0, 1.0, 1.0)), "Pendulum", "`weights`"),
    "a rotation misspelt": (lambda: offspan.Quadcopter(rotation="papre"), "Quadcopter", "`rotation`"),
    "bounds of a mass under jit": (
        lambda: jax.jit(lambda mass: offspan.Quadcopter(mass=mass).hover_speed)(0.027),
        "Quadcopter",
        "`largest_speed`",
    ),
    "K is a vector": (lambda: offspan.Linear(np.ones(2)), "Linear", "`K`"),
    "an MLP without layers": (lambda: offspan.MLP([]), "MLP", "`layers`"),
    "layers without biases": (lambda: offspan.MLP([EYE, EYE]), "MLP", "`layers`"),  # pyright: ignore
    "layers that do not fit": (
        lambda: offspan.MLP([(np.ones((4, 2)), np.ones(4)), (np.ones((1, 3)), np.ones(1))]),
        "MLP",
        "`layers[1] W`",
    ),
    "a bias that does not fit": (lambda: offspan.MLP([(np.ones((4, 2)), np.ones(3))]), "MLP", "`layers[0] b`"),
    "an MLP without depth": (lambda: offspan.MLP.init(KEY, 2, 1, depth=0), "MLP.init", "`depth`"),
    "bounds on a number": (lambda: offspan.Bounded(3.0, 0, 1), "Bounded", "`net`"),  # pyright: ignore
    "bounds that are crossed": (lambda: offspan.Bounded(LINEAR, 1.0, 0.0), "Bounded", "low < high"),
    "bounds that do not fit": (lambda: offspan.Bounded(LINEAR, [0.0, 0.0], [1.0, 1.0, 1.0]), "Bounded", "a pair (low, high)"),
    "bounds for other controls": (lambda: offspan.Bounded(LINEAR, 0.0, [1.0] * 3)(jnp.ones(2)), "Bounded", "bounds for 3 controls"),
    "a path before the controller": (lambda: offspan.save_controller("k.npz", LINEAR), "save_controller", "path"),  # pyright: ignore
    "a controller that cannot be saved": (lambda: offspan.save_controller(jnp.sin, "k.npz"), "save_controller", "`controller`"),
    "one state where a set is wanted": (lambda: cost(x0s=np.ones(2)), "cost", "`x0s`"),
    "states of another dimension": (lambda: cost(x0s=np.eye(3)), "cost", "`x0s`"),
    "no states": (lambda: cost(x0s=np.zeros((0, 2))), "cost", "`x0s`"),
    "a key where states are wanted": (lambda: cost(x0s=KEY), "cost", "`x0s`"),
    "states with NaN": (lambda: cost(x0s=E1 * np.nan), "cost", "`x0s`"),
    "a set where one state is wanted": (lambda: offspan.rollout(LQR2, LINEAR, E1), "rollout", "`x0`"),
    "a controller with other controls": (lambda: cost(offspan.Linear(np.ones((3, 2)))), "rollout", "controller"),
    "a controller for other states": (lambda: cost(offspan.Linear(np.ones((2, 3)))), "rollout", "controller"),
    "a controller that returns a list": (lambda: cost(lambda x: [x[0], x[1]]), "rollout", "controller"),
    "a matrix where a controller is wanted": (lambda: cost(ZERO), "rollout", "controller"),
    "K that does not fit": (lambda: offspan.lqr_gradient(LQR2, np.zeros((2, 3)), E1), "lqr_gradient", "`K`"),
    "seen states that span the space": (lambda: offspan.normalized_cost(LQR2, ZERO, EYE), "normalized_cost", "span the whole space"),
    "B is singular where K_ext needs its inverse": (
        lambda: offspan.extrapolating_controller(lqr(B=np.diag([1.0, 0.0]))),
        "extrapolating_controller",
        "`B`",
    ),
    "B is not square where K_ext needs its inverse": (
        lambda: offspan.nonextrapolating_controller(lqr(B=np.ones((2, 1))), E1),
        "nonextrapolating_controller",
        "`B`",
    ),
    "R is not zero where the minimum is asked for": (lambda: offspan.minimal_cost(lqr(R=0.5 * EYE), E1), "minimal_cost", "`R`"),
    "nothing to normalise by": (
        lambda: offspan.normalized_optimality(lqr(np.diag([1.0, 0.0])), 2.0 * EYE, E1),
        "normalized_optimality",
        "nothing to normalise by",
    ),
    "a baseline that overflows": (
        lambda: offspan.normalized_cost(lqr(10 * EYE, horizon=400), ZERO, E1),
        "normalized_cost",
        "overflows",
    ),
    "another baseline that overflows": (
        lambda: offspan.lqr_extrapolation(lqr(10 * EYE, R=EYE, horizon=400), ZERO, E1),
        "lqr_extrapolation",
        "overflows",
    ),
    "a Riccati equation under jit": (
        lambda: jax.jit(lambda A: offspan.stationary_controller(lqr(A, R=EYE)))(EYE),
        "stationary_controller",
        "`problem`",
    ),
    "an overlap with nothing": (lambda: offspan.overlap(LQR2, 0 * E1, EYE), "overlap", "`x0s`"),
    "unseen states of another problem in a loss": (
        lambda: offspan.adversarial_objective(np.eye(3), np.eye(3))(offspan.Pendulum(), lambda x: x[:1], jnp.ones((1, 2))),
        "adversarial_objective",
        "`unseen`",
    ),
    "a baseline below the minimum": (
        lambda: offspan.extrapolation(LQR2, LINEAR, E1, minimal_cost=2.0, baseline_cost=1.0),
        "extrapolation",
        "`baseline_cost`",
    ),
    "unseen states that do not fit": (
        lambda: offspan.extrapolation(LQR2, LINEAR, np.ones(2), minimal_cost=0.0, baseline_cost=1.0),
        "extrapolation",
        "`unseen`",
    ),
    "a measure of a problem that is no LQR": (
        lambda: offspan.cost_measure(function_problem(), ZERO, E1),  # pyright: ignore
        "cost_measure",
        "`problem`",
    ),
    "unseen directions under jit": (lambda: jax.jit(offspan.unseen_directions)(E1), "unseen_directions", "`x0s`"),
    "more basis vectors than dimensions": (lambda: offspan.basis(2, 3), "basis", "`count`"),
    "a grid without axes": (lambda: offspan.grid(), "grid", "one list of values for each coordinate"),
    "no problem to train": (lambda: offspan.train(None, LINEAR, E1, optimizer=SGD, iterations=1), "train", "`problem`"),  # pyright: ignore
    "no problem to train in a batch": (
        lambda: offspan.train_batch(None, [LINEAR], E1, optimizer=SGD, iterations=1),  # pyright: ignore
        "train_batch",
        "`problem`",
    ),
    "no LQR to train": (lambda: train_lqr(None), "train_lqr", "`problem`"),
    "no problem to roll out": (lambda: offspan.rollout(None, LINEAR, E1[0]), "rollout", "`problem`"),  # pyright: ignore
    "no problem to cost anything": (lambda: offspan.cost("lqr", LINEAR, E1), "cost", "`problem`"),  # pyright: ignore
    "no problem to choose states for": (lambda: select(problem=None), "select", "`problem`"),
    "no problem to map": (lambda: offspan.extrapolation_map(None, LINEAR, {0: [1.0]}), "extrapolation_map", "`problem`"),  # pyright: ignore
    "no problem to audit": (lambda: offspan.audit(None, LINEAR, E1, {0: (0, 1)}), "audit", "`problem`"),  # pyright: ignore
    "no problem to visit states of": (lambda: offspan.visited_states(None, LINEAR, E1), "visited_states", "`problem`"),  # pyright: ignore
    "no problem to measure": (lambda: offspan.cost_measure(None, ZERO, E1), "cost_measure", "`problem`"),  # pyright: ignore
    "a step into complex numbers": (lambda: function_problem(step=lambda x, u: 1j * x), "FunctionProblem", "complex numbers"),
    "a cost in complex numbers": (lambda: function_problem(stage_cost=lambda x, u: 1j * x @ x), "FunctionProblem", "complex numbers"),
    "a simulator of complex numbers": (
        lambda: offspan.costs(black_box(step=lambda X, U: 1j * X), offspan.Linear([[0.0, 0.0]]), E1),
        "BlackBox",
        "complex numbers",
    ),
    "nothing but zero to measure the cost of": (lambda: offspan.minimal_cost(LQR2, 0 * E1), "minimal_cost", "`x0s`"),
    "nothing but zero seen": (lambda: offspan.nonextrapolating_controller(LQR2, 0 * E1), "nonextrapolating_controller", "`x0s`"),
    "a measure of nothing seen": (lambda: offspan.optimality_measure(LQR2, ZERO, 0 * E1), "optimality_measure", "`seen`"),
    "a measure of nothing unseen": (lambda: offspan.cost_measure(LQR2, ZERO, E1, unseen=0 * E1), "cost_measure", "`unseen`"),
    "gradients from zero": (lambda: offspan.gradient_alignment(LQR2, LINEAR, 0 * E1, E1), "gradient_alignment", "`x0s`"),
    "gradients at zero": (lambda: offspan.gradient_alignment(LQR2, LINEAR, E1, 0 * E1), "gradient_alignment", "`unseen`"),
    "gradients that overflow": (
        lambda: offspan.gradient_alignment(offspan.Pendulum(), offspan.Linear([[1e200, 1e200]]), E1, E1),
        "gradient_alignment",
        "is not finite",
    ),
    "training from a single state": (lambda: train(x0s=np.ones(2)), "train", "`x0s`"),
    "a word where an optimiser is wanted": (lambda: train(optimizer="adam"), "train", "`optimizer`"),
    "a number where a stopping rule is wanted": (lambda: train(stop=0.1), "train", "`stop`"),
    "a stopping rule that never looks": (lambda: offspan.NoImprovement(every=0), "NoImprovement", "`every`"),
    "a loss that is not a number": (lambda: train(loss=lambda problem, controller, x0s: x0s), "train", "`loss`"),
    "a loss that is no function": (lambda: train(loss=0.1), "train", "`loss`"),
    "a loss and an estimator": (lambda: train(loss=offspan.cost, gradient=offspan.Exact()), "train", "`gradient`"),
    "a word where an estimator is wanted": (lambda: train(gradient="exact"), "train", "`gradient`"),
    "an estimator that draws, without a key": (lambda: train(gradient=Drawing()), "train", "`key`"),
    "an estimator that draws, with a number": (lambda: train(gradient=Drawing(), key=0), "train", "`key`"),
    "adjoints of a network": (lambda: train(offspan.MLP([(EYE, np.zeros(2))]), gradient=offspan.Adjoint()), "Adjoint", "must be Linear"),
    "a controller with nothing to train": (lambda: train(jnp.sin), "train", "controller"),
    "learning rate is negative": (lambda: train_lqr(learning_rate=-1e-3), "train_lqr", "`learning_rate`"),
    "iterations is a fraction": (lambda: train_lqr(iterations=1e5), "train_lqr", "`iterations`"),
    "K0 that does not fit": (lambda: train_lqr(K0=np.zeros((1, 2))), "train_lqr", "`K0`"),
    "a gradient clipped to nothing": (lambda: train_lqr(clip=0.0), "train_lqr", "`clip`"),
    "a problem that is no LQR": (lambda: train_lqr(function_problem()), "train_lqr", "`problem`"),
    "a batch with a seen set too few": (lambda: train_lqr_batch([LQR2, LQR2]), "train_lqr_batch", "`x0s`"),
    "a batch of several shapes": (lambda: train_lqr_batch([LQR2, lqr(horizon=4)], [E1, E1]), "train_lqr_batch", "`problems`"),
    "a batch with a bad learning rate": (lambda: train_lqr_batch(learning_rate=[0.1, 0.2]), "train_lqr_batch", "`learning_rate`"),
    "a batch with a seen set that does not fit": (lambda: train_lqr_batch(x0s=[np.ones((1, 3))]), "train_lqr_batch", "`x0s[0]`"),
    "a number in place of a list of LQRs": (lambda: train_lqr_batch(2), "train_lqr_batch", "`problems`"),
    "one LQR in place of a list": (lambda: train_lqr_batch(LQR2), "train_lqr_batch", "`problems`"),
    "a batch with one start for all": (lambda: train_lqr_batch(K0=ZERO), "train_lqr_batch", "shape (r, m, n) = (1, 2, 2)"),
    "a batch twice on a device": (lambda: train_batch(devices=jax.devices()[:1] * 2), "train_batch", "each once"),
    "a batch on devices that are none": (lambda: train_lqr_batch(devices=[]), "train_lqr_batch", "`devices`"),
    "a batch with gradients clipped to nothing": (lambda: train_lqr_batch(clip=0.0), "train_lqr_batch", "`clip`"),
    "a batch with a record every zero": (lambda: train_lqr_batch(record_every=0), "train_lqr_batch", "`record_every`"),
    "a batch of other runs to resume": (
        lambda: train_lqr_batch([LQR2, LQR2], [E1, E1], resume=train_lqr_batch()),
        "train_lqr_batch",
        "`resume`",
    ),
    "a batch of other records to resume": (
        lambda: train_lqr_batch(iterations=9, record_every=3, resume=train_lqr_batch(iterations=6, record_every=2)),
        "train_lqr_batch",
        "`resume`",
    ),
    "another kind of batch to resume": (lambda: train_lqr_batch(resume=train_batch()), "train_lqr_batch", "`resume`"),
    "controllers of several shapes": (lambda: train_batch([LINEAR, offspan.Linear(np.ones((2, 3)))]), "train_batch", "`controllers`"),
    "no controllers": (lambda: train_batch([]), "train_batch", "`controllers`"),
    "a controller that is not in a list": (lambda: train_batch(LINEAR), "train_batch", "`controllers`"),
    "ragged states for a batch": (lambda: train_batch(x0s=[[1.0, 0.0], [1.0]]), "train_batch", "`x0s`"),
    "seen states for another number of runs": (lambda: train_batch(x0s=np.ones((2, 1, 2))), "train_batch", "`x0s`"),
    "runs of another batch to resume": (lambda: train_batch(resume=train_batch([LINEAR, LINEAR])), "train_batch", "`resume`"),
    "a longer batch to resume": (lambda: train_batch(resume=train_batch(iterations=2)), "train_batch", "`resume`"),
    "something else to resume": (lambda: train_batch(resume=train()), "train_batch", "`resume`"),
    "two points at distance zero": (lambda: offspan.TwoPoint(radius=0.0, directions=1), "TwoPoint", "`radius`"),
    "two points in no direction": (lambda: offspan.TwoPoint(radius=0.1, directions=0), "TwoPoint", "`directions`"),
    "reinforce without noise": (lambda: offspan.Reinforce(std=0.0, rollouts=2), "Reinforce", "`std`"),
    "a baseline of no other rollout": (lambda: offspan.Reinforce(std=0.1, rollouts=1), "Reinforce", "`rollouts`"),
    "no key for an estimator that draws": (lambda: train(gradient=offspan.TwoPoint(0.1, 1)), "train", "`key`"),
    "no key for a noisy problem": (lambda: offspan.cost(offspan.Noisy(LQR2, process=0.1), LINEAR, E1), "cost", "`key`"),
    "no key for a noisy rollout": (lambda: offspan.rollout(offspan.Noisy(LQR2, process=0.1), LINEAR, E1[0]), "rollout", "`key`"),
    "negative noise": (lambda: offspan.Noisy(LQR2, process=-0.1), "Noisy", "`process`"),
    "noise of another shape": (lambda: offspan.Noisy(LQR2, control=np.ones((3, 1))), "Noisy", "`control`"),
    "ragged noise": (lambda: offspan.Noisy(LQR2, control=[[1.0], [1.0, 2.0]]), "Noisy", "`control`"),
    "noise upon noise": (lambda: offspan.Noisy(offspan.Noisy(LQR2, process=0.1), process=0.1), "Noisy", "`problem`"),
    "an expected cost of a pendulum": (
        lambda: offspan.expected_cost(offspan.Noisy(offspan.Pendulum(), process=0.1), np.ones((1, 2)), E1),
        "expected_cost",
        "`problem`",
    ),
    "horizons that end too early": (lambda: train(horizons=(1, 2)), "train", "`horizons`"),
    "horizons that are no sequence": (lambda: train(horizons=3), "train", "`horizons`"),
    "iterations of a curriculum that are no number": (lambda: train(iterations="many", horizons=(1, 3)), "train", "`iterations`"),
    "the quality of no estimator": (
        lambda: offspan.gradient_quality(LQR2, LINEAR, E1, "exact", key=jax.random.key(0)),  # pyright: ignore
        "gradient_quality",
        "`estimator`",
    ),
    "a discount above one": (lambda: train(discounts=(1.5, 1.0)), "train", "`discounts`"),
    "stages of different numbers": (lambda: train(horizons=(1, 3), discounts=(1.0,)), "train", "`horizons`"),
    "problems for another number of runs": (
        lambda: offspan.train_batch([LQR2], [LINEAR, LINEAR], E1, optimizer=optax.sgd(0.1), iterations=1),
        "train_batch",
        "`problem`",
    ),
    "problems of different horizons": (
        lambda: offspan.train_batch([LQR2, lqr(horizon=4)], [LINEAR, LINEAR], E1, optimizer=optax.sgd(0.1), iterations=1),
        "train_batch",
        "`problem`",
    ),
    "a diagnosis of a batch": (lambda: offspan.diagnose(LQR2, train_batch(), E1), "diagnose", "`run`"),  # pyright: ignore
    "a horizon that the printed statement does not have": (lambda: closed_forms.shift_alpha(5, 7), "", "needs a horizon divisible"),
    "a shift with a B that is not orthogonal": (
        lambda: closed_forms.shift_controller(closed_forms.shift_alpha(2, 4), 2 * EYE),
        "shift_controller",
        "`B`",
    ),
    "a negative q": (lambda: closed_forms.shift_alpha(2, 4, [1.0, -1.0]), "shift_alpha", "`q`"),
    "a q of zeros": (lambda: closed_forms.shift_ratios(np.zeros(2), 4, [0.0, 0.0]), "shift_ratios", "`q`"),
    "a q that is never paid": (lambda: closed_forms.shift_learning_rate(3, 1, [1.0, 0.0, 0.0]), "shift", "costs anything"),
    "a shift from nowhere": (lambda: closed_forms.shift_from([0.0, 0.0], horizon=2), "shift_from", "`x0`"),
    "a K that does not decay": (lambda: riccati.infinite_horizon_cost(LQR2, ZERO, E1), "infinite_horizon_cost", "`K`"),
    "a K at the edge of infinite cost": (
        lambda: riccati.infinite_horizon_gradient(LQR2, -np.outer(E1, E1), E1),
        "infinite_horizon_gradient",
        "`K`",
    ),
    "a system that nothing stabilises": (
        lambda: riccati.riccati_solution(lqr(2 * EYE, 0 * EYE, R=EYE)),
        "riccati_solution",
        "stabilises this system",
    ),
    "a map that is not square": (lambda: krylov_rank(np.ones((2, 3)), E1), "krylov_rank", "`A`"),
    "a rank under jit": (lambda: jax.jit(lambda A: krylov_rank(A, E1))(EYE), "krylov_rank", "jit"),
    "a statement that is not there": (lambda: list(verify(["prop:shfit"])), "verify", "'prop:shift'"),
    "verification in one dimension": (lambda: list(verify((), Settings(dim=1))), "verify", "`dim`"),
    "more states chosen than there are": (lambda: select(k=4), "select", "`k`"),
    "a choice that leaves nothing": (lambda: select(k=3), "select", "`k`"),
    "a choice that spans the space": (lambda: select(k=2), "select", "`k`"),
    "a candidate twice": (lambda: select([[1, 0], [0, 1], [1, 0]]), "select", "`candidates`"),
    "a zero candidate": (lambda: select([[1, 0], [0, 0]]), "select", "`candidates`"),
    "candidates of another problem": (lambda: select(np.eye(3)), "select", "`candidates`"),
    "a method misspelt": (lambda: select(method="fartest"), "select", "'farthest'"),
    "a choice without a key": (lambda: select(key=0), "select", "`key`"),
    "a scale in words": (lambda: select(scale="large"), "select", "`scale`"),
    "no starts": (lambda: select(controllers=[]), "select", "`controllers`"),
    "a pilot without an optimiser": (lambda: select(method="pilot"), "select", "`optimizer`"),
    "an optimiser that is none": (lambda: select(method="pilot", optimizer=1e-3, iterations=3), "select", "`optimizer`"),
    "a controller without weights": (
        lambda: select(method="adaptive", optimizer=SGD, iterations=3, controllers=lambda x: -x),
        "select",
        "`controllers`",
    ),
    "a flow of a pendulum": (
        lambda: select(EYE, method="flow", optimizer=SGD, iterations=1, problem=offspan.Pendulum()),
        "select",
        "'flow'",
    ),
    "a flow of Adam": (lambda: select(method="flow", optimizer=optax.adam(0.1), iterations=1), "select", "`optimizer`"),
    "a flow of a line search": (lambda: select(method="flow", optimizer=optax.lbfgs(), iterations=1), "select", "`optimizer`"),
    "tangents of a controller without weights": (
        lambda: select(method="tangent", controllers=lambda x: -x),
        "tangent kernel",
        "holds no weights",
    ),
    "an audit that trains with no optimiser": (
        lambda: offspan.audit(LQR2, LINEAR, E1, {0: (0, 1)}, retrain={"optimizer": 1e-3, "iterations": 3}),
        "audit",
        "`optimizer`",
    ),
    "an audit that trains what has no weights": (
        lambda: offspan.audit(LQR2, jnp.sin, E1, {0: (0, 1)}, retrain={"optimizer": SGD, "iterations": 3}),
        "audit",
        "no floating-point arrays to train",
    ),
    "too many sets": (
        lambda: select(np.random.default_rng(0).normal(size=(6000, 2)), method="exhaustive", optimizer=SGD, iterations=1),
        "select",
        "6,000 sets",
    ),
    "scores without starts": (
        lambda: offspan.extrapolation_scores(offspan.Pendulum(), EYE[:1], EYE[1:]),
        "extrapolation_scores",
        "`key`",
    ),
    "an effect on nothing": (lambda: offspan.effect_of_adding(LQR2, E1, EYE[1]), "effect_of_adding", "`x0s`"),
    "an effect on whom": (lambda: offspan.effect_of_adding(offspan.Pendulum(), E1, EYE[1]), "effect_of_adding", "`unseen`"),
    "half a measurement": (
        lambda: offspan.effect_of_adding(LQR2, E1, EYE[1], unseen=E1, iterations=3),
        "effect_of_adding",
        "`optimizer`",
    ),
    "a map of three coordinates": (lambda: extrapolation_map({0: [1.0], 1: [1.0], 2: [1.0]}), "extrapolation_map", "`axes`"),
    "a success that is not yes or no": (lambda: extrapolation_map({0: [1.0]}, success=lambda x: x), "extrapolation_map", "`success`"),
    "a success that branches": (
        lambda: extrapolation_map({0: [1.0]}, success=lambda x: x[0] > 0 and x[1] > 0),
        "extrapolation_map",
        "`success`",
    ),
    "a map with one name too many": (
        lambda: map_figure(extrapolation_map({1: [1.0, 2.0]}), E1, names=["x", "y"]),
        "map_figure",
        "`names`",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_an_error_that_names_it(mistake):
    make, function, named = MISTAKES[mistake]
    with pytest.raises(offspan.OffspanError) as caught:
        make()
    sentence = str(caught.value)
    assert sentence.startswith(f"{function}: " if function else "")
    assert named in sentence.removeprefix(f"{function}: ")
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_a_missing_controller_file_or_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none/k\.npz.*\.$"):
        offspan.save_controller(LINEAR, tmp_path / "none" / "k.npz")
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz.*\.$"):
        offspan.load_controller(tmp_path / "nothing.npz")


def test_a_mistake_on_the_command_line_is_a_sentence_and_exit_code_2(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["offspan", "show", "nothing", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        offspan.cli.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("offspan: ")
    assert "'nothing'" in printed.err
    assert printed.err.count("\n") == 1


def test_debug_raises_a_mistake_with_its_traceback(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(offspan.cli, "show_tracebacks", False)  # which the command line sets for its process
    monkeypatch.setattr("sys.argv", ["offspan", "--debug", "show", "nothing", "--folder", str(tmp_path)])
    with pytest.raises(offspan.OffspanError, match="'nothing'"):
        offspan.cli.main()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), ValueError("a bug"), KeyError("a bug")], ids=lambda bug: type(bug).__name__)
def test_a_bug_is_not_turned_into_a_sentence(bug, monkeypatch, capsys, tmp_path):
    """Also a ValueError: only the library's own class is the caller's mistake."""

    def fail(*_):
        raise bug

    monkeypatch.setattr("offspan.experiments.store.find_runs", fail)
    monkeypatch.setattr("sys.argv", ["offspan", "list", "--folder", str(tmp_path)])
    with pytest.raises(type(bug), match="a bug"):
        offspan.cli.main()
    assert capsys.readouterr().err == ""


TINY, HUGE = np.float32(1e-40) * E1.astype(np.float32), np.float32(1e30) * E1.astype(np.float32)


@pytest.mark.parametrize("states", [TINY, HUGE], ids=["tiny", "huge"])
def test_states_whose_squares_a_precision_cannot_hold(states):
    """They gave 0, ∞ or NaN; in float64 they are as good as others, and so is the span of huge ones."""
    E2 = EYE[1:].astype(np.float32)
    with jax.enable_x64(False):
        single = offspan.LQR(EYE.astype(np.float32), horizon=3)
        zero = offspan.Linear(ZERO.astype(np.float32))
        for call in (
            lambda: offspan.minimal_cost(single, states),
            lambda: offspan.cost_measure(single, ZERO, E2, unseen=states),
            lambda: offspan.gradient_alignment(single, zero, states, E2),
            lambda: offspan.gradient_alignment(single, zero, E2, states),
        ):
            with pytest.raises(
                offspan.OffspanError, match=r"in float32 sizes must be from 1e-19 to 2e\+19; scale the states, or compute in"
            ):
                call()
        if states is TINY:
            with pytest.raises(offspan.OffspanError, match="in float32 sizes must be from 1e-38"):
                offspan.nonextrapolating_controller(single, states)
        else:
            np.testing.assert_allclose(offspan.nonextrapolating_controller(single, states), -np.outer(E1, E1), atol=1e-6)
    exact = states.astype(float)
    scale = float(exact[0, 0])
    np.testing.assert_allclose(offspan.minimal_cost(LQR2, exact), scale**2)
    np.testing.assert_allclose(offspan.cost_measure(LQR2, ZERO, EYE[1:], unseen=exact), 3 * scale**2)
    np.testing.assert_allclose(offspan.nonextrapolating_controller(LQR2, exact), -np.outer(E1, E1), atol=1e-12)
    np.testing.assert_allclose(offspan.gradient_alignment(LQR2, LINEAR, exact, exact), 1.0)


def test_the_angle_of_gradients_does_not_depend_on_their_lengths():
    """∇J is quadratic in x for an LQR: 2⁻⁶⁰ makes gradients of 2⁻¹²⁰, whose squares float32 does not have."""
    with jax.enable_x64(False):
        problem, zero, e = offspan.shift(4, horizon=2), offspan.Linear(jnp.zeros((4, 4))), offspan.basis(4)
        expected = offspan.gradient_alignment(problem, zero, e[:1], e[1:3])
        for scale in (2.0**-60, 2.0**50):  # which round nothing
            np.testing.assert_array_equal(offspan.gradient_alignment(problem, zero, np.float32(scale) * e[:1], e[1:3]), expected)
        np.testing.assert_allclose(expected, [0.4, 0.0], atol=1e-6)


def test_half_precision_is_taken_as_single():
    """float16 has no linear algebra; its numbers are float32 numbers."""
    half, K = np.array([[1.0, 0.5]], np.float16), np.array([[-0.5, 0.0], [0.0, 0.25]], np.float16)
    for call in (
        lambda x: offspan.seen_projector(x),
        lambda x: offspan.unseen_directions(x),
        lambda x: offspan.nonextrapolating_controller(LQR2, x),
        lambda x: offspan.minimal_cost(LQR2, x),
        lambda x: offspan.normalized_cost(LQR2, K.astype(x.dtype), x),
        lambda x: offspan.cost(LQR2, offspan.Linear(K.astype(x.dtype)), x),
        lambda x: offspan.gramian(LQR2, x),
        lambda x: offspan.train_lqr(LQR2, x, learning_rate=0.01, iterations=3).K,
    ):
        np.testing.assert_array_equal(call(half), call(half.astype(np.float32)))


@pytest.mark.parametrize("rate", [np.float32(0.25), np.asarray(0.25), jnp.asarray(0.25), 1])
def test_a_learning_rate_is_any_number(rate):
    run = train_lqr_batch(learning_rate=rate)
    np.testing.assert_array_equal(run.K[0], train_lqr(learning_rate=float(rate)).K)


def test_horizons_and_discounts_may_be_arrays():
    given = {"horizons": (1, 3), "discounts": (0.5, 1.0)}
    expected = train(iterations=4, **given).cost
    for make in (np.array, jnp.array):
        np.testing.assert_array_equal(train(iterations=4, **{name: make(one) for name, one in given.items()}).cost, expected)
