/** The state of the page in its address: readable pairs after #, checked when they are read, never put into the page as HTML. */

/** The tab and the pairs of an address. */
export function readLink(hash) {
  const [tab, ...pairs] = decodeHash(hash).split("&");
  const values = new Map(pairs.map((pair) => { const cut = pair.indexOf("="); return cut < 0 ? [pair, ""] : [pair.slice(0, cut),
    pair.slice(cut + 1)]; }));
  return { tab, values };
}

function decodeHash(hash) {
  try {
    return decodeURIComponent(hash.replace(/^#/, ""));
  } catch {
    return "";
  }
}

/** The address of a tab with these pairs. */
export const writeLink = (tab, pairs) =>
  `#${[tab, ...Object.entries(pairs).map(([key, value]) => `${key}=${value}`)].join("&")}`.replaceAll(" ", "%20");

/** Readers of values; each returns the fallback where the link has none, or a bad one, and then notes the key in `wrong`. */
export function reader(values, wrong) {
  const read = (key, fallback, parse) => {
    if (!values.has(key)) return fallback;
    const found = parse(values.get(key));
    if (found === undefined) wrong.push(key);
    return found ?? fallback;
  };
  const numberIn = (low, high, whole) => (text) => {
    const value = text.trim() === "" ? NaN : Number(text);
    return value >= low && value <= high && (!whole || Number.isInteger(value)) ? value : undefined;
  };
  return {
    number: (key, fallback, low, high, whole = false) => read(key, fallback, numberIn(low, high, whole)),
    word: (key, fallback, known) => read(key, fallback, (text) => (known.includes(text) ? text : undefined)),
    states: (key, fallback, n, most) => read(key, fallback, (text) => {
      const states = text.split(";").map((state) => state.split(",").map(Number));
      const fits = states.length <= most && states.every((x) => x.length === n && x.every((value) => Math.abs(value) <= 10)
        && Math.hypot(...x) > 0);
      return fits ? states : undefined;
    }),
  };
}

/** States as in a link. */
export const statesText = (states) => states.map((x) => x.map((value) => String(Number(value.toFixed(4)))).join(",")).join(";");
