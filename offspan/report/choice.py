"""The table of a choice of initial states."""

import numpy as np

from offspan.report.tables import Sheet
from offspan.selection import Selection
from offspan.selection.methods import MEANING

MOST_ROWS = 40


def choice_sheet(selection: Selection, candidates: np.ndarray) -> Sheet:
    """All candidates, the chosen ones first, each part by score."""
    chosen = {int(i) for i in selection.indices}
    order = sorted(range(len(candidates)), key=lambda i: (i not in chosen, -selection.scores[i], i))
    rows = [
        [str(rank + 1), str(i), _state(candidates[i]), f"{selection.scores[i]:.3g}", "chosen" if i in chosen else ""]
        for rank, i in enumerate(order[: max(MOST_ROWS, len(chosen))])
    ]
    left = len(candidates) - len(rows)
    note = f"Score: {MEANING[selection.method]}. {selection.rollouts:,} rollouts were made." + (f" {left} more candidates." if left else "")
    title = f"{len(chosen)} of {len(candidates)} states by {selection.method}"
    return Sheet(title, ["rank", "candidate", "state", "score", ""], rows, note)


def _state(x: np.ndarray) -> str:
    """A long one without the zeros at its end."""
    used = len(x) if len(x) <= 6 else max(int(np.flatnonzero(x)[-1]) + 1 if np.any(x) else 1, 1)
    return "(" + ", ".join(f"{value:.4g}" for value in x[:used]) + (", 0 …)" if used < len(x) else ")")
