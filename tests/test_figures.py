"""Every figure: one style, nothing cut or on top of another, and words that are true of the data drawn."""

import importlib.util
import itertools
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import matplotlib.colors as colours
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib import cbook
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from offspan.experiments.store import RunFolder
from offspan.maps import ExtrapolationMap
from offspan.report import drawing, lqr, maps, network, network_ways, scenes, system, theory, ways
from offspan.report.drawing import (
    CATEGORIES,
    SEEN,
    UNSEEN,
    angle,
    apart,
    heading,
    label_ends,
    log_axis,
    power_of_ten,
    readable,
    short,
    subplots,
)
from offspan.report.results import DIVERGED, Estimate, report
from offspan.report.selection import _interval, outcomes
from offspan.report.tables import number
from offspan.theory import illustrations

STORED = Path(__file__).parent.parent / "docs" / "results"


def stored(name: str):
    return RunFolder(STORED / name).load_result()


def visible_texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def faults(figure: Figure) -> list[str]:
    """Texts that reach over the edge of the figure, and tick labels, headings and notes that lie on one another."""
    figure.draw_without_rendering()
    page = figure.bbox
    found, shown = [], []
    in_view = {
        id(tick.label1)
        for ax in figure.get_axes()
        for axis in (ax.xaxis, ax.yaxis)
        for tick in axis.get_major_ticks()
        if min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    ticks = {id(tick.label1) for ax in figure.get_axes() for axis in (ax.xaxis, ax.yaxis) for tick in axis.get_major_ticks()}
    is_3d = any(ax.name == "3d" for ax in figure.get_axes())
    for text in visible_texts(figure):
        if id(text) in ticks and id(text) not in in_view:
            continue  # matplotlib keeps it, and does not draw it
        box = text.get_window_extent()
        if not is_3d and (box.x0 < page.x0 - 1 or box.x1 > page.x1 + 1 or box.y0 < page.y0 - 1 or box.y1 > page.y1 + 1):
            found.append(f"{text.get_text()!r} is cut")
        shown.append((text, box))
    for (one, a), (other, b) in itertools.combinations(shown, 2):
        both_ticks = id(one) in ticks and id(other) in ticks
        headings = {one, other} & {figure._suptitle, *figure.texts}  # pyright: ignore[reportAttributeAccessIssue]
        if one.axes is not None and one.axes.name == "3d":
            continue
        wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        if wide > 1 and high > 1 and (both_ticks or (headings and not {one, other} <= {figure._suptitle, *figure.texts})):  # pyright: ignore[reportAttributeAccessIssue]
            found.append(f"{one.get_text()!r} lies on {other.get_text()!r}")
    return found


DRAWN = [
    "lqr-large",
    "lqr-horizon-sweep",
    "lqr-long-horizon",
    "pendulum",
    "pendulum-100-seeds-together",
    "quadcopter-below",
    "quadcopter-further-100-seeds",
    "selection-lqr",
]
DRAWN += ["selection-pendulum", "lqr-horizons", "lqr-sampled", "pendulum-horizons", "quadcopter-noise", "shift-regularized"]


@pytest.mark.parametrize("name", DRAWN)
def test_no_word_of_a_figure_is_cut_or_hidden(name):
    for which, (figure, _) in report(stored(name)).figures().items():
        assert faults(figure) == [], which
        assert figure.get_suptitle().strip(), "it says what was found"
        for ax in figure.get_axes():
            for axis in (ax.xaxis, ax.yaxis):
                assert_readable(axis)


def assert_readable(axis: Axis) -> None:
    """No 6×10⁰: a tick of a logarithmic axis is a plain number or a power of ten."""
    if axis.get_scale() == "log":
        low, high = sorted(axis.get_view_interval())
        texts = [axis.get_major_formatter().format_ticks([tick])[0] for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert texts
        assert all(re.fullmatch(r"[0-9.,]*|10[⁻⁰¹²³⁴-⁹]+", text) for text in texts), texts


@drawing.styled
def test_words_that_are_cut_or_hidden_are_found():
    """The check above can fail."""
    figure, ax = subplots(3.0, 2.0)
    ax.set_xticks([0.5, 0.51], ["a long label", "another long label"])
    figure.text(0.9, 0.5, "far too long to fit")
    found = faults(figure)
    assert any("is cut" in fault for fault in found)
    assert any("lies on" in fault for fault in found)


@pytest.mark.parametrize("name", ["pendulum", "quadcopter-below", "lqr", "selection-lqr", "lqr-horizons", "shift-regularized"])
def test_blue_is_for_seen_states_vermilion_for_unseen_ones_and_neither_for_anything_else(name):
    for which, (figure, _) in report(stored(name)).figures().items():
        used = {colours.to_hex(line.get_color()).upper() for ax in figure.get_axes() for line in ax.lines}
        used |= {colours.to_hex(patch.get_facecolor()).upper() for ax in figure.get_axes() for patch in ax.patches}
        assert ({SEEN, UNSEEN} <= used) == (which in ("states", "through-time")), which
        assert not ({SEEN, UNSEEN} & used) or which in ("states", "through-time"), which
    assert scenes.MARKERS.keys() == {SEEN, UNSEEN}
    assert network.GROUPS == {"seen": SEEN, "unseen": UNSEEN}


# Viénot, Brettel and Mollon's matrices of how colour-blind readers see linear RGB.
SEES = {
    "deuteranope": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
    "protanope": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
}


def lightness_and_hue(colour: str, sees: np.ndarray) -> np.ndarray:
    """CIELAB of what is seen of a colour."""
    rgb = np.array(colours.to_rgb(colour))
    linear = sees @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    white = np.array([0.95047, 1.0, 1.08883])
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(linear, 0, 1) / white
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("reader", [*SEES, "any"])
def test_colours_can_be_told_apart(reader):
    """The two reserved ones and the first four of the others differ by ΔE > 10 for all readers; 2.3 is just noticeable."""
    sees = np.array(SEES.get(reader, np.eye(3)))
    shown = {colour: lightness_and_hue(colour, sees) for colour in (SEEN, UNSEEN, *CATEGORIES[:4])}
    apart = {(a, b): np.linalg.norm(shown[a] - shown[b]) for a, b in itertools.combinations(shown, 2)}
    assert min(apart.values()) > 10, min(apart.items(), key=lambda item: item[1])
    assert not {SEEN, UNSEEN} & set(CATEGORIES)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pendulum", "all 5 unseen states to within 0.25 rad of the target, the non-extrapolating controller none"),
        ("quadcopter-below", "4 of 5 unseen states to within 0.25 m of the target, the non-extrapolating controller none"),
        ("quadcopter-further", "9 of 10 unseen states"),
        ("quadcopter-distance", "3 of 5 unseen states"),
    ],
)
def test_a_caption_counts_the_states_that_reach_the_target(name, words):
    result = stored(name)
    assert words in report(result).captions["states"]
    final = result.policy_gradient_unseen_trajectory.values[:, -1, : 1 if name == "pendulum" else 3]
    target = result.target.values[: final.shape[1]]
    near = sum(sum((x - goal) ** 2 for x, goal in zip(state, target, strict=True)) <= 0.25**2 for state in final)
    assert network.reached(result, "policy_gradient", "unseen") == (near, len(final))
    worse = result.copy(deep=True)
    worse["policy_gradient_unseen_trajectory"][0, -1] = np.nan
    assert network.reached(worse, "policy_gradient", "unseen") == (near - 1, len(final))


def test_findings_follow_the_numbers():
    rows = lqr.summary(stored("lqr"))
    assert lqr.finding(rows) == "Shift and gaussian extrapolate; identity does not"
    worse = rows.assign(normalized_cost=rows.normalized_cost.where(rows.system != "shift", 1.2))
    assert lqr.finding(worse) == "Gaussian extrapolates; identity does not; shift is not below 1 throughout"
    lost = rows.assign(normalized_cost=np.inf, normalized_optimality=np.inf)
    assert lqr.finding(lost) == "At least half of the identity, shift and gaussian runs diverge"
    said = "At H = 200, 100% of the runs train with “gradient clipped at 1” and “discount 0.3 to 1, clipped at 1”, 54% with “plain”"
    assert ways.most_trained(ways.summary(stored("lqr-horizons"))) == said


def test_a_spike_is_clipped_and_named_and_the_kept_controllers_are_marked():
    result = stored("quadcopter-below")
    left = network.curves_figure(result).get_axes()[0]
    largest = np.nanmax(result.policy_gradient_curve.values)
    assert left.get_ylim()[1] < largest / 100
    assert f"▲ {short(float(largest))}" in [text.get_text() for text in left.texts]
    ((x, y),) = [line.get_data() for line in left.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(np.asarray(y), result.policy_gradient_training_cost)
    recorded = [result.policy_gradient_curve.sel(iteration=at).values[run] for run, at in enumerate(np.asarray(x))]
    np.testing.assert_allclose(recorded, result.policy_gradient_training_cost, rtol=1e-3)


def test_frames_of_an_animation_share_one_background():
    first, *_, last = network.animation(stored("pendulum"))
    a, b = np.asarray(first.convert("RGB")), np.asarray(last.convert("RGB"))
    assert first.getpalette() == last.getpalette()
    same = (a == b).all(axis=2)
    assert same[:, :5].all(), "a margin in which nothing moves"
    assert 0.8 < same.mean() < 1


def test_intervals_that_reach_far_are_cut_and_zero_is_zero():
    assert _interval(Estimate(0.24, 0.2, 4e21)) == "0.24 [0.20, > 10]"
    assert _interval(Estimate(0.24, 0.2, np.inf)) == "0.24 [0.20, > 10]"
    assert _interval(Estimate(0.24, 0.2, 0.3)) == "0.24 [0.20, 0.30]"
    assert _interval(Estimate(12.0, 11.0, 13.0)) == "12.00 [11.00, 13.00]"
    assert (number(0.0, ".1e"), number(1e-9, ".1e"), number(0.0, ".3f")) == ("0", "1.0e-09", "0.000")


def test_numbers_as_figures_write_them():
    assert [power_of_ten(value) for value in (1e-3, 1.0, 2.7e-5)] == ["10⁻³", "10⁰", "2.7·10⁻⁵"]
    assert [short(value) for value in (0.0, 0.0256, 31.0, 849_234.0, float("inf"))] == ["0", "0.026", "31", "8.5·10⁵", "∞"]
    assert [angle(value) for value in (0.0, 0.785, 1.57, 4.71, 5.497, -np.pi, 0.3)] == ["0", "π/4", "π/2", "3π/2", "7π/4", "−π", "0.3"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.4, 20, ["0.5", "1", "2", "5", "10", "20"]),
        (2.1, 19, ["3", "5", "10"]),
        (0.02, 900, ["0.1", "1", "10", "100"]),
        (1e-6, 2, ["10⁻⁶", "10⁻⁴", "10⁻²", "10⁰"]),
    ],
)
def test_ticks_of_logarithmic_axes(low, high, expected):
    figure, ax = subplots(4.0, 3.0)
    ax.set_xlim(low, high)
    log_axis(ax, "x")
    figure.draw_without_rendering()
    shown = [text.get_text() for text in ax.get_xticklabels() if low <= (text.get_position()[0]) <= high]
    assert set(expected) <= set(shown)
    assert_readable(ax.xaxis)


@drawing.styled
def test_labels_at_the_ends_of_lines_are_moved_apart():
    figure, ax = subplots(4.0, 3.0)
    ax.set_ylim(0, 1)
    label_ends(ax, [(0.98, "a", "black"), (0.99, "b", "black"), (1.0, "c", "black"), (np.inf, "not there", "black")])
    heading(figure, "A finding", "and settings")
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in ax.texts]  # without their lines
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c"]
    assert all(upper.y0 >= lower.y1 - 2 for lower, upper in itertools.pairwise(boxes))
    assert faults(figure) == []


def test_labels_stay_about_the_ends_of_their_lines():
    """Of three ends close together the middle label stays at its line; one that stands alone, and those at the border, stay too."""
    np.testing.assert_allclose(apart(np.array([0.29, 0.3, 0.31, 0.9]), 0.1), [0.2, 0.3, 0.4, 0.9])
    np.testing.assert_allclose(apart(np.array([0.0, 0.02, 0.98, 1.0]), 0.1), [0.0, 0.1, 0.9, 1.0])


def test_coloured_words_have_contrast_with_white():
    """At least 4.5, as relative luminances in [WCAG 2.2, 1.4.3]; a colour that has it stays."""
    for colour in CATEGORIES:
        rgb = np.array(colours.to_rgb(readable(colour)))
        luminance = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        assert 1.05 / (luminance + 0.05) > 4.45, colour
    assert readable(drawing.BROWN).upper() == drawing.BROWN


def test_a_figure_beside_another_says_what_changed():
    rows, before = lqr.summary(stored("lqr-long-horizon")), lqr.summary(stored("lqr"))
    lower = sum(((rows[measure] < before[measure] - 1e-6) & (rows.system == "gaussian")).sum() for measure in lqr.MEASURES)
    said = f"H = 8 in place of 5 lowers medians: 8 of 8 of shift, {lower} of 8 of gaussian and none of 8 of identity"
    assert lqr.compared(rows, before) == said
    figure = lqr.measure_bars(stored("lqr-long-horizon"), stored("lqr"))
    assert "1 of 20 gaussian systems diverged, counted as ∞" in " ".join(figure.texts[1].get_text().split())
    several = pd.concat([rows, rows.assign(horizon=3)])
    assert lqr.compared(several, rows) == lqr.finding(several), "some settings would be compared with themselves"
    assert lqr.compared(rows, rows) == lqr.finding(rows), "what differs is none of D, H and η"
    assert lqr.compared(rows.assign(horizon=9), rows) == "H = 9 in place of 8 lowers no median"
    other = lqr.summary(stored("lqr-random-abq"))
    assert lqr.compared(other, before).startswith(
        f"With 4 seen states, the optimality measure ends at {other.normalized_optimality[3]:.2f} for"
    )


def region(values: list[list[float]], of_success: bool) -> ExtrapolationMap:
    return ExtrapolationMap((0, 1), (np.array([0.0, 1.0]), np.array([0.0, 1.0])), np.array(values), of_success)


def test_a_map_of_success_has_two_named_colours_and_one_of_cost_a_limit():
    seen, unseen = np.zeros((1, 2)), np.array([[1.0, 0.0], [1.0, 1.0]])
    yes_or_no = maps.map_figure(region([[1.0, 0.0], [1.0, 0.0]], True), seen, names=["x", "y"])
    assert len(yes_or_no.get_axes()) == 1, "no colour bar"
    assert [text.get_text() for text in yes_or_no.legends[0].get_texts()] == ["seen", "succeeds", "fails"]
    shares = maps.map_figure(region([[1.0, 0.5], [1.0, 0.0]], True), seen, names=["x", "y"])
    assert len(shares.get_axes()) == 2
    works = region([[1.0, 1.0], [1.0, 0.0]], True)
    options = {
        "unseen": unseen,
        "target": np.zeros(2),
        "success": works,
        "criterion": "end well",
        "unseen_success": np.array([True, False]),
    }
    cost = maps.map_figure(region([[0.1, 1.0], [1.0, 9.0]], False), seen, names=["x", "y"], **options)
    labels = [text.get_text() for text in cost.legends[0].get_texts()]
    assert labels == ["seen", "unseen", "target", "unseen, fails", "fails"]
    assert cost.get_suptitle() == "1 of 2 unseen states and 75% of the states on the map end well"
    (crossed,) = [one for one in cost.get_axes()[0].collections if one.get_label() == "unseen, fails"]
    assert np.asarray(crossed.get_offsets()).tolist() == [[1.0, 1.0]]


def test_dollar_signs_in_names_begin_no_formula():
    """Coordinates are named by a problem of one's own, or by somebody's model, and matplotlib stops at a formula that it cannot read."""
    names, states = [r"$\frac{1}{$", "in $, of $"], np.zeros((1, 3, 2))
    attributes = {"name": "mine", "quick": 0, "state_names": json.dumps(names)}
    result = xr.Dataset({"trajectory": (("seen", "time", "state"), states), "shown_seed": 0}, attrs=attributes)
    surface, line = region([[1.0, 2.0], [3.0, 4.0]], False), ExtrapolationMap((0,), (np.arange(3.0),), np.ones(3), False)
    for figure in (
        maps.map_figure(surface, np.zeros((1, 2)), names=names, title=names[0], success=surface, criterion=names[0]),
        maps.map_figure(line, np.zeros((1, 1)), names=names[:1]),
        system.trajectories(result),
    ):
        figure.draw_without_rendering()
        assert not any(text.get_parse_math() and cbook.is_math_text(text.get_text()) for text in visible_texts(figure))


def test_costs_that_overflow_are_hatched_and_huge_ones_do_not_take_all_shades():
    """Six decades of cost are told apart; the states to add alone are olive."""
    found = region([[1e-5, 1.0], [np.inf, 1e27]], False)
    _, ax = subplots(4.0, 3.0)
    named = maps.draw_region(ax, found)
    assert {label: patch.get_hatch() for label, patch in named.items()} == {"the cost overflows": "xxxx"}
    assert ax.patch.get_hatch() == "xxxx"
    (mesh,) = [one for one in ax.collections if one.get_array() is not None]
    assert mesh.norm.vmax == pytest.approx(1e6 * mesh.norm.vmin)


def test_states_off_the_slice_of_a_map_are_counted():
    unseen = np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.5], [1.0, 1.0, 0.0]])
    drawn = maps.map_figure(region([[1.0, 2.0], [3.0, 4.0]], False), np.zeros((1, 3)), unseen=unseen, names=["x", "y"])
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["seen", "unseen: 3 states at 2 places"]


def test_a_point_of_one_run_is_hollow():
    result = stored("quadcopter-noise")
    drawn = network_ways.figure(result, network_ways.summary(result))
    hollow = [line for line in drawn.get_axes()[1].lines if line.get_markerfacecolor() == "white" and len(np.asarray(line.get_xdata()))]
    assert sorted(np.concatenate([np.asarray(line.get_ydata()) for line in hollow]).tolist()) == pytest.approx(
        [1.240968, 1.294431], rel=1e-5
    )
    assert "hollow: of one run" in drawn.texts[1].get_text()


@pytest.mark.parametrize("name", ["lqr-horizons", "lqr-sampled", "lqr-noise", "quadcopter-noise"])
def test_ways_of_training_of_which_none_trained_are_drawn(name):
    result = stored(name).copy(deep=True)
    result["status"][...], result["cost"][...] = DIVERGED, np.inf
    for figure, _ in report(result).figures().values():
        figure.draw_without_rendering()  # without a warning
        assert figure.get_suptitle().strip()


def test_networks_of_one_seed_are_drawn():
    result = stored("pendulum")
    for figure, _ in report(result.sel(seed=[int(result.shown_seed)])).figures().values():
        assert faults(figure) == []


def test_a_band_of_quartiles_that_goes_to_infinity_ends_with_the_axes():
    """Eight of twenty runs with the exact gradient diverged: the upper quartile is +∞, the median is not."""
    result = stored("lqr-sampled").copy(deep=True)
    (exact,) = np.flatnonzero(result.gradient.values == "exact")
    result["status"].loc[{"way": result.way.values[exact], "system": "gaussian", "seed": result.seed.values[:8]}] = DIVERGED
    ax = ways.by_rollouts(result).get_axes()[2]
    (band,) = ax.patches
    box = band.get_window_extent()
    assert ax.get_title() == "gaussian"
    assert ax.bbox.y0 < box.y0 < box.y1 == pytest.approx(ax.bbox.y1)


def test_outcomes_beyond_the_axis_are_counted_apart_from_runs_that_diverged():
    result = stored("selection-pendulum")
    costs = np.concatenate([outcome.measure.ravel() for outcome in outcomes(result)[:1]])
    figure = report(result).figures()["methods"][0]
    said = [text.get_text() for text in figure.get_axes()[0].texts]
    assert f"→ 5 beyond, {np.sum(~np.isfinite(costs))} diverged" in said
    assert "→ 3 diverged; median ∞" in said
    assert np.sum(~np.isfinite(costs)) == 51


@pytest.mark.parametrize(("name", "lost"), [("pendulum-100-seeds-together", 13), ("quadcopter-below-100-seeds", 1), ("pendulum", 0)])
def test_seeds_that_diverged_are_said_beside_the_measure(name, lost):
    settings = " ".join(network.unseen_figure(stored(name)).texts[1].get_text().split())
    assert ("diverged" in settings) == (lost > 0)
    assert not lost or f"seeds ({lost} diverged, counted as the worst)" in settings


def test_the_line_of_no_extrapolation_is_named():
    figures = [lqr.measure_bars(stored("lqr")), lqr.measure_curves(stored("lqr")), ways.by_horizon(stored("lqr-horizons"))]
    figures.append(theory.shift_horizon_figure(illustrations.shift_over_horizons(3, periods=1), dim=3)[0])
    for figure in figures:
        assert "no extrapolation" in [text.get_text() for text in visible_texts(figure)]
    assert drawing.LOWER in lqr.measure_bars(stored("lqr")).get_axes()[0].get_ylabel()


@pytest.fixture
def drawing_of_the_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_figures", STORED.parent / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stored_figures_are_drawn_by_name_and_what_is_left_out_is_named(drawing_of_the_docs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(drawing_of_the_docs, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["figures.py", "verifi"])
    with pytest.raises(SystemExit, match=re.escape("There are no figures of 'verifi' (did you mean 'verify'?)")):
        drawing_of_the_docs.main()
    figure = Figure()
    drawing_of_the_docs.save(figure, tmp_path / "kept.png")
    assert capsys.readouterr().out == "kept.png: left out, as it is not stored\n"
    (tmp_path / "kept.png").touch()
    drawing_of_the_docs.save(figure, tmp_path / "kept.png")
    assert capsys.readouterr().out == "kept.png\n"
    assert (tmp_path / "kept.png").stat().st_size > 0
