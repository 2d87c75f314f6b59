/**
 * The mathematics of the page; it knows nothing of the document. A matrix is an array of rows, a state an array, u = +K x, as in offspan.
 *
 * @typedef {number[]} Vector
 * @typedef {Vector[]} Matrix
 * @typedef {{A: Matrix, B: Matrix, Q: Matrix, R: Matrix, horizon: number, noise?: number}} Problem  noise: ς of u + ς ξ, in expectation
 * @typedef {{W: Float32Array, b: Float32Array}} Layer
 */

const EPSILON = Number.EPSILON;

/** @param {number} n @returns {Matrix} */
export const identity = (n) => zeros(n, n).map((row, i) => row.map((_, j) => Number(i === j)));
/** @param {number} rows @param {number} columns @returns {Matrix} */
export const zeros = (rows, columns) => Array.from({ length: rows }, () => new Array(columns).fill(0));
/** @param {Matrix} M @returns {Matrix} */
export const transpose = (M) => M[0].map((_, j) => M.map((row) => row[j]));
/** @param {Matrix} M @param {Vector} x @returns {Vector} */
export const apply = (M, x) => M.map((row) => dot(row, x));
/** @param {Matrix} M @param {Matrix} N @returns {Matrix} */
export const multiply = (M, N) => { const columns = transpose(N); return M.map((row) => columns.map((column) => dot(row, column))); };
/** @param {Matrix} M @param {Matrix} N @param {number} [factor] @returns {Matrix} */
export const add = (M, N, factor = 1) => M.map((row, i) => row.map((value, j) => value + factor * N[i][j]));
/** @param {Vector} x @param {Vector} y */
export function dot(x, y) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
  return sum;
}
/** @param {Matrix} Q @param {Vector} x */
export const quadratic = (Q, x) => dot(x, apply(Q, x));
/** @param {Matrix} M */
const largest = (M) => Math.max(0, ...M.flat().map(Math.abs));

/** A = R(φ), for degrees. @returns {Matrix} */
export function rotation(degrees) {
  const quarter = degrees % 90 === 0 ? Math.round(degrees / 90) : null; // exactly
  const c = quarter === null ? Math.cos((degrees * Math.PI) / 180) : [1, 0, -1, 0][((quarter % 4) + 4) % 4];
  const s = quarter === null ? Math.sin((degrees * Math.PI) / 180) : [0, 1, 0, -1][((quarter % 4) + 4) % 4];
  return [[c, -s], [s, c]];
}

/** A = Σ_d e_{d%D+1} e_dᵀ  [R24, prop:shift]. @returns {Matrix} */
export const shift = (n) => identity(n).map((_, i, rows) => rows[(i + n - 1) % n]);

/** Independent entries N(0, 1/D), the same for the same seed. @returns {Matrix} */
export function gaussian(seed, n) {
  const random = uniform(seed);
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  return zeros(n, n).map((row) => row.map(() => normal() / Math.sqrt(n)));
}

/** Numbers in [0, 1), by the generator that is known as mulberry32. */
export function uniform(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** M = U diag(σ) Vᵀ by one-sided Jacobi rotations, σ descending: left and right singular vectors as rows. */
export function svd(M) {
  let left = transpose(M); // its rows become orthogonal
  const right = identity(left.length);
  for (let sweep = 0, turned = true; turned && sweep < 60; sweep++) {
    turned = false;
    for (let i = 0; i < left.length; i++) {
      for (let j = i + 1; j < left.length; j++) {
        const a = dot(left[i], left[i]), b = dot(left[j], left[j]), c = dot(left[i], left[j]);
        if (Math.abs(c) <= EPSILON * Math.sqrt(a * b)) continue;
        turned = true;
        const zeta = (b - a) / (2 * c);
        const t = (zeta >= 0 ? 1 : -1) / (Math.abs(zeta) + Math.sqrt(1 + zeta * zeta));
        turn(left, i, j, t);
        turn(right, i, j, t);
      }
    }
  }
  const sigma = left.map((row) => Math.sqrt(dot(row, row)));
  const order = sigma.map((_, i) => i).sort((i, j) => sigma[j] - sigma[i]);
  left = left.map((row, i) => row.map((value) => (sigma[i] > 0 ? value / sigma[i] : 0)));
  return { sigma: order.map((i) => sigma[i]), left: order.map((i) => left[i]), right: order.map((i) => right[i]) };
}

/** Rows i and j by the angle whose tangent is t. */
function turn(rows, i, j, t) {
  const c = 1 / Math.sqrt(1 + t * t), s = c * t;
  for (let k = 0; k < rows[i].length; k++) {
    const x = rows[i][k], y = rows[j][k];
    rows[i][k] = c * x - s * y;
    rows[j][k] = s * x + c * y;
  }
}

/** Eigenvalues, ascending, and eigenvectors as rows, of a symmetric matrix, by Jacobi rotations. */
export function eigh(S) {
  const M = S.map((row) => [...row]), vectors = identity(M.length), n = M.length;
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) off = Math.max(off, Math.abs(M[i][j]));
    if (off <= 1e-18 * largest(M) || off === 0) break;
    for (let i = 0; i < n; i++) {
      for (let j = i + 1; j < n; j++) {
        if (M[i][j] === 0) continue;
        const zeta = (M[j][j] - M[i][i]) / (2 * M[i][j]);
        const t = (zeta >= 0 ? 1 : -1) / (Math.abs(zeta) + Math.sqrt(1 + zeta * zeta));
        turn(M, i, j, t);
        for (const row of M) { // the same from the right
          const c = 1 / Math.sqrt(1 + t * t), x = row[i], y = row[j];
          row[i] = c * (x - t * y);
          row[j] = c * (t * x + y);
        }
        turn(vectors, i, j, t);
      }
    }
  }
  const values = M.map((row, i) => row[i]), order = values.map((_, i) => i).sort((i, j) => values[i] - values[j]);
  return { values: order.map((i) => values[i]), vectors: order.map((i) => vectors[i]) };
}

/** M⁻¹N by Gaussian elimination with pivots. @returns {Matrix} */
export function solve(M, N) {
  const n = M.length, rows = M.map((row, i) => [...row, ...N[i]]);
  for (let k = 0; k < n; k++) {
    const pivot = rows.slice(k).reduce((best, row, i) => (Math.abs(row[k]) > Math.abs(rows[best][k]) ? k + i : best), k);
    [rows[k], rows[pivot]] = [rows[pivot], rows[k]];
    for (let i = 0; i < n; i++) {
      if (i === k) continue;
      const factor = rows[i][k] / rows[k][k];
      for (let j = k; j < rows[i].length; j++) rows[i][j] -= factor * rows[k][j];
    }
  }
  return rows.map((row, i) => row.slice(n).map((value) => value / row[i]));
}

/** P_S, the orthogonal projector onto the span of the seen states, and that span's dimension. */
export function seenProjector(seen) {
  const units = seen.map((x) => { const length = Math.hypot(...x); return length > 0 ? x.map((value) => value / length) : x; });
  const { sigma, right } = svd(units);
  const tolerance = 10 * Math.max(units.length, units[0].length) * EPSILON * sigma[0];
  const kept = right.filter((_, i) => sigma[i] > tolerance);
  return { P: units[0].map((_, i) => units[0].map((_, j) => kept.reduce((sum, v) => sum + v[i] * v[j], 0))), rank: kept.length };
}

/** x_0..x_H under u = K x. @returns {Vector[]} */
export function rollout(problem, K, x0) {
  const M = closedLoop(problem, K), states = [x0];
  for (let h = 0; h < problem.horizon; h++) states.push(apply(M, states[h]));
  return states;
}

/** A + BK. @returns {Matrix} */
export const closedLoop = (problem, K) => add(problem.A, multiply(problem.B, K));

/** P with J(K; x) = xᵀPx: Σ_{h=0}^{H} (Mʰ)ᵀ(Q + KᵀRK)Mʰ; noise adds a constant. @returns {Matrix} */
export function costMatrix(problem, K) {
  const M = closedLoop(problem, K), Mt = transpose(M), W = add(problem.Q, multiply(transpose(K), multiply(problem.R, K)));
  let P = W;
  for (let h = 0; h < problem.horizon; h++) P = add(W, multiply(Mt, multiply(P, M)));
  return P;
}

/**
 * A function (K, gradient, visits) of flat arrays: returns E J(K; S), writes ∇J into `gradient`, and Σ_h x_h x_hᵀ of what enters it into
 * `visits`, if that is given. X_{h+1} = M X_h, Λ_h = 2 W X_h + MᵀΛ_{h+1}, ∇J = 1/|S| (Bᵀ Σ_{h<H} Λ_{h+1}X_hᵀ + 2RK Σ_{h≤H} X_hX_hᵀ).
 * Noise is more states: each column of ς B starts anew after every step, so that its k-th state occurs H − k times.
 */
export function gradientOf(problem, seen) {
  const { A, B, Q, R, horizon: H, noise = 0 } = problem, n = A.length, m = B[0].length;
  const starts = [...seen, ...(noise > 0 ? transpose(B).map((column) => column.map((value) => noise * value)) : [])], c = starts.length;
  const [a, b, q, r] = [A, B, Q, R].map((M) => Float64Array.from(M.flat()));
  const isIdentity = (M) => M.length === M[0].length && M.every((row, i) => row.every((value, j) => value === Number(i === j)));
  const plainB = isIdentity(B), free = r.every((value) => value === 0), plainW = free && isIdentity(Q);
  const noiseCost = noise > 0 ? (H + 1) * noise * noise * R.reduce((sum, row, i) => sum + row[i], 0) : 0;
  const M = new Float64Array(n * n), W = new Float64Array(n * n), total = new Float64Array(n * n), RK = new Float64Array(m * n);
  const X = new Float64Array((H + 1) * n), costate = new Float64Array(n), earlier = new Float64Array(n), around = new Float64Array(n * n);
  return (K, gradient, visits) => {
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        let sum = plainB ? K[i * n + j] : 0;
        if (!plainB) for (let k = 0; k < m; k++) sum += b[i * m + k] * K[k * n + j];
        M[i * n + j] = a[i * n + j] + sum;
      }
    }
    if (!free) {
      for (let i = 0; i < m; i++) for (let j = 0; j < n; j++) { let sum = 0; for (let k = 0; k < m; k++) sum += r[i * m + k] * K[k * n
        + j]; RK[i * n + j] = sum; }
    }
    if (!plainW) for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) { let sum = q[i * n + j]; if (!free) for (let k = 0; k < m;
      k++) sum += K[k * n + i] * RK[k * n + j]; W[i * n + j] = sum; }
    const counted = Boolean(visits) || !free;
    total.fill(0);
    if (counted) around.fill(0);
    let cost = noiseCost;
    for (let s = 0; s < c; s++) {
      const isSeen = s < seen.length;
      for (let i = 0; i < n; i++) X[i] = starts[s][i];
      for (let h = 0; h < H; h++) {
        for (let i = 0; i < n; i++) { let sum = 0; for (let j = 0; j < n; j++) sum += M[i * n + j] * X[h * n + j];
          X[(h + 1) * n + i] = sum; }
      }
      costate.fill(0);
      for (let h = H; h >= 0; h--) {
        const weight = isSeen ? 1 / seen.length : H - h, at = h * n;
        if (counted && (h < H || !free)) {
          for (let i = 0; i < n; i++) { const x = weight * X[at + i]; for (let j = 0; j < n; j++) around[i * n + j] += x * X[at + j]; }
        }
        for (let j = 0; j < n; j++) earlier[j] = 0;
        for (let i = 0; i < n; i++) { // with the costate of the next time step, which is 0 after the last
          const value = costate[i];
          for (let j = 0; j < n; j++) { total[i * n + j] += value * X[at + j]; earlier[j] += value * M[i * n + j]; }
        }
        for (let i = 0; i < n; i++) {
          let weighted = X[at + i];
          if (!plainW) { weighted = 0; for (let j = 0; j < n; j++) weighted += W[i * n + j] * X[at + j]; }
          cost += weight * X[at + i] * weighted;
          costate[i] = earlier[i] + 2 * weight * weighted;
        }
      }
    }
    for (let i = 0; i < m; i++) {
      for (let j = 0; j < n; j++) {
        let sum = plainB ? total[i * n + j] : 0;
        if (!plainB) for (let k = 0; k < n; k++) sum += b[k * m + i] * total[k * n + j];
        if (!free) for (let k = 0; k < n; k++) sum += 2 * RK[i * n + k] * around[k * n + j];
        gradient[i * n + j] = sum;
      }
    }
    if (visits) visits.set(around);
    return cost;
  };
}

/** Scales a gradient down to the norm `cut` where it is longer; returns its norm before. */
export function clip(gradient, cut) {
  let most = 0, square = 0;
  for (let i = 0; i < gradient.length; i++) { const size = Math.abs(gradient[i]); if (size > most) most = size; }
  for (let i = 0; i < gradient.length; i++) { const share = gradient[i] / (most || 1); square += share * share; }
  const length = Math.sqrt(square);
  if (cut > 0 && most * length > cut) for (let i = 0; i < gradient.length; i++) gradient[i] *= cut / (most * length);
  return most * length;
}

/** Policy gradient K ← K − η ∇J(K; S) from K = 0 [R24, eq:policy_grad]; `step` makes one update, and is false where the run diverged. */
export class Training {
  constructor(problem, seen, { rate, cut = 0, watched = true }) {
    const n = problem.A.length, m = problem.B[0].length;
    Object.assign(this, { problem, seen, rate, cut, n, m, iteration: 0, diverged: false, norm: Infinity });
    this.flat = new Float64Array(m * n);
    this.gradient = new Float64Array(m * n);
    this.before = new Float64Array(m * n);
    this.visits = watched ? new Float64Array(n * n) : null; // ∫ Σ_h x_h x_hᵀ, over the time Σ η min(1, cut/‖∇J‖)
    this.last = watched ? new Float64Array(n * n) : null;
    this.of = gradientOf(problem, seen);
    this.cost = this.of(this.flat, this.gradient, this.last);
  }

  step() {
    if (this.diverged) return false;
    const { flat, gradient, rate, visits, last, before } = this;
    before.set(flat);
    this.norm = clip(gradient, this.cut);
    for (let i = 0; i < flat.length; i++) flat[i] -= rate * gradient[i];
    const time = rate * (this.cut > 0 && this.norm > this.cut ? this.cut / this.norm : 1);
    if (visits) for (let i = 0; i < visits.length; i++) visits[i] += time * last[i];
    const cost = this.of(flat, gradient, last);
    let sum = cost;
    for (let i = 0; i < gradient.length; i++) sum += gradient[i];
    if (!Number.isFinite(sum)) {
      flat.set(before); // the last controller whose cost is a number
      this.diverged = true;
      return false;
    }
    this.cost = cost;
    this.iteration += 1;
    return true;
  }

  /** Whether updates no longer change anything that one could see. */
  get settled() { return this.iteration > 0 && this.norm < 1e-7; }

  /** @returns {Matrix} */
  get K() { return rowsOf(this.flat, this.m, this.n); }
}

/** @returns {Matrix} */
export const rowsOf = (flat, rows, columns) => Array.from({ length: rows }, (_, i) => [...flat.subarray(i * columns, (i + 1) * columns)]);

/** The whole training at once: K, the costs before each update, and whether it diverged. */
export function train(problem, seen, { iterations, ...options }) {
  const training = new Training(problem, seen, { ...options, watched: false }), costs = [];
  for (let i = 0; i < iterations && !training.diverged; i++) {
    costs.push(training.cost);
    training.step();
  }
  return { K: training.K, costs, diverged: training.diverged };
}

/** Why K_ext, K_no-ext and the measures are not defined here, or null where R = 0 and B is invertible. */
export function notUnderdetermined({ A, B, R }) {
  if (B[0].length !== A.length) {
    return `B is ${A.length}×${B[0].length}, but must be square: the measures are defined for a square, invertible B only.`;
  }
  if (largest(R) > 0) {
    return `R has entries up to ${+largest(R).toPrecision(3)}, but the measures need R = 0: `
      + "where controls cost something, steering to zero in one step is not optimal.";
  }
  const { sigma } = svd(B);
  if (!(sigma[sigma.length - 1] > A.length * EPSILON * sigma[0])) {
    return "B is not invertible, so no control steers every state to zero in one step, and the measures are not defined.";
  }
  return null;
}

/** K_ext = −B⁻¹A and K_no-ext = −B⁻¹A P_S  [R24, eq:unseen_controls_opt, eq:unseen_controls_zero]. */
export function baselines({ A, B }, seen) {
  const extrapolating = solve(B, A).map((row) => row.map((value) => -value));
  return { extrapolating, nonextrapolating: multiply(extrapolating, seenProjector(seen).P) };
}

/**
 * Both measures of a controller over the directions orthogonal to S: E_opt, E_cost, and both divided by those of K_no-ext
 * [R24, def:opt_measure, def:cost_measure]; or `why` they are not defined.
 */
export function measures(problem, K, seen) {
  const n = problem.A.length, why = notUnderdetermined(problem);
  if (why) return { why };
  const { P, rank } = seenProjector(seen);
  if (rank === n) return { why: "The seen states span the whole space, so no direction is unseen: take one away, or bring them in line." };
  const unseen = add(identity(n), P, -1), A = problem.A;
  const sums = laterCosts(closedLoop(problem, K), problem.Q, unseen, problem.horizon);
  const base = laterCosts(multiply(A, unseen), problem.Q, unseen, problem.horizon);
  const square = (M) => M.flat().reduce((sum, value) => sum + value * value, 0);
  const rounding = (10 * n * EPSILON) ** 2 * square(A) * problem.Q.reduce((sum, row, i) => sum + row[i], 0) * square(unseen);
  const sum = (values) => values.reduce((total, value) => total + value, 0), count = n - rank;
  const plain = { optimality: sums[0] / count, cost: sum(sums) / count };
  if (!(base[0] > rounding)) return { ...plain,
    why: "A sends every unseen direction to zero by itself, so there is nothing to normalise by." };
  return { ...plain, normalizedOptimality: sums[0] / base[0], normalizedCost: sum(sums) / sum(base) };
}

/** Σ_{x∈X} ‖Mʰx‖²_Q for h = 1..steps. */
function laterCosts(M, Q, X, steps) {
  const sums = [];
  for (let h = 0, states = X; h < steps; h++) {
    states = states.map((x) => apply(M, x));
    sums.push(states.reduce((sum, x) => sum + quadratic(Q, x), 0));
  }
  return sums;
}

/** For each direction d, ‖d‖ = 1: what training visited of it, ∫dᵀG d, and what is left of it, ‖(A + BK)d‖²_Q / ‖A d‖²_Q. */
export function directions({ A, B, Q }, K, visits, along) {
  const M = add(A, multiply(B, K));
  return along.map((d) => {
    const before = quadratic(Q, apply(A, d));
    return { visited: quadratic(visits, d), left: before > 0 ? quadratic(Q, apply(M, d)) / before : NaN };
  });
}

/** dim span{Aʰx : x ∈ S, h ≥ 0}, built direction by direction; null where rounding hides it. */
export function krylovRank(A, seen) {
  const scale = svd(A).sigma[0], n = A.length;
  let newest = seen.filter((x) => Math.hypot(...x) > 0).map((x) => x.map((value) => value / Math.hypot(...x)));
  let noise = n * EPSILON, known = [];
  while (newest.length && known.length < n) {
    const { sigma, right } = svd(newest);
    if (noise > 1e-6) return null;
    const kept = sigma.filter((value) => value > noise);
    newest = right.slice(0, Math.min(kept.length, right.length));
    known = [...known, ...newest];
    noise /= Math.min(1, ...kept);
    if (!(scale > 0)) break;
    newest = newest.map((v) => apply(A, v).map((value) => value / scale));
    for (let pass = 0; pass < 2; pass++) {
      newest = newest.map((x) => known.reduce((rest, v) => { const share = dot(x, v); return rest.map((value, i) => value - share * v[i]);
        }, x));
    }
  }
  return Math.min(known.length, n);
}

/** How many states of a trajectory enter the gradient. */
export const visitedCount = (problem) => (largest(problem.R) > 0 ? problem.horizon + 1 : problem.horizon);

/** G_x = Σ_h x_h x_hᵀ of what one start visits under u = K x. @returns {Matrix} */
export function gramian(problem, x, K = zeros(problem.B[0].length, problem.A.length)) {
  const visited = rollout(problem, K, x).slice(0, visitedCount(problem));
  return x.map((_, i) => x.map((_, j) => visited.reduce((sum, state) => sum + state[i] * state[j], 0)));
}

/** log det(I + G/ε) of each set of candidates, ε their mean squared length. @returns {number[]} */
export function logDeterminants(problem, candidates, sets) {
  const scale = candidates.reduce((sum, x) => sum + dot(x, x), 0) / candidates.length || 1;
  const each = candidates.map((x) => gramian(problem, x));
  return sets.map((set) => eigh(set.reduce((G, i) => add(G, each[i], 1 / scale), identity(problem.A.length))).values.reduce((sum, value) =>
    sum + Math.log(value), 0));
}

/** J(K; all candidates) after training on each set, with policy gradient taken for regression on what is visited, in closed form. */
export function flowCosts(problem, candidates, sets, rate, iterations) {
  const stages = Array.from({ length: 20 }, (_, i) => Math.round(Math.max(iterations, 1) ** (i / 19)));
  const times = [...new Set(stages)].map((value) => rate * value);
  const move = flowOf(problem);
  return sets.map((set) => {
    let K = zeros(problem.B[0].length, problem.A.length);
    times.forEach((time, i) => {
      const G = set.reduce((sum, j) => add(sum, gramian(problem, candidates[j], K), 1 / set.length), zeros(problem.A.length,
        problem.A.length));
      K = move(K, G, time - (times[i - 1] ?? 0));
    });
    return meanCost(problem, K, candidates);
  });
}

/** J(K; X), without noise. */
export function meanCost(problem, K, states) {
  const P = costMatrix(problem, K);
  return states.reduce((sum, x) => sum + quadratic(P, x), 0) / states.length;
}

/** (K, G, time) ↦ the solution of dK/dt = −2BᵀQ(A + BK)G: each entry of VᵀKW decays on its own, with Q^½B = UΣVᵀ and G = WΓWᵀ. */
export function flowOf({ A, B, Q }) {
  const { values, vectors } = eigh(Q), n = A.length;
  const root = zeros(n, n).map((row, i) => row.map((_, j) => vectors.reduce((sum, v, k) => sum
    + Math.sqrt(Math.max(values[k], 0)) * v[i] * v[j], 0)));
  const { sigma, left, right } = svd(multiply(root, B)), toAim = multiply(left, multiply(root, A));
  return (K, G, time) => {
    const { values: gamma, vectors: W } = eigh(G), across = transpose(W);
    const aims = multiply(toAim, across), now = multiply(multiply(right, K), across);
    const moved = now.map((row, i) => row.map((value, j) => {
      if (!(sigma[i] > 1e-12 * sigma[0])) return 0;
      return (-aims[i][j] / sigma[i] - value) * -Math.expm1(-2 * time * sigma[i] ** 2 * Math.max(gamma[j], 0));
    }));
    return add(K, multiply(transpose(right), multiply(moved, W)));
  };
}

/** The proposition's η on the shift from e_1, and both the optimality and the α_d = 1 − g_d/g_1 that one step leaves  [R24, prop:shift]. */
export function shiftProposition(n, horizon) {
  const g = new Array(n).fill(0);
  for (let h = 0; h < horizon; h++) g[h % n] += 2 * (horizon - h);
  const alpha = g.map((value) => 1 - value / g[0]);
  return { rate: 1 / g[0], alpha, optimality: alpha.slice(1).reduce((sum, value) => sum + value * value, 0) / (n - 1) };
}

const f = Math.fround;
const STEP = f(0.05), GRAVITY = f(10);

/** One step of the pendulum x = (θ, ω) under the torque u, in single precision  [R24, eq:pend_state_dynamics]. */
export function pendulumStep([angle, velocity], u) {
  const acceleration = f(f(u) - f(GRAVITY * f(Math.sin(angle))));
  return [f(angle + f(STEP * velocity)), f(velocity + f(STEP * acceleration))];
}

/** The network's first output, with ReLU between layers of single precision. @param {Layer[]} layers */
export function network(layers, x) {
  let values = x;
  layers.forEach(({ W, b }, l) => {
    const next = new Float32Array(b.length), width = values.length;
    for (let i = 0; i < b.length; i++) {
      let sum = b[i];
      for (let j = 0; j < width; j++) sum += W[i * width + j] * values[j];
      next[i] = l < layers.length - 1 && sum < 0 ? 0 : sum;
    }
    values = next;
  });
  return values[0];
}

/** The pendulum's states x_0..x_H and its cost J = 1/H Σ_h ‖x_h − (π, 0)‖². */
export function swing(layers, start, horizon = 100) {
  const states = [start.map(f)];
  let cost = 0;
  for (let h = 0; h <= horizon; h++) {
    const [angle, velocity] = states[h];
    cost += f(angle - f(Math.PI)) ** 2 + velocity ** 2;
    if (h < horizon) states.push(pendulumStep(states[h], network(layers, states[h])));
  }
  return { states, cost: cost / horizon };
}

/** Base64 of half-precision numbers as single precision. */
export function halves(text) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0)), view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => {
    const bits = view.getUint16(2 * i, true), exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
    return bits & 32768 ? -size : size;
  });
}

/** @returns {Layer[]} */
export const unpack = (layers) => layers.map(({ out, in: width, half }) => { const flat = halves(half);
  return { W: flat.subarray(0, out * width), b: flat.subarray(out * width) }; });
