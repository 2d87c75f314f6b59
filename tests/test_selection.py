"""Choosing initial states: criteria by plain loops and closed forms, methods by training one run after another."""

import dataclasses
import itertools
import math
import sys
import tracemalloc
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
import scipy.stats

import offspan
from offspan.exploration import visited_covariance
from offspan.report.results import bootstrap, cvar, rank_correlation, ratio
from offspan.selection.criteria import CRITERIA, Criterion, starts
from offspan.selection.evaluations import Setting
from offspan.selection.methods import METHODS, Task, _by_rank, _growing, _less_than_the_winner
from offspan.selection.pilots import Pilots, Training, costs_from, flow, flow_costs
from offspan.selection.search import ALL_SETS, best_set, extensions, greedy_set, random_sets, worth, worth_of_exchanges
from tests.systems import random_lqr

KEY = jax.random.key(0)
SGD = optax.sgd(1e-2)
PAIRS = np.array(list(itertools.combinations(range(4), 2)))


def setting(problem: offspan.Problem, candidates: Any, controllers: Any = None, scale: Any = 1.0) -> Setting:
    n = problem.state_dim
    begin = [offspan.Linear(jnp.zeros((problem.control_dim, n)))] if controllers is None else controllers
    return Setting(problem, jnp.asarray(candidates), begin, jnp.broadcast_to(jnp.asarray(scale, float), (n,)))


@pytest.fixture(scope="module")
def swing() -> Setting:
    """A short pendulum, two starts, four candidates, and an angle that counts half."""
    problem = offspan.Pendulum(horizon=5)
    starts = [offspan.MLP.init(jax.random.key(seed), 2, 1, width=3, depth=2) for seed in (0, 1)]
    return setting(problem, [[0.1, 0.0], [1.5, 0.2], [3.0, -0.4], [4.5, 1.0]], starts, [2.0, 1.0])


def visits(one: Setting, controller: Any, i: int) -> np.ndarray:
    """From candidate i, in scaled coordinates, step by step."""
    x, states = one.candidates[i], []
    for _ in range(one.problem.horizon + 1):
        states.append(np.asarray(x / one.scale))
        x = one.problem.step(x, controller(x))
    return np.array(states)


def plain_values(one: Setting, name: str) -> np.ndarray:
    """Every criterion again, set by set and start by start, from rollouts by hand and gradients of the cost of whole sets."""
    Z = np.asarray(one.candidates / one.scale[None])
    epsilon = np.mean([z @ z for z in Z])
    gramian = np.zeros((len(Z), 2, 2))
    for controller in one.controllers:
        for i in range(len(Z)):
            gramian[i] += sum(np.outer(x, x) for x in visits(one, controller, i)) / len(one.controllers)

    def gradient(controller, X):
        leaves = jax.tree.leaves(jax.grad(lambda c: offspan.cost(one.problem, c, X))(controller))
        return np.concatenate([np.ravel(leaf) for leaf in leaves])

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    def kernel(controller, u, v):
        of = lambda x: [np.ravel(leaf) for leaf in jax.tree.leaves(jax.grad(lambda c: c(x)[0])(controller))]  # noqa: E731
        return float(np.concatenate(of(u)) @ np.concatenate(of(v)))

    values = []
    for S in PAIRS:
        seen = one.candidates[S]
        each = []
        for controller in one.controllers:
            if name == "distance":
                each.append(-max(min(np.linalg.norm(Z[u] - Z[i]) for i in S) for u in range(4)))
            elif name == "coverage":
                states = [x for i in S for x in visits(one, controller, i)]
                each.append(-max(min(np.linalg.norm(Z[u] - x) for x in states) for u in range(4)))
            elif name == "gramian-trace":
                each.append(np.trace(gramian[S[0]] + gramian[S[1]]))
            elif name == "gramian-logdet":
                each.append(np.log(np.linalg.det(np.eye(2) + (gramian[S[0]] + gramian[S[1]]) / epsilon)))
            elif name == "covariance":
                each.append(float(jnp.trace(visited_covariance(one.problem, controller, seen, scale=one.scale))))
            elif name == "alignment":
                each.append(cosine(gradient(controller, seen), gradient(controller, one.candidates)))
            elif name == "colearnability":
                own = [gradient(controller, x[None]) for x in one.candidates]
                each.append(np.mean([max(cosine(own[i], own[u]) for i in S) for u in range(4)]))
            else:
                k = np.array([[kernel(controller, u, v) for v in one.candidates] for u in one.candidates])
                inside = k[np.ix_(S, S)] + 1e-3 * np.mean(np.diag(k)) * np.eye(2)
                each.append(-sum(k[u, u] - k[u, S] @ np.linalg.inv(inside) @ k[S, u] for u in range(4)))
        values.append(np.mean(each))
    return np.array(values)


@pytest.mark.parametrize("name", CRITERIA)
def test_criteria_are_what_a_plain_loop_finds(swing, name):
    found = CRITERIA[name](swing)
    expected = plain_values(swing, name)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(found.value(PAIRS), expected, rtol=1e-9, atol=1e-12)
    assert found.rollouts == (0 if name in ("distance", "tangent") else 2 * 4)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", CRITERIA)
def test_sets_with_one_state_more_are_what_a_plain_loop_finds(swing, name, kept, monkeypatch):
    """In blocks of one candidate and of all, with rows that are kept and that are made again."""
    monkeypatch.setattr("offspan.sizes.free_memory", lambda: math.inf if kept else 0.0)
    monkeypatch.setattr("offspan.sizes.STATES", 1_000 if kept else 1)
    found = CRITERIA[name](swing)
    assert found.extended is not None
    expected = dict(zip(map(tuple, PAIRS.tolist()), plain_values(swing, name), strict=True))
    pairs = found.extended(np.arange(4)[:, None])
    for (i, j), value in expected.items():
        assert pairs[i, j] == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert pairs[j, i] == pytest.approx(value, rel=1e-9, abs=1e-12)
    triples = [[0, 1, 2], [0, 1, 3]]
    np.testing.assert_allclose(found.extended(np.array([[0, 1]]))[0, 2:], found.value(np.array(triples)), rtol=1e-9)
    singles = found.extended(np.empty((1, 0), int))[0]
    np.testing.assert_allclose(singles, found.value(np.arange(4)[:, None]), rtol=1e-9, atol=1e-12)
    without = extensions(found._replace(extended=None), np.array([[0, 1]]), np.array([2, 3]))
    np.testing.assert_allclose(without[0], found.value(np.array(triples)), rtol=1e-12)


@pytest.mark.parametrize("name", CRITERIA)
def test_a_large_pool_takes_the_memory_of_a_block(name, monkeypatch):
    """Where there is little: a table of all candidates against all was held several times over."""
    monkeypatch.setattr("offspan.sizes.free_memory", lambda: 0.0)
    monkeypatch.setattr("offspan.sizes.STATES", 50)
    count = 1_000
    pool = setting(offspan.shift(3, horizon=3), np.random.default_rng(0).normal(size=(count, 3)))

    def values() -> None:
        found = CRITERIA[name](pool)
        assert found.extended is not None
        assert np.isfinite(found.extended(np.array([[0, 1]]))).all()
        assert np.isfinite(found.value(np.arange(40).reshape(20, 2))).all()

    values()  # compiles
    tracemalloc.start()
    values()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * count**2 / 2


def test_the_worth_of_exchanges_is_that_of_the_sets_written_out():
    rng, best, others = np.random.default_rng(0), np.array([4, 1, 6]), np.array([0, 2, 3, 5])
    values = rng.normal(size=(3, 4))
    sets = [best, *(np.append(np.delete(best, i), other) for i in range(3) for other in others)]
    of_sets = np.array([0.5, *values.ravel()])
    has = np.array([[x in one for x in range(7)] for one in sets])
    expected = [of_sets[has[:, x]].max() - of_sets[~has[:, x]].max() for x in range(7)]
    np.testing.assert_allclose(worth_of_exchanges(best, others, 0.5, values), expected, rtol=1e-12)
    np.testing.assert_allclose(worth(np.array(sets), of_sets, 7), expected, rtol=1e-12)
    assert np.array_equal(worth(np.array([[0, 1], [0, 2]]), np.array([1.0, 3.0]), 4), [np.inf, -2.0, 2.0, -np.inf])


def test_extrapolation_scores_are_the_criteria_of_the_seen_states(swing):
    seen, unseen = swing.candidates[1:3], swing.candidates[jnp.array([0, 3])]
    scores = offspan.extrapolation_scores(swing.problem, seen, unseen, controllers=swing.controllers, scale=swing.scale)
    expected = {name: float(criterion(swing).value(np.array([[1, 2]]))[0]) for name, criterion in CRITERIA.items()}
    assert scores == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_greedy_choice_keeps_its_promise(seed):
    """log det(I + G) is monotone and submodular: greedy choice reaches 1 − 1/e of the best of all sets; for the trace it is the best."""
    problem = offspan.gaussian(jax.random.key(seed), 5, horizon=4)
    candidates = np.asarray(offspan.sphere(jax.random.key(9), 9, 5))
    sets = np.array(list(itertools.combinations(range(9), 3)))
    logdet, trace = (CRITERIA[name](setting(problem, candidates)) for name in ("gramian-logdet", "gramian-trace"))
    values = logdet.value(sets)
    greedy = logdet.value(greedy_set(logdet, 9, 3)[None])[0]
    assert values.max() + 1e-12 >= greedy >= (1 - 1 / math.e) * values.max() > 0
    assert trace.value(greedy_set(trace, 9, 3)[None])[0] == pytest.approx(trace.value(sets).max())
    first, second, both = (logdet.value(np.array([S]))[0] for S in ([0], [1], [0, 1]))
    assert 0 <= max(first, second) <= both <= first + second  # monotone, submodular, and 0 for no states


def test_large_pools_are_chosen_from_by_greedy_choice_and_exchange(monkeypatch):
    """With exchanges, the choice is one that no exchange of two states improves; on these pools it is the best of all."""
    problem = offspan.gaussian(jax.random.key(1), 4, horizon=3)
    candidates = np.asarray(offspan.sphere(jax.random.key(2), 10, 4))
    for name in ("gramian-logdet", "distance"):
        criterion = CRITERIA[name](setting(problem, candidates))
        best, worth, is_tie = best_set(criterion, 10, 3)
        assert not is_tie
        monkeypatch.setattr("offspan.selection.search.ALL_SETS", 10)
        found, worth_found, _ = best_set(criterion, 10, 3)
        monkeypatch.undo()
        assert criterion.value(found[None])[0] == pytest.approx(criterion.value(best[None])[0])
        for scores, chosen in ((worth, best), (worth_found, found)):
            assert np.all(scores[chosen] >= 0)
            assert np.all(np.delete(scores, chosen) <= 0)


def test_the_search_ends_where_all_values_are_infinite():
    """Where every set is worth −∞, as where trajectories overflow, and where some are worth +∞."""
    nothing = Criterion(lambda sets: np.full(len(sets), -np.inf), 0)
    assert math.comb(150, 2) > ALL_SETS
    indices, _, is_tie = best_set(nothing, 150, 2)
    assert (len(set(indices.tolist())), is_tie) == (2, True)
    endless = Criterion(lambda sets: np.where(np.any(sets == 7, axis=1), np.inf, 1.0), 0)
    for count in (150, 20):
        indices, _, is_tie = best_set(endless, count, 2)
        assert 7 in indices
        assert not is_tie


@pytest.mark.parametrize("method", ["gramian-trace", "gramian-logdet", "coverage", "covariance", "alignment", "colearnability"])
def test_a_choice_ends_where_trajectories_overflow(method):
    problem = offspan.LQR(1e200 * np.eye(3), horizon=3)
    with pytest.warns(UserWarning, match="trajectories overflow at the start"):
        assert choose(problem, offspan.sphere(KEY, 150, 3), 2, method).states.shape == (2, 3)


def test_worth_is_the_best_set_with_a_state_less_the_best_without():
    problem = offspan.gaussian(jax.random.key(3), 4, horizon=4)
    chosen = offspan.select(problem, np.eye(4), 2, method="gramian-trace", key=KEY)
    traces = [float(jnp.trace(offspan.gramian(problem, np.eye(4)[i : i + 1]))) for i in range(4)]
    assert sorted(chosen.indices.tolist()) == sorted(np.argsort(traces)[-2:].tolist())
    values = {S: traces[S[0]] + traces[S[1]] for S in map(tuple, PAIRS.tolist())}
    expected = [max(v for S, v in values.items() if i in S) - max(v for S, v in values.items() if i not in S) for i in range(4)]
    np.testing.assert_allclose(chosen.scores, expected, rtol=1e-12)
    np.testing.assert_array_equal(chosen.states, np.eye(4)[chosen.indices])


def test_a_set_that_costs_infinity_where_the_winner_does_too_is_worth_nothing():
    """∞ − ∞ is no number, and would be that of every candidate in the set, the winner's among them."""
    costs = np.array([[np.inf, np.inf, 3.0], [5.0, np.nan, 4.0], [1.0, np.nan, np.nan]])  # of three rounds, NaN for sets that have ended
    assert _less_than_the_winner(costs, 0).tolist() == [0.0, -np.inf, 5.0 - 4.0]


def choose(problem: Any, candidates: Any, k: int, method: str, **options: Any) -> offspan.Selection:
    options = {"optimizer": SGD, "iterations": 8, "sets": 4, **options} if METHODS[method].trains else options
    return offspan.select(problem, candidates, k, method=method, key=KEY, **options)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_that_the_identity_does_not_explore(method):
    with pytest.warns(UserWarning, match="select: no choice explores"):
        chosen = choose(offspan.identity(4, horizon=3), np.eye(4), 2, method)
    assert "from every candidate, the system stays on the line through it, so training learns nothing beyond" in chosen.note
    assert (chosen.method, chosen.states.shape, len(set(chosen.indices.tolist()))) == (method, (2, 4), 2)
    assert METHODS[method].meaning


def test_what_explores_only_after_a_step_is_not_called_unexploring():
    """A = I, but Q turns the first step of training towards other directions."""
    turned = offspan.LQR(np.eye(3), Q=[[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]], horizon=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(turned, np.eye(3), 1, "random").note == ""
    still = offspan.FunctionProblem(lambda x, u: x, lambda x, u: x @ x, state_dim=2, control_dim=1, horizon=3)
    with pytest.warns(UserWarning, match="the system stays where it is"):
        choose(still, [[0.0, 1.0], [1.0, 0.0]], 1, "farthest")


def test_controllers_that_are_not_linear_learn_from_more_states_than_dimensions():
    """For them, n independent seen states leave something unseen, a zero state is one as others, and moving along a line explores it."""
    problem, pool = offspan.identity(2, horizon=3), np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    along = offspan.Bounded(offspan.Linear(np.eye(2)), [-1.0, -1.0], [1.0, 1.0])  # from e_1 along e_1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = offspan.select(problem, pool, 3, method="random", key=KEY, controllers=along)
    assert chosen.explores
    assert len(chosen.states) == 3
    for some, said in ((pool, "has a zero state"), (pool[:3], "can span all 2 dimensions")):
        with pytest.raises(offspan.OffspanError, match=said):
            choose(problem, some, 2, "farthest")


@pytest.mark.parametrize("turns", [1, 2])
def test_any_state_of_the_shift_explores_everything(turns):
    """H = turns · D: every e_i visits every e_d `turns` times, so tr G = kH, log det(I + G) = D log(1 + k·turns), and coverage is whole.

    ∇J(0; e_i) = Σ_h 2(H − h) e_{i+h+1} e_{i+h}ᵀ, so that alignment is the same for every state, and for pairs depends on their distance.
    """
    D, k, H = 4, 2, turns * 4
    shift = setting(offspan.shift(D, horizon=H), np.eye(D))
    weights = sum(2 * (H - h) * np.eye(D)[h % D] for h in range(H))
    gradients = np.array([np.roll(weights, S[0]) + np.roll(weights, S[1]) for S in PAIRS])
    expected = {
        "gramian-trace": k * H,
        "gramian-logdet": D * np.log(1 + k * turns),
        "coverage": 0.0,
        "alignment": gradients.sum(axis=1) / np.linalg.norm(gradients, axis=1) / np.sqrt(D),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(CRITERIA[name](shift).value(PAIRS), np.broadcast_to(value, 6), rtol=1e-12, atol=1e-12)
    for name in ("gramian-trace", "gramian-logdet", "alignment"):
        with pytest.warns(UserWarning, match="all sets are worth the same by this criterion"):
            one = choose(shift.problem, np.eye(D), 1, name)
        assert "explores" not in one.note
        np.testing.assert_allclose(one.scores, 0, atol=1e-12)


def plain_costs(problem: offspan.LQR, candidates: np.ndarray, sets: np.ndarray, iterations: int) -> np.ndarray:
    """J over all candidates after training on each set, one run after another."""
    costs = []
    for S in sets:
        run = offspan.train_lqr(problem, candidates[S], learning_rate=1e-2, iterations=iterations)
        costs.append(float(offspan.cost(problem, offspan.Linear(run.K), candidates)))
    return np.array(costs)


def test_the_exhaustive_choice_is_the_best_of_plain_runs():
    problem, e = offspan.gaussian(jax.random.key(2), 4, horizon=4), np.eye(4)
    costs = plain_costs(problem, e, PAIRS, 60)
    chosen = choose(problem, e, 2, "exhaustive", iterations=60)
    assert chosen.indices.tolist() == PAIRS[np.argmin(costs)].tolist()
    expected = [
        min(c for c, S in zip(costs, PAIRS, strict=True) if i not in S) - min(c for c, S in zip(costs, PAIRS, strict=True) if i in S)
        for i in range(4)
    ]
    np.testing.assert_allclose(chosen.scores, expected, rtol=1e-9, atol=1e-12)
    assert chosen.rollouts == 6 * (2 * 60 + 4)
    assert chosen.controllers is not None
    assert float(offspan.cost(problem, chosen.controllers[0], e)) == pytest.approx(costs.min())


def test_pilots_halve_by_the_costs_of_plain_runs():
    """Six sets after N/8 iterations, three after N/4, two after N/2, one after N."""
    problem, e, N = offspan.gaussian(jax.random.key(5), 4, horizon=4), np.eye(4), 80
    alive = np.arange(6)
    for iterations in (N // 8, N // 4, N // 2):
        costs = plain_costs(problem, e, PAIRS[alive], iterations)
        alive = np.sort(alive[np.argsort(costs, kind="stable")[: math.ceil(len(alive) / 2)]])
    chosen = choose(problem, e, 2, "pilot", iterations=N, sets=6)
    assert chosen.indices.tolist() == PAIRS[alive[0]].tolist()
    assert chosen.rollouts == 2 * (6 * 10 + 3 * 10 + 2 * 20 + 1 * 40) + 4 * (6 + 3 + 2 + 1)
    assert chosen.controllers is not None
    expected = plain_costs(problem, e, PAIRS[alive], N)[0]
    assert float(offspan.cost(problem, chosen.controllers[0], e)) == pytest.approx(expected, rel=1e-9)
    assert np.all(chosen.scores[chosen.indices] >= 0)
    assert np.all(np.delete(chosen.scores, chosen.indices) <= 0)


def test_pilots_go_on_where_they_were(swing):
    """Two stretches of some runs give what one long stretch gives, for an optimiser with a memory and a rule that keeps the best."""
    training = Training(swing.problem, jax.random.key(0), optax.adam(1e-2), 60, offspan.NoImprovement(every=10, patience=50, gain=1e-9))
    pilots, whole = Pilots(swing, training, PAIRS), Pilots(swing, training, PAIRS[[1, 4]])
    pilots.train(np.arange(6), 30)
    pilots.costs()
    pilots.train(np.array([1, 4]), 60)
    whole.train(np.arange(2), 60)
    np.testing.assert_allclose(pilots.costs(), whole.costs(), rtol=1e-9)
    by_hand = [
        offspan.train(swing.problem, start, swing.candidates[PAIRS[4]], optimizer=training.optimizer, iterations=60, stop=training.stop)
        for start in swing.controllers
    ]
    expected = np.median([float(offspan.cost(swing.problem, run.controller, swing.candidates)) for run in by_hand])
    assert whole.costs()[1] == pytest.approx(expected, rel=1e-9)
    assert whole._batch is not None
    whole._batch = dataclasses.replace(whole._batch, codes=np.array([offspan.Status.diverged] * 2 + [offspan.Status.finished] * 2))
    np.testing.assert_array_equal(np.isinf(whole.costs()), [True, False])  # however finite its last controller


def test_adaptive_choice_adds_the_worst_state_of_a_plain_loop():
    problem, e = offspan.gaussian(jax.random.key(4), 4, horizon=4), np.eye(4)
    K, S = np.zeros((4, 4)), []
    for _ in range(2):
        costs = [float(offspan.cost(problem, offspan.Linear(jnp.asarray(K)), e[i : i + 1])) if i not in S else -np.inf for i in range(4)]
        S.append(int(np.argmax(costs)))
        K = offspan.train_lqr(problem, e[S], learning_rate=1e-2, iterations=20, K0=K).K
    chosen = choose(problem, e, 2, "adaptive", iterations=40)
    assert chosen.indices.tolist() == S
    assert chosen.rollouts == 2 * 4 + 20 * 1 + 20 * 2
    assert chosen.controllers is not None
    np.testing.assert_allclose(chosen.controllers[0].K, K, rtol=1e-9)


def test_stages_of_a_growing_choice_have_keys_of_their_own_and_one_check(monkeypatch):
    """No key is used twice, and of the rollouts for costs, only those of the check at the end, one a candidate, are not counted."""
    keys, states = [], []

    class Recorded(Pilots):
        def __init__(self, setting, training, sets):
            keys.append(training.key)
            super().__init__(setting, training, sets)

    def next_state(costs, key):
        keys.append(key)
        return int(np.argmax(costs))

    def costs_of(problem, controllers, x0s, key, samples):
        states.append(len(controllers) * len(x0s) * samples)
        return costs_from(problem, controllers, x0s, key, samples)

    monkeypatch.setattr("offspan.selection.methods.Pilots", Recorded)
    monkeypatch.setattr("offspan.selection.pilots.costs_from", costs_of)
    task_key, training_key = jax.random.split(KEY)
    here = setting(offspan.shift(4, horizon=3), np.eye(4))
    choice = _growing(next_state)(Task(here, 2, task_key, Training(here.problem, training_key, SGD, 8), 4))
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == len(keys) == 4
    updates = 4 * 1 + 4 * 2
    assert choice.rollouts == updates + 2 * 4
    assert sum(states) == 2 * 4 + 4


def test_the_network_that_choosing_begins_with_has_a_key_of_its_own(monkeypatch):
    """Where none is given, it is not drawn with the key that the keys of choosing and training are split from."""
    drawn = []

    def recorded(where, problem, controllers, key):
        drawn.append(key)
        return starts(where, problem, controllers, key)

    monkeypatch.setattr(sys.modules["offspan.selection.select"], "starts", recorded)
    offspan.select(offspan.Pendulum(horizon=2), [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], 1, method="farthest", key=KEY)
    assert not np.array_equal(jax.random.key_data(drawn[0]), jax.random.key_data(KEY))


def test_replay_draws_the_rth_worst_with_a_weight_of_one_over_r():
    costs = np.array([1.0, 5.0, -np.inf, 3.0])
    drawn = np.array([_by_rank(costs, key) for key in jax.random.split(KEY, 400)])
    share = np.bincount(drawn, minlength=4) / 400
    expected = np.array([1 / 3, 1, 0, 1 / 2]) / (1 + 1 / 2 + 1 / 3)
    assert np.all(np.abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / 400) + 1e-12)


def test_the_flow_solves_its_equation():
    """dK/dt = −2 BᵀQ(A + BK)G by a solver of differential equations, where controls are fewer than states and Q is singular."""
    problem = offspan.LQR(
        np.array([[0.5, 1.0, 0.0], [0.0, -0.3, 0.4], [0.2, 0.0, 0.9]]),
        B=[[1.0, 0.0], [0.5, 1.0], [0.0, 2.0]],
        Q=np.diag([1.0, 2.0, 0.0]),
        horizon=3,
    )
    G = np.array([[1.0, 0.2, 0.0], [0.2, 0.5, 0.0], [0.0, 0.0, 0.0]])
    K0 = np.arange(6.0).reshape(2, 3) / 5
    A, B, Q = (np.asarray(M) for M in (problem.A, problem.B, problem.Q))
    step = lambda t, flat: (-2 * B.T @ Q @ (A + B @ flat.reshape(2, 3)) @ G).ravel()  # noqa: E731
    expected = scipy.integrate.solve_ivp(step, (0, 0.7), K0.ravel(), rtol=1e-10, atol=1e-12).y[:, -1].reshape(2, 3)
    found = flow(problem, jnp.asarray(K0), jnp.asarray(G), jnp.asarray(0.7))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    assert np.abs(found - K0).max() > 0.1


def test_over_one_step_the_flow_is_policy_gradient():
    """H = 1: what is visited does not depend on K, so that N small steps of training follow the flow, and its choice is the oracle's."""
    problem, e = offspan.gaussian(jax.random.key(6), 4, horizon=1), np.asarray(offspan.sphere(KEY, 4, 4))
    flowed, trained = (choose(problem, e, 2, method, optimizer=optax.sgd(1e-4), iterations=4_000) for method in ("flow", "exhaustive"))
    assert flowed.indices.tolist() == trained.indices.tolist()
    np.testing.assert_allclose(flowed.scores, trained.scores, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(1e-2, momentum=0.9),
        optax.chain(optax.clip_by_global_norm(1e3), SGD),
        optax.sgd(optax.linear_schedule(1e-2, 0.0, 10)),
        optax.sgd(optax.piecewise_constant_schedule(1e-2, {5: 0.0})),
        optax.chain(optax.add_decayed_weights(1e-2), SGD),
        optax.adam(1e-2),
        optax.sgd(0.0),
    ],
    ids=["momentum", "clipping", "schedule", "late schedule", "decay", "adam", "no step"],
)
def test_the_flow_refuses_what_is_not_plain_gradient_descent(optimizer):
    with pytest.raises(offspan.OffspanError, match="'flow' follows plain gradient descent"):
        choose(offspan.shift(3, horizon=2), np.eye(3), 1, "flow", optimizer=optimizer)


def test_the_flow_follows_what_is_visited():
    """Where K changes what is visited, stages of the flow follow dK/dt = −2 (A + K) G(K), by a solver of differential equations."""
    problem, S = offspan.gaussian(jax.random.key(7), 3, horizon=4), np.eye(3)[:1]
    A, K0 = np.asarray(problem.A), 0.1 * np.ones((3, 3))

    def step(t, flat):
        K, x, G = flat.reshape(3, 3), S[0], np.zeros((3, 3))
        for _ in range(4):
            G += np.outer(x, x)
            x = (A + K) @ x
        return (-2 * (A + K) @ G).ravel()

    K = scipy.integrate.solve_ivp(step, (0, 4.0), K0.ravel(), rtol=1e-9).y[:, -1].reshape(3, 3)
    expected = float(offspan.cost(problem, offspan.Linear(jnp.asarray(K)), np.eye(3)))
    costs, rollouts = flow_costs(problem, jnp.eye(3), np.array([[0]]), jnp.asarray(K0), 1e-3, 4_000)
    frozen, _ = flow_costs(problem, jnp.eye(3), np.array([[0]]), jnp.asarray(K0), 4.0, 1)
    assert abs(costs[0] - expected) < 0.25 * abs(frozen[0] - expected)  # twenty stages are a rough, but not a blind, integrator
    assert rollouts == 19 * 1 + 3  # of twenty times from 1 to 4,000, two are 1


def test_pilots_that_diverge_lose():
    """A set whose run diverges costs ∞, so that another is chosen; where all diverge, the choice says so and brings no controller."""
    problem = offspan.LQR([[0.5, 0.1, 0.0], [0.0, 0.5, 0.1], [0.0, 0.0, 3.0]], horizon=6)
    chosen = offspan.select(problem, np.eye(3), 1, method="exhaustive", key=KEY, optimizer=optax.sgd(1e-5), iterations=50)
    assert chosen.indices[0] != 2
    assert chosen.scores[2] == -np.inf
    assert chosen.note == ""
    with pytest.warns(UserWarning, match="every run of the chosen states diverged"):
        wild = offspan.select(problem, np.eye(3), 1, method="pilot", key=KEY, optimizer=optax.sgd(1e9), iterations=50)
    assert wild.controllers == [None]


def test_random_sets_are_distinct_and_all_where_there_are_few():
    sets = random_sets(KEY, 12, 3, 50)
    assert sets.shape == (50, 3)
    assert len({tuple(S) for S in sets.tolist()}) == 50
    assert np.all(np.diff(sets, axis=1) > 0)
    assert random_sets(KEY, 4, 2, 6).tolist() == PAIRS.tolist()
    drawn = [
        offspan.select(offspan.shift(4, horizon=4), np.eye(4), 1, method="random", key=key).indices[0] for key in jax.random.split(KEY, 12)
    ]
    assert len(set(map(int, drawn))) == 4


def test_the_effect_of_adding_a_state():
    """Predicted: a difference of cosines, by the analytic gradient. Measured: the difference of two plain trainings."""
    problem = random_lqr(1, 4, 4, 3, control_cost=False)
    S, x = np.eye(4)[:1], np.array([0.0, 1.0, 1.0, 0.0])
    U = np.asarray(offspan.unseen_directions(np.vstack([S, x])))
    more = np.vstack([S, x])
    g = {name: np.ravel(offspan.lqr_gradient(problem, np.zeros((4, 4)), X)) for name, X in (("S", S), ("more", more), ("U", U))}
    cosine = lambda a, b: g[a] @ g[b] / np.linalg.norm(g[a]) / np.linalg.norm(g[b])  # noqa: E731
    effect = offspan.effect_of_adding(problem, S, x, optimizer=SGD, iterations=50)
    assert effect.predicted == pytest.approx(cosine("S", "U") - cosine("more", "U"), rel=1e-9)
    ends = [offspan.train_lqr(problem, X, learning_rate=1e-2, iterations=50).K for X in (S, more)]
    costs = [float(offspan.cost(problem, offspan.Linear(K), U)) for K in ends]
    assert effect.measured == pytest.approx(costs[1] - costs[0], rel=1e-8)
    assert offspan.effect_of_adding(problem, S, x).measured is None


def test_scores_and_effects_of_a_noisy_problem():
    """Scores and predictions look at the problem without noise; the measured effect has it, the same in both trainings' costs."""
    problem, e = offspan.shift(4, horizon=2), np.eye(4)
    noisy = offspan.Noisy(problem, process=0.3)
    assert offspan.extrapolation_scores(noisy, e[:1], e[1:]) == offspan.extrapolation_scores(problem, e[:1], e[1:])
    predicted = offspan.effect_of_adding(problem, e[:1], e[1]).predicted
    assert offspan.effect_of_adding(noisy, e[:1], e[1]).predicted == predicted != 0
    effect = offspan.effect_of_adding(noisy, e[:1], e[1], key=KEY, optimizer=SGD, iterations=100)
    ends = [offspan.train(noisy, offspan.Linear(np.zeros((4, 4))), S, optimizer=SGD, iterations=100, key=KEY) for S in (e[:1], e[:2])]
    alone, together = (float(offspan.expected_cost(noisy, run.controller.K, e[2:])) for run in ends)
    assert effect.measured == pytest.approx(together - alone, rel=0.5)  # by other draws of the noise
    with pytest.raises(offspan.OffspanError, match="effect_of_adding: `key` is missing: the problem is Noisy"):
        offspan.effect_of_adding(noisy, e[:1], e[1], optimizer=SGD, iterations=100)


def test_maps_are_costs_state_by_state():
    problem = offspan.Pendulum(horizon=6)
    controller = offspan.MLP.init(KEY, 2, 1, width=3, depth=2)
    found = offspan.extrapolation_map(problem, controller, {1: [0.0, 1.0, 2.0], 0: [0.5, 3.0]})
    expected = [
        [float(offspan.cost(problem, controller, jnp.array([[angle, velocity]]))) for angle in (0.5, 3.0)] for velocity in (0.0, 1.0, 2.0)
    ]
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)
    line = offspan.extrapolation_map(problem, controller, {0: [0.5, 3.0]}, at=[9.0, 2.0])
    np.testing.assert_allclose(line.values, expected[2], rtol=1e-12)
    near = offspan.extrapolation_map(problem, controller, {0: [0.5, 3.0]}, success=lambda x: jnp.abs(x[0] - jnp.pi) < 1.0)
    ends = [offspan.rollout(problem, controller, jnp.array([angle, 0.0])).states[-1, 0] for angle in (0.5, 3.0)]
    assert near.values.tolist() == [float(abs(end - np.pi) < 1) for end in ends] == [0.0, 1.0]


def test_bootstrap_intervals_cover():
    """95 % intervals of a ratio of paired means: of 200 simulated experiments, 88 % to 99 % hold the true ratio."""
    rng = np.random.default_rng(0)
    ratio = lambda a, b: float(np.mean(a) / np.mean(b))  # noqa: E731
    held = []
    for _ in range(200):
        system = rng.lognormal(0, 0.5, 40)
        chosen, random = 0.5 * system * rng.lognormal(0, 0.3, 40), system * rng.lognormal(0, 0.3, 40)
        estimate = bootstrap(ratio, chosen, random, resamples=300)
        assert estimate.low <= estimate.value <= estimate.high
        held.append(estimate.low <= 0.5 <= estimate.high)
    assert 0.88 <= np.mean(held) <= 0.99


def test_ratios_of_zeros_and_infinities():
    assert [ratio(*pair) for pair in ((0.0, 0.0), (np.inf, np.inf), (1.0, 0.0), (1.0, np.inf), (3.0, 2.0))] == [1.0, 1.0, np.inf, 0.0, 1.5]
    of_medians = lambda a, b: ratio(float(np.median(a)), float(np.median(b)))  # noqa: E731
    with_one_lost = bootstrap(of_medians, np.array([1, 2, 3, np.inf]), np.array([2, 2, 4, np.inf]))
    assert with_one_lost.low <= with_one_lost.value == 2.5 / 3 <= with_one_lost.high


def test_tails_and_ranks():
    values = np.array([[1.0, 5.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 10.0, np.inf]])
    np.testing.assert_array_equal(cvar(values, 0.4), [4.5, np.inf])
    a, b = np.array([1.0, 2.0, 2.0, 7.0, 5.0]), np.array([0.3, 0.1, 9.0, 4.0, 4.0])
    assert rank_correlation(a, b) == pytest.approx(scipy.stats.spearmanr(a, b)[0])
    assert rank_correlation(a, np.array([1.0, 2.0, 2.5, np.inf, 3.0])) == pytest.approx(scipy.stats.spearmanr(a, [1, 2, 2.5, 4, 3])[0])
    assert math.isnan(rank_correlation(a, np.ones(5)))
