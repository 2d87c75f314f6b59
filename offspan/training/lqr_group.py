"""Runs of one shape on the devices: how they lie there, and the program that advances them.

Each device takes a share of the runs and works through it in blocks that stay in its cache. Runs do not touch each other's numbers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from offspan.measures import normalization
from offspan.problems.lqr import LQR
from offspan.training.lqr_kernels import (
    Systems,
    descend_by_products,
    descend_in_lanes,
    stage_costs_by_products,
    stage_costs_in_lanes,
)

LANES = 32  # runs in a block of small systems: a few vectors of each number, and all of a block's numbers in the first cache
SMALL = 8  # systems up to this dimension are written out in lanes
GPU_WORKSPACE = 2**31  # bytes for the states and costates of the runs that a GPU trains side by side
RECORDS = ("cost", "normalized_optimality", "normalized_cost")


class _Layout(NamedTuple):
    """How a group's runs lie on the devices: what its program is compiled for, beside the shapes."""

    mesh: Mesh
    horizon: int
    in_lanes: bool
    blocks: int
    block: int

    @classmethod
    def of(cls, runs: int, n: int, m: int, s: int, horizon: int) -> "_Layout":
        """Blocks that fit the cache of a CPU, or that fill a GPU without filling its memory."""
        devices = jax.devices()
        in_lanes = max(n, m) <= SMALL
        cache, memory = LANES if in_lanes else 1, max(GPU_WORKSPACE // (8 * 3 * horizon * s * n), 1)
        most = cache if devices[0].platform == "cpu" else memory
        share = -(-runs // len(devices))
        blocks = -(-share // most)
        block = -(-share // blocks)
        return cls(Mesh(np.array(devices), ("runs",)), horizon, in_lanes, blocks, -(-block // 8) * 8 if in_lanes else block)

    def put(self, values: np.ndarray) -> jax.Array:
        """On the devices, shared out over the runs, filled up with zeros to whole blocks: a system of zeros stays zero."""
        padded = self.mesh.size * self.blocks * self.block
        filled = np.concatenate([values, np.zeros((padded - len(values), *values.shape[1:]), values.dtype)])
        return jax.device_put(filled, NamedSharding(self.mesh, Spec("runs")))


class Group:
    """The runs whose seen sets have one size: on the host for what happens once, on the devices for what happens in every iteration."""

    def __init__(self, problems: list[LQR], x0s: list[np.ndarray], rates: np.ndarray, members: np.ndarray, dtype: np.dtype):
        self.members, self.problems = members, [problems[r] for r in members]
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *self.problems)
        self.x0s = np.stack([x0s[r] for r in members])
        self.dtype = dtype
        stacked = jax.tree.map(lambda M: M.astype(dtype), stacked)
        self.x0s, self.rates = self.x0s.astype(dtype), rates[members].astype(dtype)
        n, m = stacked.state_dim, stacked.control_dim
        self.layout = _Layout.of(len(members), n, m, self.x0s.shape[1], stacked.horizon)
        put, eye = self.layout.put, np.eye(n)
        self.systems = Systems(
            put(stacked.A),
            None if m == n and np.all(eye == stacked.B) else put(stacked.B),
            None if np.all(eye == stacked.Q) else put(stacked.Q),
            None if not stacked.R.any() else put(stacked.R),
            put(self.x0s),
            put(self.rates),
        )
        states, *baselines = _normalizations(stacked, self.x0s)
        self.measured = tuple(put(np.asarray(values, self.dtype)) for values in (np.concatenate([self.x0s, states], axis=1), *baselines))

    def advance(self, K: np.ndarray, count: int, intervals: int, every: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """(K after `count` updates, records before every `every`-th of them and a last one of the K returned) of the group's runs."""
        wide = self.layout.in_lanes and self.layout.mesh.devices.flat[0].platform == "cpu"
        K_after, records = (_advance_wide if wide else _advance_plain)(
            self.layout, self.systems, self.measured, self.layout.put(K), count, intervals=intervals, every=every
        )
        return np.asarray(K_after)[: len(K)], [np.asarray(record)[: len(K)] for record in records]

    def freeze(self, which: np.ndarray) -> None:
        """Without states nothing is learned, and zero states stay zero: a run that has ended keeps its K."""
        self.x0s[which] = 0.0
        self.systems = self.systems._replace(x0s=self.layout.put(self.x0s))


def _advance_group(layout: _Layout, systems: Systems, measured, K, count, *, intervals: int, every: int):
    """One program for any count ≤ intervals · every."""

    def block(systems, measured, K):
        def interval(K, j):
            updates = jnp.clip(count - j * every, 0, every)
            if layout.in_lanes:
                K_after = descend_in_lanes(systems, K, layout.horizon, updates)
            else:
                K_after = jax.vmap(lambda one, K: descend_by_products(one, K, layout.horizon, updates))(systems, K)
            return K_after, _records(layout, systems, measured, K)

        K, records = jax.lax.scan(interval, K, jnp.arange(intervals))
        records = jax.tree.map(lambda record, last: jnp.concatenate([record, last[None]]), records, _records(layout, systems, measured, K))
        return K, records

    def share(*arrays):
        """A device's share: block after block."""
        blocked = jax.tree.map(lambda a: a.reshape(layout.blocks, layout.block, *a.shape[1:]), arrays)
        K, records = jax.lax.map(lambda one: block(*one), blocked)
        return K.reshape(-1, *K.shape[2:]), jax.tree.map(lambda a: jnp.swapaxes(a, 1, 2).reshape(-1, intervals + 1), records)

    runs = Spec("runs")
    return jax.shard_map(share, mesh=layout.mesh, in_specs=(runs,) * 3, out_specs=runs, check_vma=False)(systems, measured, K)


_advance_plain = jax.jit(_advance_group, static_argnums=0, static_argnames=("intervals", "every"))
# Wider vectors than the compiler's default save a third of the time in lanes; the option is the CPU compiler's.
_advance_wide = jax.jit(
    _advance_group, static_argnums=0, static_argnames=("intervals", "every"), compiler_options={"xla_cpu_prefer_vector_width": 512}
)


def _records(layout: _Layout, systems: Systems, measured, K):
    """(J, normalised optimality, normalised cost) of each run: sums of stage costs from the seen states and from those that stand for U."""
    states, optimality, total = measured
    if layout.in_lanes:
        costs = stage_costs_in_lanes(systems, K, states, layout.horizon)
    else:
        costs = jax.vmap(lambda one, K, X: stage_costs_by_products(one, K, X, layout.horizon))(systems, K, states)
    seen = systems.x0s.shape[1]
    J, unseen = costs[:, :, :seen].sum(axis=(1, 2)) / seen, costs[:, 1:, seen:].sum(axis=2)
    return J, unseen[:, 0] / optimality, unseen.sum(axis=1) / total


def _normalizations(problems: LQR, x0s: np.ndarray):
    """`normalization` of each run; NaN where B is not square, for which no measure is defined."""
    if problems.control_dim == problems.state_dim:
        return [np.asarray(values) for values in _normalization_of_each(problems, x0s)]
    runs, n, dtype = len(x0s), problems.state_dim, problems.A.dtype
    return [np.zeros((runs, n, n), dtype), np.full(runs, np.nan, dtype), np.full(runs, np.nan, dtype)]


_normalization_of_each = jax.jit(jax.vmap(normalization))
