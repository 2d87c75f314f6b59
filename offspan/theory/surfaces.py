"""Statements about the genus expansion: expectations as sums over surfaces, and the surfaces themselves."""

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import product

import numpy as np

from offspan.theory import genus
from offspan.theory.claims import Claim, Settings, at_most, equal
from offspan.theory.gaussian import double_factorial
from offspan.theory.genus import Word, word


def genus_expansion(settings: Settings) -> Iterator[Claim]:
    """E Π Tr(A_{ε(1)} C_1 ⋯) = Σ_ρ D^{χ(γ, δ_ε ρδρ δ_ε) − |γ|} tr_{γ_−⁻¹ δ_ε ρδρ δ_ε γ_+/2}(C_1, …, C_p), over all pairings ρ."""
    by_entries, by_recursion = [], []
    for words in _example_words(settings):
        gluings = genus.expectation_by_gluings(words)
        by_entries.append((gluings(2), _by_entries(words, 2)))
        recursion = genus.expectation(words)
        exponents = sorted(gluings.coefficients.keys() | recursion.coefficients.keys())
        by_recursion.extend((gluings.coefficients.get(e, 0), recursion.coefficients.get(e, 0)) for e in exponents)
    yield equal("the expectation at D = 2", by_entries, "sum over all entries of A, by Gaussian moments")
    yield equal("its coefficients", by_recursion, "recursion on words", 0.0)


def _by_entries(words: list[Word], dim: int) -> Fraction:
    """By writing every trace as a sum over indices, and E of a product of entries of A as a product of moments E a^k = (k−1)!!/D^{k/2}."""
    letters = [letter for one in words for letter in one]
    ends = np.cumsum([len(one) for one in words])
    starts = np.append(0, ends[:-1])
    following = {i: i + 1 for i in range(len(letters))}
    following |= {int(end) - 1: int(start) for start, end in zip(starts, ends, strict=True)}
    vectors = {name: i for i, name in enumerate(sorted({name for letter in letters for name in letter[1:] if name}))}
    total = Fraction(0)
    for rows in product(range(dim), repeat=len(letters)):  # the index before each letter; C = I, or entry (left, right) of x yᵀ, follows it
        for columns in product(*((rows[following[i]],) if letter.left is None else range(dim) for i, letter in enumerate(letters))):
            fixed = all(
                letter.left is None or (columns[i] == vectors[letter.left] and rows[following[i]] == vectors[letter.right or ""])
                for i, letter in enumerate(letters)
            )
            if fixed:
                entries = Counter((rows[i], columns[i]) if one.sign > 0 else (columns[i], rows[i]) for i, one in enumerate(letters))
                if all(power % 2 == 0 for power in entries.values()):
                    moment = np.prod([double_factorial(power - 1) for power in entries.values()])
                    total += Fraction(int(moment), dim ** (len(letters) // 2))
    return total


def euler_characteristics(settings: Settings) -> Iterator[Claim]:
    """χ(γ, σ) = V − E + F of the surface that ρ glues, and a connected surface has χ ≤ 2, with equality for the sphere alone."""
    characteristics, largest, spheres = [], [], []
    for words in _example_words(settings):
        for gluing in genus.gluings(words):
            edges = sum(map(len, words)) // 2
            characteristics.append((gluing.euler_characteristic, _vertices(words, gluing.pairs) - edges + len(words)))
            largest.append((2 * gluing.components, gluing.euler_characteristic))
            if gluing.euler_characteristic == 2 * gluing.components:
                spheres.append((1, gluing.orientable))
    yield equal("χ(γ, σ) = V − E + F", characteristics, "polygons with glued corners", 0.0)
    yield at_most("χ against twice the number of components", largest, "all gluings of some words", 0.0)
    yield equal("orientable, where χ is that", spheres, "all gluings of some words", 0.0)


def _vertices(words: list[Word], pairs: Iterable[tuple[int, int]]) -> int:
    """Corners of the polygons that are one point after gluing; edge k runs from corner k to the next corner of its polygon."""
    corner, following, start = {}, {}, 1
    for one in words:
        for i in range(len(one)):
            corner[start + i], following[start + i] = start + i, start + (i + 1) % len(one)
        start += len(one)
    signs = [letter.sign for one in words for letter in one]

    def root(k: int) -> int:
        return k if corner[k] == k else root(corner[k])

    for k, other in pairs:
        ends = (other, following[other]) if signs[k - 1] == signs[other - 1] else (following[other], other)
        for mine, theirs in zip((k, following[k]), ends, strict=True):
            corner[root(mine)] = root(theirs)
    return sum(corner[k] == k for k in corner)


def _example_words(settings: Settings) -> list[list[Word]]:
    """One, two and three traces, with and without fixed matrices x yᵀ; more of them with more seeds."""
    fixed = [
        [word("ATAT")],
        [word("AATT")],
        [word("AAAATT", "x", "x")],
        [word("AT", "x", "y"), word("TAAT", "x", "y")],
        [word("A"), word("T"), word("AATT")],
    ]
    rng = np.random.default_rng(settings.seeds)
    random = ["".join(rng.choice(list("AT"), 6)) for _ in range(settings.seeds)]
    return [
        *fixed,
        *([word(letters)] for letters in random),
        *([word(letters[:3], "x", "y"), word(letters[3:], "y", "x")] for letters in random),
    ]
