// What one cell holds, beside another key of its row; the vectors behind it; the whole row as a table.
import { inkOn } from "./draw.js";
import { make, number, token } from "./page.js";

function pair(term, ...value) {
  return make("div", {}, make("dt", {}, ...[term].flat()), make("dd", {}, ...value));
}

function placed(data, index) {
  const code = data.codes[index] ? ` ${data.codes[index]}` : "";
  const id = data.ids ? ` · id ${data.ids[index]}` : "";
  return [token(data.tokens[index]), make("small", {}, ` ${index}${id}${code}`)];
}

// Δ, e^Δ and the ratio of the weights of two keys of one row; null where one of the two is hidden.
export function compared(head, n, query, key, other) {
  const [a, b] = [query * n + key, query * n + other];
  if (!head.seen[a] || !head.seen[b]) return null;
  const lead = head.scores ? head.scores[a] - head.scores[b] : null;
  return { lead, power: lead === null ? null : Math.exp(lead), ratio: head.weights[a] / head.weights[b] };
}

export function largest(head, n, query) {
  let best = -1;
  for (let key = 0; key < n; key++) if (head.seen[query * n + key] && (best < 0 || head.weights[query * n + key] > head.weights[query * n + best])) best = key;
  return best;
}

export function showCell(place, viewer, query, key) {
  const { data, head, n, at } = viewer;
  const i = query * n + key;
  const seen = head.seen[i];
  const missing = "not in this file";
  const other = at.pin ?? largest(head, n, query);
  const two = other >= 0 ? compared(head, n, query, key, other) : null;
  const said = at.pin === null ? "the row's largest weight" : "the pinned key";
  const cells = make(
    "dl",
    { class: "cell" },
    pair("query (row)", ...placed(data, query)),
    pair("key (column)", ...placed(data, key)),
    pair("score", head.scores ? number(head.scores[i]) : missing),
    pair("weight", seen ? number(head.weights[i], 4) : "masked: not seen by this query"),
  );
  if (seen && head.scores) cells.append(pair("eˢ ÷ total", `${number(Math.exp(head.scores[i]))} ÷ ${number(Math.exp(head.tops[query]) * head.totals[query])}`));
  if (viewer.data.sinks) cells.append(pair("learned sink", `score ${number(data.sinks[at.row][at.head])}: joins the total, has no column`));
  const against = make("div", { class: "against" }, make("h3", {}, "Against ", said));
  if (two) {
    against.append(
      make(
        "dl",
        { class: "cell" },
        pair("other key", ...placed(data, other)),
        pair("Δ of the scores", two.lead === null ? missing : number(two.lead)),
        pair(["e", make("sup", {}, "Δ")], two.power === null ? missing : number(two.power)),
        pair("weight ratio", number(two.ratio)),
      ),
    );
  } else against.append(make("p", {}, "One of the two keys is masked in this row: there is no ratio."));
  const pinned = at.pin === key;
  const pin = make("button", { type: "button", class: "pin", "aria-pressed": String(pinned), onclick: () => viewer.go({ pin: pinned ? null : key }) }, pinned ? "Free the pinned key" : "Pin this key to compare with");
  place.replaceChildren(make("h2", {}, "Cell"), cells, against, pin);
  if (viewer.vectors) place.append(vectors(viewer, query, key));
  if (at.query === query) place.append(rowTable(viewer, query));
}

function bars(values, label) {
  const NS = "http://www.w3.org/2000/svg";
  const most = Math.max(...values.map(Math.abs), 1e-9);
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", `0 0 ${values.length * 4} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${label}: ${values.length} components, the largest ${number(most, 2)} in size`);
  for (const kind of ["more", "less"]) {
    const bars = values.map((value, i) => (value < 0 === (kind === "less") ? `M${i * 4} 20h3v${(-19 * value) / most}h-3z` : ""));
    const path = document.createElementNS(NS, "path");
    path.setAttribute("d", bars.join(""));
    path.setAttribute("class", kind);
    svg.append(path);
  }
  return make("div", { class: "bars" }, make("span", {}, label), svg, make("small", {}, `± ${number(most, 2)}`));
}

function vectors(viewer, query, key) {
  const { head, data, n, at } = viewer;
  const { d } = data;
  const q = [...viewer.vectors[0].subarray(query * d, (query + 1) * d)];
  const k = [...viewer.vectors[1].subarray(key * d, (key + 1) * d)];
  const scale = data.scale?.[at.row];
  const parts = q.map((value, i) => value * k[i]);
  const score = head.scores[query * n + key];
  const cap = data.cap?.[at.row];
  const words = data.plain && !cap ? `Their sum is q · k = ${number(score / scale, 2)}; times ${number(scale, 4)} it is the score ${number(score)}.` : cap ? `Times ${number(scale, 4)}, then capped: ${cap} · tanh(s ÷ ${cap}).` : "The score holds more than q · k times the scale: what the model adds.";
  const rounding = data.kind === "qk" ? "" : ` Bars are rounded to 1/${2 * data.levels} of the largest component.`;
  return make("div", { class: "vectors" }, make("h3", {}, `q and k, ${d} components`), bars(q, "q (query)"), bars(k, "k (key)"), bars(parts, "products"), make("p", { class: "says" }, words + rounding));
}

function rowTable(viewer, query) {
  const { head, data, n } = viewer;
  const details = make("details", {}, make("summary", {}, "This row as a table"));
  details.open = viewer.tableOpen ?? false;
  const fill = () => {
    viewer.tableOpen = details.open;
    if (!details.open || details.children.length > 1) return;
    const rows = data.tokens.map((text, key) => {
      const i = query * n + key;
      const values = head.seen[i] ? [head.scores ? number(head.scores[i]) : "–", head.scores ? number(Math.exp(head.scores[i])) : "–", number(head.weights[i], 4)] : [head.scores ? number(head.scores[i]) : "–", "masked", "masked"];
      return make("tr", {}, make("th", { scope: "row" }, `${key} `, token(text)), ...values.map((value) => make("td", {}, value)));
    });
    const total = head.scores ? make("tfoot", {}, make("tr", {}, make("th", { scope: "row" }, "total"), make("td"), make("td", {}, number(Math.exp(head.tops[query]) * head.totals[query])), make("td", {}, number(head.weights.subarray(query * n, (query + 1) * n).reduce((a, b) => a + b, 0), 3)))) : "";
    details.append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Row as a table" }, make("table", {}, make("thead", {}, make("tr", {}, ...["key", "score", "eˢ", "weight"].map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows), total)));
  };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

export function sayCell(viewer, query, key) {
  const { head, data, n } = viewer;
  const i = query * n + key;
  const name = (index) => data.tokens[index].trim() || (data.tokens[index] ? "space" : "empty");
  const score = head.scores ? `, score ${number(head.scores[i], 2)}` : "";
  return `query ${query} ${name(query)}, key ${key} ${name(key)}${score}, ${head.seen[i] ? `weight ${number(head.weights[i])}` : "masked"}`;
}

export function showText(viewer) {
  const { data, head, n, at, parts } = viewer;
  const place = parts.text;
  if (!place.children.length) {
    const first = Math.min(n, 2000);
    for (let i = 0; i < first; i++) place.append(make("button", { type: "button", "data-index": i, title: `token ${i}${data.codes[i] ? " " + data.codes[i] : ""}` }, token(data.tokens[i])));
    place.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) viewer.go({ query: Number(button.dataset.index) });
    });
  }
  for (const [i, button] of [...place.children].entries()) {
    const cell = at.query * n + i;
    const seen = head.seen[cell];
    const share = seen ? head.weights[cell] : 0;
    const [r, g, b] = viewer.colours.more[Math.min(255, Math.round(255 * Math.sqrt(share || 0)))];
    button.style.backgroundColor = seen ? `rgb(${r},${g},${b})` : "transparent";
    button.style.color = seen ? inkOn([r, g, b]) : "";
    button.classList.toggle("hidden-key", !seen);
    button.setAttribute("aria-pressed", String(i === at.query));
    button.setAttribute("aria-label", `${data.tokens[i].trim() || "space"}, token ${i}, ${seen ? `weight ${number(share, 2)}` : "masked"}`);
  }
  parts.sentenceSays.replaceChildren("What query ", make("b", {}, `${at.query} `), token(data.tokens[at.query]), " (boxed) takes from each token: the darker, the more (√ shade). Struck through: not seen. Choose a token to make it the query.");
}
