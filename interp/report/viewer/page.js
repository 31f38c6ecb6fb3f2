// Elements, and the frame of one viewer. Text enters the page as text nodes and attributes only.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// A token as text: spaces at its ends get a dot that is no part of the text, an empty one says so.
export function token(text) {
  if (text === "") return make("bdi", { class: "empty" }, "");
  const left = text.length - text.trimStart().length;
  const bare = text.trim();
  const space = (run) => (run ? make("span", { class: "space" }, run) : null);
  if (!/^ | $/.test(text)) return make("bdi", {}, text);
  return make("bdi", {}, space(text.slice(0, left)), bare, bare ? space(text.slice(left + bare.length)) : null);
}

export function named(text) {
  return text === "" ? "∅" : text.replace(/^ +| +$/g, (run) => "·".repeat(run.length));
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not finite";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 10 ** -digits || size >= 1e5) ? value.toExponential(2).replace("e+", "e") : value.toFixed(digits);
  return text.replace(/-/g, "−");
}

export const TITLES = {
  qk: ["q · k", "Every query meets every key: the sum of the products of their components."],
  score: ["score", "q · k times the scale, and what the model adds: a score for every pair, later tokens too."],
  mask: ["mask", "A query may not see the hatched keys: they leave the row. Hatched is not zero."],
  exp: ["eˢ, total", "e to the power of each score that is seen, and the total of the row. Colours: share of the row's largest."],
  weight: ["weight", "eˢ divided by the row's total: what each query takes from each key. Rows sum to 1."],
};

export function frame(root, data, alone) {
  const id = (name) => `${root.id}-${name}`;
  const parts = {};
  const keep = (name, element) => (parts[name] = element);
  const button = (name, label, text) => keep(name, make("button", { type: "button", "aria-label": label, title: label }, text));
  const head = make(
    "div",
    { class: "bar" },
    button("before", "Head before", "←"),
    keep("name", make("strong", { class: "name", "aria-live": "polite" })),
    button("after", "Next head", "→"),
    keep("search", make("input", { type: "search", id: id("search"), placeholder: "9.9", "aria-label": "Go to head, as layer.head", autocomplete: "off", size: "7", inputmode: "decimal" })),
    keep("found", make("span", { class: "found", role: "status" })),
    make("span", { class: "grow" }),
    alone ? keep("theme", make("button", { type: "button", "aria-label": "Light or dark", title: "Light or dark" }, "◐")) : null,
  );
  const steps = keep("steps", make("div", { class: "steps", role: "group", "aria-label": "Steps from q and k to weights" }));
  const scroll = keep(
    "scroll",
    make(
      "div",
      { class: "grid", tabindex: "0", role: "application", "aria-roledescription": "grid of queries and keys", "aria-describedby": id("help") },
      keep("space", make("div", { class: "space-of-grid" }, keep("canvas", make("canvas", { "aria-hidden": "true" })))),
    ),
  );
  const tools = make(
    "div",
    { class: "tools" },
    keep("legend", make("div", { class: "legend" })),
    make("span", { class: "zoom", role: "group", "aria-label": "Size of the cells" }, button("smaller", "Smaller cells", "−"), button("larger", "Larger cells", "+"), button("fit", "Fit the width", "fit")),
    make("label", { class: "check" }, keep("stretch", make("input", { type: "checkbox" })), "√ colours: small values show"),
  );
  const help = make("p", { class: "help", id: id("help") }, "In the grid: arrow keys move the cell, Home and End go to the row's ends, Enter pins the key to compare with, Escape frees it, N and P turn to the next head and back, 1 to 5 choose the step. Outside it ← and → turn heads.");
  root.append(
    make("p", { class: "meta" }, keep("meta", make("span"))),
    make("p", { class: "notice", role: "note", hidden: !data.notice }, data.notice ?? ""),
    make(
      "div",
      { class: "body" },
      make("div", { class: "stage" }, head, steps, keep("says", make("p", { class: "says" })), scroll, tools, help),
      keep("panel", make("div", { class: "panel" })),
      make("div", { class: "sentence" }, make("h2", { id: id("text") }, "Text"), keep("sentenceSays", make("p", { class: "says" })), keep("text", make("div", { class: "text", role: "group", "aria-labelledby": id("text") }))),
      keep("overview", make("div", { class: "overview" })),
    ),
    keep("live", make("p", { class: "live", role: "status", "aria-live": "polite" })),
  );
  return parts;
}
