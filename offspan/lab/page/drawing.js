/** Canvases: sharp on every screen, in the colours of the style sheet, with labels at the lines that they name. */

/** Colours of the style sheet, as they are now: light or dark. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["paper", "card", "ink", "soft", "line", "fill", "seen", "unseen", "seen-text", "unseen-text", "low",
    "high"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

export const moves = () => !matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Calls `redraw` whenever the canvas changes its size or the page its colours. */
export function whenResized(canvas, redraw) {
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

/** A cleared context in CSS pixels, or null while the canvas is not shown. */
export function prepare(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!width || !height) return null;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

export function path(context, points, { stroke, width = 1, dash = [], close = false }) {
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  if (close) context.closePath();
  context.strokeStyle = stroke;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.setLineDash(dash);
  context.stroke();
  context.setLineDash([]);
}

export function dot(context, [x, y], radius, fill, opacity = 1) {
  context.globalAlpha = opacity;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = fill;
  context.fill();
  context.globalAlpha = 1;
}

export function text(context, words, x, y, fill, align = "left", baseline = "alphabetic") {
  context.fillStyle = fill;
  context.textAlign = align;
  context.textBaseline = baseline;
  context.fillText(words, x, y);
}

/** #rrggbb as numbers. */
const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

/** 256 colours from low to high in steps, so that a map shows its contours; as 32-bit pixels. */
export function ramp({ low, high }, steps = 12) {
  const [from, to] = [channels(low), channels(high)];
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const share = Math.min(Math.floor((i / 256) * steps), steps - 1) / (steps - 1);
    const [r, g, b] = from.map((value, k) => Math.round(value + share * (to[k] - value)));
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
}

/** One of its pixels as a colour of CSS. */
export const css = (pixel) => `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;

/** Seen and unseen states as dots, where `at` places them. */
export function dots(context, { seen, unseen }, at, radius) {
  const tone = colours();
  for (const [states, fill] of [[seen, tone.seen], [unseen, tone.unseen]]) {
    for (const x of states) {
      dot(context, at(x), radius + 1.5, tone.card);
      dot(context, at(x), radius, fill);
    }
  }
}

/** A map of shares in [0, 1], row by row from the top, stretched over a rectangle. */
export function paint(context, shares, columns, rows, pixels, [x, y, width, height], scratch) {
  scratch.width = columns;
  scratch.height = rows;
  const image = new ImageData(columns, rows), buffer = new Uint32Array(image.data.buffer);
  for (let i = 0; i < shares.length; i++) buffer[i] = Number.isNaN(shares[i]) ? 0
    : pixels[Math.min(255, Math.max(0, Math.floor(shares[i] * 256)))];
  scratch.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = true;
  context.drawImage(scratch, x, y, width, height);
}

/**
 * Lines over a common axis, each named at its end. x and y map values to [0, 1]; ticks are pairs of a value and its words.
 * @param {{lines: {points: number[][], stroke: string, fill: string, name: string, width?: number, dash?: number[]}[], marks?: any[]}} what
 */
export function chart(canvas, { lines, marks = [], x, y, ticksX, ticksY, titleX, room = 62 }) {
  const ready = prepare(canvas);
  if (!ready) return;
  const { context, width, height } = ready, tone = colours(), left = 30, right = width - room, top = 8, bottom = height - 30;
  const across = (value) => left + (right - left) * x(value), upwards = (value) => bottom - (bottom - top) * y(value);
  for (const [value, words] of ticksY) {
    path(context, [[left, upwards(value)], [right, upwards(value)]], { stroke: tone.line });
    text(context, words, left - 6, upwards(value), tone.soft, "right", "middle");
  }
  for (const [value, words] of ticksX) text(context, words, across(value), bottom + 13, tone.soft, "center");
  if (titleX) text(context, titleX, (left + right) / 2, height - 3, tone.soft, "center");
  const ends = [];
  for (const { points, stroke, fill, name, width: thick = 2, dash = [], label = null } of lines) {
    const shown = points.filter(([, value]) => Number.isFinite(value));
    if (!shown.length) continue;
    context.save(); // what is above the chart is not drawn
    context.beginPath();
    context.rect(left - 2, top - 2, right - left + 4, bottom - top + 4);
    context.clip();
    path(context, shown.map(([a, b]) => [across(a), Math.max(-1e4, upwards(b))]), { stroke, width: thick, dash });
    context.restore();
    if (label) text(context, name, across(label[0]), upwards(label[1]), fill, "center", "middle");
    else ends.push({ x: across(shown[shown.length - 1][0]), at: Math.max(top, upwards(shown[shown.length - 1][1])), name,
      fill });
  }
  ends.sort((a, b) => a.at - b.at);
  ends.forEach((end, i) => { if (i) end.at = Math.max(end.at, ends[i - 1].at + 14); });
  const over = Math.max(0, (ends[ends.length - 1]?.at ?? 0) - bottom);
  for (const { x: end, at, name, fill } of ends) text(context, name, end + 6, at - over, fill, "left", "middle");
  for (const { at: [a, b], fill, radius = 5 } of marks) {
    if (y(b) <= 1) { dot(context, [across(a), upwards(b)], radius + 2, tone.card); dot(context, [across(a), upwards(b)], radius,
      fill); }
  }
}
