// All heads at once: small maps or one measure, by layer and head or ranked. Heads keep the numbers the model gives them.
import { make } from "./page.js";
import { inkOn, packed, palette } from "./draw.js";

const CELL = 28;

export class Overview {
  constructor(viewer, place) {
    this.viewer = viewer;
    this.data = viewer.data;
    this.place = place;
    this.show = "maps";
    this.ranked = false;
    const id = viewer.root.id;
    const names = Object.keys(this.data.measures);
    const option = (value, text) => make("option", { value }, text);
    this.select = make("select", { id: `${id}-show`, onchange: () => this.set(this.select.value, this.ranked) }, option("maps", "small maps"), ...names.map((name) => option(name, name.replaceAll("_", " "))));
    this.sort = make("input", { type: "checkbox", id: `${id}-sort`, onchange: () => this.set(this.select.value, this.sort.checked) });
    this.meaning = make("p", { class: "says" });
    this.box = make("div", { class: "heads" });
    place.append(
      make("h2", { id: `${id}-heads` }, "Heads"),
      make("div", { class: "tools" }, make("label", { for: `${id}-show` }, "Show "), this.select, names.length ? make("label", { class: "check" }, this.sort, "ranked") : ""),
      this.meaning,
      this.box,
    );
    this.box.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-head]");
      if (button) this.viewer.go({ row: Number(button.dataset.row), head: Number(button.dataset.head) });
    });
    this.box.addEventListener("keydown", (event) => this.keys(event));
    this.set("maps", false);
  }

  set(show, ranked) {
    const { layers, heads, measures, meanings } = this.data;
    if (ranked && show === "maps") show = "first_weight";
    Object.assign(this, { show, ranked });
    this.select.value = show;
    this.sort.checked = ranked;
    this.meaning.textContent = show === "maps" ? "Weights of every head: rows are layers, columns heads, both numbered from 0." : meanings[show];
    this.order = layers.flatMap((_, row) => Array.from({ length: heads }, (_, head) => [row, head]));
    if (ranked) this.order.sort(([a, b], [c, d]) => (measures[show][c][d] ?? -1) - (measures[show][a][b] ?? -1));
    ranked ? this.list() : this.square();
    this.mark();
    this.paint();
  }

  button(row, head, ...inside) {
    const name = `${this.data.layers[row]}.${head}`;
    const value = this.show === "maps" ? "" : `, ${this.show.replaceAll("_", " ")} ${this.text(row, head)}`;
    const here = this.viewer.heads.has(row, head);
    return make("button", { type: "button", "data-row": row, "data-head": head, tabindex: "-1", disabled: !here, title: name + value + (here ? "" : " (not in this page)"), "aria-label": `Head ${name}${value}` }, ...inside);
  }

  text(row, head) {
    const value = this.data.measures[this.show][row][head];
    return value === null ? "–" : value.toFixed(3);
  }

  square() {
    const { layers, heads } = this.data;
    const numbers = Array.from({ length: heads }, (_, head) => make("th", { scope: "col" }, String(head)));
    const rows = layers.map((layer, row) => make("tr", {}, make("th", { scope: "row" }, String(layer)), ...numbers.map((_, head) => make("td", {}, this.button(row, head, make("canvas", { width: CELL, height: CELL, "aria-hidden": "true" }))))));
    const corner = make("th", { class: "corner" }, "head →\nlayer ↓");
    this.box.replaceChildren(make("table", { class: "maps", "aria-labelledby": `${this.viewer.root.id}-heads` }, make("thead", {}, make("tr", {}, corner, ...numbers)), make("tbody", {}, ...rows)));
  }

  list() {
    const most = Math.max(...this.data.measures[this.show].flat().map((value) => value ?? 0), 1e-9);
    const items = this.order.map(([row, head]) => {
      const bar = make("i", { "aria-hidden": "true" });
      bar.style.width = `${(100 * (this.data.measures[this.show][row][head] ?? 0)) / most}%`;
      return make("li", {}, this.button(row, head, make("b", {}, `${this.data.layers[row]}.${head}`), make("span", {}, bar), make("em", {}, this.text(row, head))));
    });
    this.box.replaceChildren(make("ol", { class: "ranked" }, ...items));
  }

  buttons() {
    return [...this.box.querySelectorAll("button")];
  }

  mark() {
    const { row, head } = this.viewer.at;
    for (const button of this.buttons()) {
      const here = Number(button.dataset.row) === row && Number(button.dataset.head) === head;
      button.tabIndex = here ? 0 : -1;
      here ? button.setAttribute("aria-current", "true") : button.removeAttribute("aria-current");
    }
  }

  keys(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: this.ranked ? -1 : -this.data.heads, ArrowDown: this.ranked ? 1 : this.data.heads }[event.key];
    const buttons = this.buttons();
    const next = buttons[buttons.indexOf(event.target) + step];
    if (!step || !next || next.disabled) return;
    event.preventDefault();
    event.stopPropagation();
    next.focus();
    next.click();
  }

  // Small maps are painted in turns of a few milliseconds, so that a large model never holds the page.
  // `now` (before printing, which does not wait): those that are made already, at once.
  async paint(now = false) {
    if (this.ranked) return;
    const run = (this.run = (this.run ?? 0) + 1);
    const colours = palette(this.place);
    const measure = this.data.measures[this.show];
    const most = measure ? (this.show === "entropy" ? Math.max(...measure.flat().map((v) => v ?? 0), 1e-9) : 1) : 1;
    let until = performance.now() + 12;
    const buttons = this.buttons();
    const places = buttons.map((button) => [Number(button.dataset.row), Number(button.dataset.head)]);
    const together = Math.min(12, this.viewer.heads.most >> 1);
    for (const [i, button] of buttons.entries()) {
      const [row, head] = places[i];
      const pen = button.firstChild.getContext("2d");
      if (measure) {
        const value = measure[row][head];
        const [r, g, b] = colours.more[Math.min(255, Math.round((255 * (value ?? 0)) / most))];
        pen.fillStyle = value === null ? colours.unseen : `rgb(${r},${g},${b})`;
        pen.fillRect(0, 0, CELL, CELL);
        if (value !== null) {
          pen.fillStyle = inkOn([r, g, b]);
          pen.font = "10px system-ui, sans-serif";
          pen.textAlign = "center";
          pen.textBaseline = "middle";
          pen.fillText(value >= 0.995 ? value.toFixed(1) : value.toFixed(2).slice(1), CELL / 2, CELL / 2 + 0.5);
        }
        continue;
      }
      if (!this.viewer.heads.has(row, head)) continue;
      if (now) {
        const ready = this.viewer.heads.ready(row, head);
        if (ready) small(pen, ready, this.data.tokens.length, colours);
        continue;
      }
      if (performance.now() > until) {
        await new Promise((done) => setTimeout(done));
        until = performance.now() + 12;
      }
      // Inflating waits more than it works: several heads at a time.
      if (i % together === 0) for (const next of places.slice(i, i + together)) if (this.viewer.heads.has(...next)) this.viewer.heads.get(...next);
      const made = await this.viewer.heads.get(row, head);
      if (run !== this.run) return;
      small(pen, made, this.data.tokens.length, colours);
    }
    if (run === this.run) this.place.dataset.painted = this.show;
  }
}

// The largest weight of each block, on a square of CELL pixels; what no query may see stays grey.
function small(pen, head, n, colours) {
  const pixels = pen.createImageData(CELL, CELL);
  const out = new Uint32Array(pixels.data.buffer);
  const grey = packed(colours.dark ? [43, 48, 55] : [226, 229, 233]);
  for (let y = 0; y < CELL; y++) {
    const [top, bottom] = [Math.floor((y * n) / CELL), Math.max(Math.floor((y * n) / CELL) + 1, Math.floor(((y + 1) * n) / CELL))];
    for (let x = 0; x < CELL; x++) {
      const [left, right] = [Math.floor((x * n) / CELL), Math.max(Math.floor((x * n) / CELL) + 1, Math.floor(((x + 1) * n) / CELL))];
      let most = -1;
      for (let q = top; q < bottom; q++) for (let k = left; k < right; k++) if (head.seen[q * n + k] && head.weights[q * n + k] > most) most = head.weights[q * n + k];
      out[y * CELL + x] = most < 0 ? grey : packed(colours.more[Math.min(255, Math.round(255 * most))]);
    }
  }
  pen.putImageData(pixels, 0, 0);
}
