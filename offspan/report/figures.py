"""Figures: functions of a result."""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from offspan.report.summary import quartiles

# Okabe and Ito's colours, told apart by colour-blind readers; the hatches carry the difference into black and white.
LOOKS = {
    "identity": {"color": "#0072B2", "hatch": ""},
    "shift": {"color": "#E69F00", "hatch": "//"},
    "gaussian": {"color": "#009E73", "hatch": ".."},
}
LABELS = {"identity": "identity", "shift": "shift", "gaussian": "random (Gaussian A)"}
MEASURES = {
    "normalized_optimality": r"optimality measure  $E_{\mathrm{opt}}(K)\,/\,E_{\mathrm{opt}}(K_{\mathrm{no\!-\!ext}})$",
    "normalized_cost": r"cost measure  $E_{\mathrm{cost}}(K)\,/\,E_{\mathrm{cost}}(K_{\mathrm{no\!-\!ext}})$",
}


def measure_bars(result: xr.Dataset) -> Figure:
    """Both normalised measures against the number of seen states: medians over seeds, whiskers at the quartiles.

    The form of [R24, fig:lqr_experiments_main].
    """
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    systems = [str(name) for name in result.system.values]
    width = 0.8 / len(systems)
    places = np.arange(result.sizes["seen"])
    for ax, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        low, median, high = quartiles(result[measure]).transpose("quantile", "system", "seen").values
        for i, system in enumerate(systems):
            ax.bar(
                places + (i - (len(systems) - 1) / 2) * width,
                median[i],
                width * 0.92,
                yerr=[median[i] - low[i], high[i] - median[i]],
                label=LABELS[system],
                edgecolor="white",
                linewidth=0,
                error_kw={"capsize": 3, "elinewidth": 1},
                **LOOKS[system],
            )
        ax.axhline(1.0, color="black", linewidth=0.8, linestyle="--", zorder=0)
        ax.set_xticks(places, [str(count) for count in result.seen.values])
        ax.set_xlabel("initial states seen in training")
        ax.set_title(label, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("1 = no extrapolation, 0 = perfect")
    settings = "D = {dim}, H = {horizon}, learning rate {learning_rate:g}, {iterations:,} iterations".format(**result.attrs)
    figure.suptitle(f"{settings}; median and quartiles of {result.sizes['seed']} seeds", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(systems), frameon=False)
    return figure
