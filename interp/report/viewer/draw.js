// The grid of one head on a canvas that is as large as what is in view: cells from an image of one pixel a pair, then masks, numbers, names.
const RAMPS = {
  light: { more: ["#f6f8fb", "#c4dbf0", "#6ea8d8", "#1f66ae", "#08264d"], less: ["#f6f8fb", "#f5d3bd", "#df8e66", "#b04a22", "#5e1f08"] },
  dark: { more: ["#1a2027", "#1f3f63", "#2f73b3", "#7db8ee", "#e9f4ff"], less: ["#1a2027", "#55301d", "#9c532f", "#e09a72", "#ffe9dc"] },
};
export const STEPS = ["qk", "score", "mask", "exp", "weight"];

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function table(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(place), colours.length - 2);
    return colours[low].map((c, j) => Math.round(c + (colours[low + 1][j] - c) * (place - low)));
  });
}

const TABLES = Object.fromEntries(Object.entries(RAMPS).map(([name, r]) => [name, { more: table(r.more), less: table(r.less) }]));

export function isDark(element) {
  const [r, g, b] = getComputedStyle(element).color.match(/[\d.]+/g).map(Number);
  return r + g + b > 382;
}

// Black or white, whichever stands out more on a colour: at least 4.5 to 1 on any.
export function inkOn([r, g, b]) {
  const light = (c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b) > 0.179 ? "#000000" : "#ffffff";
}

// On paper the colours are those of a light page: the page's own style has not changed yet when printing begins.
export function palette(element) {
  const dark = isDark(element) && !element.closest(".interp-viewer").dataset.paper;
  return {
    ...TABLES[dark ? "dark" : "light"],
    dark,
    ink: dark ? "#e8eaed" : "#15181d",
    quiet: dark ? "#a3abb5" : "#5a6169",
    back: dark ? "#1b1e23" : "#ffffff",
    line: dark ? "#343941" : "#dfe1e4",
    unseen: dark ? "#24282e" : "#eceef0",
    hatch: dark ? "#59616b" : "#b4bac1",
    mark: dark ? "#ffcf66" : "#8a3b00",
    pin: dark ? "#8fe3b0" : "#0b6b3a",
  };
}

// What a step shows in each cell: the value, its place on the colours from −1 to 1, and whether the mask is drawn yet.
export function shownAs(step, head, n, data, row) {
  const scale = data.scale?.[row] ?? 1;
  const cap = data.cap?.[row];
  const masked = step === "mask" || step === "exp" || step === "weight";
  if (step === "weight") return { value: (i) => head.weights[i], place: (i) => head.weights[i], masked, ends: ["0", "1"], digits: 2 };
  if (step === "exp") {
    const share = (i) => Math.exp(head.scores[i] - head.tops[(i / n) | 0]);
    return { value: (i) => Math.exp(head.scores[i]), place: share, masked, ends: ["0", "the row's largest eˢ"], digits: 1 };
  }
  const raw = (i) => (step === "qk" ? (cap ? cap * Math.atanh(Math.max(-0.9999999, Math.min(0.9999999, head.scores[i] / cap))) : head.scores[i]) / scale : head.scores[i]);
  let most = 1e-9;
  for (let i = 0; i < n * n; i++) {
    const size = Math.abs(raw(i));
    if (size > most && (!masked || head.seen[i])) most = size;
  }
  const end = most.toPrecision(3).replace(/\.?0+$/, "");
  return { value: raw, place: (i) => raw(i) / most, masked, ends: ["−" + end, "0", end], digits: most >= 100 ? 0 : 1 };
}

export const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

export function image(shown, head, n, colours, stretch) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = n;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(n, n);
  const out = new Uint32Array(pixels.data.buffer);
  const most = 4095;
  const shades = (ramp) => Uint32Array.from({ length: most + 1 }, (_, i) => packed(ramp[Math.round(255 * (stretch ? Math.sqrt(i / most) : i / most))]));
  const [more, less] = [shades(colours.more), shades(colours.less)];
  const unseen = packed(rgb(colours.unseen));
  const { place, masked } = shown;
  for (let i = 0; i < n * n; i++) {
    if (masked && !head.seen[i]) {
      out[i] = unseen;
      continue;
    }
    const value = place(i);
    const size = value < 0 ? -value : value;
    out[i] = size >= 0 ? (value < 0 ? less : more)[size < 1 ? (size * most + 0.5) | 0 : most] : unseen;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

export function hatching(context, colours) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = colours.unseen;
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = colours.hatch;
  pen.lineWidth = 1.1;
  for (const shift of [-6, 0, 6]) {
    pen.beginPath();
    pen.moveTo(shift - 1, 7);
    pen.lineTo(shift + 7, -1);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

// Margins hold the names; `left`, `top`, `right` in CSS pixels.
const widths = new WeakMap();

export function margins(context, names, cell, totals) {
  if (!widths.has(names)) {
    context.font = font(100);
    let widest = 0;
    for (const name of names) if (name.length * 16 > widest) widest = Math.max(widest, context.measureText(name.slice(0, 40)).width);
    widths.set(names, widest / 13);
  }
  const room = Math.min(Math.ceil(widths.get(names) * size(cell)) + 14, 110);
  return { left: room + 20, top: room + 22, right: totals ? 74 : 8, bottom: 8 };
}

const size = (cell) => Math.max(9, Math.min(13, cell - 1));

function font(cell) {
  return `${size(cell)}px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace`;
}

export function drawGrid(canvas, view) {
  const { n, cell, margin, width, height, scrollX, scrollY, colours, shown, head, picture, names } = view;
  const ratio = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colours.back;
  context.fillRect(0, 0, width, height);
  const x0 = margin.left - scrollX;
  const y0 = margin.top - scrollY;
  const first = { x: Math.max(0, Math.floor(scrollX / cell)), y: Math.max(0, Math.floor(scrollY / cell)) };
  const last = { x: Math.min(n, Math.ceil((scrollX + width - margin.left) / cell)), y: Math.min(n, Math.ceil((scrollY + height - margin.top) / cell)) };
  context.save();
  context.beginPath();
  context.rect(margin.left, margin.top, width - margin.left, height - margin.top);
  context.clip();
  context.imageSmoothingEnabled = false;
  const [w, h] = [last.x - first.x, last.y - first.y];
  if (w > 0 && h > 0) context.drawImage(picture, first.x, first.y, w, h, x0 + first.x * cell, y0 + first.y * cell, w * cell, h * cell);
  if (cell >= 7) {
    context.fillStyle = colours.back;
    for (let i = first.x; i <= last.x; i++) context.fillRect(x0 + i * cell - 0.5, margin.top, 1, y0 + n * cell - margin.top);
    for (let i = first.y; i <= last.y; i++) context.fillRect(margin.left, y0 + i * cell - 0.5, x0 + n * cell - margin.left, 1);
  }
  if (shown.masked) {
    context.fillStyle = hatching(context, colours);
    for (let query = first.y; query < last.y; query++) {
      for (let key = first.x, from = -1; key <= last.x; key++) {
        const hidden = key < last.x && !head.seen[query * n + key];
        if (hidden && from < 0) from = key;
        if (!hidden && from >= 0) {
          context.fillRect(x0 + from * cell, y0 + query * cell, (key - from) * cell, cell);
          from = -1;
        }
      }
    }
  }
  if (cell >= 28) drawNumbers(context, view, first, last, x0, y0);
  marks(context, view, x0, y0);
  context.restore();
  if (view.totals) drawTotals(context, view, first, last, x0, y0);
  drawNames(context, view, first, last, x0, y0, names);
}

function drawNumbers(context, { n, cell, colours, shown, head, stretch }, first, last, x0, y0) {
  context.font = `${cell >= 44 ? 12 : cell >= 33 ? 10 : 9}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let query = first.y; query < last.y; query++) {
    for (let key = first.x; key < last.x; key++) {
      const i = query * n + key;
      if (shown.masked && !head.seen[i]) continue;
      const place = shown.place(i);
      const size = stretch ? Math.sqrt(Math.abs(place)) : Math.abs(place);
      context.fillStyle = inkOn((place < 0 ? colours.less : colours.more)[Math.min(255, Math.round(size * 255)) || 0]);
      context.fillText(short(shown.value(i), shown.digits), x0 + (key + 0.5) * cell, y0 + (query + 0.5) * cell);
    }
  }
}

export function short(value, digits = 2) {
  if (!Number.isFinite(value)) return "n/a";
  const size = Math.abs(value);
  if (size >= 1000) return value.toExponential(0).replace("+", "");
  return value.toFixed(size >= 100 ? 0 : digits).replace(/^-/, "−").replace(/^0\./, ".").replace(/^−0\./, "−.");
}

function marks(context, { n, cell, colours, query, key, pin, hover }, x0, y0) {
  const box = (k, q, colour, dash, width) => {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.strokeRect(x0 + k * cell, y0 + q * cell, cell, cell);
  };
  context.strokeStyle = colours.mark;
  context.lineWidth = 1.5;
  context.setLineDash([]);
  context.strokeRect(x0 - 1, y0 + query * cell, n * cell + 2, cell);
  if (pin !== null) box(pin, query, colours.pin, [4, 2], 3);
  box(key, query, colours.mark, [], 3);
  if (hover && (hover.query !== query || hover.key !== key)) box(hover.key, hover.query, colours.ink, [], 2);
  context.setLineDash([]);
}

function drawTotals(context, { n, cell, margin, colours, head, width }, first, last, x0, y0) {
  context.textAlign = "left";
  context.textBaseline = "middle";
  const x = Math.min(x0 + n * cell, width - margin.right);
  context.fillStyle = colours.back;
  context.fillRect(x + 1, 0, width - x, 4000);
  context.fillStyle = colours.quiet;
  context.font = "11px system-ui, sans-serif";
  context.fillText("total", x + 8, margin.top - 9);
  const every = Math.max(1, Math.ceil(11 / cell));
  context.fillStyle = colours.ink;
  for (let query = first.y; query < last.y; query++) {
    const y = y0 + (query + 0.5) * cell;
    if (query % every === 0 && y > margin.top) context.fillText(sum(Math.exp(head.tops[query]) * head.totals[query]), x + 8, y);
  }
}

function sum(value) {
  return value >= 1e5 ? value.toExponential(2).replace("e+", "e") : value >= 1000 ? value.toFixed(0) : short(value, 2);
}

function fit(context, name, room) {
  if (context.measureText(name).width <= room) return name;
  const letters = Array.from(name);
  while (letters.length > 1 && context.measureText(letters.join("") + "…").width > room) letters.pop();
  return letters.join("") + "…";
}

function drawNames(context, { cell, margin, colours, query, key, pin, hover, height, width }, first, last, x0, y0, names) {
  context.fillStyle = colours.back;
  context.fillRect(0, 0, margin.left - 1, height);
  context.fillRect(0, 0, width - margin.right + (margin.right > 20 ? 0 : margin.right), margin.top - 1);
  context.font = font(cell);
  const every = Math.max(1, Math.ceil(10 / cell));
  const here = hover ?? { query, key };
  context.textBaseline = "middle";
  context.textAlign = "right";
  const name = (i, colour, x, y, turn) => {
    context.save();
    context.translate(x, y);
    if (turn) context.rotate(-Math.PI / 2);
    context.fillStyle = colour;
    context.fillText(fit(context, names[i], (turn ? margin.top : margin.left) - 30), 0, 0);
    context.restore();
  };
  for (let i = first.y; i < last.y; i++) {
    const chosen = i === query || i === here.query;
    const y = y0 + (i + 0.5) * cell;
    if ((i % every === 0 || chosen) && y > margin.top - cell / 2) name(i, chosen ? colours.mark : colours.ink, margin.left - 7, y, false);
  }
  context.textAlign = "left";
  for (let i = first.x; i < last.x; i++) {
    const chosen = i === key || i === here.key;
    const x = x0 + (i + 0.5) * cell;
    if ((i % every === 0 || chosen) && x > margin.left - cell / 2 && x < width - margin.right) name(i, i === pin ? colours.pin : chosen ? colours.mark : colours.ink, x, margin.top - 7, true);
  }
  context.fillStyle = colours.back;
  context.fillRect(0, 0, margin.left - 1, margin.top - 1);
  context.fillStyle = colours.quiet;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.fillText("keys →", margin.left + 1, 9);
  context.save();
  context.translate(9, margin.top + 1);
  context.rotate(-Math.PI / 2);
  context.textAlign = "right";
  context.fillText("← queries", 0, 0);
  context.restore();
}
