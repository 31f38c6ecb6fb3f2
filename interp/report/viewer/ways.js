// Ways to a view: keys, a search for a head, a link. #head=9.9&step=mask&query=13 (and key, pin); &view=… where a page has several viewers.
import { STEPS } from "./draw.js";

export function keys(viewer, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !viewer.head) return;
  if (event.target.closest?.("input, select, textarea, summary, .scroll")) return;
  const inGrid = event.target === viewer.parts.scroll;
  const { at, n } = viewer;
  const move = (query, key) => viewer.step(Math.max(0, Math.min(n - 1, query)), Math.max(0, Math.min(n - 1, key)));
  const grid = {
    ArrowLeft: () => move(at.query, at.key - 1),
    ArrowRight: () => move(at.query, at.key + 1),
    ArrowUp: () => move(at.query - 1, at.key),
    ArrowDown: () => move(at.query + 1, at.key),
    Home: () => move(at.query, 0),
    End: () => move(at.query, at.query),
    Enter: () => viewer.go({ pin: at.pin === at.key ? null : at.key }),
    Escape: () => viewer.go({ pin: null }),
    n: () => viewer.turn(1),
    p: () => viewer.turn(-1),
    PageDown: () => viewer.turn(1),
    PageUp: () => viewer.turn(-1),
  };
  const page = { ArrowLeft: () => viewer.turn(-1), ArrowRight: () => viewer.turn(1) };
  const digit = /^[1-5]$/.test(event.key) && inGrid ? STEPS[event.key - 1] : null;
  const work = digit && viewer.steps.includes(digit) ? () => viewer.go({ step: digit }) : (inGrid ? grid : page)[event.key];
  if (!work) return;
  event.preventDefault();
  event.stopPropagation();
  work();
}

export function find(viewer, text) {
  const found = /^\s*(?:L?\s*)?(\d+)\s*(?:[.,:\s]\s*H?\s*)(\d+)\s*$/i.exec(text);
  const say = (message) => (viewer.parts.found.textContent = message);
  if (!found) return say(text.trim() ? "layer.head, such as 9.9" : "");
  const [row, head] = [viewer.data.layers.indexOf(Number(found[1])), Number(found[2])];
  if (row < 0 || head >= viewer.data.heads) return say(`no head ${found[1]}.${found[2]} here`);
  if (!viewer.heads.has(row, head)) return say(`head ${found[1]}.${found[2]} is not in this page`);
  say("");
  return viewer.go({ row, head });
}

export function linked(viewer) {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const first = document.querySelector(".interp-viewer");
  if (!wanted.has("head") || (wanted.get("view") ?? first.id) !== viewer.root.id) return null;
  const [layer, head] = wanted.get("head").split(".").map(Number);
  const row = viewer.data.layers.indexOf(layer);
  const to = {};
  if (viewer.heads.has(row, head)) Object.assign(to, { row, head });
  if (STEPS.includes(wanted.get("step"))) to.step = wanted.get("step");
  for (const name of ["query", "key", "pin"]) {
    const value = Number(wanted.get(name) ?? NaN);
    if (Number.isInteger(value) && value >= 0 && value < viewer.n) to[name] = value;
  }
  return to;
}

export function link({ at, data, root }) {
  const several = document.querySelectorAll(".interp-viewer").length > 1;
  const pin = at.pin === null ? "" : `&pin=${at.pin}`;
  return `#${several ? `view=${root.id}&` : ""}head=${data.layers[at.row]}.${at.head}&step=${at.step}&query=${at.query}&key=${at.key}${pin}`;
}

export function write(viewer) {
  try {
    history.replaceState(null, "", link(viewer));
  } catch {
    // A notebook's frame may forbid it: the view works without a link.
  }
}
