"""Expectations of traces of words in a real Gaussian matrix, exactly  [R24, genus_expansion].

A has independent entries N(0, 1/D). By Wick's formula the expectation of a product of traces is a sum over all pairings of its letters, and
each pairing glues the polygons that the traces are into a surface; its Euler characteristic is the exponent of D. What comes out is a
Laurent polynomial in D with integer coefficients, found here by two routes that share no code:

  `expectation_by_gluings`  the sum over all (p−1)!! pairings, in the permutations of thm:genus_expansion_main_theorem
  `expectation`             a recursion on words, which pairs one letter after the other and remembers what it has seen
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from offspan.errors import OffspanError
from offspan.theory.laurent import Laurent


class Letter(NamedTuple):
    """A (sign +1) or Aᵀ (sign −1), and the fixed matrix after it: the identity, or left·rightᵀ for two of some orthonormal vectors."""

    sign: int
    left: str | None = None
    right: str | None = None


Word = tuple[Letter, ...]  # what stands in one trace


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
    words = _checked(words)
    total: Counter[int] = Counter()
    for _, chi, traces in _glue(words):
        total[chi - len(words) - traces.count(1)] += 0 not in traces
    return Laurent(total)


def gluings(words: Iterable[Word]) -> Iterator[Gluing]:
    """The surfaces of all (p−1)!! pairings ρ of the p letters. None for an odd p."""
    words = _checked(words)
    for rho, chi, traces in _glue(words):
        components, orientable = _topology(words, rho)
        pairs = tuple((k, partner) for k, partner in rho.items() if k < partner)
        term = Laurent({chi - len(words) - traces.count(1): int(0 not in traces)})
        yield Gluing(pairs, chi, orientable, components, term)


def _checked(words: Iterable[Word]) -> list[Word]:
    words = list(words)
    for letter in (letter for one in words for letter in one):
        if letter.sign not in (1, -1) or (letter.left is None) != (letter.right is None):
            raise OffspanError(f"a letter is {letter}, but its sign must be 1 or −1, and `left` and `right` both names or both None.")
    return words


def _glue(words: list[Word]) -> Iterator[tuple[dict[int, int], int, list[int | None]]]:
    """For each pairing ρ: ρ, χ(γ, σ), and for each cycle of γ_−⁻¹σγ_+/2, which is a corner of the surface, the trace of its fixed matrices.

    That is 1 or 0, as neighbouring vectors are the same or orthogonal, and None for D, where all of them are the identity.
    """
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
        yield rho, chi, [_trace([letters[k] if k > 0 else _transposed(letters[-k]) for k in corner]) for corner in corners]


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


def _transposed(letter: Letter) -> Letter:
    return letter._replace(left=letter.right, right=letter.left)


def _trace(letters: list[Letter]) -> int | None:
    outer = [letter for letter in letters if letter.left is not None]
    if not outer:
        return None
    return int(all(one.right == following.left for one, following in zip(outer, outer[1:] + outer[:1], strict=True)))


def _topology(words: list[Word], rho: dict[int, int]) -> tuple[int, bool]:
    """Connected components, and whether each polygon can be given a side so that all gluings join equal sides."""
    face = dict(enumerate((f for f, one in enumerate(words) for _ in one), start=1))
    sign = dict(enumerate((letter.sign for one in words for letter in one), start=1))
    side: dict[int, int] = {}
    components, orientable = 0, True
    for f in range(len(words)):
        if f in side:
            continue
        components += 1
        side[f], waiting = 1, [f]
        while waiting:
            current = waiting.pop()
            for k in (k for k in face if face[k] == current):
                other, wanted = face[rho[k]], -side[current] * sign[k] * sign[rho[k]]
                if other not in side:
                    side[other] = wanted
                    waiting.append(other)
                orientable &= side[other] == wanted
    return components, orientable


SWAP = str.maketrans("AT", "TA")
BITS = 64  # for each power of D in a packed polynomial; coefficients add up to (p−1)!!, which fits for p ≤ 34
MOST_LETTERS = 34
Form = tuple[str, str, str]  # (α, W, β) stands for the number αᵀWβ, with α and β among some orthonormal vectors
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
            forms.append((one[cut].right or "", between, one[following].left or ""))
    return expectation_of_forms(forms, cycles)


def expectation_of_forms(forms: Iterable[Form], cycles: Iterable[str] = (), seen: dict[State, int] | None = None) -> Laurent:
    """E Π αᵀWβ · Π Tr(W) by pairing one letter after the other (Wick's formula, or Schwinger–Dyson equations).

    Pairing the first letter with each of the others in turn removes two letters and leaves shorter forms and cycles, which are looked up
    in a canonical order: neither the order of the factors, nor rotations of a cycle, nor transposes matter. A form that is used up must
    join a vector to itself, or all that follows from it is zero. So the number of states grows far more slowly than the number of pairings.
    `seen` keeps them for the next call.

    >>> expectation_of_forms([("x", "TA", "x")])  # E‖A x‖²
    1
    """
    forms, cycles = tuple(forms), tuple(cycles)
    letters = sum(len(W) for _, W, _ in forms) + sum(map(len, cycles))
    if letters > MOST_LETTERS:
        raise OffspanError(
            f"expectation: the words have {letters} letters, but {MOST_LETTERS} are the most that the packed coefficients hold."
        )
    if letters % 2:
        return Laurent()
    packed, mask = _loops(forms, cycles, {} if seen is None else seen), (1 << BITS) - 1
    powers = range(packed.bit_length() // BITS + 1)
    return Laurent({e - letters // 2: (packed >> (BITS * e)) & mask for e in powers})


def _loops(forms: tuple[Form, ...], cycles: tuple[str, ...], seen: dict[State, int]) -> int:
    """Σ over pairings of D^{closed loops} at D = 2^BITS: a polynomial as one integer, which adds, and is multiplied by D, quickly."""
    if any(not W and alpha != beta for alpha, W, beta in forms):
        return 0
    loops = sum(not W for W in cycles)
    state = (
        tuple(sorted(min((alpha, W, beta), (beta, _transpose(W), alpha)) for alpha, W, beta in forms if W)),
        tuple(sorted(_least_rotation(W) for W in cycles if W)),
    )
    if state not in seen:
        seen[state] = sum(_loops(*left, seen) for left in _pair_one_letter(*state)) if state != ((), ()) else 1
    return seen[state] << (BITS * loops)


def _pair_one_letter(forms: tuple[Form, ...], cycles: tuple[str, ...]) -> Iterator[State]:
    """What is left when the first letter is paired with each of the others.

    A_ij A_kl pairs to δ_ik δ_jl / D: letters of one kind join left to left and right to right, A and Aᵀ left to right.
    """
    if not forms:
        first, W, others = cycles[0][0], cycles[0][1:], cycles[1:]
        for i, letter in enumerate(W):
            before, after = W[:i], W[i + 1 :]
            yield (), (*others, before, after) if letter != first else (*others, _transpose(before) + after)
        for letter, V, rest in _letters_of_cycles(others):
            yield (), (*rest, W + (V if letter != first else _transpose(V)))
        return
    shortest = min(range(len(forms)), key=lambda i: len(forms[i][1]))  # soonest used up, so soonest known to be zero
    (alpha, W, beta), others = forms[shortest], forms[:shortest] + forms[shortest + 1 :]
    first, W = W[0], W[1:]
    for i, letter in enumerate(W):
        before, after = W[:i], W[i + 1 :]
        if letter != first:
            yield (*others, (alpha, after, beta)), (*cycles, before)
        else:
            yield (*others, (alpha, _transpose(before) + after, beta)), cycles
    for place, (gamma, V, delta) in enumerate(others):
        rest = others[:place] + others[place + 1 :]
        for i, letter in enumerate(V):
            before, after = V[:i], V[i + 1 :]
            if letter != first:
                yield (*rest, (alpha, after, delta), (gamma, before + W, beta)), cycles
            else:
                yield (*rest, (alpha, _transpose(before), gamma), (delta, _transpose(after) + W, beta)), cycles
    for letter, V, rest in _letters_of_cycles(cycles):
        yield (*others, (alpha, (V if letter != first else _transpose(V)) + W, beta)), rest


def _letters_of_cycles(cycles: tuple[str, ...]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each letter of each cycle, with what follows it once around, and the other cycles."""
    for place, cycle in enumerate(cycles):
        for i, letter in enumerate(cycle):
            yield letter, cycle[i + 1 :] + cycle[:i], cycles[:place] + cycles[place + 1 :]


def _transpose(W: str) -> str:
    return W.translate(SWAP)[::-1]


def _least_rotation(W: str) -> str:
    return min(V[i:] + V[:i] for V in (W, _transpose(W)) for i in range(len(W)))
