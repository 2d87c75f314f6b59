/** Matrices that a person typed: read, checked, and said in one sentence what is wrong with them. */
import { eigh, identity, multiply, svd, zeros } from "./mathematics.js";

const MOST = 8;
const ROW = /\[([^\][]*)\]/g, AROUND = /^(?:[\w.]*array\()?[\s,;[\]]*(?:dtype\s*=\s*[\w.]+\s*)?\)?$/i; // of Python's and NumPy's lists

/** Rows of numbers from text: a line a row, or Python's lists, or rows apart by semicolons. Returns {rows} or {error}. */
export function readMatrix(name, words) {
  const plain = words.trim();
  if (plain.length > 20000) return { error: `${name} is longer than any matrix that the lab takes.` };
  const listed = plain.includes("["), around = listed ? plain.replace(ROW, "") : "";
  if (!AROUND.test(around)) {
    const extra = around.replace(/[\s,;[\]]+/g, " ").trim();
    return { error: `${name} has “${extra.slice(0, 20)}” outside its rows; write a row a line, or a list of rows.` };
  }
  const lines = (listed ? [...plain.matchAll(ROW)].map((found) => found[1]) : plain.split(/[;\n]/)).map((line) => line.trim());
  const rows = lines.filter((line) => listed || line !== "").map((line) => (line === "" ? []
    : line.replace(/\s*,$/, "").split(/\s*,\s*|\s+/))); // a comma may end a row
  if (!rows.some((row) => row.length)) return { error: `${name} has no numbers; write a row a line, such as “0 1”.` };
  for (const [i, row] of rows.entries()) {
    for (const [j, entry] of row.entries()) {
      const value = Number(entry);
      if (entry === "") return { error: `${name}, row ${i + 1}, number ${j + 1} is empty; put a number there.` };
      if (/^[+-]?(nan|inf(inity)?)$/i.test(entry) || value === Infinity || value === -Infinity) return {
        error: `${name}, row ${i + 1}, number ${j + 1} is ${entry.slice(0, 20)}, which is not finite; put a number there.` };
      if (Number.isNaN(value)) return { error: `${name}, row ${i + 1}: “${entry.slice(0, 20)}” is not a number.` };
    }
    if (row.length !== rows[0].length) return {
      error: `${name} is ragged: row ${i + 1} has ${count(row.length)}, but row 1 has ${rows[0].length}.` };
  }
  return { rows: rows.map((row) => row.map(Number)) };
}

const count = (number) => `${number} number${number === 1 ? "" : "s"}`;

/** {A, B, Q, R} from four texts, those that are empty as by default; or {errors} by name. */
export function readSystem(texts) {
  const read = {}, errors = {};
  for (const name of ["A", "B", "Q", "R"]) {
    if (name !== "A" && texts[name].trim() === "") continue;
    const { rows, error } = readMatrix(name, texts[name]);
    if (error) errors[name] = error;
    else read[name] = rows;
  }
  if (errors.A) return { errors };
  const n = read.A.length;
  if (read.A[0].length !== n) return { errors: { ...errors,
    A: `A is ${n}×${read.A[0].length}, but must be square: x′ = A x + B u, column vectors.` } };
  if (n > MOST) return { errors: { ...errors,
    A: `A is ${n}×${n}, and the lab takes up to ${MOST} states; the Python library has no such limit.` } };
  if (n < 2) return { errors: { ...errors, A: "A is 1×1; the lab needs two states or more, one to see and one to leave out." } };
  const m = read.B ? read.B[0].length : n;
  if (read.B && read.B.length !== n) errors.B = `B has ${read.B.length} row(s), but A is ${n}×${n}, so B needs ${n}.`;
  else if (read.B && m > MOST) errors.B = `B has ${m} columns, and the lab takes up to ${MOST} controls.`;
  for (const [name, size, of] of [["Q", n, "state"], ["R", m, "control"]]) {
    if (!read[name] || errors.B) continue;
    const wrong = costError(name, read[name], size, of);
    if (wrong) errors[name] = wrong;
  }
  if (Object.keys(errors).length) return { errors };
  return { errors, system: { A: read.A, B: read.B ?? identity(n), Q: read.Q ?? identity(n), R: read.R ?? zeros(m, m) } };
}

function costError(name, M, size, of) {
  if (M.length !== size || M[0].length !== size) {
    return `${name} is ${M.length}×${M[0].length}, but must be ${size}×${size}, one row and column for each ${of}.`;
  }
  const most = Math.max(...M.flat().map(Math.abs)), rounding = 1e-6 * most * size,
    apart = Math.max(...M.flatMap((row, i) => row.map((value, j) => Math.abs(value - M[j][i]))));
  if (apart > rounding) return `${name} is not symmetric: it differs from its transpose by ${+apart.toPrecision(2)}.`;
  const least = eigh(M).values[0];
  if (least < -rounding) {
    return `${name} is not positive semidefinite (smallest eigenvalue ${+least.toPrecision(2)}), so the cost would have no minimum.`;
  }
  return null;
}

/** max_{1≤h≤H} ‖Aʰ‖₂: the most by which a state can grow within H steps. */
export function growth(A, horizon) {
  let power = identity(A.length), most = 0;
  for (let h = 1; h <= horizon; h++) {
    power = multiply(A, power);
    const largest = Math.max(...power.flat().map(Math.abs));
    if (!Number.isFinite(largest)) return Infinity;
    // Of Aʰ over its largest entry, whose squares cannot overflow.
    if (largest > 0) most = Math.max(most, largest * svd(power.map((row) => row.map((value) => value / largest))).sigma[0]);
  }
  return most;
}
