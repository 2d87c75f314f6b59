/** Controls: a dial, sliders, choices; each tells its owner of a change, and shows what its owner says. */

export const element = (id) => document.getElementById(id);

/** A new element with properties and children; texts are always texts. */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Buttons of which one is chosen; arrow keys go through them. Returns a function that shows a choice. */
export function choices(place, options, onChoose) {
  const buttons = new Map();
  for (const [value, words] of options) {
    const button = make("button", { type: "button", textContent: words });
    button.setAttribute("role", "radio");
    button.dataset.value = String(value);
    button.addEventListener("click", () => onChoose(value));
    button.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const all = [...buttons.entries()].filter(([, one]) => !one.hidden && !one.disabled), at = all.findIndex(([, one]) => one === button);
      const [next, target] = all[(at + by + all.length) % all.length];
      target.focus();
      onChoose(next);
    });
    buttons.set(value, button);
  }
  place.replaceChildren(...buttons.values());
  return (chosen) => {
    for (const [value, button] of buttons) {
      button.setAttribute("aria-checked", String(value === chosen));
      button.tabIndex = value === chosen ? 0 : -1;
    }
  };
}

/** A labelled slider; `to` and `from` translate between its position and the value. Returns a function that shows a value. */
export function slider(place, { id, name, low, high, step = 1, to = (v) => v, from = (v) => v, words = String, help = "" }, onChange) {
  const input = make("input", { type: "range", id, min: String(low), max: String(high), step: String(step) });
  const shown = make("b");
  const label = make("label", { className: "slider", title: help }, make("span", { textContent: name }), shown, input);
  input.addEventListener("input", () => onChange(to(Number(input.value))));
  place.append(label);
  const show = (value) => {
    input.value = String(from(value));
    shown.textContent = words(value);
    input.setAttribute("aria-valuetext", words(value));
  };
  return Object.assign(show, { label, input });
}

/** Half a circle from 0 to 180 degrees. Returns a function that shows an angle. */
export function dial(place, { filled, knob, number, ticks }, onTurn) {
  const radians = Math.PI / 180, point = (degrees, radius) => [radius * Math.cos(degrees * radians), -radius * Math.sin(degrees * radians)];
  const labels = new Map(), svg = place.querySelector("svg"), ns = "http://www.w3.org/2000/svg";
  for (let degrees = 0; degrees <= 180; degrees += 30) {
    const line = document.createElementNS(ns, "line"), [[x1, y1], [x2, y2]] = [point(degrees, 74), point(degrees, 81)];
    Object.entries({ x1, y1, x2, y2 }).forEach(([key, value]) => line.setAttribute(key, value.toFixed(1)));
    const words = document.createElementNS(ns, "text"), [x, y] = point(degrees, 113);
    const where = { x: x.toFixed(1), y: (y + 4).toFixed(1), "text-anchor": "middle" };
    Object.entries(where).forEach(([key, value]) => words.setAttribute(key, value));
    words.textContent = `${degrees}°`;
    labels.set(degrees, words);
    ticks.append(line, words);
  }
  let now = 0;
  const turn = (degrees) => onTurn(Math.min(180, Math.max(0, Math.round(degrees))));
  const follow = (event) => {
    const box = svg.getBoundingClientRect(), scale = 252 / box.width;
    const x = (event.clientX - box.left) * scale - 126, y = (event.clientY - box.top) * scale - 124;
    const degrees = (Math.atan2(-y, x) * 180) / Math.PI;
    turn(degrees < -90 ? 180 : degrees);
  };
  // Only the arc takes hold of a finger, so that the page can be scrolled from the rest.
  place.addEventListener("touchstart", (event) => { if (event.cancelable && event.target.matches(".grip")) event.preventDefault(); },
    { passive: false });
  place.addEventListener("pointerdown", (event) => {
    if (!event.target.matches(".grip")) return;
    place.setPointerCapture(event.pointerId);
    place.focus();
    follow(event);
  });
  place.addEventListener("pointermove", (event) => { if (place.hasPointerCapture(event.pointerId)) follow(event); });
  place.addEventListener("keydown", (event) => {
    const large = event.shiftKey ? 10 : 1;
    const steps = { ArrowRight: large, ArrowUp: large, ArrowLeft: -large, ArrowDown: -large, PageUp: 10, PageDown: -10 };
    const next = { Home: 0, End: 180 }[event.key] ?? now + steps[event.key];
    if (Number.isNaN(next)) return;
    event.preventDefault();
    turn(next);
  });
  return (degrees) => {
    now = degrees;
    const [x, y] = point(degrees, 92);
    knob.setAttribute("cx", x.toFixed(2));
    knob.setAttribute("cy", y.toFixed(2));
    filled.setAttribute("d", degrees > 0 ? `M92 0 A92 92 0 0 0 ${x.toFixed(2)} ${y.toFixed(2)}` : "");
    number.textContent = `${degrees}°`;
    for (const [at, words] of labels) { // those under the knob are not shown
      words.setAttribute("visibility", Math.abs(at - degrees) < 11 ? "hidden" : "visible");
    }
    place.setAttribute("aria-valuenow", String(degrees));
    place.setAttribute("aria-valuetext", `${degrees} degrees`);
  };
}

/** Names and values, for a list of definitions. */
export const definitions = (pairs) =>
  pairs.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })));

/** A row of a table. */
export const row = (words, className = "") => make("tr", { className }, ...words.map((textContent) => make("td", { textContent })));

const saying = new WeakMap(); // buttons that say something for a while: their own words, and the timer

/** Copies text, and says so on the button; where the browser allows neither way of copying, the button says `otherwise`. */
export async function copy(words, button, otherwise = "Select and copy it") {
  const { before, timer } = saying.get(button) ?? { before: button.textContent };
  let done = true;
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    const field = make("textarea", { value: words });
    document.body.append(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
  }
  clearTimeout(timer);
  button.textContent = done ? "Copied" : otherwise;
  saying.set(button, { before, timer: setTimeout(() => { button.textContent = before; saying.delete(button); }, 1600) });
}

/** A short number: four digits at most, or an exponent. */
export function short(value, digits = 3) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e-", "e−").replace("e+", "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}
