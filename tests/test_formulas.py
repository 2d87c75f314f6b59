"""The formulas of the docs: TeX between dollars becomes MathML, and nothing else does."""

import pytest

pytest.importorskip("math_core")  # where the docs are built
pytest.importorskip("pymdownx")

import markdown

from docs import formulas


def rendered(text: str) -> str:
    return markdown.markdown(text, extensions=["tables", "admonition", "pymdownx.superfences", formulas.Formulas()])


def test_a_formula_in_a_line_and_one_for_itself():
    """By the elements of MathML: msub, mfrac, and the attribute display."""
    assert rendered("Let $x_h$ be *it*.") == "<p>Let <math><msub><mi>x</mi><mi>h</mi></msub></math> be <em>it</em>.</p>"
    shown = rendered("So\n\n$$\n\\frac{a}{b} =\n1\n$$\n\nholds.")
    assert '<math display="block"><mfrac><mi>a</mi><mi>b</mi></mfrac><mo>=</mo><mn>1</mn></math>' in shown
    in_a_box = rendered('!!! note "Box"\n    With $a*b*c$:\n\n    $$\n    y\n    $$\n')
    assert in_a_box.count("<math") == 2
    assert "<em>" not in in_a_box


@pytest.mark.parametrize(
    "text",
    [
        "`$x$` and ``a `$y$` b``",
        "```sh\necho $OUT/$NAME\n```",
        "!!! note\n    ```sh\n    echo $x$\n    ```",
        "    $indented$",
        "It costs $5, or $10 to $20; write to $OUT, then $HOME/x.",
        "From $A to $B-$C.",
        r"A price of 5\$ or 6\$.",
    ],
)
def test_code_and_other_dollars_are_left_alone(text):
    assert "<math" not in rendered(text)
    assert rendered(text).count("$") == text.count("$")


def test_bars_of_a_formula_end_no_cell():
    row = rendered(r"| a | b |" + "\n|---|---|\n" + r"| $|S|$ and `x|y` | $\|v\|$ |")
    assert row.count("<td>") == 2
    assert row.count("|</mo>") == 2
    assert row.count("‖</mo>") == 2
    assert "<code>x|y</code>" in row


@pytest.mark.parametrize(("wrong", "why"), [(r"\unheardof{x}", "nknown command"), (r"\frac{1}{2", "closing"), ("x^", "argument")])
def test_a_mistake_in_a_formula_stops_the_build_and_names_it(wrong, why):
    with pytest.raises(formulas.FormulaError, match=why) as caught:
        rendered(f"Here ${wrong}$ is wrong.")
    assert f"${wrong}$" in str(caught.value)


@pytest.mark.parametrize("text", [r"This $\alpha never ends.", r"An \alpha$ never began.", r"Spaces: $ \alpha $."])
def test_dollars_that_do_not_pair_stop_the_build(text):
    with pytest.raises(formulas.FormulaError, match=r"alpha.*does not end, or does not begin"):
        rendered(text)
    assert "<math" in rendered(r"A sound $\alpha$ for $5, and `$\beta`.")
