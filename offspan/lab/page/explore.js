/** The first tab: a system, a dial, training while one looks, and what it leaves. */
import { Training, add, baselines, costMatrix, directions, gaussian, identity, measures, notUnderdetermined, quadratic, rotation, rowsOf,
  seenProjector, shift, shiftProposition, svd, zeros } from "./mathematics.js";
import { chart, colours, whenResized } from "./drawing.js";
import { BOUNDS, statesText } from "./link.js";
import { ROOM, createPlane, sub } from "./plane.js";
import { choices, definitions, dial, element, make, short, slider } from "./widgets.js";

const BUDGET = 8, MOST = 20000; // milliseconds a frame, and iterations until somebody asks for more
const USUAL = { H: 8, eta: 0.01, noise: 0, cut: 0 };
const PRESETS = { rotation: { ...USUAL, D: 2 }, identity: { ...USUAL, D: 2 }, shift: { ...USUAL, D: 5, H: 5 },
  random: { ...USUAL, D: 5, H: 5, eta: 0.005 } };
const WORDS = {
  rotation: (noise) => `Two coordinates. Each step turns the state by φ: ${noise ? "even without a turn, noise visits every direction."
    : "without a turn nothing new is visited."}`,
  identity: (noise) => (noise ? "A = I: only noise leads a rollout away from the line through its start, in every direction."
    : "A = I: a rollout stays on the line through its start, and nothing new is visited."),
  shift: () => "Each step moves e₁ to e₂, e₂ to e₃, …, and the last back to e₁.",
  random: () => "A has independent Gaussian entries of variance 1/D.",
  yours: () => "The matrices of the tab “Yours”.",
  run: () => "A system of the run that this page was made from.",
};
const MATRICES = ["A", "B", "Q", "R"];
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** `own` is the tab "Yours", `runs` are the systems of a finished run, `onChange` is called when the link changes. */
export function createExplore({ own, runs, onChange }) {
  const start = () => ({ system: "rotation", phi: 30, seed: 1, run: 0, count: 1, axes: [0, 1], stop: null,
    seen: [[1, 0]], unseen: [0, 1], ...PRESETS.rotation });
  let state = start(), problem, training, records, mode = "still", limit = MOST, wanted = true, flying = false, visible = true;
  let sweep = { key: "", found: [] }, flown = null; // the start of the trajectory that is shown

  function systemOf({ system, phi, D, seed, H, noise, run }) {
    const plain = (A) => ({ A, B: identity(A.length), Q: identity(A.length), R: zeros(A.length, A.length) });
    const makers = {
      rotation: () => plain(rotation(phi)),
      identity: () => plain(identity(D)),
      shift: () => plain(shift(D)),
      random: () => plain(gaussian(seed, D)),
      yours: () => own.problem(),
      run: () => runs[run].problem,
    };
    return { ...makers[system](), horizon: H, noise };
  }

  /** The states that a system of D coordinates begins with. */
  function basisStates(D, count) {
    const e = identity(D);
    return { D, count: Math.min(count, D), seen: e.slice(0, Math.min(count, D)), unseen: e[Math.min(count, D - 1)],
      axes: [0, Math.min(Math.max(count, 1), D - 1)] };
  }

  /** New settings: training starts again, and runs to its end at once unless `stop` iterations are asked for. */
  function change(values, stop = null) {
    state = { ...state, ...values, stop };
    restart();
    mode = "dash";
    show();
    showStatus();
    onChange();
  }

  function restart() {
    fly(null);
    problem = systemOf(state);
    training = new Training(problem, state.seen, { rate: state.eta, cut: state.cut });
    records = [];
    limit = Math.max(MOST, state.stop ?? 0);
    mode = "still";
    record();
    wanted = true;
  }

  function record() {
    const now = measures(problem, training.K, state.seen);
    records.push({ iteration: training.iteration, cost: training.cost, optimality: now.normalizedOptimality, later: now.normalizedCost });
  }

  function advance(steps, until) {
    let next = Math.max(records[records.length - 1].iteration + 1, Math.ceil(records[records.length - 1].iteration * 1.04));
    const end = Math.min(limit, state.stop ?? Infinity);
    for (let i = 0; i < steps && training.iteration < end && performance.now() < until; i++) {
      if (!training.step() || training.settled) { mode = "still"; break; }
      if (training.iteration >= next) { record(); next = Math.max(training.iteration + 1, Math.ceil(training.iteration * 1.04)); }
    }
    if (training.iteration >= end) mode = "still";
    if (records[records.length - 1].iteration !== training.iteration) record();
    wanted = true;
  }

  function frame() {
    if (visible && !document.hidden) {
      const until = performance.now() + BUDGET;
      if (mode === "dash") advance(Infinity, until);
      else if (mode === "play") advance(Math.max(1, Math.ceil(training.iteration * 0.03)), until);
      else if (state.system === "rotation") sweepOn(until);
      if (wanted || flying) draw();
    }
    requestAnimationFrame(frame);
  }

  /** Trains at all angles of the dial, a few in each frame in which there is nothing else to do. */
  function sweepOn(until) {
    const { H, eta, noise, cut, seen } = state, key = JSON.stringify([H, eta, noise, cut, seen]);
    if (sweep.key !== key) sweep = { key, found: [] };
    while (sweep.found.length <= 36 && performance.now() < until - 4) {
      const phi = 5 * sweep.found.length, at = systemOf({ ...state, phi }), run = new Training(at, seen, { rate: eta, cut });
      for (let i = 0; i < 2000 && run.step() && !run.settled; i++);
      const along = unseenOf(seen);
      const ended = along && !run.diverged;
      sweep.found.push({
        phi,
        left: ended ? measures(at, run.K, seen).normalizedOptimality : NaN,
        visited: ended ? quadratic(rowsOf(run.visits, 2, 2), along) : NaN,
      });
      wanted = true;
    }
  }

  /** A direction orthogonal to S, or null. */
  function unseenOf(seen) {
    const { sigma, right } = svd(seen), at = sigma.findIndex((value) => value < 1e-9 * sigma[0]);
    return at < 0 ? null : right[at];
  }

  /** K_no-ext, where it is defined, and the shade's unit: the most that a basis state costs beyond xᵀQx under it, or else under K = 0. */
  function scaleOf() {
    const ghost = notUnderdetermined(problem) ? null : baselines(problem, state.seen).nonextrapolating;
    const P = add(costMatrix(problem, ghost ?? training.K.map((row) => row.map(() => 0))), problem.Q, -1);
    const most = Math.max(...P.map((row, i) => row[i]));
    return { ghost, scale: Number.isFinite(most) && most > 1e-9 ? most : 1 };
  }

  function draw() {
    wanted = false;
    const { ghost, scale } = scaleOf();
    flying = plane.draw({ problem, K: training.K, ghost, seen: state.seen, unseen: state.unseen, axes: state.axes, scale });
    const now = measures(problem, training.K, state.seen), left = now.normalizedOptimality;
    element("measure").textContent = left === undefined ? "–" : left < 10 ? left.toFixed(2) : "≫ 1";
    element("gauge").style.width = `${100 * Math.min(1, left ?? 0)}%`;
    element("why").textContent = now.why ?? "";
    element("why").hidden = !now.why;
    drawCurves();
    drawDirections();
    if (state.system === "rotation") drawAngles();
    if (flown) showFlight();
    showNumbers(now);
    showStatus();
  }

  function drawCurves() {
    const tone = colours(), last = Math.max(10, training.iteration), ticks = [0, ...[0, 1, 2, 3, 4, 5, 6, 7].map((k) => 10 ** k)];
    const high = Math.max(...records.map(({ cost }) => (Number.isFinite(cost) ? cost : 0))) || 1;
    const x = (value) => Math.log10(value + 1) / Math.log10(last + 1);
    const line = (name, stroke, fill, key, factor = 1, dash = []) =>
      ({ name, stroke, fill, dash, points: records.map((one) => [one.iteration, factor * one[key]]) });
    chart(element("curves"), {
      lines: [
        line(`J(S) ÷ ${short(high, 2)}`, tone.seen, tone["seen-text"], "cost", 1 / high),
        line("norm. E opt", tone.unseen, tone["unseen-text"], "optimality"),
        line("norm. E cost", tone.unseen, tone["unseen-text"], "later", 1, [4, 3]),
      ],
      x,
      y: (value) => value / 1.15,
      ticksX: ticks.filter((value) => value <= last).map((value) => [value, value.toLocaleString("en")]),
      ticksY: [[0, "0"], [1, "1"]],
      titleX: "iterations",
      room: 88,
    });
  }

  function drawAngles() {
    const tone = colours(), most = Math.max(1e-12, ...sweep.found.map(({ visited }) => visited || 0)), along = unseenOf(state.seen);
    const points = (key, by) => sweep.found.map((one) => [one.phi, one[key] / by]);
    const left = records[records.length - 1].optimality, visited = along ? quadratic(rowsOf(training.visits, 2, 2), along) / most : NaN;
    const whole = sweep.found.length > 36 && mode === "still";
    chart(element("angles"), {
      lines: [{ name: "left", stroke: tone.unseen, fill: tone["unseen-text"], width: 2.5, points: points("left", 1), label: [90, 0.18] },
        { name: "visited", stroke: tone.soft, fill: tone.soft, dash: [2, 3], points: points("visited", most), label: [90, 0.82] }],
      marks: [
        { at: [state.phi, left], fill: tone.unseen, radius: 6 },
        ...(whole ? [{ at: [state.phi, visited], fill: tone.soft, radius: 4 }] : []),
      ],
      x: (value) => value / 180,
      y: (value) => value / 1.1,
      ticksX: [0, 45, 90, 135, 180].map((value) => [value, `${value}°`]),
      ticksY: [[0, "0"], [1, "1"]],
      room: 20,
    });
  }

  function drawDirections() {
    const { sigma, right } = svd(state.seen), seen = sigma.map((value) => value > 1e-9 * sigma[0]);
    const found = directions(problem, training.K, rowsOf(training.visits, training.n, training.n), right);
    const axis = (d) => d.findIndex((value) => Math.abs(value) > 1 - 1e-9); // of a basis state, else −1
    const name = (d, i) => (axis(d) < 0 ? (seen[i] ? "along S" : "off S") : `e${sub(axis(d) + 1)} ${seen[i] ? "seen" : "unseen"}`);
    // The dial's bar is a share of the most that any angle visits, so that it grows with the turn.
    const others = state.system === "rotation" ? sweep.found.map(({ visited }) => visited || 0) : [];
    const most = Math.max(1e-12, ...found.filter((_, i) => !seen[i]).map(({ visited }) => visited), ...others);
    const order = found.map((_, i) => i).sort((a, b) => axis(right[a]) - axis(right[b]));
    const bar = (className, share, words) => {
      const length = make("i");
      length.style.width = `${70 * Math.min(1, Math.max(0, share || 0))}%`;
      return make("td", {}, make("div", { className }, length, make("span", { textContent: words })));
    };
    const rows = order.map((i) => make("tr", {}, make("td", { textContent: name(right[i], i) }),
      bar("bar", seen[i] ? 1 : found[i].visited / most, seen[i] ? "always" : short(found[i].visited, 2)),
      bar(`bar left${seen[i] ? " of-seen" : ""}`, found[i].left, found[i].left < 10 ? found[i].left.toFixed(2)
        : Number.isNaN(found[i].left) ? "–" : "≫ 1")));
    element("directions").tBodies[0].replaceChildren(...rows);
  }

  function showNumbers(now) {
    const least = state.seen.reduce((sum, x) => sum + quadratic(problem.Q, x), 0) / state.seen.length;
    const pairs = [["J(S)", fixed(training.cost)], ["least J(S)", notUnderdetermined(problem) || state.noise ? "–" : least.toFixed(4)],
      ["norm. E opt", fixed(now.normalizedOptimality)], ["norm. E cost", fixed(now.normalizedCost)],
      ["iterations", training.iteration.toLocaleString("en")], ["‖∇J‖", short(training.iteration ? training.norm : NaN, 2)]];
    if (state.system === "run") pairs.push(["in the run", fixed(runs[state.run].optimality)]);
    element("numbers").replaceChildren(...definitions(pairs));
  }
  const fixed = (value) => (value === undefined || value === null ? "–" : value < 1000 ? value.toFixed(4) : short(value));

  function showStatus() {
    const made = training.iteration.toLocaleString("en"), iterations = `${made} iteration${training.iteration === 1 ? "" : "s"}`;
    const said = training.diverged ? ""
      : mode !== "still" ? `training … ${made}`
      : training.settled ? `settled after ${iterations}`
      : training.iteration === 0 ? "not trained yet" : `after ${iterations}`;
    element("status").textContent = said;
    const heard = mode === "still" ? said : "training"; // not every frame
    if (element("heard").textContent !== heard) element("heard").textContent = heard;
    element("advice").hidden = !training.diverged;
    if (training.diverged) {
      element("advice-words").textContent = `Diverged at iteration ${training.iteration + 1}: steps of η = ${short(state.eta)} overshoot. `
        + "Take smaller ones, shorten H, or clip the gradient.";
      element("advice-do").textContent = `Use η = ${short(state.eta / 4, 2)}`;
    }
    element("train").textContent = mode === "play" ? "Pause" : training.settled || training.diverged ? "Train again"
      : mode === "still" && training.iteration >= limit ? "Train on" : "Train";
  }

  /** Controls as the state has them. */
  function show() {
    showSystem(state.system);
    turn(state.phi);
    sliders.count.input.max = String(Math.max(1, state.D - 1));
    sliders.count.label.hidden = state.D < 3;
    for (const [key, set] of Object.entries(sliders)) set(state[key]);
    element("dial").hidden = state.system !== "rotation";
    element("angles-card").hidden = state.system !== "rotation";
    element("draw-field").hidden = state.system !== "random";
    element("draw-number").textContent = `draw ${state.seed}`;
    element("run-field").hidden = state.system !== "run";
    element("run-system").value = String(state.run);
    element("system-words").textContent = WORDS[state.system](state.noise);
    element("shade-words").textContent = notUnderdetermined(problem) ? "cost beyond xᵀQx" : "excess cost";
    sliders.D.label.hidden = !["identity", "shift", "random"].includes(state.system);
    element("axes-field").hidden = state.D < 3;
    for (const [id, at] of [["axis-x", 0], ["axis-y", 1]]) {
      element(id).replaceChildren(...identity(state.D).map((_, d) => make("option", { value: String(d), textContent: `x${sub(d + 1)}` })));
      element(id).value = String(state.axes[at]);
    }
    const hidden = state.seen.filter((x) => Math.hypot(...state.axes.map((d) => x[d])) < 1e-9).length;
    element("outside").textContent = hidden ? `${hidden} seen state${hidden > 1 ? "s lie" : " lies"} outside these coordinates.` : "";
    element("number-title").textContent = state.D - seenProjector(state.seen).rank > 1 ? "Error left in the unseen directions"
      : "Error left in the unseen direction";
  }

  const plane = createPlane(element("plane"), element("stage"), (kind, index, [x, y]) => {
    const moved = (old) => old.map((value, d) => (d === state.axes[0] ? x : d === state.axes[1] ? y : value));
    const to = moved(kind === "seen" ? state.seen[index] : state.unseen);
    if (Math.hypot(...to) <= ROOM.near) return;
    if (kind === "seen") change({ seen: state.seen.map((old, i) => (i === index ? to : old)) });
    else {
      state = { ...state, unseen: to };
      fly(null);
      onChange();
    }
  }, ([x, y]) => fly(state.unseen.map((_, d) => (d === state.axes[0] ? x : d === state.axes[1] ? y : 0))));

  /** Shows the trajectory from a start, under whatever controller there is, or none. */
  function fly(start) {
    flown = start;
    plane.fly(start);
    element("flight").textContent = "";
    wanted = true;
  }

  function showFlight() {
    const cost = quadratic(costMatrix(problem, training.K), flown), more = Math.max(0, cost - quadratic(problem.Q, flown));
    const [x, y] = state.axes.map((d) => flown[d].toFixed(2)), words = notUnderdetermined(problem) ? "lies beyond xᵀQx" : "is excess";
    element("flight").textContent = `From (${x}, ${y}): cost ${short(cost)}, of which ${short(more, 2)} ${words}.`;
  }

  /** What the tab "Yours" trains on, shown across one of its seen states and the first basis state that is not among them. */
  function ownStates() {
    const D = own.problem().A.length, { H, eta, seen } = { ...USUAL, seen: [identity(D)[0]], ...own.settings() };
    const free = identity(D).findIndex((e) => !seen.some((x) => same(x, e)));
    return { ...USUAL, H, eta, D, seen, count: seen.length, unseen: identity(D)[free], axes: [seen[0].indexOf(1), free] };
  }

  function choose(system) {
    if (system === "run") {
      const { problem: given, horizon, rate, seen } = runs[state.run];
      change({ system, ...USUAL, ...basisStates(given.A.length, seen.length), seen, H: horizon, eta: rate });
    } else if (system === "yours") {
      change({ system, ...ownStates() });
    } else change({ system, ...PRESETS[system], ...basisStates(PRESETS[system].D, 1) });
  }

  const known = [["rotation", "rotation"], ["identity", "identity"], ["shift", "shift"], ["random", "random"], ["yours", "yours"],
    ...(runs.length ? [["run", "the run"]] : [])];
  const showSystem = choices(element("systems"), known, choose);
  const turn = dial(element("dial"), { filled: element("dial-filled"), knob: element("dial-knob"), number: element("dial-number"),
    ticks: element("dial-ticks") }, (phi) => { if (phi !== state.phi) change({ phi }); });
  const place = element("sliders"), power = { to: (v) => Number((10 ** v).toPrecision(3)), from: (v) => Math.log10(v) };
  const sliders = {
    D: slider(place, { id: "dimension", name: "coordinates D", low: 2, high: 8 }, (D) =>
      change(basisStates(D, Math.min(state.count, D - 1)))),
    count: slider(place, { id: "count", name: "seen states", low: 1, high: 8 }, (count) =>
      change(basisStates(state.D, count))),
    H: slider(place, { id: "horizon", name: "horizon H", low: 1, high: 20 }, (H) => change({ H })),
    eta: slider(place, { id: "rate", name: "learning rate η", low: -4, high: 0, step: 0.05, ...power, words: (v) => short(v) }, (eta) =>
      change({ eta })),
    noise: slider(place, { id: "noise", name: "noise ς", low: 0, high: 0.5, step: 0.01, help: "u + ς ξ, in expectation" }, (noise) =>
      change({ noise })),
    cut: slider(place, { id: "cut", name: "clip gradient at", low: -2.1, high: 2, step: 0.1, to: (v) => (v < -2.05 ? 0 : power.to(v)),
      from: (v) => (v > 0 ? Math.log10(v) : -2.1), words: (v) => (v ? short(v) : "off") }, (cut) => change({ cut })),
  };
  runs.forEach(({ name }, i) => element("run-system").append(make("option", { value: String(i), textContent: name })));
  element("run-system").addEventListener("change", () => { state.run = Number(element("run-system").value); choose("run"); });
  for (const [id, at] of [["axis-x", 0], ["axis-y", 1]]) {
    element(id).addEventListener("change", () => {
      const axes = [...state.axes], chosen = Number(element(id).value);
      if (axes[1 - at] === chosen) axes[1 - at] = axes[at];
      axes[at] = chosen;
      state = { ...state, axes };
      fly(null);
      show();
      onChange();
    });
  }
  element("draw").addEventListener("click", () => change({ seed: (state.seed % 9999) + 1 }));
  element("train").addEventListener("click", () => {
    if (mode === "play") mode = "still";
    else {
      state.stop = null;
      if (training.settled || training.diverged) restart();
      else if (training.iteration >= limit) state.stop = limit = training.iteration + MOST; // so that the link has it
      mode = "play";
    }
    wanted = true;
    onChange();
  });
  element("step").addEventListener("click", () => {
    if (training.settled || training.diverged) restart();
    mode = "still";
    state.stop = training.iteration + 1;
    limit = Math.max(limit, state.stop);
    advance(1, Infinity);
    onChange();
  });
  element("reset").addEventListener("click", () => { state.stop = 0; restart(); onChange(); });
  element("restore").addEventListener("click", () => change(start()));
  element("advice-do").addEventListener("click", () => change({ eta: Number((state.eta / 4).toPrecision(2)) }));
  element("proposition").addEventListener("click", () => {
    const D = state.system === "shift" ? state.D : PRESETS.shift.D, H = state.system === "shift" ? state.H : PRESETS.shift.H,
      { rate, optimality } = shiftProposition(D, H);
    change({ system: "shift", ...basisStates(D, 1), H, eta: rate, noise: 0, cut: 0 }, 1);
    const left = optimality.toFixed(4);
    element("flight").textContent = `One step of η = ${short(rate)} sends e₁ to zero, and should leave ${left} of the rest. `
      + "It weighs a visit at time h by H − h: what is left differs where as much is visited.";
  });
  whenResized(element("plane"), () => { wanted = true; });
  whenResized(element("curves"), () => { wanted = true; });

  /** From a link. */
  function read(values, from) {
    const system = from.word("system", "rotation", known.map(([name]) => name)), base = { ...start(), ...(PRESETS[system] ?? {}) };
    const run = from.number("run", 0, 0, Math.max(0, runs.length - 1), true);
    const given = system === "run" ? { H: runs[run].horizon, eta: runs[run].rate } : base;
    const H = from.number("H", given.H, ...BOUNDS.H, true), eta = from.number("eta", given.eta, ...BOUNDS.eta);
    if (system === "yours") fillOwn(values, from, { H, eta });
    const fixedD = { rotation: 2, yours: own.problem().A.length, run: runs[run]?.problem.A.length }[system];
    const D = fixedD ?? from.number("D", base.D, 2, 8, true), usual = system === "run" ? runs[run].seen : null;
    const count = from.number("count", 1, 1, values.has("seen") || usual ? Infinity : D, true);
    const far = Math.max(ROOM.far, ...(usual ?? []).flat().map(Math.abs)); // a run's states may lie beyond the plane
    const room = { ...ROOM, far, n: D, most: Math.max(8, usual?.length ?? 0) };
    const seen = from.states("seen", usual ?? basisStates(D, count).seen, room), basis = basisStates(D, seen.length);
    const axes = ["x", "y"].map((key, k) => from.number(key, basis.axes[k] + 1, 1, D, true) - 1);
    if (axes[0] === axes[1]) ["x", "y"].filter((key) => values.has(key)).forEach(from.refuse);
    change({
      ...base, ...basis, system, run, D, H, eta, seen, count: seen.length, axes: axes[0] === axes[1] ? basis.axes : axes,
      phi: from.number("phi", base.phi, 0, 180, true), seed: from.number("draw", 1, 1, 9999, true),
      noise: from.number("noise", 0, 0, 0.5), cut: from.number("cut", 0, 0, 100),
      unseen: from.states("unseen", [basis.unseen], { ...room, most: 1 })[0],
    }, from.number("steps", null, 0, 1e7, true));
  }

  /** The tab "Yours" as a link has it. */
  function fillOwn(values, from, { H, eta }) {
    const used = { H: Number(values.get("H")) === H, eta: Number(values.get("eta")) === eta };
    const wrong = own.read(new Map([...values].filter(([key]) => MATRICES.includes(key) || used[key])), from);
    wrong.filter((key) => values.has(key)).forEach(from.refuse);
  }

  /** For a link: what differs from where one begins. */
  function pairs() {
    const { system, phi, D, H, eta, noise, cut, seed, run, seen, unseen, axes, stop } = state, base = basisStates(D, seen.length),
      found = { system };
    if (system === "rotation") found.phi = phi;
    if (["identity", "shift", "random"].includes(system)) found.D = D;
    if (system === "random") found.draw = seed;
    if (system === "run") found.run = run;
    if (system === "yours") Object.assign(found, ownPairs());
    Object.assign(found, { H, eta }, noise ? { noise } : {}, cut ? { cut } : {});
    const usual = system === "run" ? runs[run].seen : base.seen;
    if (statesText(seen) !== statesText(usual)) found.seen = statesText(seen);
    else if (seen.length > 1 && system !== "run") found.count = seen.length;
    if (statesText([unseen]) !== statesText([base.unseen])) found.unseen = statesText([unseen]);
    if (D > 2) Object.assign(found, { x: axes[0] + 1, y: axes[1] + 1 });
    if (stop !== null) found.steps = stop;
    return found;
  }

  /** The matrices that are trained on, less those that an empty field stands for. */
  function ownPairs() {
    const { A, B, Q, R } = own.problem(), n = A.length, m = B[0].length, usual = { B: identity(n), Q: identity(n), R: zeros(m, m) };
    return Object.fromEntries(Object.entries({ A, B, Q, R }).filter(([key, M]) => !same(M, usual[key]))
      .map(([key, M]) => [key, M.map((row) => row.join(",")).join(";")]));
  }

  restart();
  mode = "dash";
  show();
  requestAnimationFrame(frame);
  return {
    read,
    pairs,
    choose,
    shown(is) {
      visible = is;
      wanted = true;
      if (is && state.system === "yours" && MATRICES.some((key) => !same(problem[key], own.problem()[key]))) choose("yours");
    },
  };
}
