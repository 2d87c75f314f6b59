"""A cart-pole of python-control, with fewer inputs than states: trained from one tilt, measured, and compared with dlqr."""

import control
import jax
import numpy as np

import offspan
from offspan.systems.control import from_control

jax.config.update("jax_enable_x64", True)

A = [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 11.0, 0.0]]
cart = control.ss(A, [[0.0], [1.0], [0.0], [-1.0]], np.eye(4), 0, states=["position [m]", "speed [m/s]", "angle [rad]", "rate [rad/s]"])
plant = from_control(cart, Q=np.diag([1.0, 0.1, 10.0, 0.1]), R=[[0.01]], horizon=100, dt=0.05)  # sampled, as it is continuous

seen = np.array([[0.0, 0.0, 0.1, 0.0]])  # a tilt of 0.1 rad
run = offspan.train_lqr(plant, seen, learning_rate=1e-2, iterations=20_000, clip=1.0)
least = offspan.riccati_cost(plant, seen)
print(f"J(S) = {run.cost[-1]:.3f}, where no controls cost less than {least:.3f}")
print(f"off the seen tilt: {offspan.lqr_extrapolation(plant, run.K, seen):.3f} (0 = optimal, 1 = as if nothing were done there)")

found = offspan.audit(plant, run.controller, seen, {0: (-0.5, 0.5), 2: (-0.2, 0.2)}, points=11, states=300)
excess = np.median(found.outcome.costs / found.reference.costs) if found.reference is not None else np.nan
print(f"over positions and tilts it costs {excess:.2f} times what dlqr costs, in the median")
print(found.suggested.note)
