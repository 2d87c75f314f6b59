"""Random problems for the tests, and plain NumPy counterparts that share no code with the library."""

import jax
import numpy as np
from hypothesis import strategies as st

import offspan


def random_lqr(seed: int, n: int, m: int, horizon: int, *, control_cost: bool) -> offspan.LQR:
    """A, B Gaussian (spectral radius about 1), Q and R of full rank, or R = 0."""
    keys = jax.random.split(jax.random.key(seed), 4)
    A, B, Z, W = (jax.random.normal(key, shape) / n**0.5 for key, shape in zip(keys, ((n, n), (n, m), (n, n), (m, m)), strict=True))
    return offspan.LQR(A, B, Z @ Z.T, W @ W.T if control_cost else None, horizon=horizon)


def random_gain(seed: int, problem: offspan.LQR):
    return 0.3 * jax.random.normal(jax.random.key(1000 + seed), (problem.control_dim, problem.state_dim))


def loop_cost(problem: offspan.LQR, K, x0s) -> float:
    """J(K; X) by a loop over states and times."""
    A, B, Q, R, K = (np.asarray(M) for M in (problem.A, problem.B, problem.Q, problem.R, K))
    total = 0.0
    for x in np.asarray(x0s):
        for _ in range(problem.horizon + 1):
            u = K @ x
            total += x @ Q @ x + u @ R @ u
            x = A @ x + B @ u
    return total / len(x0s)


seeds = st.integers(0, 10_000)
lqrs = st.builds(random_lqr, seeds, n=st.integers(1, 5), m=st.integers(1, 5), horizon=st.integers(1, 6), control_cost=st.booleans())


@st.composite
def underdetermined_lqrs(draw):
    """R = 0, B square (invertible almost surely), and seen states that leave at least one direction unseen."""
    n = draw(st.integers(2, 5))
    problem = random_lqr(draw(seeds), n, n, draw(st.integers(1, 6)), control_cost=False)
    seen = draw(st.integers(1, n - 1))
    return problem, jax.random.normal(jax.random.key(draw(seeds)), (seen, n))
