"""The measured numbers of the README are those of the stored results, computed here without the code that drew or printed them."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import offspan

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
README = " ".join((ROOT / "README.md").read_text().split())


def the_readme_says(sentence: str) -> None:
    assert sentence in README, f"the README does not say {sentence!r}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def test_the_size_of_the_main_experiment():
    spec = tomllib.loads((RESULTS / "lqr" / "spec.toml").read_text())
    runs = len(spec["systems"]) * len(spec["seen"]) * len(spec["seeds"])
    the_readme_says(f"{runs} runs of {spec['iterations']:,} iterations")


def test_how_many_comparisons_with_the_paper_agree():
    rows = set(re.findall(r"<tr>.*?</tr>", (RESULTS / "paper.html").read_text(), re.DOTALL))
    verdicts = [verdict for row in rows for verdict in re.findall(r">\s*(agrees|differs)\s*<", row)]
    agreeing, compared = verdicts.count("agrees"), len(verdicts)
    assert compared > 25
    the_readme_says(f"{agreeing} of {compared} comparisons with the paper's experiments agree")


def test_every_claim_holds():
    claims = json.loads((RESULTS / "verify" / "claims.json").read_text())["claims"]
    assert {claim["verdict"] for claim in claims} == {"holds"}
    the_readme_says(f"all {len(claims)} checks pass, of the paper's statements and of ours beyond it")


def test_the_speed_beside_the_official_code():
    speed = json.loads((RESULTS / "speed" / "speed.json").read_text())["microseconds"]
    lqr = speed["LQR, D = H = 5"]
    the_readme_says(f"{lqr['alone']} µs where the official PyTorch code takes {lqr['official'] / 1000} ms")
    the_readme_says(f"{lqr['among_many']:.2f} µs per run when {lqr['many']} are trained together")
    performance = (ROOT / "docs" / "performance.md").read_text()
    for what, times in speed.items():
        row = next(line for line in performance.splitlines() if line.startswith((f"| {what} |", f"| `{what}` |")))
        assert f"({times['official'] / times['alone']:,.0f} ×)" in row
        assert f"({round(times['official'] / times['among_many'], -2 if times['many'] == 240 else None):,.0f} ×)" in row


def test_the_lqr_measures_fall_below_one_where_the_system_explores():
    result = xr.open_dataset(RESULTS / "lqr" / "result.nc")
    medians = result["normalized_optimality"].isel(iteration=-1).median("seed").squeeze()
    np.testing.assert_allclose(medians.sel(system="identity"), 1.0, atol=1e-9)
    assert (medians.sel(system=["shift", "gaussian"]) < 0.95).all()


def test_the_pendulums():
    result = xr.open_dataset(RESULTS / "pendulum" / "result.nc")
    *first, last = [f"{measure:.2g}" for measure in np.sort(result["normalized_cost"].values)]
    the_readme_says(f"their normalised cost measures are {', '.join(first)} and {last}")
    assert int(result["shown_seed"]) == int(result["seed"][result["normalized_cost"].argsort().values[2]])  # the median
    final = result["policy_gradient_unseen_final"].sel(seed=result["shown_seed"])[:, 0]
    hanging = result["non_extrapolating_unseen_final"].sel(baseline_seed=result["shown_baseline_seed"])[:, 0]
    assert (abs(final - np.pi) < 0.1).all()
    assert (np.cos(hanging) > 0.9).all()


def test_a_hundred_pendulums():
    result = xr.open_dataset(RESULTS / "pendulum-100-seeds-together" / "result.nc")
    diverged = ~np.isfinite(result["normalized_cost"].values)
    away = abs(result["policy_gradient_unseen_final"] - result["target"]).values[~diverged].max(axis=(1, 2))
    the_readme_says(f"Over {len(diverged)} seeds, {diverged.sum()} diverge early in training")
    the_readme_says(f"all of the other {(away < 0.1).sum()} stand up from all five")
    assert (away < 0.1).all()


def test_the_quadcopters():
    result = xr.open_dataset(RESULTS / "quadcopter-below-100-seeds" / "result.nc")
    away = np.linalg.norm((result["policy_gradient_unseen_final"] - result["target"]).values[..., :3], axis=-1)
    there = away <= 0.25
    the_readme_says(f"over {len(there)} seeds, {percent(there.mean())} of the unseen initial states end within 0.25 m of the target")
    the_readme_says(f"{percent(there.all(axis=1).mean())} of the seeds bring all five there")


def test_what_choosing_gains():
    result = xr.open_dataset(RESULTS / "selection-lqr" / "result.nc")
    excess = (result["cost"].mean("candidate", skipna=False) - result["least_cost"]).fillna(np.inf).values
    random = np.median(excess[:, result["is_random"].values])
    chosen = result["choice"].sel({"method": "gramian-logdet"}).values
    logdet = np.median(excess[np.arange(len(excess)), chosen])
    the_readme_says(f"For {len(excess)} random systems of eight dimensions")
    the_readme_says(f"cut the median excess cost by {percent(1 - logdet / random)} against two random ones")
    the_readme_says(f"the best of all pairs cuts it by {percent(1 - np.median(excess.min(axis=1)) / random)}")


@pytest.mark.parametrize(("degrees", "measure"), [(0, "1.00"), (90, "0.34")])
def test_the_dial(degrees, measure):
    """E_opt / E_opt(K_no-ext) of the rotation by φ, trained from e_1 alone (H = 8, η = 0.01)."""
    turn = np.deg2rad(degrees)
    A = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    K = np.asarray(offspan.train_lqr(offspan.LQR(A, horizon=8), offspan.basis(2, 1), learning_rate=0.01, iterations=3_000).K)
    assert f"{np.sum((A + K)[:, 1] ** 2):.2f}" == measure  # for K_no-ext it is 1
    the_readme_says(measure)
