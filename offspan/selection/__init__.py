"""Which initial states to train on: k of a pool of candidates, by methods that cost nothing, a few rollouts, or pilot runs."""

from offspan.selection.criteria import extrapolation_scores
from offspan.selection.effect import Effect, effect_of_adding
from offspan.selection.select import Selection, select

__all__ = ["Effect", "Selection", "effect_of_adding", "extrapolation_scores", "select"]
