"""What is reported of a result, by the kind of its experiment."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from offspan.report import network, network_figures, selection, selection_figures
from offspan.report.lqr import measure_sheet, summary
from offspan.report.lqr_figures import as_frame, figures
from offspan.report.starts import distance_curves, distance_data, distance_sheet
from offspan.report.tables import Sheet


class Report(NamedTuple):
    """Tables by name, the main one first, and its numbers; what each figure shows, in words. Drawing takes longer, and so waits until it is
    asked for: figures by name, each with the data behind it, and animations, as images."""

    sheets: dict[str, Sheet]
    data: pd.DataFrame
    words: dict[str, str]
    figures: Callable[[], dict[str, tuple[Figure, pd.DataFrame]]]
    animations: Callable[[], dict[str, list[Any]]] = dict


def report(result: xr.Dataset, beside: xr.Dataset | None = None) -> Report:
    """`beside` is a result to be compared with."""
    return KINDS[result.attrs.get("kind", "lqr")](result, beside)


def _lqr(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    systems = ", ".join(result.system.values)
    words = {
        "measures": f"Bars of both normalised measures against the number of seen states, for the systems {systems}.",
        "horizons": f"Share of diverged runs and both normalised measures against the horizon, for the systems {systems}.",
        "curves": f"Both normalised measures along training, for the systems {systems}.",
        "training": f"The cost over the seen states along training, for the systems {systems}.",
    }
    return Report({"table": measure_sheet(result)}, as_frame(summary(result)), words, lambda: figures(result, beside))


def _starts(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data = distance_data(result)
    words = {"distances": "The largest distance between two controllers against iterations, falling."}
    return Report({"table": distance_sheet(result)}, data, words, lambda: {"distances": (distance_curves(result), data)})


def _network(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data = network.seed_data(result)

    def draw() -> dict[str, tuple[Figure, pd.DataFrame]]:
        trajectories = network.trajectory_data(result)
        drawn = {
            "states": (network_figures.states_figure(result), trajectories),
            "through-time": (network_figures.time_figure(result), trajectories),
            "curves": (network_figures.curves_figure(result), network.curve_data(result)),
            "unseen": (network_figures.unseen_figure(result), network.unseen_data(result)),
        }
        if result.sizes["seed"] > 5:
            drawn["distribution"] = network_figures.distribution_figure(result), data
        return drawn

    sheets = {"table": network.network_sheet(result), "states": network.states_sheet(result)}
    words = {
        "states": "Initial states; final states under policy gradient; final states under the non-extrapolating controller.",
        "through-time": "States at six moments, under policy gradient and under the non-extrapolating controller.",
        "curves": "Costs against iterations, of every seed of the three objectives.",
        "unseen": "The cost from each unseen state: policy gradient, the non-extrapolating controller, and one that was trained there.",
        "distribution": "The share of seeds at or below each value of the normalised cost measure.",
    }
    return Report(sheets, data, words, draw, lambda: {"trajectories": network_figures.animation(result)})


def _selection(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data, found = selection.outcome_data(result), selection.correlations(result)

    def draw() -> dict[str, tuple[Figure, pd.DataFrame]]:
        curves = result[["cost_curve", "alignment_curve", "coverage_curve"]].to_dataframe().reset_index()
        return {
            "methods": (selection_figures.methods_figure(result), data),
            "correlations": (selection_figures.correlations_figure(result, found), selection.correlation_data(found)),
            "training": (selection_figures.training_figure(result), curves),
        }

    sheets = {
        "table": selection.main_sheet(result),
        "tails": selection.tail_sheet(result),
        "correlations": selection.correlation_sheet(result, found),
    }
    words = {
        "methods": "The outcome of each method of choosing, a dot for each system or start, beside random sets and the best set.",
        "correlations": "How well each number that is known before or early in training ranks the sets by their outcome.",
        "training": "Cost, alignment of gradients and coverage along training.",
    }
    return Report(sheets, data, words, draw)


KINDS = {"lqr": _lqr, "starts": _starts, "network": _network, "selection": _selection}
