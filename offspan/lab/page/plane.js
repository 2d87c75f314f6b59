/** The plane of states: what is trained on, what is not, where one step sends the unit circle, and what every start costs. */
import { add, apply, closedLoop, costMatrix, rollout, svd, visitedCount, zeros } from "./mathematics.js";
import { colours, dot, moves, paint, path, prepare, ramp, text } from "./drawing.js";
import { make } from "./widgets.js";

const REACH = 1.62, GRID = 300, FLIGHT = 110; // in units of states, and milliseconds a time step
/** States are longer than `near`, lest their handles vanish, and no coordinate is beyond `far`. */
export const ROOM = { near: 0.05, far: 1.5 };

/** `onMove(kind, index, position)` for a state that was dragged, `onClick(position)` for a start to fly from. */
export function createPlane(canvas, stage, onMove, onClick) {
  const scratch = document.createElement("canvas"), handles = new Map();
  let flight = null; // {start, since}

  const size = () => canvas.clientWidth || 1;
  const pixel = ([x, y]) => [((x + REACH) / (2 * REACH)) * size(), ((REACH - y) / (2 * REACH)) * size()];
  const position = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * 2 * REACH - REACH, REACH - ((event.clientY - box.top) / box.height) * 2 * REACH];
  };
  // With the digits that a link has.
  const within = (place) => place.map((value) => Number(Math.min(ROOM.far, Math.max(-ROOM.far, value)).toFixed(4)));

  canvas.addEventListener("click", (event) => onClick(within(position(event))));

  function handle(kind, index) {
    const button = make("button", { type: "button", className: `handle ${kind}` });
    const named = kind === "seen" ? `Seen state ${index + 1}` : "Unseen state";
    let at = [0, 0];
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      event.preventDefault();
      button.focus();
    });
    button.addEventListener("pointermove", (event) => {
      if (button.hasPointerCapture(event.pointerId)) onMove(kind, index, within(position(event)));
    });
    button.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!by) return;
      event.preventDefault();
      const step = event.shiftKey ? 0.25 : 0.05;
      // Known at once, since keys may come faster than frames.
      at = within([at[0] + step * by[0], at[1] + step * by[1]]);
      onMove(kind, index, at);
    });
    stage.append(button);
    return {
      button,
      show(place, visible) {
        at = place;
        const [x, y] = pixel(place);
        button.style.left = `${x}px`;
        button.style.top = `${y}px`;
        button.hidden = !visible;
        button.setAttribute("aria-label",
          `${named} at ${place.map((value) => value.toFixed(2)).join(", ")}; arrow keys move it`);
      },
    };
  }

  function showHandles(states, axes) {
    const wanted = [...states.seen.map((x, i) => ["seen", i, x]), ["unseen", 0, states.unseen]];
    for (const [key, one] of handles) if (!wanted.some(([kind, i]) => key === kind + i)) { one.button.remove(); handles.delete(key); }
    for (const [kind, i, x] of wanted) {
      if (!handles.has(kind + i)) handles.set(kind + i, handle(kind, i));
      const place = axes.map((d) => x[d]);
      handles.get(kind + i).show(place, Math.hypot(...place) > 1e-9);
    }
  }

  /** A line that can be told from the darkest shade: on a band of the card's colour. */
  function banded(context, places, how, tone) {
    path(context, places, { stroke: tone.card, width: how.width + 3 });
    path(context, places, how);
  }

  function trail(context, states, axes, fill, tone) {
    const places = states.map((x) => pixel(axes.map((d) => x[d]))).filter((place) => place.every((value) => Math.abs(value) < 1e5));
    banded(context, places, { stroke: fill, width: 2 }, tone);
    places.forEach((place, h) => {
      dot(context, place, Math.max(2.4, 6.5 - 0.55 * h) + 1.5, tone.card);
      dot(context, place, Math.max(2.4, 6.5 - 0.55 * h), fill);
    });
  }

  /** Draws; true while something flies, so that there is a next frame to draw. */
  function draw({ problem, K, ghost, seen, unseen, axes, scale }) {
    const ready = prepare(canvas);
    if (!ready) return false;
    const { context, width } = ready, tone = colours(), [i, j] = axes, M = closedLoop(problem, K), flat = (x) => pixel([x[i], x[j]]);
    const P = add(costMatrix(problem, K), problem.Q, -1), shares = new Float64Array(GRID * GRID);
    for (let row = 0; row < GRID; row++) {
      const y = REACH - ((row + 0.5) / GRID) * 2 * REACH;
      for (let column = 0; column < GRID; column++) {
        const x = ((column + 0.5) / GRID) * 2 * REACH - REACH;
        const excess = Math.max(0, P[i][i] * x * x + 2 * P[i][j] * x * y + P[j][j] * y * y);
        shares[row * GRID + column] = Number.isFinite(excess) ? Math.sqrt(excess / (excess + scale)) : 1;
      }
    }
    paint(context, shares, GRID, GRID, ramp(tone), [0, 0, width, width], scratch);
    context.globalAlpha = 0.5;
    path(context, [pixel([-REACH, 0]), pixel([REACH, 0])], { stroke: tone.soft });
    path(context, [pixel([0, -REACH]), pixel([0, REACH])], { stroke: tone.soft });
    context.globalAlpha = 1;
    text(context, `x${sub(i + 1)}`, width - 8, width / 2 - 8, tone.ink, "right");
    text(context, `x${sub(j + 1)}`, width / 2 + 8, 16, tone.ink);

    const circle = Array.from({ length: 97 }, (_, k) => {
      const angle = (2 * Math.PI * k) / 96;
      return problem.A.map((_, d) => (d === i ? Math.cos(angle) : d === j ? Math.sin(angle) : 0));
    });
    path(context, circle.map(flat), { stroke: tone.soft, width: 1 });
    const image = (loop, how) => {
      const { sigma, left } = svd([[loop[i][i], loop[i][j]], [loop[j][i], loop[j][j]]]);
      const segment = [-sigma[0], sigma[0]].map((length) => pixel(left[0].map((value) => length * value)));
      const collapsed = sigma[1] < 1e-3 * Math.max(sigma[0], 1e-9); // a line there and back, whose dashes would fall between dashes
      banded(context, collapsed ? segment : circle.map((x) => flat(apply(loop, x))), how, tone);
    };
    if (ghost) image(closedLoop(problem, ghost), { stroke: tone.soft, width: 3, dash: [7, 5] });
    image(M, { stroke: tone.ink, width: 3.5 });

    const still = zeros(K.length, problem.A.length);
    for (const x of seen) { // what a rollout visits before training
      for (const state of rollout(problem, still, x).slice(1, visitedCount(problem))) {
        for (const [strokeStyle, lineWidth] of [[tone.card, 4.8], [tone.seen, 1.8]]) {
          context.beginPath();
          context.arc(...flat(state), 6, 0, 2 * Math.PI);
          Object.assign(context, { strokeStyle, lineWidth });
          context.stroke();
        }
      }
      trail(context, rollout(problem, K, x), axes, tone.seen, tone);
    }
    trail(context, rollout(problem, K, unseen), axes, tone.unseen, tone);
    const flying = flight !== null && drawFlight(context, rollout(problem, K, flight.start), axes, tone);
    showHandles({ seen, unseen }, axes);
    return flying;
  }

  function drawFlight(context, states, axes, tone) {
    const places = states.map((x) => pixel(axes.map((d) => x[d]))), last = places.length - 1;
    const time = moves() ? Math.min(last, (performance.now() - flight.since) / FLIGHT) : last, h = Math.floor(time);
    path(context, places.slice(0, h + 1), { stroke: tone.ink, width: 1.5 });
    places.slice(0, h + 1).forEach((place) => dot(context, place, 3, tone.ink));
    const next = places[Math.min(h + 1, last)], share = time - h;
    dot(context, places[h].map((value, k) => value + share * (next[k] - value)), 6, tone.ink);
    return time < last;
  }

  return { draw, fly(start) { flight = start && { start, since: performance.now() }; } };
}

/** A digit as an index. */
export const sub = (number) => [...String(number)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[Number(digit)]).join("");
