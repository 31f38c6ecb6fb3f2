// Bytes to heads: inflate, put whole numbers together again, softmax over what a row may see.
export async function bytesOf(blob) {
  const text = atob(blob.slice(1));
  const raw = new Uint8Array(text.length);
  for (let i = 0; i < raw.length; i++) raw[i] = text.charCodeAt(i);
  if (blob[0] === "r") return raw;
  const inflated = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(inflated).arrayBuffer());
}

// Whole numbers from four planes of bytes; smooth: each is what the last one changes by.
function wholes(bytes, start, count, smooth) {
  const out = new Int32Array(count);
  let sum = 0;
  for (let i = 0; i < count; i++) {
    const folded = bytes[start + i] | (bytes[start + count + i] << 8) | (bytes[start + 2 * count + i] << 16) | (bytes[start + 3 * count + i] << 24);
    const whole = (folded >>> 1) ^ -(folded & 1);
    out[i] = smooth ? (sum = (sum + whole) | 0) : whole;
  }
  return out;
}

export async function maskOf(blob, n) {
  const bits = await bytesOf(blob);
  const seen = new Uint8Array(n * n);
  for (let i = 0; i < n * n; i++) seen[i] = (bits[i >> 3] >> (7 - (i & 7))) & 1;
  return seen;
}

// Scores, or what they hold beyond `near` where that is given.
export async function scoresOf(blob, seen, n, step, coarse, near) {
  const bytes = await bytesOf(blob);
  const visible = seen.reduce((sum, bit) => sum + bit, 0);
  const fine = wholes(bytes, 0, visible, !near);
  const rest = wholes(bytes, 4 * visible, n * n - visible, !near);
  const scores = new Float32Array(n * n);
  const NOT_FINITE = -(2 ** 30);
  for (let key = 0, a = 0, b = 0; key < n; key++) {
    for (let query = 0; query < n; query++) {
      const at = query * n + key;
      const whole = seen[at] ? fine[a++] : rest[b++];
      scores[at] = whole === NOT_FINITE ? NaN : whole / (seen[at] ? step : coarse) + (near ? near[at] : 0);
    }
  }
  return scores;
}

export async function vectorsOf(blob, n, d) {
  const bytes = await bytesOf(blob);
  const steps = new Float32Array(Uint32Array.from(new Uint16Array(bytes.buffer, 0, n), (half) => half << 16).buffer);
  const [start, count] = [2 * n, n * d];
  const wide = bytes.length - start === 2 * count;
  const out = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    const low = bytes[start + i];
    const whole = wide ? ((low | (bytes[start + count + i] << 8)) << 16) >> 16 : (low << 24) >> 24;
    out[i] = whole * steps[(i / d) | 0];
  }
  return out;
}

// scale · q·k, two queries by two keys at a time: twice as fast as pair by pair.
export function products(q, k, n, d, scale, cap) {
  const scores = new Float32Array(n * n);
  const [rows, columns] = [Float64Array.from(q, (value) => value * scale), Float64Array.from(k)];
  for (let query = 0; query < n; query += 2) {
    const down = query + 1 < n ? d : 0;
    for (let key = 0; key < n; key += 2) {
      const right = key + 1 < n ? d : 0;
      let one = 0;
      let two = 0;
      let three = 0;
      let four = 0;
      for (let i = 0, a = query * d, b = key * d; i < d; i++, a++, b++) {
        const x = rows[a];
        const y = rows[a + down];
        const z = columns[b];
        const w = columns[b + right];
        one += x * z;
        two += x * w;
        three += y * z;
        four += y * w;
      }
      const at = query * n + key;
      scores[at] = one;
      if (right) scores[at + 1] = two;
      if (down) scores[at + n] = three;
      if (right && down) scores[at + n + 1] = four;
    }
  }
  if (cap) for (let i = 0; i < n * n; i++) scores[i] = cap * Math.tanh(scores[i] / cap);
  return scores;
}

// Masked softmax: tops[query] is the row's largest visible score, totals[query] the sum of e^(s − top), a learned sink's part included.
export function softmax(scores, seen, n, sink = null) {
  const weights = new Float32Array(n * n);
  const tops = new Float64Array(n);
  const totals = new Float64Array(n);
  for (let query = 0; query < n; query++) {
    const row = query * n;
    let top = sink ?? -Infinity;
    for (let key = 0; key < n; key++) if (seen[row + key] && !(scores[row + key] <= top)) top = scores[row + key];
    let total = sink === null ? 0 : Math.exp(sink - top);
    for (let key = 0; key < n; key++) if (seen[row + key]) total += Math.exp(scores[row + key] - top);
    for (let key = 0; key < n; key++) if (seen[row + key]) weights[row + key] = Math.exp(scores[row + key] - top) / total;
    tops[query] = top;
    totals[query] = total;
  }
  return { weights, tops, totals };
}

export class Heads {
  constructor(data) {
    this.data = data;
    this.n = data.tokens.length;
    this.kept = new Map();
    this.masks = new Map();
    this.most = Math.max(4, Math.min(2000, Math.floor(12e6 / (this.n * this.n))));
  }

  has(row, head) {
    return typeof this.data.data[row]?.[head] === "string";
  }

  mask(row) {
    const which = this.data.maskOf[row];
    if (!this.masks.has(which)) this.masks.set(which, maskOf(this.data.masks[which], this.n));
    return this.masks.get(which);
  }

  get(row, head) {
    const name = row * this.data.heads + head;
    if (!this.kept.has(name)) {
      if (this.kept.size >= this.most) this.kept.delete(this.kept.keys().next().value);
      const making = this.make(row, head);
      this.kept.set(name, making);
      making.then((made) => (making.made = made));
    }
    return this.kept.get(name);
  }

  // A head that is made already, without waiting.
  ready(row, head) {
    return this.kept.get(row * this.data.heads + head)?.made;
  }

  async make(row, head) {
    const { data, n } = this;
    const seen = await this.mask(row);
    if (data.kind === "weights") {
      const bytes = await bytesOf(data.data[row][head]);
      const weights = new Float32Array(n * n);
      for (let i = 0; i < n * n; i++) {
        const whole = bytes[i] | (bytes[n * n + i] << 8);
        weights[i] = whole === 65535 ? NaN : whole / 65534;
      }
      return { seen, weights, scores: null };
    }
    const near = data.kind === "scores" ? null : products(...(await this.vectors(row, head)), n, data.d, data.scale[row], data.cap?.[row]);
    const scores = data.kind === "qk" ? near : await scoresOf(data.data[row][head], seen, n, data.step, data.coarse, near);
    return { seen, scores, ...softmax(scores, seen, n, data.sinks ? data.sinks[row][head] : null) };
  }

  // [q, k] of a head, each [pos, d]; null where the file has none.
  async vectors(row, head) {
    const { data, n } = this;
    if (data.d === null) return null;
    const shared = Math.floor(head / (data.heads / data.kv));
    return Promise.all([vectorsOf(data.q[row][head], n, data.d), vectorsOf(data.k[row][shared], n, data.d)]);
  }
}
