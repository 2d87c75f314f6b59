"""What is reported of a result, by the kind of its experiment."""

from typing import NamedTuple

import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from offspan.report.figures import as_frame, figures
from offspan.report.starts import distance_curves, distance_data, distance_sheet
from offspan.report.summary import summary
from offspan.report.tables import Sheet, measure_sheet


class Report(NamedTuple):
    """Figures by name, each with the data behind it; the table, and its numbers."""

    figures: dict[str, tuple[Figure, pd.DataFrame]]
    sheet: Sheet
    data: pd.DataFrame


def report(result: xr.Dataset, beside: xr.Dataset | None = None) -> Report:
    """`beside` is a result to be compared with."""
    return KINDS[result.attrs.get("kind", "lqr")](result, beside)


def _lqr(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    return Report(figures(result, beside), measure_sheet(result), as_frame(summary(result)))


def _starts(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data = distance_data(result)
    return Report({"distances": (distance_curves(result), data)}, distance_sheet(result), data)


KINDS = {"lqr": _lqr, "starts": _starts}
