"""Laurent polynomials in the dimension D, with rational coefficients."""

from collections.abc import Mapping
from fractions import Fraction


class Laurent:
    """Σ_e c_e D^e with rational coefficients c_e, exactly.

    >>> (Laurent({0: 1, -1: 2}) * Laurent({1: 3}))(4), Laurent({0: 1, -1: 2})
    (Fraction(18, 1), 1 + 2/D)
    """

    def __init__(self, coefficients: Mapping[int, int | Fraction] | int | Fraction = 0):
        given = coefficients if isinstance(coefficients, Mapping) else {0: coefficients}
        self.coefficients = {e: Fraction(c) for e, c in sorted(given.items(), reverse=True) if c}

    def __call__(self, dim: int | Fraction) -> Fraction:
        return sum((c * Fraction(dim) ** e for e, c in self.coefficients.items()), Fraction(0))

    def __add__(self, other: "Laurent | int | Fraction") -> "Laurent":
        other = other if isinstance(other, Laurent) else Laurent(other)
        exponents = self.coefficients.keys() | other.coefficients.keys()
        return Laurent({e: self.coefficients.get(e, Fraction(0)) + other.coefficients.get(e, Fraction(0)) for e in exponents})

    def __mul__(self, other: "Laurent | int | Fraction") -> "Laurent":
        other = other if isinstance(other, Laurent) else Laurent(other)
        total: dict[int, Fraction] = {}
        for e, c in self.coefficients.items():
            for f, d in other.coefficients.items():
                total[e + f] = total.get(e + f, Fraction(0)) + c * d
        return Laurent(total)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: "Laurent | int | Fraction") -> "Laurent":
        return self + other * Fraction(-1) if isinstance(other, Laurent) else self + Laurent(-other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Laurent) and self.coefficients == other.coefficients

    def __hash__(self) -> int:
        return hash(tuple(self.coefficients.items()))

    def __repr__(self) -> str:
        """1 + 2/D − 3/D², the largest power first."""
        text = ""
        for e, c in self.coefficients.items():
            power = "" if abs(e) == 0 else "D" if abs(e) == 1 else f"D^{abs(e)}"
            size = str(abs(c)) if abs(c) != 1 or e <= 0 else ""
            sign = ("− " if c < 0 else "+ ") if text else ("−" if c < 0 else "")
            text += f" {sign}" * bool(text) + sign * (not text) + size + (f"/{power}" if e < 0 else power)
        return text or "0"
