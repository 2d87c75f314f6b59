"""All statements, by the paper's labels, and their verification."""

from collections.abc import Callable, Iterator, Sequence

import jax

from offspan.errors import OffspanError, as_count, nearest
from offspan.sizes import check_memory
from offspan.theory import concentration, exploring, flow, large_dimension, noise, observed, random_systems, regularized, underdetermined
from offspan.theory.claims import NONE, Claim, Settings
from offspan.theory.closed_forms import DoesNotApplyError

STATEMENTS: dict[str, Callable[[Settings], Iterator[Claim]]] = {
    "lem:lqr_gradient": underdetermined.gradient,
    "lem:cost_min_underdetermined": underdetermined.minimum,
    "lem:extrapolation_measures_invariant": underdetermined.invariance,
    "lem:extrapolation_measures_invariant_general_q": underdetermined.invariance_any_q,
    "sec:prelim:extrapolation": underdetermined.footnotes,
    "sec:analysis:intuition": underdetermined.intuition,
    "prop:no_exploration_no_extrapolation": underdetermined.no_exploration,
    "prop:shift": exploring.shift_ratios,
    "lem:shift_Kpg_K2": exploring.shift_controller,
    "beyond:shift_any_horizon": exploring.shift_any_horizon,
    "beyond:shift_any_start": exploring.shift_any_start,
    "beyond:shift_flow": flow.gradient_flow,
    "beyond:omega": flow.omega_constant,
    "lem:min_norm": underdetermined.minimal_norm,
    "cor:no_euc_norm_min": exploring.norm_gap,
    "prop:shift_diag_q": exploring.shift_diagonal_q,
    "fig:lqr_experiments_main": exploring.less_than_the_shift,
    "lem:cyc_vector_generic": underdetermined.cyclic_vectors,
    "lem:determined_shift_infinite_horizon": regularized.single_minimiser,
    "lem:underdetermined_R_nonzero": regularized.many_minimisers,
    "app:determined_R_neq_zero": regularized.finite_horizon,
    "beyond:infinite_horizon": regularized.infinite_horizon,
    "beyond:noisy_identity": noise.noisy_identity,
    "beyond:noise_minimiser": noise.only_minimiser,
    "beyond:noise_gradient": noise.noise_gradient,
    "beyond:sampled_gradients": noise.sampled_gradients,
    "beyond:partial_observation": observed.partial_observation,
    "thm:typical_system": random_systems.typical_system,
    "beyond:leading_order": large_dimension.leading_order,
    "beyond:cost_alignment": large_dimension.cost_alignment,
    "beyond:any_states": large_dimension.any_states,
    "beyond:subcritical": large_dimension.subcritical,
    "beyond:sharp_dimensions": concentration.sharp_dimensions,
    "beyond:single_systems": concentration.single_systems,
    "lem:norm_concentration": random_systems.norm_concentration,
    "lem:clm_cost_grad_inner_prod": random_systems.inner_product,
    "smoothness_lemma": random_systems.smoothness,
    "lem:in_prod_initial_states": random_systems.any_orthonormal_states,
    "lem:expec_in_prod_term_lower_bound": random_systems.alignment_terms,
    "expected_grad_norm": random_systems.gradient_norm,
    "var_prop": random_systems.variance,
    "cov_prop": random_systems.covariance,
    "thm:genus_expansion_main_theorem": random_systems.genus_expansion,
    "prop:euler_char": random_systems.euler_characteristics,
}

MOST = 10_000, 1_000_000, 100_000  # of dim, horizon, seeds
ITERATES = 300  # that a statement keeps at most, each a matrix

# What the paper prints where its source has these labels.
NUMBERS = {
    "lem:lqr_gradient": "Lemma 8",
    "lem:cost_min_underdetermined": "Lemma 7",
    "lem:extrapolation_measures_invariant": "Lemma 4",
    "lem:extrapolation_measures_invariant_general_q": "Lemma 5",
    "sec:prelim:extrapolation": "Section 3.3",
    "sec:analysis:intuition": "Section 4.1",
    "prop:no_exploration_no_extrapolation": "Proposition 1",
    "prop:shift": "Proposition 2",
    "lem:shift_Kpg_K2": "Lemma 9",
    "lem:min_norm": "Lemma 1",
    "cor:no_euc_norm_min": "Corollary 1",
    "prop:shift_diag_q": "Proposition 3",
    "fig:lqr_experiments_main": "Figure 2",
    "lem:cyc_vector_generic": "Lemma 6",
    "lem:determined_shift_infinite_horizon": "Lemma 2",
    "lem:underdetermined_R_nonzero": "Lemma 3",
    "app:determined_R_neq_zero": "Appendix B",
    "thm:typical_system": "Theorem 1",
    "lem:norm_concentration": "Lemma 10",
    "lem:clm_cost_grad_inner_prod": "Lemma 11",
    "smoothness_lemma": "Lemma 12",
    "lem:in_prod_initial_states": "Lemma 13",
    "lem:expec_in_prod_term_lower_bound": "Lemma 14",
    "expected_grad_norm": "Lemma 15",
    "var_prop": "Proposition 4",
    "cov_prop": "Proposition 5",
    "thm:genus_expansion_main_theorem": "Theorem 2",
    "prop:euler_char": "Proposition 7",
}


def number_of(label: str) -> str:
    """What a statement is called in the paper; "beyond the paper" where it is not of the paper."""
    return NUMBERS.get(label, "beyond the paper")


def verify(
    labels: Sequence[str] = (),
    settings: Settings = Settings(),  # noqa: B008
    on_statement: Callable[[str], object] | None = None,
) -> Iterator[Claim]:
    """The claims of these statements, or of all, one by one; `on_statement` is called with each label first.

    Asked for by name, a statement that these settings do not fit is an error; among all, it is passed over with a claim that says why.

    >>> import jax; jax.config.update("jax_enable_x64", True)
    >>> [claim.verdict for claim in verify(["lem:shift_Kpg_K2"])]
    ['holds']
    """
    settings = checked_settings(labels, settings)
    for label in labels or STATEMENTS:
        if on_statement is not None:
            on_statement(label)
        yield from claims_of(label, settings, by_name=bool(labels))


def checked_settings(labels: Sequence[str], settings: Settings) -> Settings:
    """Raises where these statements cannot be verified with these settings."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise OffspanError("verify: claims need float64, but jax works in float32: call jax.config.update('jax_enable_x64', True) first.")
    dim, horizon = (as_count("verify", name, getattr(settings, name), least=2) for name in ("dim", "horizon"))
    for label in labels:
        if label not in STATEMENTS:
            hint = nearest(label, list(STATEMENTS))
            raise OffspanError(f"verify: there is no statement {label!r}{hint}; `offspan verify --list` shows them.")
    seeds = as_count("verify", "seeds", settings.seeds, least=1)
    for name, value, most in zip(("dim", "horizon", "seeds"), (dim, horizon, seeds), MOST, strict=True):
        if value > most:
            raise OffspanError(f"verify: `{name}` is {value:,}, but must be at most {most:,}.")
    what = f"verify: trajectories and controllers at dim = {dim:,} and horizon = {horizon:,}"
    check_memory(what, 8 * dim**2 * (horizon + ITERATES), "take smaller ones")
    return Settings(dim, horizon, seeds)


def claims_of(label: str, settings: Settings, by_name: bool) -> list[Claim]:
    """Of one statement: of the claims of one text, that which is closest to failing."""
    worst: dict[str, Claim] = {}
    try:
        for claim in STATEMENTS[label](settings):
            if claim.text not in worst or claim.excess > worst[claim.text].excess:
                worst[claim.text] = claim._replace(label=label)
    except DoesNotApplyError as error:
        if by_name:
            raise DoesNotApplyError(f"{label}: {error}") from error
        return [Claim(str(error), float("nan"), NONE, float("nan"), 0.0, "", label)]
    return list(worst.values())
