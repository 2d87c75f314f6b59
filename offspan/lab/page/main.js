/** Puts the tabs together, and keeps the address as the state is. */
import { createExplore } from "./explore.js";
import { readLink, reader, writeLink } from "./link.js";
import { createPendulum } from "./pendulum.js";
import { createWhich } from "./which.js";
import { copy, element } from "./widgets.js";
import { createYours } from "./yours.js";

const TABS = ["explore", "which", "pendulum", "yours"];
const data = JSON.parse(element("data").textContent);
let tab = data.start, timer = 0;
const parts = {};
const changed = (which) => () => { if (which === tab) later(); };

parts.yours = createYours({ onChange: changed("yours"), onExplore: () => { parts.explore.choose("yours"); open("explore"); } });
parts.which = createWhich({ onChange: changed("which") });
parts.pendulum = createPendulum({ data: data.pendulum, onChange: changed("pendulum") });
parts.explore = createExplore({ own: parts.yours, runs: data.systems, onChange: changed("explore") });

/** The address follows a little later, since browsers limit how often it may change. */
function later() {
  clearTimeout(timer);
  timer = setTimeout(write, 250);
}

function write() {
  clearTimeout(timer);
  history.replaceState(null, "", writeLink(tab, parts[tab].pairs()));
}

function open(name) {
  tab = name;
  for (const one of TABS) {
    const button = element(`tab-${one}`);
    button.setAttribute("aria-selected", String(one === name));
    button.tabIndex = one === name ? 0 : -1;
    element(`panel-${one}`).hidden = one !== name;
    parts[one].shown(one === name);
  }
  later();
}

/** What the address says; what it says wrongly is left out, and named. */
function read(hash) {
  const { tab: name, values, broken } = readLink(hash), wrong = [], from = reader(values, wrong), notices = [];
  const which = TABS.includes(name) ? name : data.start, names = (keys) => keys.slice(0, 12).map((key) => key.slice(0, 20)).join(", ");
  if (which !== name && data.systems.length) parts.explore.choose("run");
  if (name === which) parts[which].read(values, from);
  else if (name !== "") notices.push("The link names no tab of this page, so it opens as usual.");
  const unread = name === which ? from.unread() : [];
  wrong.push(...broken);
  if (wrong.length) notices.push(`The link has a value for ${names(wrong)} that cannot be used, so the usual one stands in its place.`);
  if (unread.length) notices.push(`The link has ${names(unread)}, which ${unread.length > 1 ? "mean" : "means"} nothing here.`);
  element("notice").hidden = !notices.length;
  element("notice").textContent = notices.join(" ");
  open(which);
}

for (const name of TABS) {
  element(`tab-${name}`).addEventListener("click", () => open(name));
  element(`tab-${name}`).addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = TABS[(TABS.indexOf(name) + by + TABS.length) % TABS.length];
    open(next);
    element(`tab-${next}`).focus();
  });
}
if (data.systems.length < data.systems_in_run) {
  element("run-field").append(`${data.systems.length} of its ${data.systems_in_run} systems are here: the first with two to eight states.`);
}
element("share").addEventListener("click", () => { write(); copy(location.href, element("share"), "Copy it from the address bar"); });
addEventListener("hashchange", (event) => read(new URL(event.newURL).hash)); // of the event: the address may have been written since
read(location.hash);
