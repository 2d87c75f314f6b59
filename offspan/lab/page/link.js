/** The state of the page in its address: readable pairs after #, checked when they are read, never put into the page as HTML. */

/** What the horizon and the learning rate may be, in links and in fields. */
export const BOUNDS = { H: [1, 100], eta: [1e-8, 10] };

/** The tab and the pairs of an address, and the keys of those pairs that cannot be decoded. */
export function readLink(hash) {
  const [tab, ...pairs] = hash.replace(/^#/, "").split("&"), values = new Map(), broken = [];
  for (const pair of pairs.filter((one) => one !== "")) {
    const [key, ...rest] = pair.split("="), name = decoded(key), value = decoded(rest.join("="));
    if (name === null || value === null) broken.push(name ?? key);
    else values.set(name, value);
  }
  return { tab: decoded(tab), values, broken };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

/** The address of a tab with these pairs; commas and semicolons stay readable. */
export const writeLink = (tab, pairs) => `#${[tab, ...Object.entries(pairs).map(([key, value]) =>
  `${key}=${encodeURIComponent(value).replaceAll("%2C", ",").replaceAll("%3B", ";")}`)].join("&")}`;

/**
 * Readers of values; each returns the fallback where the link has none, or a bad one, and then notes the key in `wrong`.
 * `unread()` gives the keys that nobody asked for.
 */
export function reader(values, wrong) {
  const asked = new Set();
  const read = (key, fallback, parse) => {
    asked.add(key);
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
    text: (key, fallback) => read(key, fallback, (text) => text),
    states: (key, fallback, { n, most, near, far }) => read(key, fallback, (text) => {
      const states = text.split(";").map((state) => state.split(",").map(Number));
      const fits = states.length <= most && states.every((x) => x.length === n && x.every((value) => Math.abs(value) <= far)
        && Math.hypot(...x) > near);
      return fits ? states : undefined;
    }),
    refuse: (key) => { if (!wrong.includes(key)) wrong.push(key); },
    unread: () => [...values.keys()].filter((key) => !asked.has(key)),
  };
}

/** States as in a link. */
export const statesText = (states) => states.map((x) => x.map((value) => String(Number(value.toFixed(4)))).join(",")).join(";");
