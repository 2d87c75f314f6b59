/** The pendulum: networks that were trained from two angles near the top, and what they do from anywhere. Or the map of another run. */
import { swing, unpack } from "./mathematics.js";
import { colours, css, dot, dots, moves, paint, path, prepare, ramp, text, whenResized } from "./drawing.js";
import { choices, element, short } from "./widgets.js";

const BUDGET = 8, TURN = 2 * Math.PI, COLUMNS = 64, ROWS = 40, SPEED = 4, RING = 96, MILLISECONDS = 50;
const NAMES = { policy_gradient: "policy gradient", non_extrapolating: "trained not to extrapolate" };
const keys = ["objective", "iteration", "seed"];
const share = (cost) => (Number.isFinite(cost) ? cost / (cost + 2) : 1);


export function createPendulum({ data, onChange }) {
  const { networks = [], seen = [], unseen = [], map: fixedMap = null } = data, scratch = document.createElement("canvas"),
    known = new Map();
  const distinct = (key, among = networks) => [...new Set(among.map((one) => one[key]))];
  let chosen = networks.find((one) => one.iteration === Math.max(...distinct("iteration"))) ?? networks[0];
  const shownLast = new Map(chosen ? [[chosen.objective, chosen]] : []); // objective: its network that was shown last
  let start = [Math.PI / 4, 0], fall = null, wanted = true, visible = false, pick = () => {};

  const layersOf = (one) => { one.unpacked ??= unpack(one.layers); return one.unpacked; };

  /** Costs of starts, as far as they are known: a ring of angles, then a map that gets finer. */
  function costs(one) {
    const key = networks.indexOf(one);
    if (!known.has(key)) known.set(key, { ring: [], map: new Float64Array(COLUMNS * ROWS).fill(NaN), work: null });
    const found = known.get(key);
    found.work ??= fill(layersOf(one), found);
    return found;
  }

  function* fill(layers, { ring, map }) {
    for (let i = 0; i < RING; i++) { ring.push(share(swing(layers, [(TURN * i) / RING, 0]).cost)); yield; }
    for (const block of [4, 2, 1]) {
      for (let row = 0; row < ROWS; row += block) {
        for (let column = 0; column < COLUMNS; column += block) {
          if (block < 4 && row % (2 * block) === 0 && column % (2 * block) === 0) continue;
          const value = share(swing(layers, place(column, row)).cost);
          for (let r = row; r < row + block; r++) for (let c = column; c < column + block; c++) map[r * COLUMNS + c] = value;
          yield;
        }
      }
    }
  }
  const place = (column, row) => [(TURN * (column + 0.5)) / COLUMNS, SPEED - (2 * SPEED * (row + 0.5)) / ROWS];

  function frame() {
    if (visible && chosen) {
      const until = performance.now() + BUDGET, found = costs(chosen);
      while (performance.now() < until && !found.work.next().done) wanted = true;
      if (wanted || (fall && !fall.done)) draw();
    }
    requestAnimationFrame(frame);
  }

  function letGo() {
    const { states, cost } = swing(layersOf(chosen), start);
    fall = { states, cost, since: performance.now() };
    wanted = true;
  }

  /** The state that is shown now, and how many time steps have passed. */
  function now() {
    if (!fall) return { x: start, h: 0 };
    const time = moves() && !fall.done ? Math.min(100, (performance.now() - fall.since) / MILLISECONDS) : 100, h = Math.floor(time),
      after = fall.states[Math.min(100, h + 1)];
    return { x: fall.states[h].map((value, k) => value + (time - h) * (after[k] - value)), h };
  }

  function draw() {
    wanted = false;
    const { x, h } = now(), tone = colours();
    drawRod(x, h, tone);
    drawMap(x, h, tone);
    if (fall && h >= 100) {
      const [angle, speed] = fall.states[100], turns = Math.round((angle - Math.PI) / TURN), off = Math.abs(angle - Math.PI - turns * TURN);
      const how = off < 0.2 && Math.abs(speed) < 0.5 ? "it stands upright" : "it does not stand", count = Math.abs(turns);
      const counted = count ? `, which counts ${count} full turn${count > 1 ? "s" : ""} as distance from the top` : "";
      element("rod-status").textContent = `After 100 steps (5 s) ${how}: ${short(off, 2)} rad from the top. `
        + `Cost ${short(fall.cost)}${counted}.`;
      fall.done = true;
    } else element("rod-status").textContent = fall ? `${(h * 0.05).toFixed(1)} s` : "";
    element("rod-words").textContent = `θ = ${start[0].toFixed(2)} rad${start[1] ? `, ω = ${start[1].toFixed(1)} rad/s` : ""}`;
    element("rod-angle").value = String(start[0]);
  }

  function drawRod([angle], h, tone) {
    const ready = prepare(element("rod"));
    if (!ready) return;
    const { context, width } = ready, middle = width / 2, reach = width * 0.36, ringed = width * 0.445, half = TURN / RING / 2 + 0.004;
    const at = (theta, radius = reach) => [middle + radius * Math.sin(theta), middle + radius * Math.cos(theta)];
    const pixels = ramp(tone, 24), { ring } = costs(chosen);
    ring.forEach((value, i) => {
      const pixel = pixels[Math.min(255, Math.floor(value * 256))], theta = (TURN * i) / RING;
      context.beginPath();
      context.arc(middle, middle, ringed, Math.PI / 2 - theta - half, Math.PI / 2 - theta + half);
      context.strokeStyle = css(pixel);
      context.lineWidth = width * 0.06;
      context.stroke();
    });
    for (const radius of [0.415, 0.475]) {
      context.beginPath();
      context.arc(middle, middle, width * radius, 0, TURN);
      context.strokeStyle = tone.line;
      context.lineWidth = 1;
      context.stroke();
    }
    dots(context, { seen, unseen }, (x) => at(x[0], ringed), 7);
    text(context, "upright", middle, middle - ringed, tone.soft, "center", "middle");
    for (let k = Math.max(0, h - 26); fall && k <= h; k++) dot(context, at(fall.states[k][0]), 3, tone.ink, 0.08 + 0.015 * (k - h + 26));
    path(context, [[middle, middle], at(angle)], { stroke: tone.ink, width: 9 });
    dot(context, [middle, middle], 8, tone.ink);
    dot(context, at(angle), 19, tone.ink);
    if (!fall) text(context, "drag", ...at(angle), tone.card, "center", "middle");
  }

  function frameOf(canvas) {
    const width = canvas.clientWidth, height = canvas.clientHeight;
    return [44, 6, width - 54, height - 42];
  }

  function drawMap([angle, speed], h, tone) {
    const ready = prepare(element("map"));
    if (!ready) return;
    const { context } = ready, box = frameOf(element("map")), [x0, y0, w, height] = box;
    const at = ([theta, omega]) => [x0 + (w * theta) / TURN, y0 + (height * (SPEED - omega)) / (2 * SPEED)];
    paint(context, costs(chosen).map, COLUMNS, ROWS, ramp(tone, 24), box, scratch);
    path(context, [[x0, y0], [x0 + w, y0], [x0 + w, y0 + height], [x0, y0 + height]], { stroke: tone.line, close: true });
    ["0", "π/2", "π upright", "3π/2", "2π"].forEach((words, i) => {
      text(context, words, x0 + (w * i) / 4, y0 + height + 15, tone.soft, "center");
    });
    text(context, "angle θ at the start [rad]", x0 + w / 2, y0 + height + 32, tone.soft, "center");
    ["4", "2", "0", "−2", "−4"].forEach((words, i) => text(context, words, x0 - 7, y0 + (height * i) / 4, tone.soft, "right", "middle"));
    context.save();
    context.translate(12, y0 + height / 2);
    context.rotate(-Math.PI / 2);
    text(context, "speed ω [rad/s]", 0, 0, tone.soft, "center", "middle");
    context.restore();
    context.save();
    context.beginPath();
    context.rect(x0, y0, w, height);
    context.clip();
    if (fall) path(context, fall.states.slice(0, h + 1).map(at), { stroke: tone.ink, width: 2 });
    context.restore();
    dots(context, { seen, unseen }, at, 5.5);
    if (Math.abs(speed) <= SPEED && angle >= 0 && angle <= TURN) dot(context, at([angle, speed]), 5, tone.ink);
  }

  function choose(key, value) {
    take((key === "objective" && shownLast.get(value)) || closest([[key, value], ...keys.map((one) => [one, chosen[one]])]));
  }

  /** The network that has these values, the first ones before the later ones where no network has them all. */
  const closest = (wanted) => wanted.reduce((left, [key, value]) => {
    const fitting = left.filter((one) => one[key] === value);
    return fitting.length ? fitting : left;
  }, networks).at(-1);

  function take(network) {
    chosen = network;
    shownLast.set(chosen.objective, chosen);
    fall = null;
    show();
    onChange();
  }

  function show() {
    wanted = true;
    const same = networks.filter((one) => one.objective === chosen.objective);
    const place = (id, key, words, options) => {
      element(id).hidden = options.length < 2;
      choices(element(id), options.map((value) => [value, words(value)]), (value) => choose(key, value))(chosen[key]);
    };
    const focused = document.activeElement?.dataset?.value, inside = document.activeElement?.parentElement?.id;
    const ascending = (key) => distinct(key, same).sort((a, b) => a - b);
    place("objectives", "objective", (value) => NAMES[value] ?? value, distinct("objective"));
    place("moments", "iteration", (value) => (value ? `${value.toLocaleString("en")} iterations` : "untrained"), ascending("iteration"));
    place("seeds", "seed", (value) => `seed ${value}`, ascending("seed"));
    if (inside && focused !== undefined) [...(element(inside)?.children ?? [])].find((one) => one.dataset.value === focused)?.focus();
    element("network-words").textContent = chosen.objective === "non_extrapolating"
      ? "As good on the two seen angles, but trained to hang down from the others: "
        + "being optimal on what was seen says nothing about the rest."
      : chosen.iteration === 0 ? "Where training begins."
        : "Trained from the two blue angles alone, by plain gradient descent through 100 time steps.";
  }

  function grab(event) {
    const box = element("rod").getBoundingClientRect(), theta = Math.atan2(event.clientX - box.left - box.width / 2,
      event.clientY - box.top - box.height / 2);
    fall = null;
    start = [(theta + TURN) % TURN, 0];
    wanted = true;
  }

  if (fixedMap) {
    element("tab-pendulum").textContent = "The run";
    document.querySelector(".rod").hidden = true;
    element("panel-pendulum").classList.add("alone");
    element("map-words").textContent = "cost of a start";
    for (const id of ["objectives", "moments", "seeds"]) element(id).hidden = true;
    element("networks-title").textContent = fixedMap.title;
    pick = createFixedMap(fixedMap);
  } else if (networks.length) {
    const canvas = element("rod");
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); grab(event); });
    canvas.addEventListener("pointermove", (event) => { if (canvas.hasPointerCapture(event.pointerId)) grab(event); });
    canvas.addEventListener("pointerup", (event) => { if (canvas.hasPointerCapture(event.pointerId)) { letGo(); onChange(); } });
    canvas.addEventListener("pointercancel", onChange); // the browser took the gesture: the rod waits where it was held last
    element("rod-angle").addEventListener("input", () => {
      fall = null;
      start = [Number(element("rod-angle").value), 0];
      wanted = true;
      onChange();
    });
    element("drop").addEventListener("click", letGo);
    element("map").addEventListener("click", (event) => {
      const canvas = element("map"), box = canvas.getBoundingClientRect(), [x0, y0, w, height] = frameOf(canvas);
      const theta = (TURN * (event.clientX - box.left - x0)) / w, omega = SPEED - (2 * SPEED * (event.clientY - box.top - y0)) / height;
      if (theta < 0 || theta > TURN || Math.abs(omega) > SPEED) return;
      start = [theta, omega];
      letGo();
      onChange();
    });
    whenResized(element("rod"), () => { wanted = true; });
    whenResized(element("map"), () => { wanted = true; });
    show();
    requestAnimationFrame(frame);
  }

  return {
    read(values, from) {
      if (!networks.length) return;
      const linked = Object.entries({ who: "objective", at: "iteration", seed: "seed" });
      let left = networks;
      const asked = linked.filter(([key]) => values.has(key)).flatMap(([key, name]) => {
        const word = from.word(key, null, left.map((one) => String(one[name]))); // null: no network has it, and the visitor is told
        if (word === null) return [];
        left = left.filter((one) => String(one[name]) === word);
        return [[name, left[0][name]]];
      });
      take(closest([...asked, ...keys.map((name) => [name, chosen[name]])]));
      start = [from.number("angle", start[0], 0, 6.2832), from.number("speed", 0, -SPEED, SPEED)];
    },
    pairs() {
      if (!networks.length) return {};
      const { objective: who, iteration: at, seed } = chosen;
      return { who, at, seed, angle: start[0].toFixed(3), ...(start[1] ? { speed: start[1].toFixed(2) } : {}) };
    },
    shown(is) { visible = is; wanted = true; if (is) pick(); },
  };
}

/** A map that was computed before, of any problem: what a start costs, read off under the pointer. */
function createFixedMap({ names, x, y, cost, seen, unseen }) {
  const canvas = element("map"), scratch = document.createElement("canvas");
  const flat = cost.flat(), finite = flat.filter((value) => value !== null);
  const low = Math.min(...finite), high = Math.max(...finite), log = (value) => Math.log(value - low + 0.05 * (high - low + 1e-12));
  const shares = Float64Array.from(flat, (value) => (value === null ? 1 : (log(value) - log(low)) / (log(high) - log(low) || 1)));
  const box = () => [60, 6, canvas.clientWidth - 72, canvas.clientHeight - 42];
  const redraw = () => {
    const ready = prepare(canvas);
    if (!ready) return;
    const { context } = ready, tone = colours(), [x0, y0, w, h] = box();
    const share = (value, axis) => (value - axis[0]) / (axis.at(-1) - axis[0]);
    const at = ([a, b]) => [x0 + w * share(a, x), y0 + h - h * share(b, y)];
    paint(context, shares, x.length, y.length, ramp(tone, 24), [x0, y0, w, h], scratch);
    path(context, [[x0, y0], [x0 + w, y0], [x0 + w, y0 + h], [x0, y0 + h]], { stroke: tone.line, close: true });
    for (const part of [0, 0.5, 1]) {
      text(context, short(x[0] + part * (x.at(-1) - x[0]), 2), x0 + part * w, y0 + h + 15, tone.soft, "center");
      text(context, short(y[0] + part * (y.at(-1) - y[0]), 2), x0 - 6, y0 + h - part * h, tone.soft, "right", "middle");
    }
    text(context, `${names[0]} across, ${names[1]} upwards`, x0 + w / 2, y0 + h + 32, tone.soft, "center");
    dots(context, { seen, unseen }, at, 5.5);
  };
  const tell = (event) => {
    const frame = canvas.getBoundingClientRect(), [x0, y0, w, h] = box(), a = (event.clientX - frame.left - x0) / w,
      b = (event.clientY - frame.top - y0) / h;
    if (a < 0 || a >= 1 || b < 0 || b >= 1) return;
    const value = cost[Math.floor(b * y.length)][Math.floor(a * x.length)];
    const start = [x[0] + a * (x.at(-1) - x[0]), y.at(-1) - b * (y.at(-1) - y[0])].map((one) => short(one)).join(", ");
    const words = value === null ? "more than can be told: it overflows" : short(value);
    element("network-words").textContent = `From (${start}) it costs ${words}.`;
  };
  canvas.addEventListener("pointermove", tell);
  canvas.addEventListener("click", tell);
  whenResized(canvas, redraw);
  element("network-words").textContent = "Point at a start to read off its cost.";
  return redraw;
}
