/** "Which two?": a guess, and what every pair of starts leads to. */
import { Training, flowCosts, gaussian, gramian, identity, logDeterminants, meanCost, zeros } from "./mathematics.js";
import { colours, css, path, prepare, ramp, text, whenResized } from "./drawing.js";
import { sub } from "./plane.js";
import { element, make, row, short } from "./widgets.js";

const D = 8, H = 8, RATE = 1e-3, ITERATIONS = 6000, BUDGET = 8;
const PAIRS = identity(D).flatMap((_, i) => identity(D).slice(i + 1).map((_, k) => [i, i + 1 + k]));
const signed = (number) => String(Math.round(number)).replace("-", "−");
const linked = ([i, j]) => `${i + 1},${j + 1}`;
const name = ([i, j]) => `e${sub(i + 1)} and e${sub(j + 1)}`;

export function createWhich({ onChange }) {
  const candidates = identity(D), games = new Map(); // seed: the first guess that was ranked, and its rivals
  let seed = 1, problem, picked = [], excess, flow, logdet, work = null, visible = false, wanted = true;

  function begin(next) {
    seed = next;
    const n = identity(D);
    problem = { A: gaussian(1000 + seed, D), B: n, Q: n, R: zeros(D, D), horizon: H };
    picked = [];
    excess = PAIRS.map(() => undefined);
    flow = PAIRS.map(() => undefined);
    work = null;
    logdet = argBest(logDeterminants(problem, candidates, PAIRS).map((value) => -value));
    showVisits();
    show();
    onChange();
  }

  const argBest = (values) => values.reduce((best, value, i) => (value < values[best] ? i : best), 0);

  function showVisits() {
    const most = candidates.map((x) => gramian(problem, x).map((row, i) => row[i])), high = Math.max(...most.flat()), tone = colours(),
      pixels = ramp(tone, 24);
    const titles = ["start", ...candidates.map((_, i) => `x${sub(i + 1)}`)];
    const head = make("div", { className: "head" }, ...titles.map((textContent) => make("span", { textContent })));
    const buttons = most.map((row, i) => {
      const cells = row.map((value) => {
        const cell = make("i"), share = Math.sqrt(value / high), pixel = pixels[Math.min(255, Math.floor(share * 256))];
        cell.style.background = css(pixel);
        return cell;
      });
      const button = make("button", { type: "button" }, make("span", { textContent: `e${sub(i + 1)}` }), ...cells);
      const strong = row.map((value, d) => [value, d]).filter(([value]) => value > 0.2 * high).map(([, d]) => `x${d + 1}`).join(", ");
      button.setAttribute("aria-label", `Start e${i + 1}; it visits ${strong || "little"} most`);
      button.setAttribute("aria-pressed", String(picked.includes(i)));
      button.addEventListener("click", () => pick(i));
      return button;
    });
    element("visits").replaceChildren(head, ...buttons);
  }

  function pick(i) {
    picked = picked.includes(i) ? picked.filter((one) => one !== i)
      : picked.length === 2 ? [i] : [...picked, i].sort((a, b) => a - b); // a third one begins another guess
    const at = document.activeElement?.closest?.("#visits")
      ? [...element("visits").querySelectorAll("button")].indexOf(document.activeElement) : -1;
    showVisits();
    if (at >= 0) element("visits").querySelectorAll("button")[at].focus();
    if (picked.length === 2) work = training();
    show();
    onChange();
  }

  const pickedPair = () => PAIRS.findIndex(([i, j]) => i === picked[0] && j === picked[1]);

  /** Trains the pair that was picked, then the others, those that are not yet; what is yielded is a pause. */
  function* training() {
    for (const at of [pickedPair(), ...PAIRS.keys()]) {
      if (excess[at] !== undefined) continue;
      const run = new Training(problem, PAIRS[at].map((i) => candidates[i]), { rate: RATE, watched: false });
      for (let i = 0; i < ITERATIONS && run.step(); i++) if (i % 64 === 0) yield;
      const J = run.diverged ? Infinity : meanCost(problem, run.K, candidates);
      excess[at] = Number.isFinite(J) ? J - 1 : Infinity; // the least cost of a basis state is 1
      wanted = true;
      yield;
    }
    for (const [at, pair] of PAIRS.entries()) {
      if (flow[at] !== undefined) continue;
      flow[at] = flowCosts(problem, candidates, [pair], RATE, ITERATIONS)[0];
      yield;
    }
    if (picked.length === 2 && !games.has(seed)) games.set(seed, ranked());
  }

  /** The pair that was picked beside those of three rules, or null before all are trained. */
  function ranked() {
    if (picked.length < 2 || [...excess, ...flow].includes(undefined)) return null;
    const sorted = [...excess].sort((a, b) => a - b), best = sorted[0], middle = (sorted[13] + sorted[14]) / 2;
    const score = (value) => (Number.isFinite(middle) ? Math.max(-100, Math.round((100 * (middle - value)) / (middle - best || 1)))
      : value === best ? 100 : 0);
    const chosen = {
      you: pickedPair(),
      "log det of what is visited": logdet,
      "approximate gradient flow": argBest(flow),
      "training all 28": argBest(excess),
    };
    return Object.entries(chosen)
      .map(([who, at]) => ({ who, at, excess: excess[at], rank: 1 + sorted.indexOf(excess[at]), score: score(excess[at]) }));
  }

  function frame() {
    if (visible) {
      const until = performance.now() + BUDGET;
      while (work && performance.now() < until) if (work.next().done) { work = null; show(); }
      if (wanted) draw();
    }
    requestAnimationFrame(frame);
  }

  function show() {
    wanted = true;
    const rows = ranked();
    element("which-seed").textContent = `system ${seed}`;
    element("which-table").hidden = !rows;
    element("which-words").textContent = rows
      ? `You chose ${name(PAIRS[rows[0].at])}: rank ${rows[0].rank} of 28. Best is ${name(PAIRS[rows[3].at])}.`
      : picked.length === 2 ? "Training all pairs, yours first …" : picked.length === 1 ? "And the second?"
        : "The excess cost over all eight starts after training appears here, a square for each pair.";
    element("which-table").tBodies[0].replaceChildren(...(rows ?? []).map(({ who, at, excess: value, rank, score }, i) =>
      row([who, name(PAIRS[at]), short(value), String(rank), signed(score)], i ? "" : "mine")));
    const all = [...games.values()], mean = (i) => signed(all.reduce((sum, one) => sum + one[i].score, 0) / all.length);
    element("which-total").textContent = all.length
      ? `A score of 100 is the best pair, 0 the median one. Over ${all.length} system${all.length > 1 ? "s" : ""}: `
        + `you ${mean(0)}, log det ${mean(1)}, flow ${mean(2)}. Your first guess of each counts.` : "";
  }

  function draw() {
    wanted = false;
    const ready = prepare(element("pairs"));
    if (!ready) return;
    const { context, width } = ready, tone = colours(), cell = width / D, pixels = ramp(tone, 24);
    const rows = ranked();
    const known = excess.filter(Number.isFinite), low = Math.min(...known), high = Math.max(...known);
    for (let i = 0; i < D; i++) text(context, `e${sub(i + 1)}`, (i + 0.5) * cell, (i + 0.5) * cell, tone.soft, "center", "middle");
    PAIRS.forEach(([i, j], at) => {
      const x = i * cell, y = j * cell, share = known.length > 1 ? (excess[at] - low) / (high - low || 1) : 0.3;
      const pixel = pixels[Math.min(255, Math.floor(255 * Math.min(1, Math.sqrt(Math.max(0, share)))))];
      context.fillStyle = excess[at] === undefined ? tone.fill : Number.isFinite(excess[at]) ? css(pixel) : tone.soft;
      context.fillRect(x + 2, y + 2, cell - 4, cell - 4);
      const words = excess[at] === undefined ? "" : excess[at] < 10 ? excess[at].toFixed(2) : short(excess[at], 2);
      text(context, words, x + cell / 2, y + 0.44 * cell, tone.ink, "center", "middle");
      const mine = picked[0] === i && picked[1] === j, best = rows && rows[3].at === at;
      if (!mine && !best) return;
      const corners = [[3, 3], [cell - 3, 3], [cell - 3, cell - 3], [3, cell - 3]].map(([a, b]) => [x + a, y + b]);
      path(context, corners, { stroke: tone.ink, width: 3, close: true, dash: mine ? [] : [4, 3] });
      text(context, [mine && "you", best && "best"].filter(Boolean).join(", "), x + cell / 2, y + cell - 12, tone.ink, "center", "middle");
    });
  }

  element("which-new").addEventListener("click", () => begin((seed % 9999) + 1));
  whenResized(element("pairs"), () => { wanted = true; });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showVisits);
  begin(1);
  requestAnimationFrame(frame);
  return {
    read(values, from) {
      begin(from.number("draw", 1, 1, 9999, true));
      const asked = from.word("pair", "", PAIRS.map(linked));
      PAIRS.find((pair) => linked(pair) === asked)?.forEach((i) => pick(i));
    },
    pairs: () => ({ draw: seed, ...(picked.length === 2 ? { pair: linked(picked) } : {}) }),
    shown(is) { visible = is; wanted = true; },
  };
}
