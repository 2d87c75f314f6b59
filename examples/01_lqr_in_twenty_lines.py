"""Train a linear controller from some initial states of a random system, and see how far it reaches beyond them."""

import jax

import offspan

jax.config.update("jax_enable_x64", True)

problem = offspan.gaussian(jax.random.key(3), 5, horizon=5)
print("seen  excess training cost  E_opt/E_opt(K_no-ext)  E_cost/E_cost(K_no-ext)")
for count in (1, 2, 3, 4):
    seen = offspan.basis(5, count)
    run = offspan.train_lqr(problem, seen, learning_rate=1e-3, iterations=10_000)
    excess = offspan.cost(problem, offspan.Linear(run.K), seen) - offspan.minimal_cost(problem, seen)
    optimality = offspan.normalized_optimality(problem, run.K, seen)
    cost = offspan.normalized_cost(problem, run.K, seen)
    print(f"{count:4}  {excess:20.1e}  {optimality:21.3f}  {cost:23.3f}")
