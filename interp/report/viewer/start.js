// One viewer: what is chosen, and everything that follows from it. Links, keys, pointer.
import { Heads } from "./data.js";
import { drawGrid, image, isDark, margins, palette, shownAs, STEPS } from "./draw.js";
import { Overview } from "./overview.js";
import { frame, make, named, TITLES } from "./page.js";
import { find, keys, linked, write } from "./ways.js";
import { sayCell, showCell, showText } from "./panel.js";

class Viewer {
  constructor(root) {
    this.root = root;
    this.data = JSON.parse(root.querySelector("script").textContent);
    this.n = this.data.tokens.length;
    this.names = this.data.tokens.map(named);
    this.heads = new Heads(this.data);
    this.alone = document.documentElement.classList.contains("interp-alone");
    const q = this.data.tokens.length - 1;
    this.at = { row: 0, head: 0, step: "weight", query: q, key: 0, pin: null };
    this.hover = null;
    this.cell = null;
    this.parts = frame(root, this.data, this.alone);
    this.steps = STEPS.filter((step) => (step === "qk" ? this.data.plain : step === "exp" || step === "score" || step === "mask" ? this.data.kind !== "weights" : true));
    this.parts.stretch.checked = this.n > 24;
    this.dress();
    this.colours = palette(root);
    this.overview = new Overview(this, this.parts.overview);
    this.listen();
    this.ready = this.go(linked(this) ?? {}, false);
  }

  dress() {
    const { data, parts } = this;
    const layers = data.layers.length;
    parts.meta.textContent = [data.model, `${this.n} token${this.n === 1 ? "" : "s"}`, `${layers} layer${layers === 1 ? "" : "s"} × ${data.heads} head${data.heads === 1 ? "" : "s"}`, data.provenance.dtype, data.kind === "weights" ? "this file holds weights only: scores, mask values and totals cannot be shown" : ""].filter(Boolean).join(" · ");
    for (const [i, step] of STEPS.entries()) {
      const here = this.steps.includes(step);
      const why = here ? `Step ${i + 1}` : step === "qk" ? "q and k are not in this file, or scores hold more than their product" : "scores are not in this file";
      parts.steps.append(make("button", { type: "button", "data-step": step, disabled: !here, title: why }, make("small", {}, String(i + 1)), ` ${TITLES[step][0]}`));
    }
  }

  // Changes what is chosen; everything else is drawn from it. Resolves when the page shows it.
  async go(change, link = true) {
    const start = performance.now();
    const next = { ...this.at, ...change };
    if (!this.heads.has(next.row, next.head)) return;
    const turned = !this.head || next.row !== this.at.row || next.head !== this.at.head;
    this.at = next;
    if (turned) {
      const made = await this.heads.get(next.row, next.head);
      if (this.at.row !== next.row || this.at.head !== next.head) return;
      this.head = made;
      this.vectors = null;
    }
    if (!this.steps.includes(this.at.step)) this.at.step = "weight";
    this.redraw();
    this.took = performance.now() - start;
    if (turned) this.overview.mark();
    if (link) write(this);
    if (turned) await this.vectorsOf(next.row, next.head);
    if (turned) this.ahead();
  }

  // The heads beside this one are made while the reader looks, so that turning only draws.
  ahead() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      for (const by of [1, -1]) this.heads.get(...this.beside(by));
    }, 40);
  }

  async vectorsOf(row, head) {
    const vectors = await this.heads.vectors(row, head);
    if (this.at.row !== row || this.at.head !== head || !vectors) return;
    this.vectors = vectors;
    this.point(this.hover);
  }

  redraw() {
    const { at, parts, data } = this;
    this.colours = palette(this.root);
    this.shown = shownAs(at.step, this.head, this.n, data, at.row);
    this.stretched = parts.stretch.checked;
    this.picture = image(this.shown, this.head, this.n, this.colours, this.stretched);
    const name = `${data.layers[at.row]}.${at.head}`;
    parts.name.textContent = `Head ${name}`;
    parts.name.title = `layer ${data.layers[at.row]}, head ${at.head}, counted from 0`;
    parts.scroll.setAttribute("aria-label", `Head ${name}, ${TITLES[at.step][0]}: rows are queries, columns are keys`);
    for (const button of parts.steps.children) button.setAttribute("aria-pressed", String(button.dataset.step === at.step));
    parts.says.textContent = TITLES[at.step][1];
    this.legend();
    this.size();
    this.paint();
    showCell(parts.panel, this, at.query, at.key);
    showText(this);
  }

  legend() {
    const { shown, colours, parts, stretched } = this;
    const bar = make("canvas", { width: 160, height: 12, "aria-hidden": "true" });
    const pen = bar.getContext("2d");
    const signed = shown.ends.length === 3;
    for (let x = 0; x < 160; x++) {
      const place = signed ? x / 79.5 - 1 : x / 159;
      const size = stretched ? Math.sqrt(Math.abs(place)) : Math.abs(place);
      const [r, g, b] = (place < 0 ? colours.less : colours.more)[Math.round(255 * size)];
      pen.fillStyle = `rgb(${r},${g},${b})`;
      pen.fillRect(x, 0, 1, 12);
    }
    const half = shown.ends.length === 2 && shown.ends[1] === "1" && stretched ? "0.25" : "";
    const items = [make("span", {}, shown.ends[0]), bar, make("span", {}, shown.ends.at(-1))];
    if (half) items.push(make("span", {}, `(middle: ${half})`));
    if (shown.masked) items.push(make("span", { class: "swatch", "aria-hidden": "true" }), make("span", {}, "masked"));
    parts.legend.replaceChildren(...items);
  }

  size() {
    const { scroll, space, canvas } = this.parts;
    const room = Math.max(160, scroll.clientWidth || 600);
    const totals = this.at.step === "exp";
    const context = canvas.getContext("2d");
    const least = this.n > 200 ? 6 : 13;
    let cell = this.cell;
    if (cell === null) {
      const edge = margins(context, this.names, 14, totals);
      cell = Math.max(least, Math.min(60, Math.floor((room - edge.left - edge.right) / this.n)));
    }
    if (cell === 0) {
      const edge = margins(context, this.names, 9, totals);
      cell = Math.max(0.5, Math.min(60, (room - edge.left - edge.right) / this.n));
    }
    this.drawn = cell;
    this.margin = margins(context, this.names, cell, totals);
    const full = { width: this.margin.left + this.n * cell + this.margin.right, height: this.margin.top + this.n * cell + this.margin.bottom };
    const most = Math.max(320, Math.min(760, window.innerHeight * 0.8));
    scroll.style.height = `${Math.min(full.height, most) + 2}px`;
    space.style.width = `${full.width}px`;
    space.style.height = `${full.height}px`;
    const [width, height] = [Math.min(scroll.clientWidth || room, full.width), Math.min(scroll.clientHeight || most, full.height)];
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.view = { width, height };
  }

  paint() {
    const { scroll, canvas } = this.parts;
    drawGrid(canvas, { n: this.n, cell: this.drawn, margin: this.margin, ...this.view, scrollX: scroll.scrollLeft, scrollY: scroll.scrollTop, colours: this.colours, shown: this.shown, head: this.head, picture: this.picture, names: this.names, totals: this.at.step === "exp", stretch: this.stretched, hover: this.hover, query: this.at.query, key: this.at.key, pin: this.at.pin });
  }

  under(event) {
    const { scroll, canvas } = this.parts;
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (x < this.margin.left || y < this.margin.top) return null;
    const key = Math.floor((x - this.margin.left + scroll.scrollLeft) / this.drawn);
    const query = Math.floor((y - this.margin.top + scroll.scrollTop) / this.drawn);
    return key >= 0 && key < this.n && query >= 0 && query < this.n ? { query, key } : null;
  }

  listen() {
    const { parts, root } = this;
    const frame = (work) => {
      let waiting = false;
      return (event) => {
        if (waiting) return;
        waiting = true;
        requestAnimationFrame(() => {
          waiting = false;
          if (this.head) work(event);
        });
      };
    };
    parts.scroll.addEventListener("scroll", frame(() => this.paint()), { passive: true });
    parts.canvas.addEventListener("pointermove", frame((event) => this.point(this.under(event))));
    parts.canvas.addEventListener("pointerleave", frame(() => this.point(null)));
    parts.canvas.addEventListener("click", (event) => {
      const cell = this.under(event);
      if (cell) this.go(event.shiftKey ? { query: cell.query, pin: cell.key } : cell);
    });
    parts.before.addEventListener("click", () => this.turn(-1));
    parts.after.addEventListener("click", () => this.turn(1));
    parts.steps.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.go({ step: button.dataset.step });
    });
    parts.search.addEventListener("input", () => find(this, parts.search.value));
    parts.stretch.addEventListener("change", () => this.redraw());
    parts.smaller.addEventListener("click", () => this.zoom(1 / 1.3));
    parts.larger.addEventListener("click", () => this.zoom(1.3));
    parts.fit.addEventListener("click", () => this.zoom(0));
    parts.theme?.addEventListener("click", () => {
      root.ownerDocument.documentElement.style.colorScheme = isDark(root) ? "light" : "dark";
      this.recolour();
    });
    root.addEventListener("keydown", (event) => keys(this, event));
    if (this.alone) document.addEventListener("keydown", (event) => event.target === document.body && keys(this, event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    addEventListener("hashchange", () => {
      const to = linked(this);
      if (to) this.go(to, false);
    });
    addEventListener("beforeprint", () => {
      root.dataset.paper = "yes";
      this.recolour(true);
    });
    addEventListener("afterprint", () => {
      delete root.dataset.paper;
      this.recolour();
    });
    let wide = 0;
    new ResizeObserver(() => {
      if (!this.head || root.clientWidth === wide) return;
      wide = root.clientWidth;
      this.size();
      this.paint();
    }).observe(root);
  }

  recolour(now = false) {
    if (!this.head) return;
    this.redraw();
    this.overview.paint(now);
  }

  zoom(by) {
    this.cell = by === 0 ? 0 : Math.max(1, Math.min(60, Math.round(this.drawn * by + (by > 1 ? 0.5 : -0.5))));
    this.size();
    this.paint();
  }

  point(cell) {
    this.hover = cell;
    const { query, key } = cell ?? this.at;
    showCell(this.parts.panel, this, query, key);
    this.paint();
  }

  beside(by) {
    const { order } = this.overview;
    let place = order.findIndex(([row, head]) => row === this.at.row && head === this.at.head);
    do place = (place + by + order.length) % order.length;
    while (!this.heads.has(...order[place]));
    return order[place];
  }

  turn(by) {
    const [row, head] = this.beside(by);
    return this.go({ row, head });
  }

  step(query, key) {
    const { scroll } = this.parts;
    const { margin, drawn, view } = this;
    const [x, y] = [key * drawn, query * drawn];
    if (x < scroll.scrollLeft) scroll.scrollLeft = x;
    if (x + drawn + margin.left + margin.right > scroll.scrollLeft + view.width) scroll.scrollLeft = x + drawn + margin.left + margin.right - view.width;
    if (y < scroll.scrollTop) scroll.scrollTop = y;
    if (y + drawn + margin.top > scroll.scrollTop + view.height) scroll.scrollTop = y + drawn + margin.top - view.height;
    this.hover = null;
    this.parts.live.textContent = sayCell(this, query, key);
    return this.go({ query, key });
  }
}

for (const root of document.querySelectorAll(".interp-viewer:not([data-started])")) {
  root.dataset.started = "yes";
  // One capture shown twice in a notebook: each place gets a name of its own.
  for (let i = 2, id = root.id; document.getElementById(root.id) !== root; i++) root.id = `${id}-${i}`;
  root.interpViewer = new Viewer(root);
  root.interpViewer.ready.then(() => (root.dataset.ready = "yes"));
}
