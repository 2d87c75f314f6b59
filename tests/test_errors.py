"""Each mistake gets one sentence that names the argument, shows the value and says what to do."""

from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import offspan
from offspan.exploration import krylov_rank
from offspan.report.maps import map_figure
from offspan.theory import closed_forms, riccati
from offspan.theory.claims import Settings
from offspan.theory.verify import verify

EYE = np.eye(2)
LQR2 = offspan.LQR(EYE, horizon=3)
E1 = np.array([[1.0, 0.0]])
ZERO = np.zeros((2, 2))


@pytest.fixture(autouse=True)
def as_a_user():
    """Without the shape-checking hook of the tests, which would speak first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def step(x, u):
    return x


def stage_cost(x, u):
    return x @ x


KEY = jax.random.key(0)


def chosen(candidates=((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), k=1, method="random", key: Any = KEY, **options):
    return offspan.select(LQR2, candidates, k, method=method, key=key, **options)


MISTAKES = {
    "A is not square": (lambda: offspan.LQR(np.ones((2, 3)), horizon=3), "LQR: `A` has shape (2, 3), but must be square"),
    "A is a vector": (lambda: offspan.LQR(np.ones(2), horizon=3), "LQR: `A` has shape (2,), but needs shape (n, n)"),
    "A is a word": (lambda: offspan.LQR("shift", horizon=3), "LQR: `A` must be an array of numbers (shape (n, n)"),  # pyright: ignore
    "A is ragged": (lambda: offspan.LQR([[1.0], [1.0, 2.0]], horizon=3), "LQR: `A` must be an array of numbers"),
    "A is empty": (lambda: offspan.LQR(np.zeros((0, 0)), horizon=3), "LQR: `A` has shape (0, 0), but needs shape (n, n)"),
    "A is complex": (lambda: offspan.LQR(1j * EYE, horizon=3), "LQR: `A` has complex entries"),
    "A has NaN": (lambda: offspan.LQR(EYE * np.nan, horizon=3), "LQR: `A` has 4 NaN or infinite entries; pass finite numbers."),
    "B has an infinity": (
        lambda: offspan.LQR(EYE, [[np.inf], [1.0]], horizon=3),
        "LQR: `B` has 1 NaN or infinite entry; pass finite numbers.",
    ),
    "B is transposed": (
        lambda: offspan.LQR(EYE, np.ones((1, 2)), horizon=3),
        "LQR: `B` has shape (1, 2) but `A` is 2×2, so `B` needs 2 rows (x' = A x + B u, column vectors). "
        "Written for row vectors? Pass `A.T` and `B.T`.",
    ),
    "Q has the wrong size": (lambda: offspan.LQR(EYE, Q=np.eye(3), horizon=3), "LQR: `Q` has shape (3, 3), but needs shape (2, 2)"),
    "Q is not symmetric": (
        lambda: offspan.LQR(EYE, Q=[[1.0, 0.5], [0.0, 1.0]], horizon=3),
        "LQR: `Q` is not symmetric (it differs from its transpose by 0.5); pass `(Q + Q.T) / 2`",
    ),
    "Q is indefinite": (
        lambda: offspan.LQR(EYE, Q=np.diag([1.0, -0.1]), horizon=3),
        "LQR: `Q` is not positive semidefinite (smallest eigenvalue -0.1)",
    ),
    "R is indefinite": (
        lambda: offspan.LQR(EYE, R=np.diag([1.0, -2.0]), horizon=3),
        "LQR: `R` is not positive semidefinite (smallest eigenvalue -2)",
    ),
    "R is not symmetric": (lambda: offspan.LQR(EYE, R=[[1.0, 1.0], [0.0, 1.0]], horizon=3), "LQR: `R` is not symmetric"),
    "horizon is zero": (lambda: offspan.LQR(EYE, horizon=0), "LQR: `horizon` is 0, but must be a whole number of at least 1."),
    "horizon is a fraction": (lambda: offspan.shift(3, horizon=2.5), "LQR: `horizon` is 2.5, but must be a whole number"),  # pyright: ignore
    "horizon is a truth value": (lambda: offspan.LQR(EYE, horizon=True), "LQR: `horizon` is True, but must be a whole number"),
    "dim is zero": (lambda: offspan.identity(0, horizon=3), "identity: `dim` is 0, but must be a whole number of at least 1."),
    "step returns the wrong shape": (
        lambda: offspan.FunctionProblem(lambda x, u: x[:1], stage_cost, state_dim=2, control_dim=1, horizon=3),
        "FunctionProblem: `step` returned (1,) for a state of shape (2,) and a control of shape (1,), but must return shape (2,).",
    ),
    "stage_cost is not a number": (
        lambda: offspan.FunctionProblem(step, lambda x, u: x**2, state_dim=2, control_dim=1, horizon=3),
        "FunctionProblem: `stage_cost` returned (2,)",
    ),
    "control bounds are crossed": (
        lambda: offspan.FunctionProblem(step, stage_cost, state_dim=2, control_dim=1, horizon=3, control_bounds=(1.0, 0.0)),
        "FunctionProblem: bounds low = [1.0] and high = [0.0] must be finite, with low < high.",
    ),
    "cost scale is negative": (
        lambda: offspan.FunctionProblem(step, stage_cost, state_dim=2, control_dim=1, horizon=3, cost_scale=-1.0),
        "FunctionProblem: `cost_scale` is -1.0, but must be a positive, finite number.",
    ),
    "K is a vector": (lambda: offspan.Linear(np.ones(2)), "Linear: `K` has shape (2,), but needs shape (m, n)"),
    "an MLP without layers": (lambda: offspan.MLP([]), "MLP: `layers` must be a list of pairs, [(W, b), …] with at least one layer."),
    "layers that do not fit": (
        lambda: offspan.MLP([(np.ones((4, 2)), np.ones(4)), (np.ones((1, 3)), np.ones(1))]),
        "MLP: `layers[1] W` has shape (1, 3), but needs shape (out, 4), as layer 0 has 4 outputs.",
    ),
    "a bias that does not fit": (
        lambda: offspan.MLP([(np.ones((4, 2)), np.ones(3))]),
        "MLP: `layers[0] b` has shape (3,), but needs shape (4,), one number for each row of W.",
    ),
    "an MLP without depth": (lambda: offspan.MLP.init(jax.random.key(0), 2, 1, depth=0), "MLP.init: `depth` is 0, but must be"),
    "bounds that are crossed": (lambda: offspan.Bounded(offspan.Linear(EYE), 1.0, 0.0), "Bounded: bounds low = [1.0] and high = [0.0]"),
    "bounds that do not fit": (
        lambda: offspan.Bounded(offspan.Linear(EYE), [0.0, 0.0], [1.0, 1.0, 1.0]),
        "Bounded: bounds ([0.0, 0.0], [1.0, 1.0, 1.0]) must be a pair (low, high) of numbers, or of one number for each control.",
    ),
    "bounds for other controls": (
        lambda: offspan.Bounded(offspan.Linear(EYE), 0.0, [1.0, 1.0, 1.0])(jnp.ones(2)),
        "Bounded: there are bounds for 3 controls, but the network has 2 outputs.",
    ),
    "a path before the controller": (
        lambda: offspan.save_controller("controller.npz", offspan.Linear(EYE)),  # pyright: ignore
        "save_controller: the controller comes first, and then the path",
    ),
    "a controller that cannot be saved": (
        lambda: offspan.save_controller(jnp.sin, "controller.npz"),  # pyright: ignore
        "only Linear, MLP and Bounded of these have a file format.",
    ),
    "one state where a set is wanted": (
        lambda: offspan.cost(LQR2, offspan.Linear(ZERO), np.ones(2)),
        "cost: `x0s` has shape (2,), but needs shape (s, 2): one state a row, s ≥ 1 (a single state `x` goes in as `x[None, :]`).",
    ),
    "a set where one state is wanted": (
        lambda: offspan.rollout(LQR2, offspan.Linear(ZERO), E1),
        "rollout: `x0` has shape (1, 2), but needs shape (2,), one state (`cost` takes sets of states).",
    ),
    "states of another dimension": (lambda: offspan.cost(LQR2, offspan.Linear(ZERO), np.eye(3)), "cost: `x0s` has shape (3, 3), but needs"),
    "no states": (lambda: offspan.cost(LQR2, offspan.Linear(ZERO), np.zeros((0, 2))), "cost: `x0s` has shape (0, 2), but needs"),
    "states with NaN": (lambda: offspan.cost(LQR2, offspan.Linear(ZERO), E1 * np.nan), "cost: `x0s` has 2 NaN or infinite entries"),
    "a controller with other controls": (
        lambda: offspan.rollout(LQR2, offspan.Linear(np.ones((3, 2))), np.ones(2)),
        "rollout: the controller returned shape (3,) for a state of shape (2,), but the problem has 2 control(s).",
    ),
    "K that does not fit": (
        lambda: offspan.lqr_gradient(LQR2, np.zeros((2, 3)), E1),
        "lqr_gradient: `K` has shape (2, 3), but needs shape (2, 2): one row a control, one column a state (u = +K x).",
    ),
    "seen states that span the space": (
        lambda: offspan.normalized_cost(LQR2, ZERO, EYE),
        "normalized_cost: the 2 seen states span the whole space, so no direction is unseen; "
        "pass fewer of them, or a set of states as `unseen`.",
    ),
    "B is singular where K_ext needs its inverse": (
        lambda: offspan.extrapolating_controller(offspan.LQR(EYE, np.diag([1.0, 0.0]), horizon=3)),
        "extrapolating_controller: `B` is not invertible (singular values from 1 down to 0)",
    ),
    "B is not square where K_ext needs its inverse": (
        lambda: offspan.nonextrapolating_controller(offspan.LQR(EYE, np.ones((2, 1)), horizon=3), E1),
        "nonextrapolating_controller: `B` is 2×1, but must be square and invertible here",
    ),
    "R is not zero where the minimum is asked for": (
        lambda: offspan.minimal_cost(offspan.LQR(EYE, R=0.5 * EYE, horizon=3), E1),
        "minimal_cost: needs `R` = 0 (controls free of charge), but `R` has entries up to 0.5",
    ),
    "nothing to normalise by": (
        lambda: offspan.normalized_optimality(offspan.LQR(np.diag([1.0, 0.0]), horizon=3), 2.0 * EYE, E1),
        "normalized_optimality: the controller that does not extrapolate has measure 0 here",
    ),
    "a baseline below the minimum": (
        lambda: offspan.extrapolation(LQR2, offspan.Linear(ZERO), E1, minimal_cost=2.0, baseline_cost=1.0),
        "extrapolation: `baseline_cost` (1) must exceed `minimal_cost` (2)",
    ),
    "unseen directions under jit": (lambda: jax.jit(offspan.unseen_directions)(E1), "unseen_directions: the number of unseen directions"),
    "more basis vectors than dimensions": (lambda: offspan.basis(2, 3), "basis: `count` is 3, but there are only 2 basis vectors"),
    "a grid without axes": (lambda: offspan.grid(), "grid: pass one list of values for each coordinate of the state."),
    "learning rate is negative": (
        lambda: offspan.train_lqr(LQR2, E1, learning_rate=-1e-3, iterations=10),
        "train_lqr: `learning_rate` is -0.001, but must be a positive, finite number.",
    ),
    "iterations is a fraction": (
        lambda: offspan.train_lqr(LQR2, E1, learning_rate=1e-3, iterations=1e5),  # pyright: ignore
        "train_lqr: `iterations` is 100000.0, but must be a whole number of at least 0.",
    ),
    "K0 that does not fit": (
        lambda: offspan.train_lqr(LQR2, E1, learning_rate=1e-3, iterations=1, K0=np.zeros((1, 2))),
        "train_lqr: `K0` has shape (1, 2), but needs shape (2, 2)",
    ),
    "training from a single state": (
        lambda: offspan.train(LQR2, offspan.Linear(ZERO), np.ones(2), optimizer=optax.sgd(0.1), iterations=1),
        "train: `x0s` has shape (2,), but needs shape (s, 2)",
    ),
    "a matrix where a controller is wanted": (
        lambda: offspan.cost(LQR2, ZERO, E1),  # pyright: ignore
        "rollout: the controller is not a function of the state; for a matrix K pass `Linear(K)`.",
    ),
    "a controller for other states": (
        lambda: offspan.cost(LQR2, offspan.Linear(np.ones((2, 3))), E1),
        "rollout: the controller does not take a state of shape (2,), as this problem has it",
    ),
    "a controller that returns a list": (
        lambda: offspan.cost(LQR2, lambda x: [x[0], x[1]], E1),  # pyright: ignore
        "rollout: the controller returned a list for a state of shape (2,), but the problem has 2 control(s).",
    ),
    "a problem that is no LQR": (
        lambda: offspan.train_lqr(
            offspan.FunctionProblem(step, stage_cost, state_dim=2, control_dim=1, horizon=3),  # pyright: ignore
            E1,
            learning_rate=0.1,
            iterations=1,
        ),
        "train_lqr: `problem` is a FunctionProblem, but this is defined for an LQR only.",
    ),
    "a measure of a problem that is no LQR": (
        lambda: offspan.cost_measure(
            offspan.FunctionProblem(step, stage_cost, state_dim=2, control_dim=1, horizon=3),  # pyright: ignore
            ZERO,
            E1,
        ),
        "cost_measure: `problem` is a FunctionProblem, but this is defined for an LQR only.",
    ),
    "a number where a key is wanted": (
        lambda: offspan.gaussian(7, 2, horizon=3),  # pyright: ignore
        "gaussian: `key` is 7, but must be a random key: pass `jax.random.key(7)`.",
    ),
    "a word where an optimiser is wanted": (
        lambda: offspan.train(LQR2, offspan.Linear(ZERO), E1, optimizer="adam", iterations=1),  # pyright: ignore
        "train: `optimizer` is 'adam', but must be an optax optimiser, such as optax.sgd(1e-3).",
    ),
    "a number where a stopping rule is wanted": (
        lambda: offspan.train(LQR2, offspan.Linear(ZERO), E1, optimizer=optax.sgd(0.1), iterations=1, stop=0.1),  # pyright: ignore
        "train: `stop` is 0.1, but must be a stopping rule, such as NoImprovement() or CostBelow(0.1).",
    ),
    "a stopping rule that never looks": (lambda: offspan.NoImprovement(every=0), "NoImprovement: `every` is 0, but must be"),
    "a loss that is not a number": (
        lambda: offspan.train(
            LQR2, offspan.Linear(ZERO), E1, optimizer=optax.sgd(0.1), iterations=1, loss=lambda problem, controller, x0s: x0s
        ),
        "train: `loss` must return one real number, or a pair of that and J(π; S), but returned ShapeDtypeStruct(shape=(1, 2)",
    ),
    "bounds that are no pair": (
        lambda: offspan.FunctionProblem(step, stage_cost, state_dim=2, control_dim=1, horizon=3, control_bounds=5.0),  # pyright: ignore
        "FunctionProblem: bounds 5.0 must be a pair (low, high)",
    ),
    "a step that is no function": (
        lambda: offspan.FunctionProblem("euler", stage_cost, state_dim=2, control_dim=1, horizon=3),  # pyright: ignore
        "FunctionProblem: `step` is 'euler', but must be a function of one state and one control.",
    ),
    "layers without biases": (lambda: offspan.MLP([EYE, EYE]), "MLP: `layers` must be a list of pairs"),  # pyright: ignore
    "unseen states that do not fit": (
        lambda: offspan.extrapolation(LQR2, offspan.Linear(ZERO), np.ones(2), minimal_cost=0.0, baseline_cost=1.0),
        "extrapolation: `unseen` has shape (2,), but needs shape (s, 2)",
    ),
    "a batch with a seen set too few": (
        lambda: offspan.train_lqr_batch([LQR2, LQR2], [E1], learning_rate=0.1, iterations=1),
        "train_lqr_batch: there are 2 problems and 1 seen sets; pass one seen set for each problem.",
    ),
    "a batch of several shapes": (
        lambda: offspan.train_lqr_batch([LQR2, offspan.LQR(EYE, horizon=4)], [E1, E1], learning_rate=0.1, iterations=1),
        "train_lqr_batch: the problems have several shapes (n, m, H), [(2, 2, 3), (2, 2, 4)]; train each shape in a batch of its own.",
    ),
    "a batch with a bad learning rate": (
        lambda: offspan.train_lqr_batch([LQR2], [E1], learning_rate=[0.1, 0.2], iterations=1),
        "train_lqr_batch: `learning_rate` is [0.1, 0.2], but must be one positive, finite number, or one for each run.",
    ),
    "a batch with a seen set that does not fit": (
        lambda: offspan.train_lqr_batch([LQR2], [np.ones((1, 3))], learning_rate=0.1, iterations=1),
        "train_lqr_batch: `x0s[0]` has shape (1, 3), but needs shape (s, 2)",
    ),
    "records too far apart": (
        lambda: offspan.train_lqr_batch([LQR2], [E1], learning_rate=0.1, iterations=1, record_every=2000),
        "train_lqr_batch: `record_every` is 2000, but can be 1000 at most, the iterations of one compiled chunk.",
    ),
    "another batch to resume": (
        lambda: offspan.train_lqr_batch(
            [LQR2, LQR2],
            [E1, E1],
            learning_rate=0.1,
            iterations=1,
            resume=offspan.train_lqr_batch([LQR2], [E1], learning_rate=0.1, iterations=1),
        ),
        "train_lqr_batch: `resume` belongs to another batch (K (1, 2, 2), 2 records).",
    ),
    "a horizon that the printed statement does not have": (
        lambda: closed_forms.shift_alpha(5, 7),
        "the printed statement needs a horizon divisible by the dimension, but H = 7 and D = 5; take H = 5 or 10, or beyond:shift_any",
    ),
    "a shift with a B that is not orthogonal": (
        lambda: closed_forms.shift_controller(closed_forms.shift_alpha(2, 4), 2 * EYE),
        "shift_controller: `B` is not orthogonal (B Bᵀ differs from I by 3)",
    ),
    "a negative q": (
        lambda: closed_forms.shift_alpha(2, 4, [1.0, -1.0]),
        "shift_alpha: `q` is [1.0, -1.0], but the diagonal of Q must be ≥ 0 with at least one entry > 0.",
    ),
    "a q of zeros": (lambda: closed_forms.shift_ratios(np.zeros(2), 4, [0.0, 0.0]), "shift_ratios: `q` is [0.0, 0.0], but the diagonal"),
    "a q that is never paid": (
        lambda: closed_forms.shift_learning_rate(3, 1, [1.0, 0.0, 0.0]),
        "shift: nothing that e_1 leads to within H = 1 steps costs anything",
    ),
    "a shift from nowhere": (lambda: closed_forms.shift_from([0.0, 0.0], horizon=2), "shift_from: `x0` is 0, and from there"),
    "a K that does not decay": (
        lambda: riccati.infinite_horizon_cost(LQR2, ZERO, E1),
        "infinite_horizon_cost: under `K`, states reached from the seen states do not decay (spectral radius 1), so the cost",
    ),
    "a K at the edge of infinite cost": (
        lambda: riccati.infinite_horizon_gradient(LQR2, -np.outer(E1, E1), E1),
        "infinite_horizon_gradient: under `K`, states reached from the seen states or the columns of B do not decay",
    ),
    "a system that nothing stabilises": (
        lambda: riccati.riccati_solution(offspan.LQR(2 * EYE, 0 * EYE, R=EYE, horizon=1)),
        "riccati_solution: no controller is found that stabilises this system at finite cost",
    ),
    "a map that is not square": (lambda: krylov_rank(np.ones((2, 3)), E1), "krylov_rank: `A` has shape (2, 3), but must be square"),
    "a rank under jit": (lambda: jax.jit(lambda A: krylov_rank(A, E1))(EYE), "krylov_rank: a rank depends on the values"),
    "a statement that is not there": (
        lambda: list(verify(["prop:shfit"])),
        "verify: there is no statement 'prop:shfit' (did you mean 'prop:shift'?); `offspan verify --list` shows them.",
    ),
    "verification in one dimension": (
        lambda: list(verify((), Settings(dim=1))),
        "verify: `dim` is 1, but must be a whole number of at least 2.",
    ),
    "a step with an if in it": (
        lambda: offspan.FunctionProblem(lambda x, u: x if x[0] > 0 else -x, lambda x, u: x @ x, state_dim=1, control_dim=1, horizon=1),
        "FunctionProblem: `step` cannot be traced by jax for a state of shape (1,) and a control of shape (1,)",
    ),
    "controllers of several shapes": (
        lambda: offspan.train_batch(
            LQR2, [offspan.Linear(EYE), offspan.Linear(np.ones((2, 3)))], E1, optimizer=optax.sgd(0.1), iterations=1
        ),
        "train_batch: `controllers` must be a list of controllers that differ",
    ),
    "no controllers": (
        lambda: offspan.train_batch(LQR2, [], E1, optimizer=optax.sgd(0.1), iterations=1),
        "train_batch: `controllers` must be a list",
    ),
    "a controller that is not in a list": (
        lambda: offspan.train_batch(LQR2, offspan.Linear(EYE), E1, optimizer=optax.sgd(0.1), iterations=1),  # pyright: ignore
        "train_batch: `controllers` must be a list",
    ),
    "ragged states for a batch": (
        lambda: offspan.train_batch(LQR2, [offspan.Linear(EYE)], [[1.0, 0.0], [1.0]], optimizer=optax.sgd(0.1), iterations=1),
        "train_batch: `x0s` must be an array of numbers",
    ),
    "a diagnosis of something else": (
        lambda: offspan.diagnose(LQR2, offspan.train_lqr(LQR2, E1, learning_rate=0.1, iterations=1), E1),  # pyright: ignore
        "diagnose: `run` is a LQRRun, but must be what `train` returned",
    ),
    "records that do not fit a chunk": (
        lambda: offspan.train_batch(LQR2, [offspan.Linear(EYE)], E1, optimizer=optax.sgd(0.1), iterations=1, record_every=300),
        "train_batch: `record_every` is 300, but must divide 1000",
    ),
    "seen states for another number of runs": (
        lambda: offspan.train_batch(LQR2, [offspan.Linear(EYE)], np.ones((2, 1, 2)), optimizer=optax.sgd(0.1), iterations=1),
        "train_batch: `x0s` has shape (2, 1, 2), but needs one set of states (s, 2) for each run.",
    ),
    "a state of another batch": (
        lambda: offspan.train_batch(
            LQR2,
            [offspan.Linear(EYE)],
            E1,
            optimizer=optax.sgd(0.1),
            iterations=1,
            resume=offspan.BatchState(np.zeros((1, 1)), np.zeros(1), np.zeros(1), 100, 0, [np.zeros(3)]),
        ),
        "train_batch: `resume` belongs to another batch",
    ),
    "a controller with nothing to train": (
        lambda: offspan.train(LQR2, jnp.sin, E1, optimizer=optax.sgd(0.1), iterations=1),
        "train: the controller (a PjitFunction) has no floating-point arrays to train",
    ),
    "more states chosen than there are": (lambda: chosen(k=4), "select: `k` is 4, which is more than there are, as there are 3 candidates"),
    "a choice that leaves nothing": (lambda: chosen(k=3), "select: `k` is 3, which leaves nothing unseen, as there are 3 candidates"),
    "a choice that spans the space": (lambda: chosen(k=2), "select: `k` is 2, so that the chosen states can span all 2 dimensions"),
    "a candidate twice": (
        lambda: chosen([[1, 0], [0, 1], [1, 0]]),
        "select: `candidates` has row 2 twice, [1.0, 0.0]; list each",
    ),
    "a zero candidate": (lambda: chosen([[1, 0], [0, 0]]), "select: `candidates` has a zero state, from which a linear system never moves"),
    "a method misspelt": (
        lambda: chosen(method="fartest"),
        "select: there is no method 'fartest' (did you mean 'farthest'?)",
    ),
    "a pilot without an optimiser": (
        lambda: chosen(method="pilot"),
        "select: 'pilot' needs `optimizer`, such as optax.sgd(1e-3)",
    ),
    "an optimiser that is none": (
        lambda: chosen(method="pilot", optimizer=1e-3, iterations=3),
        "select: `optimizer` is 0.001, but must be",
    ),
    "a controller without weights": (
        lambda: chosen(method="adaptive", optimizer=optax.sgd(0.1), iterations=3, controllers=lambda x: -x),
        "select: 'adaptive' trains `controllers`, but one of them holds no weights",
    ),
    "a scale in words": (lambda: chosen(scale="a"), "select: `scale` is 'a', but must be one number"),
    "a success that branches": (
        lambda: offspan.extrapolation_map(LQR2, offspan.Linear(ZERO), {0: [1.0]}, success=lambda x: x[0] > 0 and x[1] > 0),
        "extrapolation_map: `success` cannot be traced by jax; write `&` for `and`",
    ),
    "a map with one name too many": (
        lambda: map_figure(offspan.extrapolation_map(LQR2, offspan.Linear(ZERO), {1: [1.0, 2.0]}), E1, names=["x", "y"]),
        "map_figure: `names` is ['x', 'y'], but the map has the coordinates (1,)",
    ),
    "a choice without a key": (lambda: chosen(key=0), "select: `key` is 0, but must be a random key"),
    "candidates of another problem": (lambda: chosen(np.eye(3)), "select: `candidates` has shape (3, 3), but needs shape (s, 2)"),
    "no starts": (lambda: chosen(controllers=[]), "select: `controllers` is empty"),
    "a flow of a pendulum": (
        lambda: offspan.select(offspan.Pendulum(), EYE, 1, method="flow", key=KEY, optimizer=optax.sgd(0.1), iterations=1),
        "select: 'flow' is for linear controllers of an LQR with R = 0; elsewhere take 'pilot'",
    ),
    "a flow of Adam": (
        lambda: chosen(method="flow", optimizer=optax.adam(0.1), iterations=1),
        "select: 'flow' follows gradient descent; pass optax.sgd(…)",
    ),
    "too many sets": (
        lambda: chosen(np.random.default_rng(0).normal(size=(6000, 2)), method="exhaustive", optimizer=optax.sgd(0.1), iterations=1),
        "select: 'exhaustive' would train 6,000 sets; it stops at 5,000",
    ),
    "scores without starts": (
        lambda: offspan.extrapolation_scores(offspan.Pendulum(), EYE[:1], EYE[1:]),
        "extrapolation_scores: pass `controllers=[…]` to begin with, or a `key`",
    ),
    "an effect on nothing": (lambda: offspan.effect_of_adding(LQR2, E1, EYE[1]), "effect_of_adding: `x0s` and `x` span the space"),
    "an effect on whom": (
        lambda: offspan.effect_of_adding(offspan.Pendulum(), E1, EYE[1]),
        "effect_of_adding: pass `unseen`, the states (u, 2) on which the effect is wanted",
    ),
    "half a measurement": (
        lambda: offspan.effect_of_adding(LQR2, E1, EYE[1], unseen=E1, iterations=3),
        "effect_of_adding: to measure, pass both `optimizer` and `iterations`",
    ),
    "a map of three coordinates": (
        lambda: offspan.extrapolation_map(LQR2, offspan.Linear(ZERO), {0: [1.0], 1: [1.0], 2: [1.0]}),
        "extrapolation_map: `axes` must give values for one or two of the coordinates 0..1",
    ),
    "a success that is not yes or no": (
        lambda: offspan.extrapolation_map(LQR2, offspan.Linear(ZERO), {0: [1.0]}, success=lambda x: x),
        "extrapolation_map: `success` must return one truth value for one state",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_its_sentence(mistake):
    make, sentence = MISTAKES[mistake]
    with pytest.raises(ValueError, match=r"\.$") as caught:
        make()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_controller_file_or_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot write '.*/none/k.npz': there is no folder"):
        offspan.save_controller(offspan.Linear(EYE), tmp_path / "none" / "k.npz")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        offspan.load_controller(tmp_path / "nothing.npz")
