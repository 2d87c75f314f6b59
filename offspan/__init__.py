"""offspan: how far does a learned controller reach beyond the initial states it was trained on?

The core, in the order in which a question goes through it. `offspan.experiments` and `offspan.report` are imported by name.
"""

from offspan.audit import Audit, audit
from offspan.baselines import adversarial_objective, extrapolating_controller, minimal_cost, nonextrapolating_controller
from offspan.controllers import MLP, Bounded, HostController, Linear, Observed, load_controller, save_controller
from offspan.errors import OffspanError
from offspan.exploration import coverage, gradient_alignment, gramian, overlap, visited_covariance, visited_states
from offspan.maps import ExtrapolationMap, costs, extrapolation_map
from offspan.measures import cost_measure, extrapolation, normalized_cost, normalized_optimality, optimality_measure
from offspan.problems import LQR, BlackBox, FunctionProblem, Noisy, Pendulum, Problem, Quadcopter, gaussian, gaussian_abq, identity, shift
from offspan.rollout import Trajectory, cost, expected_cost, lqr_gradient, rollout
from offspan.selection import Effect, Selection, effect_of_adding, extrapolation_scores, select
from offspan.states import basis, grid, seen_projector, sphere, unseen_directions
from offspan.training import (
    Adjoint,
    Batch,
    CostBelow,
    Diagnosis,
    Estimate,
    Estimator,
    Exact,
    GradientQuality,
    NoImprovement,
    Reinforce,
    Run,
    Status,
    StoppingRule,
    TwoPoint,
    diagnose,
    gradient_quality,
    train,
    train_batch,
    train_lqr,
    train_lqr_batch,
)

__version__ = "0.1.0"

__all__ = [
    "LQR",
    "MLP",
    "Adjoint",
    "Audit",
    "Batch",
    "BlackBox",
    "Bounded",
    "CostBelow",
    "Diagnosis",
    "Effect",
    "Estimate",
    "Estimator",
    "Exact",
    "ExtrapolationMap",
    "FunctionProblem",
    "GradientQuality",
    "HostController",
    "Linear",
    "NoImprovement",
    "Noisy",
    "Observed",
    "OffspanError",
    "Pendulum",
    "Problem",
    "Quadcopter",
    "Reinforce",
    "Run",
    "Selection",
    "Status",
    "StoppingRule",
    "Trajectory",
    "TwoPoint",
    "adversarial_objective",
    "audit",
    "basis",
    "cost",
    "cost_measure",
    "costs",
    "coverage",
    "diagnose",
    "effect_of_adding",
    "expected_cost",
    "extrapolating_controller",
    "extrapolation",
    "extrapolation_map",
    "extrapolation_scores",
    "gaussian",
    "gaussian_abq",
    "gradient_alignment",
    "gradient_quality",
    "gramian",
    "grid",
    "identity",
    "load_controller",
    "lqr_gradient",
    "minimal_cost",
    "nonextrapolating_controller",
    "normalized_cost",
    "normalized_optimality",
    "optimality_measure",
    "overlap",
    "rollout",
    "save_controller",
    "seen_projector",
    "select",
    "shift",
    "sphere",
    "train",
    "train_batch",
    "train_lqr",
    "train_lqr_batch",
    "unseen_directions",
    "visited_covariance",
    "visited_states",
]
