"""MuJoCo's models as problems in jax, by MJX: with derivatives."""

import contextlib
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from offspan.errors import OffspanError, as_count, extra
from offspan.problems.base import FunctionProblem
from offspan.systems.mujoco import as_model, quiet


def from_mjx(
    model_or_path: Any,
    *,
    stage_cost: Callable[..., Any],
    horizon: int,
    frame_skip: int = 1,
    iterations: int | None = None,
    cost_scale: float = 1.0,
    done: Callable[..., Any] | None = None,
    done_cost: float | None = None,
) -> FunctionProblem:
    """x_{h+1} = (qpos, qvel) after `frame_skip` steps of MJX from (qpos, qvel) = x_h with ctrl = u_h  [beyond R24].

    The states and steps of `from_mujoco` as a jax program, in jax's precision at the time of this call; its gradient takes the better part
    of a minute to compile. `iterations` is what the solver of constraints (joint limits, contacts, equalities, friction) may take, by
    default what the model says. Reverse mode cannot go through the loop of more than one: where there are constraints, a step is then
    differentiated in forward mode, which takes as long as n + m further steps. `iterations=1` is faster for large models, and less accurate
    where constraints are active: compare with `from_mujoco`. `stage_cost`, `done` and `done_cost` are those of `FunctionProblem`.

    >>> import mujoco, jax.numpy as jnp
    >>> from offspan.systems.mjx import from_mjx
    >>> model = mujoco.MjModel.from_xml_string('''
    ... <mujoco><worldbody><body><joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1" mass="2"/></body></worldbody>
    ... <actuator><motor joint="rail" ctrlrange="-1 1"/></actuator></mujoco>''')
    >>> cart = from_mjx(model, stage_cost=lambda x, u: x[0] ** 2, horizon=50, frame_skip=100)
    >>> [round(value, 4) for value in cart.step(jnp.zeros(2), jnp.ones(1)).tolist()]  # 0.2 s at 1/2 m/s², in steps of 2 ms
    [0.0101, 0.1]
    """
    where = "from_mjx"
    mujoco = extra("mujoco")
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that warp, which is not needed here, is missing
        mjx = extra("mujoco.mjx")
    model, settings = as_model(where, model_or_path)
    frames = as_count(where, "frame_skip", frame_skip, least=1)
    if iterations is not None:
        model.opt.iterations = as_count(where, "iterations", iterations, least=1)
    try:
        with quiet(mujoco, console=True):
            on_device = mjx.put_model(model, impl="jax")
            data = mjx.make_data(on_device)
    except NotImplementedError as error:
        raise OffspanError(f"{where}: MJX cannot take this model ({error}); from_mujoco can, without derivatives.") from error
    nq = int(model.nq)

    @jax.jit
    def step(x, u):
        start = data.replace(qpos=x[:nq], qvel=x[nq:], ctrl=u)
        with jax.numpy_rank_promotion("allow"):  # MJX relies on it
            if frames == 1:  # a loop takes longer to compile
                end = mjx.step(on_device, start)
            else:
                end = jax.lax.fori_loop(0, frames, lambda _, now: mjx.step(on_device, now), start)
        return jnp.concatenate([end.qpos, end.qvel])

    has_loop = data._impl.nefc > 0 and model.opt.iterations > 1
    functions = {"step": _by_forward_mode(step) if has_loop else step, "stage_cost": stage_cost, "done": done}
    return FunctionProblem(**functions, horizon=horizon, cost_scale=cost_scale, done_cost=done_cost, **settings)


def _by_forward_mode(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same step, whose derivative, in reverse mode too, is a product with its Jacobian, found in forward mode."""
    with_jacobian = jax.custom_jvp(step)

    @partial(with_jacobian.defjvp, symbolic_zeros=True)
    def _along(primals, tangents):
        moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]
        jacobians, following = jax.jacfwd(lambda *at: (step(*at),) * 2, argnums=moving, has_aux=True)(*primals)
        return following, sum(J @ tangents[i] for J, i in zip(jacobians, moving, strict=True))

    return with_jacobian
