"""Exact moments of Gaussian words: the recursion against the sum over all pairings, and how both grow with the horizon."""

import time

from offspan.theory.gaussian import double_factorial, first_step_law
from offspan.theory.genus import expectation, expectation_by_gluings, word


def seconds(call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


print("one trace of p letters, Tr(A A Aᵀ Aᵀ A A …)")
for p in (8, 10, 12):
    letters = [word(("AATT" * p)[:p])]
    direct = seconds(lambda letters=letters: expectation_by_gluings(letters))
    recursion = seconds(lambda letters=letters: expectation(letters))
    print(f"  p = {p:2}: {double_factorial(p - 1):7,} pairings {direct:.4f} s, recursion {recursion:.4f} s, ratio {direct / recursion:.0f}")
print("a, b and E‖∇J‖² as functions of D")
for H in (2, 3, 4, 5):
    print(f"  H = {H}: words of up to {4 * H - 2:2} letters, {seconds(lambda H=H: first_step_law(None, H, 1)):7.2f} s")
