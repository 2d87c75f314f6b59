import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from offspan.errors import OffspanError
from offspan.experiments.store import RunFolder
from offspan.report import theory
from offspan.report.lqr import MEASURES, figures, horizon_curves, measure_bars, measure_curves, measure_table, summary
from offspan.report.results import quartiles, report
from offspan.report.tables import Table, latex, latex_table, markdown_table, terminal_table
from offspan.theory import illustrations

STORED = Path(__file__).parent.parent / "docs" / "results"
SWEPT = ("system", "dim", "horizon", "learning_rate", "seen", "seed")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0]),
        ([1.0, 2.0, 3.0, 4.0], [1.75, 2.5, 3.25]),
        ([1.0, 2.0, 3.0, 4.0, np.inf], [2.0, 3.0, 4.0]),
        ([1.0, 2.0, 3.0, np.inf], [1.75, 2.5, np.inf]),
        ([1.0, 2.0, np.inf, np.inf], [1.75, np.inf, np.inf]),
        ([np.inf, np.inf], [np.inf, np.inf, np.inf]),
    ],
)
def test_quartiles_count_a_diverged_run_as_the_worst(values, expected):
    """By hand: the q-quantile of N values lies q(N − 1) of the way along them, and any step towards +∞ is +∞."""
    np.testing.assert_allclose(quartiles(xr.DataArray(values, dims="seed")), expected)


def result(*, seeds=4, horizons=(5,), rates=(1e-3,), diverged=0, systems=("identity", "shift", "gaussian")) -> xr.Dataset:
    """Made-up numbers, different in every entry, but for the identity's; the last `diverged` seeds of the last system diverged."""
    coords = {
        "system": list(systems),
        "dim": [5],
        "horizon": list(horizons),
        "learning_rate": list(rates),
        "seen": [1, 3],
        "seed": list(range(seeds)),
        "iteration": [0, 100, 200],
    }
    shape = tuple(len(coords[name]) for name in SWEPT)
    values = np.random.default_rng(0).uniform(0.2, 0.8, (2, *shape, 3))
    values[:, 0] = 1.0 if systems[0] == "identity" else values[:, 0]
    status = np.zeros(shape, np.int8)
    if diverged:
        status[-1, ..., -diverged:] = 2
        values[:, status == 2, 1:] = np.nan
    return xr.Dataset(
        {
            "normalized_optimality": ((*SWEPT, "iteration"), values[0]),
            "normalized_cost": ((*SWEPT, "iteration"), values[1]),
            "cost": ((*SWEPT, "iteration"), 1 + values[0]),
            "excess_training_cost": (SWEPT, np.random.default_rng(1).uniform(size=shape)),
            "status": (SWEPT, status),
        },
        coords=coords,
        attrs={"name": "made-up", "iterations": 200, "quick": 0},
    )


def test_a_summary_is_over_seeds_at_the_last_iteration():
    data = result(horizons=(5, 8), rates=(1e-3, 1e-4), diverged=1)
    rows = summary(data)
    assert len(rows) == 3 * 2 * 2 * 2
    row: Any
    for row in rows.itertuples():
        where = {"system": row.system, "dim": 5, "horizon": row.horizon, "learning_rate": row.learning_rate, "seen": row.seen}
        for measure in MEASURES:
            values = data[measure].sel(where).values[:, -1]
            values = np.sort(np.where(np.isnan(values), np.inf, values))
            assert getattr(row, measure) == pytest.approx((values[1] + values[2]) / 2)
            assert getattr(row, f"{measure}_low") == pytest.approx(values[0] + 0.75 * (values[1] - values[0]))
        assert (row.runs, row.diverged) == (4, 1 if row.system == "gaussian" else 0)


def test_bars_have_the_height_of_the_medians_and_whiskers_the_quartiles():
    data = result()
    figure = measure_bars(data)
    for ax, measure in zip(figure.axes, MEASURES, strict=True):
        final = data[measure].isel(iteration=-1, dim=0, horizon=0, learning_rate=0)
        for system, bars in zip(data.system.values, ax.containers[1::2], strict=True):
            np.testing.assert_allclose([bar.get_height() for bar in bars], final.sel(system=system).median("seed"))
        for system, whiskers in zip(data.system.values, ax.containers[0::2], strict=True):
            segments = whiskers.lines[2][0].get_segments()  # pyright: ignore[reportAttributeAccessIssue]
            ends = np.array([segment[:, 1] for segment in segments])
            np.testing.assert_allclose(ends.T, final.sel(system=system).quantile([0.25, 0.75], "seed"))
        assert ax.get_xlabel()


@pytest.mark.parametrize("diverged", [1, 2, 4])
def test_every_figure_bears_diverged_runs(diverged):
    """Quartiles and medians of +∞ neither warn nor stretch the axis out of sight."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for draw in (measure_bars, measure_curves, horizon_curves):
            figure = draw(result(diverged=diverged))
            figure.draw_without_rendering()
            assert all(ax.get_ylim()[1] < 3 or "[%]" in ax.get_ylabel() for ax in figure.axes)
    written = words_in(measure_bars(result(diverged=diverged)))
    assert written == ([f"{diverged} of 4 diverged"] * 4 if diverged >= 2 else [])
    said = [word for word in words_in(measure_curves(result(diverged=diverged))) if "diverged" in word]
    assert said == ([f"gaussian: {diverged} of 4 runs diverged"] * 4 if diverged >= 2 else []), "a system without a line is named"


def words_in(figure) -> list[str]:
    """What is written inside the axes, but for the name of the line at 1."""
    return [text.get_text() for ax in figure.axes for text in ax.texts if text.get_text() != "no extrapolation"]


def test_a_measure_that_is_not_defined_is_not_called_diverged():
    """B not square, R ≠ 0 or nothing unseen: NaN, in one bar or in all of them."""
    data = result()
    for seen in ([3], [1, 3]):
        some = data.copy(deep=True)
        for measure in MEASURES:
            some[measure].loc[{"seen": seen}] = np.nan
        for draw in (measure_bars, measure_curves, horizon_curves):
            draw(some).draw_without_rendering()
        words = words_in(measure_bars(some))
        assert words == ["not defined"] * (6 * len(seen))


def test_tall_bars_are_not_cut_off():
    data = result()
    data["normalized_cost"].loc[{"system": "identity"}] = 500.0
    assert all(ax.get_ylim()[1] > 500 for ax in measure_bars(data).axes)


def test_a_comparison_shows_both_horizons_and_other_systems_beside_each_other():
    both = measure_bars(result(horizons=(8,)), beside=result(horizons=(5,)))
    labels = [text.get_text() for text in both.legends[0].get_texts()]
    assert labels == [f"{name}, H = {h}" for name in ("identity", "shift", "gaussian") for h in (5, 8)]
    other = measure_bars(result(systems=("gaussian-abq",)), beside=result())
    assert [text.get_text() for text in other.legends[0].get_texts()] == ["identity", "shift", "gaussian", "gaussian-abq"]


def test_the_figures_of_the_theory_show_their_data():
    """Closed form and one step agree in the data; each panel has its labels."""
    drawn = [
        theory.intuition_figure(illustrations.intuition()),
        theory.shift_horizon_figure(illustrations.shift_over_horizons(3, periods=1), dim=3),
        theory.norm_gap_figure(illustrations.norm_gap_over_dimensions((2, 3))),
        theory.weight_figure(illustrations.shift_over_weights(3), dim=3),
    ]
    intuition, horizons, gaps, weights = (data for _, data in drawn)
    lengths = intuition.set_index(["controller", "direction"]).length
    assert lengths["K_no-ext", "unseen direction"] == pytest.approx(1.0)
    assert lengths["K_pg, after it", "seen direction"] == pytest.approx(0.0, abs=1e-6)
    assert 0.1 < lengths["K_pg, after it", "unseen direction"] < 0.9
    np.testing.assert_allclose(horizons.one_step_cost, horizons.cost, rtol=1e-9)
    np.testing.assert_allclose(gaps.measured, gaps.gap, rtol=1e-9)
    np.testing.assert_allclose(weights.one_step_optimality, weights.optimality, atol=1e-12)
    assert weights[weights.weight == 0].cost.max() == 0
    for figure, _ in drawn:
        for ax in figure.get_axes():
            assert ax.get_xlabel()
            assert ax.get_title()


def test_the_figures_about_random_systems_show_their_data():
    """Exact values on the right side of their bounds, the law within its simulation's errors, all gluings of both words."""
    drawn = {
        "bounds": theory.bounds_figure(illustrations.exact_and_bounds(6, longest=3), dim=6),
        "rates": theory.rates_figure(illustrations.best_rates((4, 8), longest=3, seen=(1, 2))),
        "systems": theory.systems_figure(illustrations.ratios_of_systems((3, 6), horizon=2, systems=200), horizon=2),
        "training": theory.end_figure(illustrations.first_step_and_end(3, 2, systems=20, iterations=50), dim=3, horizon=2),
        "dimensions": theory.dimensions_figure(illustrations.failures_over_dimensions((2,), systems=50)),
        "single": theory.gains_figure(illustrations.gains_over_dimensions((20, 80), horizon=2, systems=50), horizon=2),
        "surfaces": theory.surfaces_figure(illustrations.small_surfaces()),
        "leading": theory.leading_figure(illustrations.exact_over_leading((5, 500), longest=3)),
        "states": theory.state_sets_figure(illustrations.gains_of_state_sets(6, horizon=2, systems=2_000), dim=6, horizon=2),
        "subcritical": theory.subcritical_figure(*illustrations.gains_of_subcritical_systems(((30, 20),))),
    }
    bounds, rates, systems, training, dimensions, single, surfaces, leading, states, subcritical = (data for _, data in drawn.values())
    assert (bounds.rate > bounds.rate_bound).all()
    assert (bounds.norm < bounds.norm_bound).all()
    assert (bounds.alignment >= bounds.alignment_bound).all()
    assert len(rates) == 2 * 2 * 2
    assert set(systems.dim) == {3, 6}
    assert (abs(training.exact - training["mean"]) < 4 * training.standard_error).all()
    assert (dimensions.sharp < dimensions.theorem).all()
    assert (dimensions.sharp[dimensions.delta > 0] <= dimensions.delta[dimensions.delta > 0]).all()
    assert "the proof needs 3,781" in drawn["dimensions"][0].get_axes()[0].get_title()
    assert (single.q05 < single["median"]).all()
    assert surfaces.term.tolist() == ["D", "1", "D", "1/D", "1/D", "D"]
    far = leading[leading.dim == 500]
    np.testing.assert_allclose(far[["alignment", "curvature", "norm", "cost"]], 1, atol=0.01)
    assert (abs(states.gain - states.simulated) < 5 * states.standard_error).all()
    assert (states.sort_values("participation").gain.diff().dropna() > -1e-12).all()
    assert len(subcritical[subcritical.source == "simulated"]) == 5
    for name, (figure, _) in drawn.items():
        for ax in figure.get_axes():
            assert ax.get_title()
            assert ax.get_xlabel() or name == "surfaces"


def test_the_distance_of_many_starts_is_reported_beside_the_papers():
    iterations = np.array([0, 100, 200])
    distance = np.array([1.0, 1e-3, 2.7e-5])
    settings = {"system": "shift", "dim": 5, "horizon": 5, "control_cost": 1.0, "start_std": 0.1, "learning_rate": 0.02}
    data = xr.Dataset(
        {
            "largest_distance": ("iteration", distance),
            "relative_distance": ("iteration", distance / 1.35),
            "median_norm": ("iteration", np.full(3, 1.35)),
            "status": ("start", np.zeros(7, int)),
            "iterations": ("start", np.full(7, 200)),
            "K": (("iteration", "start", "control", "state"), np.zeros((3, 7, 5, 5))),
        },
        coords={"iteration": iterations},
        attrs={"kind": "starts", "name": "mine", "quick": 1, **settings},
    )
    made = report(data)
    assert made.tables["table"].rows[-1] == ["200", "2.7e-05", "2e-05", "1.3500"]
    assert "0 of 7 starts diverged. The paper reports 2.7e-05" in made.tables["table"].note
    assert "paper" not in report(data.assign_attrs(system="identity")).tables["table"].note
    figure, shown = made.figures()["distances"]
    assert "QUICK LOOK" in figure.get_suptitle()
    assert "of 7 controllers goes from 1 to 2.7·10⁻⁵" in " ".join(figure.get_suptitle().split())
    assert shown.largest_distance.tolist() == distance.tolist()
    data["status"][2], data["iterations"][2] = 2, 50
    (ax,) = report(data).figures()["distances"][0].get_axes()
    assert any("1 of 7 starts diverged" in text.get_text() for text in ax.texts)


def test_which_figures_a_result_has():
    assert set(figures(result())) == {"measures", "curves"}
    assert set(figures(result(horizons=(3, 5, 8), rates=(1e-3, 1e-4)))) == {"horizons"}
    rates = measure_bars(result(rates=(1e-3, 1e-4), systems=("shift",)))
    assert [text.get_text() for text in rates.legends[0].get_texts()] == ["shift, η = 0.001", "shift, η = 0.0001"]
    quick = result().assign_attrs(quick=1)
    for figure, data in figures(quick).values():
        assert "QUICK LOOK" in figure.get_suptitle()
        assert len(data) > 0


def test_a_table_says_what_is_not_defined_and_why():
    data = result(systems=("shift",))
    for measure in MEASURES:
        data[measure].loc[{"seen": 3}] = np.nan
    table = markdown_table(measure_table(data))
    assert "| shift | 3 | – | – |  |" in table
    assert "not defined, as nothing is unseen" in table
    assert "nan" not in table
    assert "Theory" not in markdown_table(measure_table(result(systems=("mine",))))


def test_tables_in_three_forms_show_the_same_numbers():
    data = result(diverged=2)
    whole = measure_table(data)
    table, markdown, tex = terminal_table(whole), markdown_table(whole), latex_table(whole)
    assert table.row_count == 6
    values = data.normalized_cost.sel(system="shift", seen=1).values[0, 0, 0, :, -1]
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    shown = f"{median:.3f} ({low:.2f}–{high:.2f})"
    assert str(list(table.columns[3].cells)[2]) == shown
    assert f"| shift | 1 | {list(table.columns[2].cells)[2]} | {shown} |" in markdown
    assert shown.replace("–", "--") in tex
    assert "| ∞ (" in markdown
    assert r"$\infty$ (" in tex
    assert markdown.count("| 2/4 |") == 2
    assert tex.count(r"\\") == 7


@pytest.mark.parametrize(
    "name", ["lqr-horizon-sweep", "lqr-large", "shift-regularized", "pendulum", "quadcopter-below", "selection-lqr", "selection-pendulum"]
)
def test_every_table_is_ascii_latex_without_unescaped_characters(name):
    """Once commands, escaped characters and mathematics are taken out, only the ampersands between cells are left of LaTeX's own signs."""
    tables = report(RunFolder(STORED / name).load_result()).tables
    assert tables
    for table in tables.values():
        begin, *lines, end, note, _ = latex_table(table).split("\n")
        assert latex_table(table).isascii()
        assert (end, note[:2]) == (r"\end{tabular}", "% ")
        columns = len(re.fullmatch(r"\\begin\{tabular\}\{(lr*)\}", begin)[1])  # pyright: ignore[reportOptionalSubscript]
        rows = [line for line in lines if line != r"\hline"]
        assert len(rows) == 1 + len(table.rows)
        for row in rows:
            assert row.endswith(r" \\")
            bare = re.sub(r"\\[&%$#_{}]|\\text\w+\{\}|\\dots\{\}", "", row.removesuffix(r" \\"))
            bare = re.sub(r"\$(\\\w+|\\\||\^\\\w+|[\^*\-<>|23]+)\$", "", bare)
            assert bare.count("&") == columns - 1
            assert not re.search(r"[%$#_{}~^\\]", bare)


def test_latex_of_any_text():
    assert latex("50 % of A & B_1, {x} ~ $5 #1 a^b \\") == (
        r"50 \% of A \& B\_1, \{x\} \textasciitilde{} \$5 \#1 a\textasciicircum{}b \textbackslash{}"
    )
    assert latex("θ − η ≤ ∞ …\nÅré ☃ \x00") == r"$\theta$ $-$ $\eta$ $\le$ $\infty$ \dots{} Are ? ?"
    assert "\n{}[2] & x" in latex_table(Table("", ["a", "b"], [["1", "x"], ["[2]", "x"]]))


def test_a_system_that_is_not_registered_is_shown_in_the_plane():
    """Coordinates x_1, x_2; states are markers at their places, hollow and at the border where they lie outside of it."""
    data = RunFolder(STORED / "pendulum").load_result().assign_attrs(problem="mine").copy(deep=True)
    data["policy_gradient_unseen_trajectory"][0, -1] = [100.0, 0.0]
    made = report(data)
    assert made.tables["states"].headings == ["states", "", "x_1", "x_2"]
    drawn = made.figures()
    first, final, _ = drawn["states"][0].get_axes()
    assert (first.get_xlabel(), first.get_ylabel()) == ("x_1", "x_2")
    markers = {tuple(np.ravel(line.get_xydata()).tolist()) for line in first.lines}
    assert {tuple(state) for state in data.seen_state.values.tolist()} <= markers
    hollow = [line.get_xydata() for line in final.lines if line.get_markerfacecolor() == "none"]
    assert np.ravel(hollow[-1]).tolist() == [final.get_xlim()[1], 0.0]
    assert "outside of the box" in [text.get_text() for text in drawn["states"][0].legends[0].get_texts()]
    assert list(drawn["states"][1])[:2] == ["x_1", "x_2"]
    assert drawn["unseen"][0].get_axes()[0].get_xlabel() == "unseen initial state: x_1, x_2"
    assert len(made.animations()["trajectories"]) == 50


def test_axes_show_units():
    drawn = report(RunFolder(STORED / "quadcopter-below").load_result()).figures()
    assert drawn["states"][0].get_axes()[0].get_xlabel() == "x [m]"
    assert drawn["unseen"][0].get_axes()[0].get_xlabel() == "unseen initial state: x [m], y [m], z [m]"


def test_a_result_of_an_unknown_kind_is_refused():
    with pytest.raises(OffspanError, match=r"no kind 'network2' \(did you mean 'network'\?\)"):
        report(result().assign_attrs(kind="network2"))
