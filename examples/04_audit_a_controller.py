"""A network was trained from two initial states. Where will it fail, and which two states should be added?"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import offspan

problem, seen = offspan.Pendulum(horizon=60), jnp.array([[2.641, 0.0], [3.641, 0.0]])  # near upright
network = offspan.MLP.init(jax.random.key(0), 2, 1, width=16)
training = {"optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3)), "iterations": 600}
controller = offspan.train(problem, network, seen, **training).controller

found = offspan.audit(
    problem,
    controller,
    seen,
    region={0: (-3.0, 9.0), 1: (-6.0, 6.0)},  # angle and angular velocity
    success=lambda x: jnp.abs(x[0] - jnp.pi) < 0.3,  # of the last state
    points=21,
    states=400,
    retrain=training,
)
print(f"{found.outcome.share:.0%} of the region ends upright: {found.near:.0%} near to what training visits, {found.far:.0%} elsewhere")
print(f"worst: {found.worst[0].states[0].round(2).tolist()}")
print(found.suggested.note)
if found.retrained is not None:
    print(f"with {found.suggested.states.round(1).tolist()} added: {found.retrained.share:.0%}")
page = Path(tempfile.gettempdir()) / "offspan-audit.html"
found.save(page)
print(f"the page: {page}")
