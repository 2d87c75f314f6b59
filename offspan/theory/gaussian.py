"""The first step of policy gradient on a random system, exactly  [R24, thm:typical_system].

A has independent entries N(0, 1/D), Q = I, B is orthogonal, S holds |S| orthonormal states, K(1) = 0. E_opt is quadratic in K, so

    E[E_opt(K(2))] / E[E_opt(K_no-ext)] = 1 − a η + b η²     with   a = E⟨∇E_opt, ∇J⟩   and   b = E[1/|U| Σ_{v∈U} ‖B∇J v‖²]

holds exactly, and a and b are expectations of products of forms αᵀWβ in A, which `genus` computes exactly. With x, y ∈ S, v ∈ U:

    a = 4 Σ_{n,k} E[vᵀAⁿx · xᵀ(A^{n+k+1})ᵀA^{k+1}v]                                       over n = 1..H−1, k = 0..H−n−1
    b = 4/|S|² Σ_{x,y} Σ_{n,k,m,l} E[vᵀAⁿx · vᵀA^m y · xᵀ(A^{n+k+1})ᵀA^k(A^l)ᵀA^{m+l+1}y]     and the same for m, l

Any other seen states enter through Σ = 1/|S| Σ_{x∈S} x xᵀ alone (`first_step_law`). If every state is r times as long, the law at the
learning rate η is the one of the original states at r²η.
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, combinations_with_replacement
from math import prod
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from offspan.errors import OffspanError, as_count, as_states
from offspan.states import unseen_directions
from offspan.theory.genus import BITS, MOST_LETTERS, Form, Laurent, closings, expectation_of_forms, loops, unpacked

_KNOWN: dict[int, list[tuple[Laurent, Laurent]]] = {}  # what `_sums` has found, by horizon


class FirstStepLaw(NamedTuple):
    """E[E_opt(K(2))] / E[E_opt(K_no-ext)] = 1 − a η + b η²: numbers, or functions of D (see `at`)."""

    a: Any  # a Fraction, or a Laurent polynomial in D
    b: Any

    def ratio(self, eta: float | Fraction) -> Any:
        """A Fraction for a Fraction, else a float."""
        a, b = self._numbers()
        exact = 1 - a * Fraction(eta) + b * Fraction(eta) ** 2
        return exact if isinstance(eta, Fraction) else float(exact)

    @property
    def best_learning_rate(self) -> Fraction:
        """η* = a / 2b."""
        a, b = self._numbers()
        return a / (2 * b)

    @property
    def best_ratio(self) -> Fraction:
        """1 − a² / 4b, at η*."""
        return self.ratio(self.best_learning_rate)

    @property
    def largest_learning_rate(self) -> Fraction:
        """a / b: below it the first step lowers the mean ratio below 1; above it, it raises it."""
        return 2 * self.best_learning_rate

    def at(self, dim: int) -> "FirstStepLaw":
        return FirstStepLaw(*(value(dim) if isinstance(value, Laurent) else value for value in self))

    def _numbers(self) -> tuple[Fraction, Fraction]:
        if isinstance(self.a, Laurent) or isinstance(self.b, Laurent):
            raise OffspanError("FirstStepLaw: a and b are functions of D here; take `law.at(dim)` first.")
        return self.a, self.b


def first_step_law(dim: int | None, horizon: int, seen: Any, *, progress: Callable[[float], Any] | None = None) -> FirstStepLaw:
    """The law for |S| = `seen` orthonormal states, or for the states `seen` themselves, an array (s, n), orthonormal or not  [beyond R24].

    a = tr Σ · a₁ and b = 4 (b_other (tr Σ)² + (b_same − b_other) tr Σ²) with Σ = 1/|S| Σ_{x∈S} x xᵀ, a₁ the value for one unit vector, and
    b_same, b_other the sums over n, k, m, l for x = y and x ⊥ y. With `dim=None`, a and b as functions of D: `law.a(5)`, or `law.at(5)` for
    both; of given states only the inner products enter, so that these may then lie in any larger space, too.

    Seconds up to H = 7, minutes for H = 8 and 9 (docs/random_systems.md has times and memory). `progress` is called with the share done.

    >>> first_step_law(None, horizon=2, seen=1)
    FirstStepLaw(a=4/D, b=4/D + 8/D^2 + 16/D^3)
    >>> float(first_step_law(5, horizon=2, seen=1).best_learning_rate)
    0.32051282051282054
    """
    horizon, _ = setting("first_step_law", dim, horizon, 1)
    trace, trace_of_square = _second_moments("first_step_law", dim, seen)
    same, other = _sums(horizon, progress)[0]
    law = FirstStepLaw(alignment_total(horizon) * trace, (other * trace**2 + (same - other) * trace_of_square) * 4)
    return law if dim is None else law.at(dim)


def participation_ratio(seen: Any) -> float:
    """(tr Σ)² / tr Σ² with Σ = 1/|S| Σ_{x∈S} x xᵀ: how many orthonormal states the seen ones are worth in the first step, for large D.

    Between 1, for states on one line, and |S|, for orthogonal states of one length  [beyond R24].

    >>> participation_ratio([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), participation_ratio([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    (2.0, 1.0)
    """
    trace, trace_of_square = _second_moments("participation_ratio", None, seen)
    return float(trace**2 / trace_of_square)


def _second_moments(where: str, dim: int | None, seen: Any) -> tuple[Fraction, Fraction]:
    """tr Σ and tr Σ², of a number of orthonormal states or of states; in fractions, from inner products in float64."""
    if not isinstance(seen, list | tuple) and not getattr(seen, "ndim", 0):
        _, seen = setting(where, dim, 2, seen)
        return Fraction(1), Fraction(1, seen)
    as_states(where, "seen", seen, dim)
    X = np.asarray(seen, float)  # in double precision, whatever jax works in
    if not X.any():
        raise OffspanError(
            f"{where}: all states in `seen` are zero, so that there is nothing to learn from; pass at least one that is not."
        )
    exponent = int(np.frexp(np.abs(X).max())[1])
    X = np.ldexp(X, -exponent)  # so that no product overflows
    if dim is not None and not len(unseen_directions(jnp.asarray(X))):
        raise OffspanError(f"{where}: the states `seen` span all {dim} dimensions, so that no direction is unseen; pass fewer of them.")
    gram, unit = X @ X.T, Fraction(4) ** exponent / len(X)
    return Fraction(float(np.trace(gram))) * unit, Fraction(float(np.sum(gram**2))) * unit**2


def expected_gradient_norm(dim: int | None, horizon: int, seen: int, *, progress: Callable[[float], Any] | None = None) -> Any:
    """E‖∇J(K(1); S)‖², which [R24, expected_grad_norm] bounds by 4H²(H−1)²(4H−1)!!; a Fraction, or with `dim=None` a Laurent polynomial."""
    horizon, seen = setting("expected_gradient_norm", dim, horizon, seen)
    norm = _mean_over_pairs(seen, *_sums(horizon, progress)[1])
    return norm if dim is None else norm(dim)


def alignment_total(horizon: int) -> Laurent:
    """a = 4 Σ_{n,k} E Z_{n,k}, as a function of D."""
    return sum((alignment_mean(n, k) for n, k in terms(horizon) if n), Laurent()) * 4


def alignment_mean(n: int, k: int) -> Laurent:
    """E Z_{n,k}, Z_{n,k} = vᵀAⁿx · xᵀ(A^{n+k+1})ᵀA^{k+1}v  [R24, eq:Z_Y_def]."""
    return expectation_of_forms(alignment_forms("v", "x", n, k))


def alignment_variance(n: int, k: int) -> Laurent:
    """Var Z_{n,k}  [R24, var_prop]."""
    mean = alignment_mean(n, k)
    return expectation_of_forms([*alignment_forms("v", "x", n, k), *alignment_forms("v", "x", n, k)]) - mean * mean


def alignment_covariance(n: int, k: int) -> Laurent:
    """Cov(Z_{v,n,k}, Z_{w,n,k}) for orthogonal v and w  [R24, cov_prop]."""
    mean = alignment_mean(n, k)
    return expectation_of_forms([*alignment_forms("v", "x", n, k), *alignment_forms("w", "x", n, k)]) - mean * mean


def terms(horizon: int) -> list[tuple[int, int]]:
    """All (n, k) with n = 0..H−1 and k = 0..H−n−1."""
    return [(n, k) for n in range(horizon) for k in range(horizon - n)]


def alignment_forms(v: str, x: str, n: int, k: int) -> list[Form]:
    """Z_{v,x,n,k} as a product of forms."""
    return [(v, "A" * n, x), (x, "T" * (n + k + 1) + "A" * (k + 1), v)]


def gradient_norm_term(n: int, k: int, m: int, l: int, *, same: bool) -> Laurent:  # noqa: E741
    """E[yᵀ(A^m)ᵀAⁿx · xᵀ(A^{n+k+1})ᵀA^k(A^l)ᵀA^{m+l+1}y], a term of E‖∇J‖², for x = y or x ⊥ y  [R24, eq:sq_grad_norm_prelim_deriv]."""
    y = "x" if same else "y"
    return expectation_of_forms([(y, "T" * m + "A" * n, "x"), _core(n, k, m, l, y)])


def _core(n: int, k: int, m: int, l: int, y: str):  # noqa: E741
    return "x", "T" * (n + k + 1) + "A" * k + "T" * l + "A" * (m + l + 1), y


def _mean_over_pairs(seen: int, same: Laurent, other: Laurent) -> Laurent:
    """4/|S|² Σ_{x,y} of a quantity that has one value for x = y and another for x ≠ y."""
    return (same + other * (seen - 1)) * Fraction(4, seen)


def _sums(horizon: int, progress: Callable[[float], Any] | None = None) -> list[tuple[Laurent, Laurent]]:
    """Σ_{n,k,m,l} of b and of E‖∇J‖², each for x = y and for x ≠ y.

    Sums over a whole orthonormal basis take the place of v and y, so that x alone is left, which `closings` average away. With
    N = n + k + 1, M = m + l + 1, C = (A^N)ᵀA^k(A^l)ᵀA^M, and everything summed over n, k, m, l:

        norm = E[xᵀ(A^m)ᵀAⁿx · xᵀCx],   norm_x = E[xᵀAⁿx · xᵀA^m x · xᵀCx],   trace = E[xᵀC(A^m)ᵀAⁿx],   trace_x = E[xᵀAⁿx · xᵀC(A^m)ᵀx]
        (D−1) b_same = norm − norm_x,   (D−1) norm_other = trace − norm,   (D−2) b_other = norm_other − 2(trace_x − norm_x)/(D−1)
    """
    if horizon not in _KNOWN:
        most, D, seen = 4 * horizon - 2, 1 << BITS, {}

        def mean(*words: str) -> int:
            """D^{most/2} E Π xᵀWx, at D = 2^BITS."""
            total = sum(loops((), cycles, seen) for cycles in closings(words)) << BITS * (most - sum(map(len, words))) // 2
            return total // prod(D + 2 * i for i in range(len(words)))

        pairs = sorted(combinations_with_replacement(terms(horizon), 2), key=lambda pair: sum(map(sum, pair)))  # the shortest words first
        work = [2.5 ** sum(map(sum, pair)) for pair in pairs]  # what two letters more take, as measured
        norm = norm_x = trace = trace_x = 0
        for ((n, k), (m, l)), done in zip(pairs, accumulate(work), strict=True):  # noqa: E741
            times = 1 if (n, k) == (m, l) else 2  # (n, k) and (m, l) can be exchanged; trace_x alone takes both orders
            there, again, (_, C, _) = "A" * n, "A" * m, _core(n, k, m, l, "x")
            norm += times * mean("T" * m + there, C)
            norm_x += times * mean(there, again, C)
            trace += times * mean(C + "T" * m + there)
            trace_x += times * (mean(there, C + "T" * m) + mean(again, there + C)) // 2
            if progress:
                progress(done / sum(work))
        norm_other = (trace - norm) // (D - 1)
        b = (norm - norm_x) // (D - 1), (norm_other - 2 * (trace_x - norm_x) // (D - 1)) // (D - 2)
        _KNOWN[horizon] = [(unpacked(same, most), unpacked(other, most)) for same, other in (b, (norm, norm_other))]
    return _KNOWN[horizon]


def double_factorial(odd: int) -> int:
    """N!! = N (N − 2) ⋯ 3."""
    return prod(range(odd, 1, -2))


class Bounds(NamedTuple):
    """What the theorem and its proof use in place of the exact values  [R24, thm:typical_system]."""

    learning_rate: Fraction  # η ≤ this, for the expectation
    alignment: Fraction  # a ≥ this
    gradient_norm: Fraction  # E‖∇J‖² ≤ this, as printed
    gradient_norm_counted: Fraction  # the same by the terms of the proof: H²(H+1)² of them, of at most 4H − 2 letters
    variance: Fraction  # Var Z ≤ this
    covariance: Fraction  # Cov(Z, Z') ≤ this
    likely_learning_rate: Fraction  # η ≤ this, for high probability


def bounds(dim: int, horizon: int) -> Bounds:
    """The bounds of the theorem and of its proof, for the exact values to be compared with  [R24, thm:typical_system]."""
    horizon, _ = setting("bounds", dim, horizon, 1)
    D, H, pairings = Fraction(dim), horizon, double_factorial(4 * horizon - 1)
    return Bounds(
        1 / (4 * D * H * (H - 1) * pairings),
        2 * H * (H - 1) / D,
        Fraction(4 * H**2 * (H - 1) ** 2 * pairings),
        Fraction(H**2 * (H + 1) ** 2 * double_factorial(4 * H - 3)),
        pairings / D**2,
        pairings / D**3,
        1 / (8 * D**2 * H * (H - 1) * pairings),
    )


def likely_dimension(horizon: int, seen: int, failure: Fraction) -> int:
    """The least D for which the theorem holds with probability 1 − δ: |S| + 6|S|H(H−1)(4H−1)!!/δ  [R24, thm:typical_system]."""
    horizon, seen = setting("likely_dimension", None, horizon, seen)
    if not 0 < failure < 1:
        raise OffspanError(f"likely_dimension: `failure` is {failure!r}, but must be a probability between 0 and 1.")
    return seen + -(-6 * seen * horizon * (horizon - 1) * double_factorial(4 * horizon - 1) // Fraction(failure))


def setting(where: str, dim: int | None, horizon: int, seen: Any) -> tuple[int, int]:
    horizon, seen = as_count(where, "horizon", horizon, least=2), as_count(where, "seen", seen, least=1)
    if 4 * horizon - 2 > MOST_LETTERS:
        limit = f"words of 4H − 2 ≤ {MOST_LETTERS} letters: H ≤ {(MOST_LETTERS + 2) // 4}"
        raise OffspanError(f"{where}: `horizon` is {horizon}, but exact values have {limit}.")
    if dim is not None and as_count(where, "dim", dim, least=2) <= seen:
        raise OffspanError(f"{where}: `seen` is {seen} and `dim` {dim}, so that no direction is unseen; pass fewer seen states.")
    return horizon, seen
