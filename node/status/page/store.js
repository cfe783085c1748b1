// The rows this page knows, kept current from the node's stream. The server bounds its tables; so does this.

const AGAIN_MS = 5000;

export class Store {
  constructor() {
    this.tables = new Map();
    this.limits = {};
    this.skew = 0; // seconds the node's clock is ahead of ours
  }

  /** All rows of a table by key, the one that changed last at the end. */
  table(name) {
    if (!this.tables.has(name)) this.tables.set(name, new Map());
    return this.tables.get(name);
  }

  row(name, key) {
    return this.table(name).get(key);
  }

  get facts() {
    return this.row("facts", "all") ?? {};
  }

  /** Unix seconds by the node's clock. */
  get now() {
    return Date.now() / 1000 + this.skew;
  }

  /** Take one message; the names of the tables it changed. */
  apply(message) {
    const changed = new Set();
    this.skew = message.now - Date.now() / 1000;
    if (message.limits) this.limits = message.limits;
    if (message.reset) {
      for (const [name, rows] of this.tables) {
        rows.clear();
        changed.add(name);
      }
    }
    for (const [name, key, row] of message.rows) {
      const rows = this.table(name);
      rows.delete(key); // so that it comes last
      rows.set(key, row);
      if (rows.size > (this.limits[name] ?? 1000)) rows.delete(rows.keys().next().value);
      changed.add(name);
    }
    return changed;
  }
}

/**
 * Follow the stream for ever. `tell(state)`: "live", "lost" or "ended"; `take(message)` gets each message.
 * A lost connection the browser mends by itself, with the last id it has seen; a node that left may be started again.
 */
export function follow(url, { take, tell }) {
  const source = new EventSource(url);
  const again = () => setTimeout(() => follow(url, { take, tell }), AGAIN_MS);
  source.onopen = () => tell("live");
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => {
    tell("lost");
    if (source.readyState === EventSource.CLOSED) again();
  };
  source.addEventListener("end", () => {
    source.close();
    tell("ended");
    again();
  });
}
