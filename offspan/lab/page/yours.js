/** "Yours": a system that a person brings, what to train it on, and the same in Python and TOML. */
import { flowCosts, identity, krylovRank, logDeterminants, meanCost, measures, notUnderdetermined, train } from "./mathematics.js";
import { BOUNDS } from "./link.js";
import { growth, readSystem } from "./reading.js";
import { sub } from "./plane.js";
import { copy, definitions, element, make, row, short } from "./widgets.js";

const ITERATIONS = 2000, LARGEST = 1e4;
const USUAL = { H: "8", eta: "0.01", k: "1" };
const EXAMPLES = [
  { A: "0.9 0.4 0\n0 0.8 0.5\n0 0 0.7", B: "", Q: "", R: "" },
  { A: "1 0.1 0 0\n0 1 0.2 0\n0 0 1 0.1\n0 0 0.1 1", B: "0\n0.1\n0\n0.2", Q: "", R: "0.1" },
];

export function createYours({ onChange, onExplore }) {
  const fields = {}, errors = {};
  let last, settings, example = 0, timer = 0;

  function field(place, key, words, input) {
    const error = make("span", { className: "error", id: `error-${key}` });
    input.id = `yours-${key}`;
    input.setAttribute("aria-describedby", error.id);
    place.append(make("label", { className: "field" }, make("span", { textContent: words }), input, error));
    fields[key] = input;
    errors[key] = error;
    input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(settle, 60); });
  }

  /** What was typed a moment ago, read now. */
  function settle() {
    clearTimeout(timer);
    timer = 0;
    update();
    onChange();
  }

  const area = (rows, placeholder = "") => make("textarea", { spellcheck: false, autocomplete: "off", placeholder, rows });
  const place = element("fields"), small = make("div", { className: "pair" });
  field(place, "A", "A, n×n", area(4, "0 1\n1 0"));
  field(place, "B", "B, n×m (empty: I)", area(2));
  field(place, "Q", "Q, n×n (empty: I)", area(2));
  field(place, "R", "R, m×m (empty: 0)", area(2));
  place.append(small);
  field(small, "H", "horizon H", make("input", { inputMode: "numeric", value: USUAL.H }));
  field(small, "eta", "learning rate η", make("input", { inputMode: "decimal", value: USUAL.eta }));
  field(small, "k", "states to choose", make("input", { inputMode: "numeric", value: USUAL.k }));

  function numberOf(key, low, high, whole, words) {
    const value = fields[key].value.trim() === "" ? NaN : Number(fields[key].value);
    if (value >= low && value <= high && (!whole || Number.isInteger(value))) return value;
    say(key, `${words} is “${fields[key].value.slice(0, 20)}”, but must be a ${whole ? "whole " : ""}number from ${low} to ${high}.`);
    return null;
  }

  function say(key, sentence) {
    errors[key].textContent = sentence;
    fields[key].setAttribute("aria-invalid", String(sentence !== ""));
  }

  /** Returns the names of matrices that cannot be used. */
  function update() {
    for (const key of Object.keys(fields)) say(key, "");
    const { errors: wrong, system } = readSystem(Object.fromEntries(["A", "B", "Q", "R"].map((key) => [key, fields[key].value])));
    for (const [key, sentence] of Object.entries(wrong)) say(key, sentence);
    const H = numberOf("H", ...BOUNDS.H, true, "The horizon"), rate = numberOf("eta", ...BOUNDS.eta, false, "The learning rate");
    const k = numberOf("k", 1, system ? system.A.length - 1 : 7, true, "The number of states to choose");
    const grown = system && H !== null ? growth(system.A, H) : 0;
    if (grown > LARGEST) {
      say("A", `Within H = ${H} step${H > 1 ? "s" : ""} a state can grow by a factor of ${short(grown, 2)}, and the lab takes up to `
        + `${LARGEST.toLocaleString("en")}. Shorten the horizon, or scale A down.`);
    }
    const ready = system && H !== null && rate !== null && k !== null && grown <= LARGEST;
    element("yours-explore").disabled = !ready;
    for (const id of ["ranked", "yours-numbers", "yours-code"]) element(id).hidden = !ready;
    if (system) last = system;
    settings = {};
    if (ready) settings = { H, eta: rate, seen: rank({ ...system, horizon: H }, rate, k) };
    else element("yours-words").textContent = "Correct the fields that have an error message.";
    return Object.keys(wrong);
  }

  function rank(problem, rate, k) {
    const n = problem.A.length, candidates = identity(n), free = problem.R.flat().every((value) => value === 0);
    const grow = (sets) => sets.flatMap((set) => candidates.map((_, i) => i).filter((i) => i > (set.at(-1) ?? -1)).map((i) => [...set, i]));
    let sets = [[]];
    for (let i = 0; i < k; i++) sets = grow(sets);
    const logdet = logDeterminants(problem, candidates, sets), flow = free ? flowCosts(problem, candidates, sets, rate, ITERATIONS) : [];
    const order = sets.map((_, i) => i).sort((a, b) => logdet[b] - logdet[a]), names = (set) => set.map((i) => `e${sub(i + 1)}`).join(", ");
    const rows = order.slice(0, 10).map((i) => {
      const reached = krylovRank(problem.A, sets[i].map((d) => candidates[d]));
      const count = reached === null ? "hidden by rounding" : `${reached} of ${n}`;
      return row([names(sets[i]), short(logdet[i]), free ? short(flow[i]) : "needs R = 0", count]);
    });
    element("ranked").tBodies[0].replaceChildren(...rows);
    const seen = sets[order[0]].map((d) => candidates[d]), run = train(problem, seen, { rate, iterations: ITERATIONS }),
      found = measures(problem, run.K, seen);
    const reached = krylovRank(problem.A, seen);
    const shown = sets.length > 10 ? `The best 10 of ${sets.length} choices` : `All ${sets.length} choices`;
    element("yours-words").textContent = `${shown} by what they visit. Start from ${names(sets[order[0]])}: `
      + `rollouts reach ${reached ?? "an unknown number"} of ${n} directions (Krylov rank).`;
    if (run.diverged) say("eta", `Training diverged at iteration ${run.costs.length}; try ${short(rate / 10, 1)}.`);
    const measured = found.why ? [["the measures", found.why]]
      : [["optimality measure", found.normalizedOptimality.toFixed(4)], ["cost measure", found.normalizedCost.toFixed(4)]];
    const J = [`J(S) after ${ITERATIONS.toLocaleString("en")} iterations`, short(meanCost(problem, run.K, seen), 5)];
    const trained = run.diverged ? [] : [J, ...measured];
    element("yours-numbers").replaceChildren(...definitions(trained));
    element("python").textContent = python(problem, seen, rate);
    element("toml").textContent = toml(problem, seen, rate);
    return seen;
  }

  const number = (value) => (Number.isInteger(value) && Math.abs(value) < 1e15 ? value.toFixed(1) : String(value));
  const list = (M) => `[${M.map((row) => `[${row.map(number).join(", ")}]`).join(", ")}]`;

  function python(problem, seen, rate) {
    const measured = notUnderdetermined(problem) ? "offspan.lqr_extrapolation(problem, run.K, seen)"
      : "offspan.normalized_optimality(problem, run.K, seen)";
    return [
      "import jax",
      "import jax.numpy as jnp",
      "import offspan",
      "",
      'jax.config.update("jax_enable_x64", True)',
      "problem = offspan.LQR(",
      ...["A", "B", "Q", "R"].map((name) => `    ${name}=${list(problem[name])},`),
      `    horizon=${problem.horizon},`,
      ")",
      `seen = jnp.array(${list(seen)})`,
      `run = offspan.train_lqr(problem, seen, learning_rate=${rate}, iterations=${ITERATIONS})`,
      `print(run.status, ${measured})`,
      "",
    ].join("\n");
  }

  function toml(problem, seen, rate) {
    return ['name = "mine"', 'systems = ["mine"]', `dim = [${problem.A.length}]`, `horizon = [${problem.horizon}]`,
      `seen_states = ${list(seen)}`, `learning_rate = [${rate}]`, "seeds = [0]", `iterations = ${ITERATIONS}`, "", "[matrices.mine]",
      ...["A", "B", "Q", "R"].map((name) => `${name} = ${list(problem[name])}`), ""].join("\n");
  }

  function fill(values) {
    for (const [key, value] of Object.entries(values)) fields[key].value = value;
    return update();
  }

  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click",
    () => copy(element(button.dataset.copy).textContent, button));
  element("yours-example").addEventListener("click", () => {
    example = (example + 1) % EXAMPLES.length;
    fill(EXAMPLES[example]);
    onChange();
  });
  element("yours-explore").addEventListener("click", () => onExplore());
  fill(EXAMPLES[0]);

  const flat = (key) => fields[key].value.trim().replace(/\s*\n\s*/g, ";").replace(/[ \t]*,[ \t]*|[ \t]+/g, ",");
  return {
    problem() {
      if (timer) settle();
      return last;
    },
    /** H, η and the states to train on, where all fields can be used. */
    settings: () => settings,
    /** Returns the names of matrices that cannot be used. */
    read(values, from) {
      const typed = (text) => text.slice(0, 20000).replaceAll(";", "\n").replace(/(?<!,),(?!,)/g, " ");
      const usual = { ...EXAMPLES[0], ...USUAL };
      return fill(Object.fromEntries(Object.entries(usual).map(([key, value]) => [key, values.has(key) ? typed(from.text(key)) : value])));
    },
    pairs: () => Object.fromEntries(Object.keys(fields).filter((key) => fields[key].value.trim() !== "").map((key) => [key, flat(key)])),
    shown() {},
  };
}
