// Bytes to heads: inflate, put whole numbers together again, softmax over what a row may see.
export async function bytesOf(blob) {
  const raw = Uint8Array.from(atob(blob.slice(1)), (c) => c.charCodeAt(0));
  if (blob[0] === "r") return raw;
  const inflated = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(inflated).arrayBuffer());
}

function wholes(bytes, start, count) {
  const out = new Int32Array(count);
  let sum = 0;
  for (let i = 0; i < count; i++) {
    const folded = bytes[start + i] | (bytes[start + count + i] << 8) | (bytes[start + 2 * count + i] << 16) | (bytes[start + 3 * count + i] << 24);
    sum = (sum + ((folded >>> 1) ^ -(folded & 1))) | 0;
    out[i] = sum;
  }
  return out;
}

export async function maskOf(blob, n) {
  const bits = await bytesOf(blob);
  const seen = new Uint8Array(n * n);
  for (let i = 0; i < n * n; i++) seen[i] = (bits[i >> 3] >> (7 - (i & 7))) & 1;
  return seen;
}

export async function scoresOf(blob, seen, n, step, coarse) {
  const bytes = await bytesOf(blob);
  const visible = seen.reduce((sum, bit) => sum + bit, 0);
  const fine = wholes(bytes, 0, visible);
  const rest = wholes(bytes, 4 * visible, n * n - visible);
  const scores = new Float32Array(n * n);
  const NOT_FINITE = -(2 ** 30);
  for (let key = 0, a = 0, b = 0; key < n; key++) {
    for (let query = 0; query < n; query++) {
      const at = query * n + key;
      const whole = seen[at] ? fine[a++] : rest[b++];
      scores[at] = whole === NOT_FINITE ? NaN : whole / (seen[at] ? step : coarse);
    }
  }
  return scores;
}

export async function vectorsOf(blob, n, d, wide) {
  const bytes = await bytesOf(blob);
  const steps = new Float32Array(bytes.buffer.slice(0, 4 * n));
  const whole = wide ? new Int16Array(bytes.buffer.slice(4 * n)) : new Int8Array(bytes.buffer.slice(4 * n));
  return Float32Array.from(whole, (value, i) => value * steps[(i / d) | 0]);
}

export function products(q, k, n, d, scale, cap) {
  const scores = new Float32Array(n * n);
  for (let query = 0; query < n; query++) {
    for (let key = 0; key < n; key++) {
      let sum = 0;
      for (let i = 0, a = query * d, b = key * d; i < d; i++) sum += q[a + i] * k[b + i];
      sum *= scale;
      scores[query * n + key] = cap ? cap * Math.tanh(sum / cap) : sum;
    }
  }
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
      this.kept.set(name, this.make(row, head));
    }
    return this.kept.get(name);
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
    const [q, k] = data.kind === "qk" ? await this.vectors(row, head) : [null, null];
    const scores =
      data.kind === "qk"
        ? products(q, k, n, data.d, data.scale[row], data.cap?.[row])
        : await scoresOf(data.data[row][head], seen, n, data.step, data.coarse);
    return { seen, scores, ...softmax(scores, seen, n, data.sinks ? data.sinks[row][head] : null) };
  }

  // [q, k] of a head, each [pos, d]; null where the file has none.
  async vectors(row, head) {
    const { data, n } = this;
    if (data.d === null) return null;
    const wide = data.kind === "qk";
    const shared = Math.floor(head / (data.heads / data.kv));
    return Promise.all([vectorsOf(data.q[row][head], n, data.d, wide), vectorsOf(data.k[row][shared], n, data.d, wide)]);
  }
}
