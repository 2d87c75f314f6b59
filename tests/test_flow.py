"""Gradient flow on the shift [beyond R24]: the equation, its end, and what is drawn of it."""

import itertools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

import offspan
from offspan.experiments.store import RunFolder
from offspan.report import flow as flow_figures
from offspan.report.lqr import FLOW_MARK, MEASURES, _with, measure_bars
from offspan.theory import illustrations
from offspan.theory.flow import arrows, arrows_by_quadrature, endless_path_sums, extrapolated, flow_ratios, path_sums, shift_flow

STORED = Path(__file__).parent.parent / "docs" / "results"
CASES = [(5, 5, [0, 1, 2]), (3, 8, [0]), (4, 9, [1, 3]), (4, 3, [0, 0, 2])]


def plain_cost(u, horizon, seen):
    """J(K; S) by following each path."""
    total = 0.0
    for i in seen:
        product = 1.0
        for h in range(horizon + 1):
            total += product
            product *= u[(i + h) % len(u)]
    return total / len(seen)


def controller(alpha):
    """K with A + K = Σ_d α_d e_{d%D+1} e_dᵀ."""
    return jnp.asarray(np.roll(np.diag(alpha - 1), 1, axis=0))


@pytest.mark.parametrize(("dim", "horizon", "seen"), CASES)
def test_theta_is_the_slope_of_the_cost_and_a_step_of_training_follows_it(dim, horizon, seen):
    """θ_d = u_d ∂J/∂u_d by central differences; K − η∇J has the arrows α_d (1 − 2ηθ_d/u_d), and no entry besides."""
    alpha = np.random.default_rng(dim + horizon).uniform(0.3, 1.1, dim)
    u, theta = alpha**2, path_sums(alpha**2, horizon, np.array(seen))
    for d in range(dim):
        step = 1e-5 * np.eye(dim)[d]
        slope = (plain_cost(u + step, horizon, seen) - plain_cost(u - step, horizon, seen)) / 2e-5
        assert theta[d] == pytest.approx(u[d] * slope, rel=1e-7, abs=1e-9)
    problem, x0s = offspan.shift(dim, horizon=horizon), np.eye(dim)[seen]
    assert float(offspan.cost(problem, offspan.Linear(controller(alpha)), x0s)) == pytest.approx(plain_cost(u, horizon, seen))
    K = controller(alpha) - 0.01 * offspan.lqr_gradient(problem, controller(alpha), x0s)
    np.testing.assert_allclose(problem.A + K, np.roll(np.diag(alpha * (1 - 0.02 * theta / u)), 1, axis=0), atol=1e-13)
    optimality, cost = flow_ratios(u, horizon, seen)
    assert optimality == pytest.approx(float(offspan.normalized_optimality(problem, controller(alpha), x0s)), rel=1e-12)
    assert cost == pytest.approx(float(offspan.normalized_cost(problem, controller(alpha), x0s)), rel=1e-12)


@pytest.mark.parametrize(("dim", "horizon", "seen"), CASES)
def test_the_flow_by_plain_runge_kutta(dim, horizon, seen):
    """Fixed steps of order four, a gradient by complex differences, up to t = 0.3."""
    slopes = lambda u: np.array([-4 * u[d] * plain_cost(u + 1e-20j * np.eye(dim)[d], horizon, seen).imag / 1e-20 for d in range(dim)])  # noqa: E731
    u, h = np.ones(dim), 0.3 / 300
    for _ in range(300):
        a = slopes(u)
        b = slopes(u + h / 2 * a)
        c = slopes(u + h / 2 * b)
        u = u + h / 6 * (a + 2 * b + 2 * c + slopes(u + h * c))
    np.testing.assert_allclose(shift_flow(dim, horizon, seen, 0.3), u, rtol=1e-6)
    assert u.min() < 0.7


def test_the_known_ends():
    """The bars of the paper's shift; the omega constant, as the fixed point of x = e^{−x}; what is never visited stays."""
    bars = [shift_flow(5, 5, range(count))[count:].mean() for count in (1, 2, 3, 4)]
    np.testing.assert_allclose(bars, [0.6326, 0.5861, 0.5276, 0.4525], atol=5e-5)
    omega = 0.5
    for _ in range(200):
        omega = math.exp(-omega)
    assert shift_flow(2, 2, [0])[1] == pytest.approx(omega, abs=1e-14)
    np.testing.assert_allclose(shift_flow(7, 2, [0, 3]), [0, omega, 1, 0, omega, 1, 1], atol=1e-14)  # paths that do not meet
    assert shift_flow(3, 1, [1]).tolist() == [1, 0, 1]
    assert shift_flow(3, 4, [0, 1, 2]).tolist() == [0, 0, 0]
    assert shift_flow(3, 4, [0, 1], 0.0).tolist() == [1, 1, 1]


@pytest.mark.parametrize("horizon", [2, 3, 5, 12])
def test_the_end_by_quadrature(horizon):
    np.testing.assert_allclose(shift_flow(horizon + 1, horizon, [0])[:-1], arrows_by_quadrature(horizon), atol=2e-13)
    u = shift_flow(horizon, horizon, [0], 0.2)
    assert math.log(u[-1]) + u[-1] == pytest.approx(u[-2], abs=1e-12)


def test_the_end_at_horizon_three_is_the_root_of_one_equation():
    """φ(w) = ∫_w^1 ds / (s φ(s)) with φ(w) = w + ln w; then u_3 = w and u_2 = φ(w)."""
    phi = lambda w: w + math.log(w)  # noqa: E731
    u_1 = lambda w: phi(w) - scipy.integrate.quad(lambda s: 1 / (s * phi(s)), w, 1, epsabs=1e-13)[0]  # noqa: E731
    w = scipy.optimize.root_scalar(u_1, bracket=(0.6, 0.99), xtol=1e-14).root
    np.testing.assert_allclose(shift_flow(3, 3, [0]), [0, phi(w), w], atol=1e-11)


@pytest.mark.parametrize(("dim", "ratio"), [(2, 0.4047), (3, 0.4673), (4, 0.5133), (5, 0.5493)])
def test_an_infinite_horizon_by_its_orbit(dim, ratio):
    """du_d/du_1 = θ_d/θ_1, regular from u_1 = 1 to 0, by plain Runge–Kutta; long horizons come to the same end, as 1/H²."""

    def slopes(u):  # of u_2..u_D by u_1: θ_d over u_1 is P s + (1 − P) Σ_{j=d}^{D−1} p_j, without the factor u_1 in each product
        products = np.cumprod(np.append(1.0, u[1:]))  # p_d / u_1
        s = 1 + u[0] * products[:-1].sum()
        sums = products[-1] * s + (1 - u[0] * products[-1]) * np.append(np.cumsum(products[:-1][::-1])[::-1], 0.0)
        return np.append(1.0, sums[1:] / sums[0])

    u, h = np.ones(dim), -1 / 400
    for _ in range(400):
        a = slopes(u)
        b = slopes(u + h / 2 * a)
        c = slopes(u + h / 2 * b)
        u = u + h / 6 * (a + 2 * b + 2 * c + slopes(u + h * c))
    end = shift_flow(dim, math.inf, [0])
    np.testing.assert_allclose(end, u, atol=1e-9)
    assert end[1:].mean() == pytest.approx(ratio, abs=5e-5)
    apart = [shift_flow(dim, H, [0])[1:].mean() - end[1:].mean() for H in (200, 400)]
    assert apart[0] / apart[1] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("dim", "horizon", "seen", "count"),
    [
        *((2, 2, [0], 1), (2, 3, [0], 0), (2, 4, [0], 0), (2, math.inf, [0], 1), (2, 2, [0, 1], 1)),
        *((3, 3, [0], 1), (3, 4, [0], 0), (3, 3, [0, 1], 0), (3, math.inf, [0], 0), (4, 4, [0], 1), (4, 2, [0, 2], 2)),
    ],
)
def test_first_integrals_that_are_polynomials_and_logarithms(dim, horizon, seen, count):
    """How many I = Σ c_m u^m + Σ b_d ln u_d of low degree have Σ_d θ_d ∂I/∂u_d = 0 at random points: what docs/flow.md says of them."""
    degree = 5 if dim < 4 else 3
    powers = np.array([m for m in itertools.product(range(degree + 1), repeat=dim) if 0 < sum(m) <= degree], float)
    rows = []
    for u in np.random.default_rng(0).uniform(0.3, 1.7, (3 * len(powers), dim)):
        theta = endless_path_sums(u, np.array(seen)) if horizon == math.inf else path_sums(u, horizon, np.array(seen))
        rates = theta / u / np.linalg.norm(theta)
        rows.append([*(np.prod(u**powers, axis=1) * (powers @ rates)), *rates])
    values = np.linalg.svd(np.array(rows), compute_uv=False)
    assert np.sum(values < 1e-11 * values[0]) == count
    assert values[len(values) - count - 1] > 1e-8 * values[0]  # the others are clearly not


@pytest.mark.parametrize("seen", [[0], [0, 2], [1, 2, 3]])
def test_sums_over_endless_paths(seen):
    """The geometric series, against its first 400 terms; and a rotation of the seen states rotates the end."""
    u = np.random.default_rng(0).uniform(0.5, 0.9, 4)
    endless = endless_path_sums(u, np.array(seen)) / (1 - u.prod()) ** 2
    np.testing.assert_allclose(endless, path_sums(u, 400, np.array(seen)), rtol=1e-12)
    for horizon in (6, math.inf):
        turned = shift_flow(4, horizon, [(i + 1) % 4 for i in seen])
        np.testing.assert_allclose(turned, np.roll(shift_flow(4, horizon, seen), 1), atol=1e-13)
    limit = flow_ratios(shift_flow(4, math.inf, seen), math.inf, seen)
    np.testing.assert_allclose(limit, flow_ratios(shift_flow(4, 200, seen), 200, seen), atol=3e-4)


def slope_of_the_measures(problem, x0s, u):
    """How both measures at the end change by η, to first order: steps of length η follow the flow of J + η/4 ‖∇J‖², up to O(η²)."""
    seen, unseen = range(len(x0s)), np.arange(len(x0s), len(u))

    def cost(u):
        paths = (np.arange(len(x0s))[:, None] + np.arange(problem.horizon)) % len(u)
        return jnp.cumprod(u[paths], axis=1).sum() / len(x0s)

    def ratios(eta):
        modified = jax.grad(lambda u: cost(u) + eta * jnp.sum(u * jax.grad(cost)(u) ** 2))  # ‖∇J‖² = 4 Σ_d u_d (∂J/∂u_d)²
        field = jax.jit(lambda u: -4 * u * modified(u))
        found = scipy.integrate.solve_ivp(lambda _, u: np.asarray(field(u)), (0, 12.0), np.ones(len(u)), "DOP853", rtol=1e-11, atol=1e-14)
        end = np.where(np.isin(np.arange(len(u)), unseen), found.y[:, -1], 0.0)
        return np.array(flow_ratios(end, problem.horizon, seen))

    return (ratios(1e-4) - ratios(-1e-4)) / 2e-4


def test_training_comes_closer_to_the_flow_as_its_steps_shrink():
    """Two seen states: apart by O(η) in both measures, as much as the flow of J + η/4 ‖∇J‖² says."""
    problem, x0s, slopes = offspan.shift(3, horizon=4), offspan.basis(3, 2), []
    u = shift_flow(3, 4, [0, 1])
    for rate in (0.004, 0.002, 0.001):
        K = offspan.train_lqr(problem, x0s, learning_rate=rate, iterations=round(12 / rate)).K
        trained = float(offspan.normalized_optimality(problem, K, x0s)), float(offspan.normalized_cost(problem, K, x0s))
        slopes.append(np.subtract(trained, flow_ratios(u, 4, [0, 1])) / rate)
        assert arrows(problem, K)[:2].max() < 1e-9
    np.testing.assert_allclose(slopes[1], slopes[2], rtol=0.02)
    np.testing.assert_allclose(extrapolated(slopes), slope_of_the_measures(problem, x0s, u), rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 5, [5]), "each from 0 \\(for e_1\\) to 4"),
        ((5, 5, [-1]), "each from 0"),
        ((5, 5, []), "indices of basis states"),
        ((5, 5, [0.5]), "indices of basis states"),
        ((5, 0, [0]), "`horizon` is 0"),
        ((1, 5, [0]), "`dim` is 1"),
        ((5, 5, [0], -1.0), "`time` is -1.0"),
        ((5, 5, [0], math.nan), "`time` is nan"),
        ((5, math.inf, [0], 1.0), "for an infinite horizon be left out"),
    ],
)
def test_what_does_not_fit_is_said(arguments, message):
    with pytest.raises(offspan.OffspanError, match=message):
        shift_flow(*arguments)


def test_ratios_need_something_unseen():
    with pytest.raises(offspan.OffspanError, match="no direction is unseen"):
        flow_ratios(np.ones(2), 3, [0, 1])
    with pytest.raises(offspan.OffspanError, match="arrows of the seen states that are 0"):
        flow_ratios(np.ones(2), math.inf, [0])


def test_the_bars_of_the_shift_bear_marks_of_the_flow():
    """At the flow's numbers, also where a run ends early; and none where the system is not the shift, or a state not of the basis."""
    result = RunFolder(STORED / "lqr").load_result().isel(seed=[0], iteration=[0, -1])

    def marks(data):
        drawn = [
            [container for container in ax.containers if container.get_label() == FLOW_MARK["label"]] for ax in measure_bars(data).axes
        ]
        return [np.asarray(one[0].lines[0].get_ydata())[4:8] for one in drawn if one]  # pyright: ignore[reportAttributeAccessIssue]

    expected = np.array([flow_ratios(shift_flow(5, 5, range(count)), 5, range(count)) for count in (1, 2, 3, 4)]).T
    found = marks(result)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    trained = [result[measure].sel(system="shift").isel(iteration=-1).values.ravel() for measure in MEASURES]
    np.testing.assert_allclose(found, trained, atol=1.5e-3)  # of the order of η
    early = np.array([flow_ratios(shift_flow(5, 5, range(count), 0.1), 5, range(count)) for count in (1, 2, 3, 4)]).T
    np.testing.assert_allclose(marks(result.assign_attrs(iterations=100)), early, atol=1e-12)
    assert np.all(early > expected + 0.05)
    for name in ("A", "Q", "R", "seen_states"):
        other = result.copy(deep=True)
        other[name] += 0.1
        assert not any("flow" in column for column in _with(other, None))
    assert marks(other) == []


def test_the_figures_of_the_flow_show_their_data():
    rates, horizons = illustrations.flow_over_rates(3, (1, 2), (0.1, 0.5, 1.0)), illustrations.flow_over_horizons((2, 3), (1, 2))
    drawn = [flow_figures.rates_figure(rates, dim=3), flow_figures.horizons_figure(horizons)]
    (_, by_rate), (_, by_horizon) = drawn
    at_one = by_rate[by_rate.share == 1.0]
    np.testing.assert_allclose(at_one[["optimality", "cost"]], at_one[["one_step_optimality", "one_step_cost"]], atol=1e-12)
    small = by_rate[by_rate.share == 0.1]
    np.testing.assert_allclose(small.optimality, small.flow_optimality, atol=0.02)
    assert (by_rate.optimality < by_rate.flow_optimality).all()
    assert (by_horizon.flow > 0.4).all()
    assert by_horizon.one_step.min() == 0
    for figure, _ in drawn:
        for ax in figure.get_axes():
            assert ax.get_xlabel()
            assert ax.get_title()
