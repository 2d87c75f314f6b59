"""The claims of the theory as tables, and the figures of the theory pages."""

import inspect
import json
import math
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from offspan.report import flow
from offspan.report.drawing import (
    BROWN,
    GREEN,
    GREY,
    LEFT,
    LOWER,
    OLIVE,
    PINK,
    SCALE,
    SEEN,
    UNSEEN,
    heading,
    label_ends,
    legend_below,
    log_axis,
    no_extrapolation,
    readable,
    styled,
    subplots,
)
from offspan.report.large_dimension import leading_figure, state_sets_figure, subcritical_figure
from offspan.report.tables import markdown_rows
from offspan.theory import illustrations
from offspan.theory.claims import Claim, Settings
from offspan.theory.illustrations import Columns, Dynamics, Surfaces
from offspan.theory.verify import STATEMENTS, number_of

VERDICTS = {"holds": "green", "FAILS": "bold red", "does not apply": "yellow"}  # with their colours on the terminal
SURFACES = {(2, True): "sphere", (1, False): "projective plane", (0, False): "Klein bottle", (0, True): "torus"}

LEAST_AGREEING = "Of several seeds, entries or cases each row shows the one that agrees least, so rows need not show the same case."


def statement_text(label: str) -> str:
    """The statement itself: the docstring of its function, as one paragraph."""
    return " ".join((inspect.getdoc(STATEMENTS[label]) or "").split())


def terminal_claims(claims: list[Claim], settings: Settings) -> Group:
    """Each statement's label on a line of its own, whole at any width, and below it a line for each claim: measured, predicted, verdict."""
    parts: list[Any] = [Text(_title(settings), "italic"), ""]
    for label, group in groupby(claims, key=lambda claim: claim.label):
        parts.append(Text(f"{number_of(label)}: {label}", "bold", overflow="fold"))
        table = RichTable(box=None, show_header=False, pad_edge=False, expand=False)
        table.add_column(overflow="fold", ratio=1)
        table.add_column(overflow="fold", justify="right")
        for claim in group:
            shown = "" if claim.verdict == "does not apply" else claim.verdict
            colour = VERDICTS[claim.verdict]
            numbers = Text(" ".join(filter(None, _numbers(claim))) + ("  " if shown else ""))
            table.add_row(Text("  " + claim.text, "" if shown else colour), numbers.append(shown, colour))
        parts.append(table)
    return Group(*parts, "", Text(verdict(claims), "italic"))


def markdown_claims(claims: list[Claim], settings: Settings) -> str:
    lines = [f"# {_title(settings)}", "", verdict(claims), "", "Tolerances are relative to predictions larger than 1. " + LEAST_AGREEING]
    headings = ["claim", "measured", "", "predicted", "tolerance", "by", "verdict"]
    for label, group in groupby(claims, key=lambda claim: claim.label):
        rows = [[claim.text, *_numbers(claim), f"{claim.tolerance:g}", claim.route, claim.verdict] for claim in group]
        lines += ["", f"## {number_of(label)}: `{label}`", "", statement_text(label), "", *markdown_rows(headings, rows)]
    return "\n".join([*lines, ""])


def json_claims(claims: list[Claim], settings: Settings, version: str) -> str:
    """NaN, which JSON does not have, as null."""
    content: dict[str, Any] = {"offspan": version, "settings": settings._asdict(), "claims": []}
    for claim in claims:
        fields = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in claim._asdict().items()}
        content["claims"].append({**fields, "verdict": claim.verdict})
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def verdict(claims: list[Claim]) -> str:
    counted = [claim for claim in claims if claim.verdict != "does not apply"]
    failed = [claim for claim in counted if not claim.holds]
    passed_over = len(claims) - len(counted)
    parts = [f"{len(counted) - len(failed)} of {len(counted)} claims hold"]
    if failed:
        parts.append("failing: " + ", ".join(dict.fromkeys(claim.label for claim in failed)))
    if passed_over:
        parts.append(f"{passed_over} statement{'s' if passed_over > 1 else ''} passed over")
    return "; ".join(parts) + "."


def _title(settings: Settings) -> str:
    seeds = "1 seed" if settings.seeds == 1 else f"{settings.seeds} seeds"
    return f"Statements of the paper and beyond, at D = {settings.dim}, H = {settings.horizon}, {seeds} unless a claim says otherwise"


def _numbers(claim: Claim) -> tuple[str, str, str]:
    whole = claim.tolerance == 0 and claim.relation == "=" and claim.predicted.is_integer() and claim.measured.is_integer()
    show = (lambda value: f"{value:.0f}") if whole else _six_digits
    return show(claim.measured), claim.relation, show(claim.predicted)


def _six_digits(value: float) -> str:
    if math.isnan(value):
        return ""
    return "0" if value == 0 else f"{value:#.6g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.5e}"


def theory_figures() -> dict[str, tuple[Figure, pd.DataFrame]]:
    """The figures of the theory pages, at their own settings, each with the data behind it."""
    return {
        "intuition": intuition_figure(illustrations.intuition()),
        "shift-horizon": shift_horizon_figure(illustrations.shift_over_horizons(), dim=5),
        "norm-gap": norm_gap_figure(illustrations.norm_gap_over_dimensions()),
        "shift-weights": weight_figure(illustrations.shift_over_weights(), dim=5),
        "flow-rates": flow.rates_figure(illustrations.flow_over_rates(), dim=5),
        "flow-horizons": flow.horizons_figure(illustrations.flow_over_horizons()),
        "random-bounds": bounds_figure(illustrations.exact_and_bounds(dim=10), dim=10),
        "random-rates": rates_figure(illustrations.best_rates()),
        "random-systems": systems_figure(illustrations.ratios_of_systems(horizon=3), horizon=3),
        "random-training": end_figure(illustrations.first_step_and_end(5, 3), dim=5, horizon=3),
        "random-dimensions": dimensions_figure(illustrations.failures_over_dimensions()),
        "random-single": gains_figure(illustrations.gains_over_dimensions(horizon=3), horizon=3),
        "surfaces": surfaces_figure(illustrations.small_surfaces()),
        "leading-order": leading_figure(illustrations.exact_over_leading()),
        "any-states": state_sets_figure(illustrations.gains_of_state_sets(), dim=20, horizon=3),
        "subcritical": subcritical_figure(*illustrations.gains_of_subcritical_systems()),
    }


@styled
def intuition_figure(panels: list[Dynamics]) -> tuple[Figure, pd.DataFrame]:
    """Where x ↦ (A + BK) x sends the unit circle, the seen and the unseen direction  [R24, fig:intuition]."""
    figure, axes = subplots(10.5, 4.4, 1, len(panels), sharex=True, sharey=True)
    turn = np.linspace(0, 2 * np.pi, 200)
    circle = np.array([np.cos(turn), np.sin(turn)])
    rows = []
    for ax, panel in zip(axes, panels, strict=True):
        ax.plot(*circle, color="0.7", linewidth=1, linestyle="--")
        ax.plot(*(panel.closed_loop @ circle), color="black", alpha=0.75, linewidth=1.2)
        ax.plot(*panel.visited.T, "o", color="black", markersize=3.5, label="visited from the seen state")
        for colour, label, x in ((SEEN, "seen direction", (1.0, 0.0)), (UNSEEN, "unseen direction", (0.0, 1.0))):
            image = panel.closed_loop @ np.array(x)
            ax.plot(*x, "o", color=colour, markersize=6, label=label)
            ax.add_patch(FancyArrowPatch(x, tuple(image), arrowstyle="-|>", mutation_scale=12, color=colour, linewidth=1.6, zorder=4))
            rows.append((panel.name, label, *image, np.linalg.norm(image)))
        lengths = [row[4] for row in rows[-2:]]
        ax.set_title(f"{_math(panel.name)}\nseen goes to length {lengths[0]:.2f}, unseen to {lengths[1]:.2f}", fontsize=9)
        ax.set(aspect="equal", xlim=(-1.15, 1.6), ylim=(-1.15, 1.25), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        ax.annotate("seen", (1, 0), (8, 0), textcoords="offset points", color=SEEN, va="center", weight="bold", fontsize=9)
        ax.annotate("unseen", (0, 1), (8, 3), textcoords="offset points", color=UNSEEN, weight="bold", fontsize=9)
        ax.set_xlabel("seen direction")
    axes[0].set_ylabel("unseen direction")
    legend_below(axes[0], 3)
    shortened, kept = rows[3][4], rows[-1][4]
    finding = f"Policy gradient takes the unseen direction to length {shortened:.2f}, the non-extrapolating controller to {kept:.2f}"
    settings = "One step of x ↦ (A + BK)x: dashed, the unit circle; solid, its image (rotation by 50°, S = {e₁}, H = 8)"
    heading(figure, finding, settings)
    return figure, pd.DataFrame(rows, columns=["controller", "direction", "seen_coordinate", "unseen_coordinate", "length"])


@styled
def shift_horizon_figure(columns: Columns, dim: int) -> tuple[Figure, pd.DataFrame]:
    """Both measures of the shift against H: closed form, one step, training to the end, and the paper's bound."""
    data = pd.DataFrame(columns)
    figure, axes = subplots(9.5, 4.4, 1, 2, sharey=True)
    share, bounded = data.horizon / dim, data[data.horizon % dim == 0]
    for ax, measure in zip(axes, ("optimality", "cost"), strict=True):
        ax.plot(share, data[measure], color=GREEN, label="closed form, any H")
        ax.plot(share, data[f"one_step_{measure}"], "o", color=GREEN, markersize=3.5, label="one step, η of the proposition")
        said = "the paper's bound for that η (H divisible by D)"
        ax.plot(bounded.horizon / dim, bounded.bound, "_", color="black", markersize=11, label=said)
        ax.plot(share, data[f"slow_{measure}"], "D", color=PINK, markersize=4.5, label="trained to the end, η / 10")
        no_extrapolation(ax)
        ax.set(title=f"{measure} measure, normalised", xlabel="horizon over dimension  H / D")
    axes[0].set(ylabel=f"normalised measure, {LOWER}", ylim=(0, 1.12))
    legend_below(axes[0], 4, fontsize=8)
    finding = "A longer horizon extrapolates better, at the learning rate of the proposition above all"
    heading(figure, finding, f"Shift, D = {dim}, S = {{e₁}}; {SCALE}")
    return figure, data


@styled
def norm_gap_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    """By how much ‖K_pg‖² exceeds the least norm, against D."""
    data = pd.DataFrame(columns)
    figure, ax = subplots(6.8, 4.2)
    ends = []
    for (periods, line), colour, marker in zip(data.groupby("periods"), (GREEN, OLIVE, PINK), "os^", strict=True):
        ax.plot(line.dim, line.gap, color=colour, linewidth=1)
        ax.plot(line.dim, line.measured, marker, color=colour, markersize=5)
        ends.append((line.gap.iloc[-1], _periods(periods), colour))
    bound = data[data.periods == data.periods.min()]
    ax.plot(bound.dim, bound.lower_bound, color="black", linestyle="--", linewidth=1)
    ends.append((bound.lower_bound.iloc[-1], "lower bound\n(⌈D/2⌉ − 1)/4", "black"))
    ax.set(xlabel="dimension D", ylim=(0, 1.06 * data.gap.max()))
    ax.set_title("markers: one step; lines: closed form", fontsize=9)
    label_ends(ax, ends)
    heading(figure, "Policy gradient does not find the smallest norm", "Shift, S = {e₁}, learning rate of Proposition 2")
    ax.set_ylabel(r"$\|K_{\mathrm{pg}}\|^2 - \min_{K \in \mathcal{K}_S} \|K\|^2$")
    return figure, data


@styled
def weight_figure(columns: Columns, dim: int) -> tuple[Figure, pd.DataFrame]:
    """Both measures of the shift for Q = diag(1, w, …, w), against w."""
    data = pd.DataFrame(columns)
    figure, axes = subplots(9.8, 4.3, 1, 2, sharey=True)
    for ax, measure in zip(axes, ("optimality", "cost"), strict=True):
        ends = []
        for (periods, line), colour, marker in zip(data.groupby("periods"), (GREEN, PINK), "os", strict=True):
            ax.plot(line.weight, line[measure], color=colour, linewidth=1)
            ax.plot(line.weight, line[f"one_step_{measure}"], marker, color=colour, markersize=4, clip_on=False)
            ends.append((line[measure].iloc[-1], _periods(periods), colour))
        ax.set_xscale("symlog", linthresh=1e-2)
        ax.set_xlim(left=-1e-3)
        ax.set_xticks([0, 0.01, 0.1, 1, 10, 100], ["0", "0.01", "0.1", "1", "10", "100"])
        ax.set_ylim(0, 1.08 * data.optimality.max())
        ax.axvline(1.0, color="0.6", linewidth=0.8, linestyle=":")
        ax.set(title=f"{measure} measure, normalised", xlabel="weight w of the other directions (at w = 1, Q = I)")
        label_ends(ax, ends)
    axes[0].set_ylabel(f"normalised measure, {LOWER}")
    settings = f"Shift, D = {dim}, S = {{e₁}}, Q = diag(1, w, …, w); markers: one step, lines: closed form; {SCALE}"
    heading(figure, "Where only e₁ costs, extrapolation is perfect", settings)
    return figure, data


def _periods(periods: Any) -> str:
    return "H = D" if periods == 1 else f"H = {periods:g} D"


def _math(name: str) -> str:
    return name.replace("K(5)", "$K^{(5)}$").replace("K_pg", r"$K_{\mathrm{pg}}$").replace("K_no-ext", r"$K_{\mathrm{no\!-\!ext}}$")


@styled
def bounds_figure(columns: Columns, dim: int) -> tuple[Figure, pd.DataFrame]:
    """Exact values against the theorem's bounds over H."""
    data = pd.DataFrame(columns)
    figure, axes = subplots(11.0, 4.0, 1, 3)
    panels = (
        ("rate", "learning rate", "best", "the theorem's largest"),
        ("norm", r"$\mathbb{E}\,\|\nabla J(K^{(1)})\|^2$", "exact", "upper bound"),
        ("gain", "reduction of the ratio, 1 − ratio", "at the best η", "promised at the theorem's η"),
    )
    for ax, (name, label, exact, bound) in zip(axes, panels, strict=True):
        ax.plot(data.horizon, data[name], "o-", color=GREEN, label=exact)
        ax.plot(data.horizon, data[f"{name}_bound"], "s--", color=GREY, label=bound)
        ax.set(xticks=data.horizon, title=label, xlabel="horizon H")
        log_axis(ax, "y")
        ax.legend()
    off = (np.log10(data.norm_bound) - np.log10(data.norm)).round().astype(int)
    finding = f"The bounds of the theorem on the first gradient are {off.min()} to {off.max()} powers of ten from the exact values"
    heading(figure, finding, f"The first step on random systems, D = {dim}, one seen state")
    return figure, data


@styled
def rates_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    """The best learning rate, and the reduction of the ratio there, over D for each H and |S|."""
    data = pd.DataFrame(columns)
    figure, axes = subplots(10.8, 4.4, 1, 2)
    colours, styles = dict(zip(sorted(set(data.horizon)), (GREEN, OLIVE, PINK), strict=False)), {1: "-", 2: "--", 4: ":"}
    ends = []
    for H, seen in sorted(set(zip(data.horizon, data.seen, strict=True))):
        line = data[(data.horizon == H) & (data.seen == seen)]
        look = {"color": colours[H], "linestyle": styles.get(seen, "-.")}
        look |= {"marker": "os^D"[int(H) % 4], "markersize": 4}
        axes[0].plot(line.dim, line.rate, **look)
        ends.append((line.gain.iloc[-1], f"H = {H:g}, |S| = {seen:g}", colours[H]))
        axes[0].plot(line.dim.max() * 1.12, line.rate_limit.iloc[0], "<", color=colours[H], markersize=5)
        axes[1].plot(line.dim, line.gain, **look)
    for ax, title in zip(axes, ("best learning rate η* = a / 2b", "reduction at η*: 1 − ratio = a² / 4b"), strict=True):
        log_axis(ax, "x")
        log_axis(ax, "y")
        ax.set(title=title, xlabel="dimension D")
    label_ends(axes[1], ends)
    settings = "Exact law of the first step on random systems; triangles beside the lines: the limit 3|S| / (H(H+1)) for large D"
    heading(figure, "The best learning rate levels off with D, and for large D what it gains falls as 1/D", settings)
    return figure, data


@styled
def systems_figure(columns: Columns, horizon: int) -> tuple[Figure, pd.DataFrame]:
    """How single systems scatter about the law: the share of systems at or below each ratio."""
    data = pd.DataFrame(columns)
    figure, ax = subplots(6.8, 4.2)
    for dim, colour, style in zip(sorted(set(data.dim)), (GREEN, OLIVE, PINK), ("-", "--", "-."), strict=False):
        ratio = np.sort(data.ratio[data.dim == dim])
        label = f"D = {dim:g}: {np.mean(ratio > 1):.1%} of systems above 1"
        ax.plot(ratio, np.arange(1, len(ratio) + 1) / len(ratio), color=colour, linestyle=style, linewidth=1.5, label=label)
    no_extrapolation(ax, "x")
    ax.set_xlim(max(0.3, data.ratio.quantile(0.002)), min(1.5, data.ratio.quantile(0.998)) + 0.02)
    ax.set(title="single random systems after one step at the best η", xlabel=_math(f"optimality measure over that of K_no-ext, {LEFT}"))
    ax.title.set_fontsize(9)
    ax.set_ylabel("share of systems at or below")
    ax.legend()
    worst, largest = np.mean(data.ratio[data.dim == data.dim.min()] > 1), np.mean(data.ratio[data.dim == data.dim.max()] > 1)
    where = f"at D = {data.dim.min():g}, and of {f'{largest:.1%}' if largest else 'none'} at D = {data.dim.max():g}"
    settings = f"H = {horizon}, |S| = 1, {len(data) // len(set(data.dim)):,} systems of each dimension"
    heading(figure, f"One step worsens the measure of {worst:.1%} of the systems {where}", settings)
    return figure, data


@styled
def dimensions_figure(columns: Columns) -> tuple[Figure, pd.DataFrame]:
    """The probability that the second part of thm:typical_system fails, over D: its bound, the sharp bound, and simulated shares."""
    data = pd.DataFrame(columns)
    horizons = sorted(set(data.horizon))
    figure, axes = subplots(11.0, 4.2, 1, len(horizons), sharex=True, sharey=True, squeeze=False)
    for ax, H in zip(axes[0], horizons, strict=True):
        line = data[data.horizon == H]
        ax.plot(line.dim, line.theorem, "--", color=GREY, label="bound by the paper's proof")
        ax.plot(line.dim, line.sharp, color=PINK, label="bound with exact variances")
        weak, failed = (np.where(line[name] > 0, line[name], np.nan) for name in ("alignment_failed", "failed"))
        ax.plot(line.dim, weak, "o", color=GREEN, markersize=4, label="simulated: alignment below H(H−1)/D")
        ax.plot(line.dim, failed, "x", color="black", markersize=5, label="simulated: second part fails")
        ax.axhline(1 / 3, color="0.6", linewidth=0.8, linestyle=":")
        enough, proof = line.dim[line.delta > 0.3].iloc[0], 1 + 3 * line.theorem.iloc[0] * (line.dim.iloc[0] - 1)
        log_axis(ax, "x")
        log_axis(ax, "y")
        ax.set(ylim=(1e-4, 1.3), xlabel="dimension D")
        ax.set_title(f"H = {H:g}: for δ = 1/3, D = {enough:.0f} suffices;\nthe proof needs {proof:,.0f}", fontsize=9)
    axes[0, 0].set_ylabel(f"probability of failure δ, {LOWER}")
    legend_below(axes[0, 0], 4, fontsize=8)
    heading(figure, "One step helps almost every random system: tens of dimensions are enough", "one seen state; dotted: δ = 1/3")
    return figure, data


@styled
def gains_figure(columns: Columns, horizon: int) -> tuple[Figure, pd.DataFrame]:
    """How D (1 − ratio) of single systems closes in on its limit as D grows."""
    data = pd.DataFrame(columns)
    figure, ax = subplots(6.8, 4.4)
    ax.fill_between(data.dim, data.q05, data.q95, color=GREEN, alpha=0.15, linewidth=0, label="90% of systems")
    ax.fill_between(data.dim, data.q25, data.q75, color=GREEN, alpha=0.3, linewidth=0, label="50% of systems")
    ax.plot(data.dim, data["median"], "o-", color=GREEN, markersize=4, label="median system")
    ax.plot(data.dim, data["mean"], "--", color=BROWN, label="D (1 − ratio of the means), exact")
    ax.axhline(data.limit.iloc[0], color="black", linewidth=0.9, linestyle=":", label="limit 2H(H−1)η − H²(H²−1)η²/3")
    log_axis(ax, "x")
    ax.set(xlabel="dimension D")
    ax.set_title("one step of policy gradient on random systems", fontsize=9)
    heading(figure, "Single systems close in on the law as D grows", f"H = {horizon}, η = {data.eta.iloc[0]:g}, one seen state")
    ax.set_ylabel("D (1 − ratio), better ↑")
    ax.legend(fontsize=8)
    return figure, data


@styled
def end_figure(columns: Columns, dim: int, horizon: int) -> tuple[Figure, pd.DataFrame]:
    """How far the law of the first step predicts the end of training."""
    data = pd.DataFrame(columns)
    figure, ax = subplots(6.8, 4.4)
    dense = np.linspace(0, data.eta.max(), 200)
    ax.plot(dense, np.polyval(np.polyfit(data.eta, data.exact, 2), dense), color=GREEN, label="mean after one step: the exact law")
    simulated = "mean after one step, simulated (± 4 standard errors)"
    ax.errorbar(data.eta, data["mean"], yerr=4 * data.standard_error, fmt="o", color=GREEN, markersize=4, label=simulated)
    ax.plot(data.eta, data["median"], "--", color=BROWN, label="median after one step")
    trained = data.trained_median.where(np.isfinite(data.trained_median))
    ax.plot(data.eta, trained, "D-.", color=PINK, markersize=4, label="median after training to the end")
    ax.set_xlim(left=0)
    no_extrapolation(ax, side="left")
    ax.set(title=_math("optimality measure over that of K_no-ext"), xlabel="learning rate η")
    ax.title.set_fontsize(9)
    ax.set_ylabel(f"normalised measure, {LOWER}")
    shown = data[np.isfinite(data.trained_median)]
    below = (shown.trained_median < shown["median"]).all()
    finding = "Training to the end goes further than the first step" if below else "The first step, and the end of training"
    heading(figure, finding, f"Random systems, D = {dim}, H = {horizon}, one seen state; {SCALE}")
    ax.legend(fontsize=8)
    return figure, data


@styled
def surfaces_figure(surfaces: Surfaces) -> tuple[Figure, pd.DataFrame]:
    """Polygons with their edges glued in pairs: edges of one colour are one edge of the surface, arrows head to head."""
    words = list(dict.fromkeys(letters for letters, _ in surfaces))
    figure, axes = subplots(10.0, 7.0, len(words), len(surfaces) // len(words))
    rows = []
    for ax, (letters, gluing) in zip(axes.flat, surfaces, strict=True):
        name = SURFACES[gluing.euler_characteristic, gluing.orientable]
        _draw_polygon(ax, letters, gluing.pairs)
        shown = "".join(letter if letter == "A" else "Aᵀ" for letter in letters)
        ax.set_title(f"Tr({shown}): {name}, χ = {gluing.euler_characteristic}\nadds {gluing.term}")
        rows.append((letters, gluing.pairs, gluing.euler_characteristic, gluing.orientable, str(gluing.term)))
    heading(figure, "The expectation of a trace is a sum over surfaces", "All gluings of two words of four letters, and what each adds")
    return figure, pd.DataFrame(rows, columns=["word", "pairs", "euler_characteristic", "orientable", "term"])


def _draw_polygon(ax: Axes, letters: str, pairs: tuple[tuple[int, int], ...]) -> None:
    corners = np.array([(np.cos(t), np.sin(t)) for t in np.pi * (0.75 - 2 * np.arange(len(letters)) / len(letters))])
    edges = {k: look for pair, *look in zip(pairs, (GREEN, PINK, OLIVE, BROWN), "abcd", strict=False) for k in pair}
    for k, letter in enumerate(letters, start=1):
        colour, label = edges[k]
        start, end = corners[k - 1], corners[k % len(letters)]
        tail, head = (start, end) if letter == "A" else (end, start)
        look = {"arrowstyle": "-|>", "mutation_scale": 16, "color": colour, "linewidth": 2.2, "shrinkA": 3, "shrinkB": 3}
        ax.add_patch(FancyArrowPatch(tuple(tail), tuple(head), **look))
        x, y = (start + end) / 2 * 1.28
        ax.text(x, y, f"{'A' if letter == 'A' else 'Aᵀ'} ({label})", ha="center", va="center", color=readable(colour), fontsize=10)
    ax.plot(*corners.T, "o", color="0.3", markersize=4)
    ax.set(xlim=(-1.25, 1.25), ylim=(-1.1, 1.1), aspect="equal")
    ax.axis("off")
