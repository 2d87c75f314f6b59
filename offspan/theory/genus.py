"""Expectations of traces of words in a real Gaussian matrix, exactly  [R24, genus_expansion].

A has independent entries N(0, 1/D). By Wick's formula the expectation of a product of traces is a sum over all pairings of its letters, and
each pairing glues polygons, one for each trace, into a surface whose Euler characteristic is the exponent of D. The result is a Laurent
polynomial in D with integer coefficients, computed here by two routes that share no code:

  `expectation_by_gluings`  the sum over all (p−1)!! pairings, in the permutations of thm:genus_expansion_main_theorem
  `expectation`             a recursion on words, which pairs one letter after the other and caches its intermediate results
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from offspan.errors import OffspanError

Number = int | Fraction


class Laurent:
    """Σ_e c_e D^e with rational coefficients c_e, exactly.

    >>> (Laurent({0: 1, -1: 2}) * Laurent({1: 3}))(4), Laurent({0: 1, -1: 2})
    (Fraction(18, 1), 1 + 2/D)
    """

    def __init__(self, coefficients: Mapping[int, Number] | Number = 0):
        given = coefficients if isinstance(coefficients, Mapping) else {0: coefficients}
        self.coefficients = {e: Fraction(c) for e, c in sorted(given.items(), reverse=True) if c}

    def __call__(self, dim: Number) -> Fraction:
        return sum((c * Fraction(dim) ** e for e, c in self.coefficients.items()), Fraction(0))

    def __add__(self, other: "Laurent | Number") -> "Laurent":
        return _collect([*self.coefficients.items(), *_terms(other)])

    def __mul__(self, other: "Laurent | Number") -> "Laurent":
        return _collect((e + f, c * d) for e, c in self.coefficients.items() for f, d in _terms(other))

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: "Laurent | Number") -> "Laurent":
        return self + other * -1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Laurent) and self.coefficients == other.coefficients

    def __hash__(self) -> int:
        return hash(tuple(self.coefficients.items()))

    def __repr__(self) -> str:
        """1 + 2/D − 3/D^2, the largest power first."""
        text = ""
        for e, c in self.coefficients.items():
            power = "" if e == 0 else "D" if abs(e) == 1 else f"D^{abs(e)}"
            size = "" if abs(c) == 1 and e > 0 else str(abs(c))
            sign = (" − " if c < 0 else " + ") if text else "−" if c < 0 else ""
            text += sign + size + (f"/{power}" if e < 0 else power)
        return text or "0"


def _terms(value: Laurent | Number) -> Iterable[tuple[int, Number]]:
    return value.coefficients.items() if isinstance(value, Laurent) else [(0, value)]


def _collect(terms: Iterable[tuple[int, Number]]) -> Laurent:
    total: dict[int, Number] = {}
    for e, c in terms:
        total[e] = total.get(e, 0) + c
    return Laurent(total)


class Letter(NamedTuple):
    """A (sign +1) or Aᵀ (sign −1), and the fixed matrix after it: the identity, or left·rightᵀ for two of some orthonormal vectors."""

    sign: int
    left: str | None = None
    right: str | None = None


Word = tuple[Letter, ...]  # the letters of one trace


def word(letters: str, left: str | None = None, right: str | None = None) -> Word:
    """Tr of this word, times left·rightᵀ at its end if given: `word("AAT", "x", "y")` is Tr(A A Aᵀ x yᵀ) = yᵀ A A Aᵀ x."""
    if not letters or set(letters) - {"A", "T"}:
        raise OffspanError(f"word: the letters are {letters!r}, but must be A, and T for the transpose of A, at least one.")
    if (left is None) != (right is None):
        raise OffspanError(f"word: left is {left!r} and right is {right!r}; give both, for the matrix left·rightᵀ, or none.")
    signs = [1 if letter == "A" else -1 for letter in letters]
    return (*(Letter(sign) for sign in signs[:-1]), Letter(signs[-1], left, right))


class Gluing(NamedTuple):
    """A surface: the polygons of some words with their edges glued in pairs (edges are numbered 1..p through all words)."""

    pairs: tuple[tuple[int, int], ...]
    euler_characteristic: int
    orientable: bool
    components: int
    term: Laurent  # what it adds to the expectation


def expectation_by_gluings(words: Iterable[Word]) -> Laurent:
    """E Π Tr(word) = Σ_ρ D^{χ(γ, σ) − |γ|} tr_{γ_−⁻¹σγ_+/2}(C_1, …, C_p), σ = δ_ε ρδρ δ_ε  [R24, thm:genus_expansion_main_theorem]."""
    return sum((gluing.term for gluing in gluings(words)), Laurent())


def gluings(words: Iterable[Word]) -> Iterator[Gluing]:
    """The surfaces of all (p−1)!! pairings ρ of the p letters; none for an odd p.

    A corner of a surface is a cycle of γ_−⁻¹σγ_+/2. The trace of its fixed matrices is D where all of them are the identity, and otherwise
    1 or 0, as neighbouring vectors are the same or orthogonal.
    """
    words = _checked(words)
    letters = dict(enumerate((letter for one in words for letter in one), start=1))
    gamma, start = {}, 1
    for one in words:
        gamma |= {start + i: start + (i + 1) % len(one) for i in range(len(one))}
        start += len(one)
    before = {image: k for k, image in gamma.items()}
    for rho in _pairings(tuple(letters)):
        # σ: letters of one kind are glued front to back (k ↔ −ρ(k)), A and Aᵀ front to front (k ↔ ρ(k)).
        sigma = {}
        for k, partner in rho.items():
            side = -letters[k].sign * letters[partner].sign
            sigma |= {k: side * partner, -k: -side * partner}
        # γ_−⁻¹ σ γ_+, where γ_+ moves the positive numbers only, and γ_− = δ γ_+ δ the negative ones.
        glued = {k: sigma[gamma[k]] for k in letters} | {-k: sigma[-k] for k in letters}
        corners = _half({k: image if image > 0 else -before[-image] for k, image in glued.items()})
        chi = len(words) + len(letters) // 2 + len(corners) - len(letters)
        traces = [_trace(corner, letters) for corner in corners]
        term = Laurent({chi - len(words) - traces.count(1): int(0 not in traces)})
        components, orientable = _topology(words, letters, rho)
        yield Gluing(tuple((k, partner) for k, partner in rho.items() if k < partner), chi, orientable, components, term)


def _checked(words: Iterable[Word]) -> list[Word]:
    words = list(words)
    for letter in (letter for one in words for letter in one):
        if letter.sign not in (1, -1) or (letter.left is None) != (letter.right is None):
            raise OffspanError(f"a letter is {letter}, but its sign must be 1 or −1, and `left` and `right` both names or both None.")
    return words


def _pairings(items: tuple[int, ...]) -> Iterator[dict[int, int]]:
    if not items:
        yield {}
    for i in range(1, len(items)):
        first, partner = items[0], items[i]
        for rest in _pairings(items[1:i] + items[i + 1 :]):
            yield {first: partner, partner: first, **rest}


def _half(premap: dict[int, int]) -> list[list[int]]:
    """The cycles of premap/2: of each cycle and its mirror image, the one whose smallest element in absolute value is positive."""
    left, cycles = set(premap), []
    while left:
        cycle = [left.pop()]
        while (following := premap[cycle[-1]]) != cycle[0]:
            cycle.append(following)
        left -= set(cycle)
        if min(cycle, key=abs) > 0:
            cycles.append(cycle)
    return cycles


def _trace(corner: list[int], letters: dict[int, Letter]) -> int | None:
    """1 or 0, or None for D."""
    fixed = [(one.left, one.right) if k > 0 else (one.right, one.left) for k in corner if (one := letters[abs(k)]).left is not None]
    return int(all(right == left for (_, right), (left, _) in zip(fixed, fixed[1:] + fixed[:1], strict=True))) if fixed else None


def _topology(words: list[Word], letters: dict[int, Letter], rho: dict[int, int]) -> tuple[int, bool]:
    """The number of connected components, and whether each polygon can be given a side so that all gluings join equal sides."""
    face = dict(enumerate((f for f, one in enumerate(words) for _ in one), start=1))
    component, side, orientable = list(range(len(words))), [1] * len(words), True
    for k, partner in rho.items():
        mine, theirs = component[face[k]], component[face[partner]]
        turn = -letters[k].sign * letters[partner].sign * side[face[k]] * side[face[partner]]  # −1: turn one over
        if mine == theirs:
            orientable &= turn == 1
        for f in (f for f in range(len(words)) if component[f] == theirs != mine):
            component[f], side[f] = mine, side[f] * turn
    return len(set(component)), orientable


SWAP = str.maketrans("AT", "TA")
BITS = 128  # for each power of D in a packed polynomial; coefficients add up to (p−1)!!, 6e18 for p = 34: sums over many words fit, too
MOST_LETTERS = 34  # as H = 9 has, which takes minutes; each H more takes six times as long
Form = tuple[Any, str, Any]  # (α, W, β) stands for the number αᵀWβ, with α and β names of orthonormal vectors
State = tuple[tuple[Form, ...], tuple[str, ...]]  # forms, and traces of words: cycles


def expectation(words: Iterable[Word]) -> Laurent:
    """The same by the recursion of `expectation_of_forms`: fixed matrices x yᵀ cut the traces into forms, traces without one stay whole."""
    forms, cycles = [], []
    for one in _checked(words):
        letters = "".join("A" if letter.sign > 0 else "T" for letter in one)
        cuts = [i for i, letter in enumerate(one) if letter.left is not None]
        if not cuts:
            cycles.append(letters)
        for cut, following in zip(cuts, cuts[1:] + cuts[:1], strict=True):  # rightᵀ of one cut, the letters up to the next, its left
            between = letters[cut + 1 : following + 1] if following > cut else letters[cut + 1 :] + letters[: following + 1]
            forms.append((one[cut].right, between, one[following].left))
    return expectation_of_forms(forms, cycles)


def expectation_of_forms(forms: Iterable[Form], cycles: Iterable[str] = (), seen: dict[State, int] | None = None) -> Laurent:
    """E Π αᵀWβ · Π Tr(W) by pairing one letter after the other (Wick's formula, or Schwinger–Dyson equations).

    Each pairing of the first letter removes two letters and leaves shorter forms and cycles, which are cached in a canonical order: neither
    the order of the factors, nor rotations of a cycle, nor transposes matter, nor A and Aᵀ exchanged everywhere, which are alike in law. A
    form without letters must join a vector to itself, or the product is zero. So the number of states grows far more slowly than the
    number of pairings, most slowly without forms: see `closings`. `seen` keeps them for the next call.

    >>> expectation_of_forms([("x", "TA", "x")])  # E‖A x‖²
    1
    """
    forms, cycles = tuple(forms), tuple(cycles)
    letters = sum(len(W) for _, W, _ in forms) + sum(map(len, cycles))
    if letters > MOST_LETTERS:
        raise OffspanError(f"expectation: the words have {letters} letters, but at most {MOST_LETTERS} can be paired in reasonable time.")
    if letters % 2:
        return Laurent()
    return unpacked(loops(forms, cycles, {} if seen is None else seen), letters)


def unpacked(value: int, letters: int) -> Laurent:
    """D^{−p/2} times the polynomial whose value at D = 2^BITS this is; its coefficients are not negative."""
    mask = (1 << BITS) - 1
    return Laurent({e - letters // 2: (value >> (BITS * e)) & mask for e in range(value.bit_length() // BITS + 1)})


def closings(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The cycles that some words become when their 2q ends are joined in pairs, in each of the (2q−1)!! ways  [beyond R24].

    The law of A does not change under rotations, so a unit vector x can be averaged over the sphere, where 2q factors x have the mean
    Σ over pairings of their indices / (D (D+2) ⋯ (D+2q−2)):

        E Π_{i=1}^{q} xᵀW_i x = Σ over closings of E Π Tr(cycle) / (D (D+2) ⋯ (D+2q−2)).

    >>> list(closings(("AT", "AA")))
    [('AT', 'AA'), ('ATAA',), ('ATTT',)]
    """
    if not words:
        yield ()
        return
    first, rest = words[0], words[1:]
    for cycles in closings(rest):
        yield (first, *cycles)
    for W, earlier, later in _each(rest):
        yield from closings((first + W, *earlier, *later))
        yield from closings((first + _transpose(W), *earlier, *later))


def loops(forms: tuple[Form, ...], cycles: tuple[str, ...], seen: dict[State, int]) -> int:
    """Σ over pairings of D^{closed loops} at D = 2^BITS: a polynomial as one integer, which adds, and is multiplied by D, quickly."""
    if any(not W and alpha != beta for alpha, W, beta in forms):
        return 0
    swapped = tuple((alpha, W.translate(SWAP), beta) for alpha, W, beta in forms)
    necklaces = [_necklaces(W) for W in cycles if W]
    state = min(
        (_ordered(forms), tuple(sorted([W for W, _ in necklaces]))),
        (_ordered(swapped), tuple(sorted([W for _, W in necklaces]))),
    )
    if state not in seen:
        seen[state] = sum(loops(*left, seen) for left in _pair_one_letter(*state)) if state != ((), ()) else 1
    return seen[state] << (BITS * (len(cycles) - len(necklaces)))


def _ordered(forms: tuple[Form, ...]) -> tuple[Form, ...]:
    return tuple(sorted(min((alpha, W, beta), (beta, _transpose(W), alpha)) for alpha, W, beta in forms if W))


@lru_cache(2**20)
def _necklaces(W: str) -> tuple[str, str]:
    """The least of all rotations of a cycle and of its transpose; and the same with A and Aᵀ exchanged."""
    alike = [V[i:] + V[:i] for V in (W, _transpose(W)) for i in range(len(W))]
    return min(alike), max(alike).translate(SWAP)


def _pair_one_letter(forms: tuple[Form, ...], cycles: tuple[str, ...]) -> Iterator[State]:
    """What is left when the first letter, of the shortest form or else of the shortest cycle, is paired with each of the others.

    A_ij A_kl pairs to δ_ik δ_jl / D: letters of one kind join left to left and right to right, A and Aᵀ left to right.
    """
    if forms:
        shortest = min(range(len(forms)), key=lambda i: len(forms[i][1]))  # soonest used up, so soonest known to be zero
        (alpha, W, beta), forms = forms[shortest], forms[:shortest] + forms[shortest + 1 :]
    else:
        shortest = min(range(len(cycles)), key=lambda i: len(cycles[i]))  # soonest used up, so that fewer states are met
        (alpha, W, beta), cycles = (None, cycles[shortest], None), cycles[:shortest] + cycles[shortest + 1 :]

    def left(W: str, cycles: tuple[str, ...]) -> State:
        return ((), (*cycles, W)) if alpha is None else ((*forms, (alpha, W, beta)), cycles)

    first, W = W[0], W[1:]
    for letter, before, after in _each(W):
        yield left(after, (*cycles, before)) if letter != first else left(_transpose(before) + after, cycles)
    for (gamma, V, delta), earlier, later in _each(forms):
        for letter, before, after in _each(V):
            if letter != first:
                yield (*earlier, *later, (alpha, after, delta), (gamma, before + W, beta)), cycles
            else:
                yield (*earlier, *later, (alpha, _transpose(before), gamma), (delta, _transpose(after) + W, beta)), cycles
    for cycle, earlier, later in _each(cycles):
        for letter, before, after in _each(cycle):
            V = after + before
            yield left((V if letter != first else _transpose(V)) + W, earlier + later)


def _each(items: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Each item of a string or tuple, with the part before it and the part after it."""
    return ((item, items[:i], items[i + 1 :]) for i, item in enumerate(items))


def _transpose(W: str) -> str:
    return W.translate(SWAP)[::-1]
