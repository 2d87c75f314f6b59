"""Which initial states to train on: k of a pool of candidates, by methods that cost nothing, a few rollouts, or pilot runs."""

from offspan.selection.criteria import extrapolation_scores as extrapolation_scores
from offspan.selection.select import Effect as Effect
from offspan.selection.select import Selection as Selection
from offspan.selection.select import effect_of_adding as effect_of_adding
from offspan.selection.select import select as select
