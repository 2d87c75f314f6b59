"""How every figure looks: colours, headings, axes and labels."""

import math
import textwrap
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import matplotlib.style
import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import offset_copy

# Seen and unseen states have these two colours of Okabe and Ito's, which colour-blind readers can tell apart, and nothing else has.
SEEN, UNSEEN = "#0072B2", "#D55E00"
# All that is neither, in this order; hatches, markers and dashes carry the differences into black and white.
CATEGORIES = GREEN, OLIVE, PINK, GREY, BROWN, TEAL, WINE, BLACK = (
    *("#009E73", "#999933", "#CC79A7", "#6E6E6E"),
    *("#7A4B1E", "#7FC8B8", "#882255", "#000000"),
)
INKY, BEHIND_WORDS = "#010101", "#fefefe"  # a black and a white of their own: see `page.vector`
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":")
SCALE = "1 = no extrapolation, 0 = perfect"
LOWER, LEFT = "better ↓", "better ←"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
POINT = 1 / 72  # inches
# Decorates a function that draws: matplotlib reads the style when it makes axes, titles and legends.
styled = matplotlib.style.context(Path(__file__).with_name("style.mplstyle"))


def subplots(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure of so many inches, and its axes."""
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, **options)


def verbatim(text: str) -> str:
    """For a figure: no dollar sign in it begins a formula, and control characters, which no font has, are written out."""
    visible = (sign if sign == "\n" or unicodedata.category(sign)[0] != "C" else ascii(sign)[1:-1] for sign in text)
    return "".join(visible).replace("$", r"\$")


def heading(figure: Figure, finding: str, settings: str = "") -> None:
    """The finding in bold, and below it the settings that all of the figure shares."""
    width = figure.get_figwidth()
    first, second = (
        "\n".join(
            # a line does not end within "D = 5"; spaces that do not break are not wrapped at
            textwrap.wrap(text.replace(" = ", "\xa0=\xa0"), max(int(width / (size * share * POINT)), 20), break_on_hyphens=False)
        ).replace("\xa0", " ")
        for text, size, share in ((finding, 10.5, 0.63), (settings, 9, 0.56))
    )
    left = 0.12 / width
    if figure.get_layout_engine() is not None:
        figure.get_layout_engine().set(h_pad=0.07)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    # The layout leaves room for the title; of the settings it knows by the lines below the finding that are empty.
    figure.suptitle(verbatim(first) + "\n" * (second.count("\n") + bool(second)), x=left, ha="left", weight="bold", fontsize=10.5)
    top = 1 - (5 + 1.32 * 10.5 * (first.count("\n") + 1)) * POINT / figure.get_figheight()
    figure.text(left, top, verbatim(second), ha="left", va="top", fontsize=9, alpha=0.7, in_layout=False)


def legend_below(ax: Axes, columns: int, **options: Any) -> None:
    """The legend of one of the axes, below all of the figure."""
    ax.get_figure(root=True).legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **options)  # pyright: ignore[reportOptionalMemberAccess]


def iteration_axis(ax: Axes, ticks: int, label: str = "iteration") -> None:
    ax.set_xlabel(label)
    ax.locator_params(axis="x", nbins=ticks)
    ax.xaxis.set_major_formatter("{x:,.0f}")


def no_extrapolation(ax: Axes, which: Literal["x", "y"] = "y", side: Literal["left", "right"] = "right", named: bool = True) -> None:
    """The line at 1, with its name; in black that is see-through, as pages in dark mode turn black into white."""
    look = {"color": "black", "alpha": 0.65, "linewidth": 0.9, "linestyle": "--", "zorder": 1}
    text = {"fontsize": 8, "alpha": 0.75}
    if which == "y":
        ax.axhline(1.0, **look)
    else:
        ax.axvline(1.0, **look)
    if named and which == "y":
        place = (0.995, 1.0) if side == "right" else (0.005, 1.0)
        ax.annotate("no extrapolation", place, (0, 1.5), ("axes fraction", "data"), "offset points", ha=side, va="bottom", **text)
    elif named:
        ax.annotate("no extrapolation", (1.0, 0.02), (2, 0), ("data", "axes fraction"), "offset points", va="bottom", rotation=90, **text)


def label_ends(ax: Axes, labels: Iterable[tuple[float, str, str]], fontsize: int = 8) -> None:
    """Names at the right of the axes, each (y, text, colour) beside the end of its line, moved apart as little as possible where they
    would overlap, and then with thin lines to these ends.

    Call it once the limits of the axes are set.
    """
    placed = []
    for y, text, colour in labels:
        _, height = ax.transLimits.transform(ax.transScale.transform((ax.get_xlim()[0] or 1.0, y)))
        if math.isfinite(height):
            placed.append((min(max(height, 0.0), 1.0), text, colour))
    if not placed:
        return
    figure: Any = ax.get_figure(root=True)
    rows = ax.get_subplotspec().get_gridspec().nrows if ax.get_subplotspec() is not None else 1  # pyright: ignore[reportOptionalMemberAccess]
    gap = 1.25 * fontsize * POINT / (0.62 * figure.get_figheight() / rows)
    placed.sort(key=lambda one: one[0])
    ends = np.array([height for height, _, _ in placed])
    heights = apart(ends, gap)
    moved = bool(np.any(abs(heights - ends) > 0.3 * gap))
    aside = offset_copy(ax.transAxes, figure, 14 if moved else 3, 0, units="points")
    for (end, text, colour), height in zip(placed, heights, strict=True):
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 1}
        ax.annotate(
            *(text, (1.0, end), (1.0, height), "axes fraction", aside),
            **{"color": readable(colour), "fontsize": fontsize, "va": "center", "annotation_clip": False},
            arrowprops=leader if moved else None,
        )


def apart(ends: np.ndarray, gap: float) -> np.ndarray:
    """The places in [0, 1] nearest to ascending ones, in the sum of squares, that are `gap` apart."""
    steps = gap * np.arange(len(ends))
    return np.clip(scipy.optimize.isotonic_regression(ends - steps).x, 0.0, max(1.0 - steps[-1], 0.0)) + steps


def readable(colour: str) -> str:
    """The colour, darkened to a contrast of 4.5 with white where it has less, as words need [WCAG 2.2, 1.4.3]."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = linear * min(1.0, (1.05 / 4.5 - 0.05) / max(linear @ [0.2126, 0.7152, 0.0722], 1e-9))
    red, green, blue = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055).tolist()
    return to_hex((red, green, blue))


def _plain(low: float, high: float) -> bool:
    """Whether the numbers between are written without powers of ten."""
    return bool(low > 0.9e-3 and high < 1.1e4)


class _Readable(LogLocator):
    """Powers of ten, over two of them or fewer their 2- and 5-fold, over less than one their 3-fold, too; over three their 3-fold where
    these are plain numbers."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        some = (1.0, 3.0) if vmax <= 1000 * vmin and _plain(vmin, vmax) else (1.0,)
        few = (1.0, 2.0, 3.0, 5.0) if 4 * vmin < vmax < 10 * vmin else (1.0, 2.0, 5.0)  # over less than 4-fold, ticks are linear
        self.set_params(subs=few if vmax <= 100 * vmin else some)
        return super().tick_values(vmin, vmax)


def log_axis(ax: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis with ticks such as 0.5, 1, 2 or 1, 10, 100 or 10⁻³, 10⁰, 10³."""
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    axis = ax.xaxis if which == "x" else ax.yaxis

    def text(value: float, _: Any) -> str:
        low, high = sorted(axis.get_view_interval())
        return f"{value:g}" if _plain(low, high) else power_of_ten(value)

    axis.set_major_locator(_Readable())
    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_formatter(NullFormatter())


def power_of_ten(value: float) -> str:
    """10⁻³, or 2.7·10⁻⁵ for a number that is no power."""
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = value / 10.0**exponent
    power = f"10{str(exponent).translate(SUPERSCRIPTS)}"
    return power if abs(factor - 1) < 0.005 else f"{factor:.2g}·{power}"


def short(value: float) -> str:
    """0.0022, 31 or 10²¹: three digits at most, and a power of ten where that is shorter to read."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞" if value > 0 else "–"
    return f"{value:.2g}" if 1e-3 <= abs(value) < 1000 else ("−" if value < 0 else "") + power_of_ten(float(f"{abs(value):.1e}"))


def angle(value: float) -> str:
    """As a multiple of π/4 where it is one to two decimals."""
    quarters = round(value / (np.pi / 4))
    if abs(value - quarters * np.pi / 4) > 5e-3:
        return f"{value:.3g}"
    top, below = (quarters // 4, "") if quarters % 4 == 0 else (quarters // 2, "/2") if quarters % 2 == 0 else (quarters, "/4")
    return "0" if top == 0 else f"{ {1: '', -1: '−'}.get(top, str(top).replace('-', '−')) }π{below}"


def listed(names: Iterable[str]) -> str:
    """a, b and c."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
