"""The law of the first step in large dimensions, by counting planar pairings  [beyond R24].

A has independent entries N(0, q/D); q = 1 is the paper's. Forms that close up, αᵀWβ · βᵀW'γ ⋯ ζᵀW''α, are one trace of a cyclic word in A
and Aᵀ, with the projectors ββᵀ, γγᵀ, …, ααᵀ at marked corners. With p letters and d different vectors, which are orthonormal,

    E[αᵀWβ · βᵀW'γ ⋯] = q^{p/2} N D^{1−d} + O(D^{−d}),

where N (`planar_count`) counts the non-crossing pairings of letters A with letters Aᵀ that glue corners exactly where their vectors are the
same. Two corners are glued iff no pair has one letter on each side of them. The proof is in docs/leading_order.md.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from offspan.errors import OffspanError, as_count
from offspan.theory.gaussian import terms
from offspan.theory.genus import Form

Number = int | float | Fraction


class LeadingOrder(NamedTuple):
    """The limits for D → ∞ at fixed H and S, for Σ = 1/|S| Σ_{x∈S} x xᵀ; orthonormal states have tr Σ = 1 and tr Σ² = 1/|S|."""

    baseline: Any  # E[E_opt(K_no-ext)] = q
    alignment: Any  # D·a → this · tr Σ
    curvature: Any  # D·b → this · tr Σ²
    gradient_norm: Any  # E‖∇J(K(1); S)‖² → this · tr Σ²
    cost_alignment: Any  # D·E⟨∇E_cost, ∇J⟩ → this · tr Σ

    @property
    def best_learning_rate(self) -> Any:
        """η* → this · tr Σ / tr Σ², or this · |S| for orthonormal states."""
        return self.alignment / (2 * self.curvature)

    @property
    def best_gain(self) -> Any:
        """D (1 − E[E_opt(K(2))]/E[E_opt(K_no-ext)]) at η* → this · (tr Σ)²/tr Σ², or this · |S| for orthonormal states."""
        return self.alignment**2 / (4 * self.curvature * self.baseline)


def planar_count(forms: Iterable[Form]) -> int:
    """N of the module's equation, for forms (α, W, β) that close up: each starts at the vector where the one before it ends.

    >>> planar_count([("v", "AA", "x"), ("x", "TTTA", "v")])  # E[vᵀA²x · xᵀ(A³)ᵀA v] = 1/D + …
    1
    """
    forms = tuple(forms)
    if wrong := [W for _, W, _ in forms if set(W) - {"A", "T"}]:
        raise OffspanError(f"planar_count: the word {wrong[0]!r} has letters other than A and T.")
    if not forms or any(one[2] != following[0] for one, following in zip(forms, forms[1:] + forms[:1], strict=True)):
        raise OffspanError(f"planar_count: the forms {forms} do not close up; each must start at the vector where the one before it ends.")
    marks: list[str | None] = [None]
    for alpha, W, _ in forms:
        if marks[-1] not in (None, alpha):
            return 0  # a form without letters between two vectors, which are orthogonal
        marks[-1:] = [alpha, *[None] * len(W)]
    if marks[-1] not in (None, forms[0][0]):
        return 0
    return _count("".join(W for _, W, _ in forms), tuple(marks))


@cache
def _count(W: str, marks: tuple[str | None, ...]) -> int:
    """The same for a word whose corners 0..p bear these marks; corners 0 and p are one."""
    if not W:
        return 1
    total, height = 0, 0
    for j in range(1, len(W)):
        # Letter 0 with letter j glues corner 0 to j+1, and corner 1 to j; what is between pairs within itself.
        if W[j] != W[0] and not height:
            inside, root, after = marks[1 : j + 1], marks[0], marks[j + 1 :]
            agree = root is None or after[0] in (None, root)
            after = (after[0] if root is None else root, *after[1:])
            if agree and set(inside).isdisjoint({*after} - {None}) and (inner := _count(W[1:j], inside)):
                total += inner * _count(W[j + 1 :], after)
        height += 1 if W[j] == W[0] else -1
    return total


def _check_variance(where: str, q: Number) -> None:
    if not 0 < q <= 1:
        raise OffspanError(f"{where}: `q` is {q!r}, but must be above 0 and at most 1.")


def planar_sums(horizon: int, q: Number = 1) -> LeadingOrder:
    """The limits as sums of planar counts over the terms of `gaussian`, one word after the other.

    >>> planar_sums(3)
    LeadingOrder(baseline=1, alignment=12, curvature=24, gradient_norm=80, cost_alignment=148)
    """
    each = terms(as_count("planar_sums", "horizon", horizon, least=2))
    _check_variance("planar_sums", q)
    a = b = norm = cost = 0
    for n, k in each:
        a += planar_count([("v", "A" * n, "x"), ("x", "T" * (n + k + 1) + "A" * (k + 1), "v")]) * q ** (n + k + 1)
    for (n, k), (m, l) in product(each, repeat=2):  # noqa: E741
        core, weight = "T" * (n + k + 1) + "A" * k + "T" * l + "A" * (m + l + 1), q ** (n + m + k + l + 1)
        b += planar_count([("x", core, "x"), ("x", "T" * m, "v"), ("v", "A" * n, "x")]) * weight
        norm += planar_count([("x", core, "x"), ("x", "T" * m + "A" * n, "x")]) * weight
        cost += planar_count([("v", core, "x"), ("x", "T" * m + "A" * n, "v")]) * weight
    return LeadingOrder(q, *(4 * total for total in (a, b, norm, cost)))


def leading_order(horizon: int | float, q: Number = 1) -> LeadingOrder:
    """The same limits in closed form; for q < 1 also for H → ∞ after D → ∞, `horizon=math.inf`.

    q = 1:  2H(H−1),  H²(H²−1)/3,  H(H+1)²(H+2)/3  and  H(H²−1)(H+2)(H²+7H+7)/30
    H = ∞:  4q²/(1−q)²,  4q³/((1−q²)²(1−q)²),  4q/((1−q²)²(1−q)²)  and  4q²(2−q)/((1−q²)²(1−q)⁴)

    >>> leading_order(3).best_gain  # 3(H−1)/(H+1)
    1.5
    >>> leading_order(math.inf, q=Fraction(1, 2)).best_gain  # (1+q)²
    Fraction(9, 4)
    """
    _check_variance("leading_order", q)
    if q == 1 and horizon == math.inf:
        raise OffspanError("leading_order: `q` is 1, but must be less than 1 for an infinite horizon.")
    if horizon == math.inf:
        rest = (1 - q**2) ** 2 * (1 - q) ** 2
        return LeadingOrder(q, 4 * q**2 / (1 - q) ** 2, 4 * q**3 / rest, 4 * q / rest, 4 * q**2 * (2 - q) / (rest * (1 - q) ** 2))
    H = as_count("leading_order", "horizon", horizon, least=2)
    if q == 1:
        b, norm, cost = H**2 * (H**2 - 1), H * (H + 1) ** 2 * (H + 2), H * (H**2 - 1) * (H + 2) * (H**2 + 7 * H + 7)
        return LeadingOrder(q, 2 * H * (H - 1), b // 3, norm // 3, cost // 30)  # all are whole numbers
    # Σ_{k,l<N} (min(k,l)+1) q^{k+l} = Σ_{i<N} (q^i + … + q^{N−1})²: a pair counts once for each i ≤ min(k, l).
    geometric = [sum(q**s for s in range(N)) for N in range(H + 1)]
    nested = [sum((q**i * geometric[N - i]) ** 2 for i in range(N)) for N in range(H + 1)]
    b, norm = (4 * sum(q ** (2 * n + 1) * nested[H - n] for n in range(first, H)) for first in (1, 0))
    # The same for i ≤ min(m,n) and j ≤ min(k,l): i + j = u in u + 1 ways, and what is left of n + k, and of m + l, is s < H − u.
    rest = [sum((s + 1) * q**s for s in range(H - u)) for u in range(H)]
    cost = 4 * sum((u + 1) * q ** (2 * u + 1) * rest[u] ** 2 for u in range(H)) - norm
    return LeadingOrder(q, 4 * sum(s * q ** (s + 1) for s in range(1, H)), b, norm, cost)
