"""What is reported of a result, by the kind of its experiment."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from offspan.report import network, network_figures, selection, selection_figures
from offspan.report.figures import as_frame, figures
from offspan.report.starts import distance_curves, distance_data, distance_sheet
from offspan.report.summary import summary
from offspan.report.tables import Sheet, measure_sheet


class Report(NamedTuple):
    """Figures by name, each with the data behind it; tables by name, the main one first, and its numbers; animations by name, as images."""

    figures: dict[str, tuple[Figure, pd.DataFrame]]
    sheets: dict[str, Sheet]
    data: pd.DataFrame
    animations: Mapping[str, list[Any]] = MappingProxyType({})


def report(result: xr.Dataset, beside: xr.Dataset | None = None) -> Report:
    """`beside` is a result to be compared with."""
    return KINDS[result.attrs.get("kind", "lqr")](result, beside)


def _lqr(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    return Report(figures(result, beside), {"table": measure_sheet(result)}, as_frame(summary(result)))


def _starts(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data = distance_data(result)
    return Report({"distances": (distance_curves(result), data)}, {"table": distance_sheet(result)}, data)


def _network(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    trajectories = network.trajectory_data(result)
    drawn = {
        "states": (network_figures.states_figure(result), trajectories),
        "through-time": (network_figures.time_figure(result), trajectories),
        "curves": (network_figures.curves_figure(result), network.curve_data(result)),
        "unseen": (network_figures.unseen_figure(result), network.unseen_data(result)),
    }
    data = network.seed_data(result)
    if result.sizes["seed"] > 5:
        drawn["distribution"] = network_figures.distribution_figure(result), data
    sheets = {"table": network.network_sheet(result), "states": network.states_sheet(result)}
    return Report(drawn, sheets, data, {"trajectories": network_figures.animation(result)})


def _selection(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data, found = selection.outcome_data(result), selection.correlations(result)
    curves = result[["cost_curve", "alignment_curve", "coverage_curve"]].to_dataframe().reset_index()
    drawn = {
        "methods": (selection_figures.methods_figure(result), data),
        "correlations": (selection_figures.correlations_figure(result, found), selection.correlation_data(found)),
        "training": (selection_figures.training_figure(result), curves),
    }
    sheets = {
        "table": selection.main_sheet(result),
        "tails": selection.tail_sheet(result),
        "correlations": selection.correlation_sheet(result, found),
    }
    return Report(drawn, sheets, data)


KINDS = {"lqr": _lqr, "starts": _starts, "network": _network, "selection": _selection}
