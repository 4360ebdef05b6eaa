// Seedance's web SDK: a session over as many WebSockets as it takes, each text exactly once.
// One file, no dependencies, for browsers and for Node 22. It is split as the Python SDK is: a
// machine that decides without I/O (`step(event, now) -> effects`), and a host with the socket and
// the timers. Section numbers are the contract's (docs/protocol.md).

export const SUBPROTOCOL = "seedance.v2.json";

const ACK_EVERY_FRAMES = 8; // one acknowledgement for so many frames,
const ACK_DELAY_MS = 50; // or so long after the first that has none (§4.1)
const STREAMS_MAX = 1024; // generations a client holds at once, running or waiting
const LIVE_MAX = 64; // those that a session has at once (§2); one more waits here
const ENDED_MAX = 1024; // ended streams whose end a resume still tells (§3)
const GREETING_MS = 10_000; // how long a new socket may take to say its first word
const BUFFER_BYTES_MAX = 1024 * 1024; // unread text; over it nothing is acknowledged
const OPENS_AFTER = 3; // failed connects in a row that open the breaker,
const HEARTBEATS = 5; // and answers that prove a connection after that
const BACKOFF = { baseMs: 500, maxMs: 30_000, triesMax: 10, healthyMs: 5_000 };

const RETRY = new Set([1001, 1006, 1011, 1012, 1013, 4408, 4429]);
const SEQUENCED = new Set(["accepted", "token", "flush", "done", "error"]);
const RETRYABLE = new Set(["overloaded", "rate_limited", "unavailable"]);
const ERROR_OF_CLOSE = new Map([
  [1000, ["unavailable", "the server ended the session"]],
  [1009, ["bad_request", "the request is larger than 1 MiB"]],
  [4401, ["unauthorized", "the key was refused"]],
  [4403, ["unauthorized", "this key or origin may not connect"]],
  [4409, ["session_expired", "another connection took the session over"]],
  [4410, ["session_expired", "the session is gone"]],
]);
const GAVE_UP = ["unavailable", "no gateway can be reached"];
const NO_PRESSURE = { level: "none", reason: "" };

const utf8 = new TextEncoder();
const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** An error of the contract's table: `code`, `retryable`, `retryAfterMs`, `field`. */
export class SeedanceError extends Error {
  constructor(frame) {
    super(frame.message);
    this.name = "SeedanceError";
    this.code = frame.code;
    this.retryable = frame.retryable;
    this.retryAfterMs = frame.retry_after_ms;
    this.field = frame.field;
    this.streamId = frame.id;
  }
}

function errorFrame(id, code, message) {
  return { type: "error", id, code, message, retryable: RETRYABLE.has(code) };
}

/** The receiving end of a session's numbered frames: each once, in order, acknowledged (§4.1). */
export class ReceiveWindow {
  constructor(size, base = 1) {
    this.size = size;
    this.base = base; // the next number expected
    this.kept = new Map();
    this.restart(base);
  }

  /** Take frame number `seq`; gives the frames whose turn has come, oldest first. */
  receive(seq, frame, now) {
    this.unacknowledged += 1;
    this.ackAt ??= now + ACK_DELAY_MS;
    if (seq < this.base || seq >= this.base + this.size) return [];
    if (!this.kept.has(seq)) this.kept.set(seq, frame);
    const ready = [];
    while (this.kept.has(this.base)) {
      ready.push(this.kept.get(this.base));
      this.kept.delete(this.base++);
    }
    return ready;
  }

  /** When an `ack` is due; null with nothing to say. */
  ackDeadline() {
    return this.unacknowledged >= ACK_EVERY_FRAMES ? -Infinity : this.ackAt;
  }

  /** The acknowledgement of everything so far. */
  ack() {
    this.unacknowledged = 0;
    this.ackAt = null;
    const sack = [];
    for (const seq of [...this.kept.keys()].sort((a, b) => a - b)) {
      if (sack.length && sack.at(-1)[1] === seq - 1) sack.at(-1)[1] = seq;
      else sack.push([seq, seq]);
    }
    return sack.length ? { type: "ack", seq: this.base, sack } : { type: "ack", seq: this.base };
  }

  /** Go on at `base`, without what was kept above it (§4.5). */
  restart(base) {
    this.base = base;
    this.kept.clear();
    this.unacknowledged = 0;
    this.ackAt = null;
  }
}

/**
 * Holds new requests back while no gateway can be reached, and until one has proven itself.
 * Half-open, running streams are resumed, and nothing new is asked before `HEARTBEATS` answers.
 */
class Breaker {
  constructor() {
    this.state = "closed"; // closed, open, half-open
    this.failures = 0;
    this.beats = 0;
  }

  failed() {
    this.failures += 1;
    if (this.failures >= OPENS_AFTER) this.state = "open";
  }

  connected() {
    this.failures = this.beats = 0;
    if (this.state === "open") this.state = "half-open";
  }

  lost() {
    if (this.state === "half-open") this.state = "open";
  }

  /** A heartbeat was answered; whether it was the last one needed. */
  beat() {
    this.beats += 1;
    if (this.state !== "half-open" || this.beats < HEARTBEATS) return false;
    this.state = "closed";
    return true;
  }
}

/**
 * When and where to try again: full jitter, over all gateways in turn (§3).
 * Only a connection that lived `healthyMs` shortens the delay; one that brought something new begins
 * a new count of tries.
 */
class Reconnect {
  constructor(url, jitter, backoff) {
    this.jitter = jitter;
    this.backoff = backoff;
    this.urls = [url];
    this.index = 0;
    this.tries = 0;
    this.doublings = 0;
    this.breaker = new Breaker();
  }

  get probing() {
    return this.breaker.state === "half-open";
  }

  get url() {
    return this.urls[this.index % this.urls.length];
  }

  learn(gateways) {
    this.breaker.connected();
    const here = this.url;
    const first = new URL(this.urls[0]);
    const others = gateways.filter(isSocketUrl).flatMap((base) => {
      const url = new URL(base);
      // The key would be readable on the way to a gateway without TLS.
      if (first.protocol === "wss:" && url.protocol !== "wss:") return [];
      url.pathname = url.pathname.replace(/\/$/, "") + first.pathname;
      url.search = first.search;
      return [url.href];
    });
    const known = new Map([[place(first.href), this.urls[0]]]);
    for (const url of others) if (!known.has(place(url))) known.set(place(url), url);
    this.urls = [...known.values()];
    this.index = Math.max(0, this.urls.indexOf(here));
  }

  /** A connection that stood is gone after so long. */
  lost(livedMs) {
    this.breaker.lost();
    if (livedMs >= this.backoff.healthyMs) this.tries = this.doublings = 0;
  }

  /** Turn to the next endpoint and say how long to wait; null after the last try. */
  nextDelay() {
    const { baseMs, maxMs, triesMax } = this.backoff;
    if (this.tries >= triesMax) {
      this.tries = this.doublings = 0;
      return null;
    }
    const ceiling = Math.min(maxMs, baseMs * 2 ** this.doublings);
    this.tries += 1;
    if (ceiling < maxMs) this.doublings += 1;
    this.index += 1;
    return this.jitter() * ceiling;
  }
}

function isSocketUrl(text) {
  return URL.canParse(text) && /^wss?:$/.test(new URL(text).protocol);
}

// One's own machine has several names; trying it under each would only lose time.
function place(url) {
  const { hostname, port } = new URL(url);
  return `${["127.0.0.1", "[::1]"].includes(hostname) ? "localhost" : hostname} ${port}`;
}

/** The part of a delta that is new, null if none is; a string says why there is a gap (§4.5). */
function fresh(stream, token) {
  const bytes = utf8.encode(token.delta);
  const known = stream.offset - token.offset;
  if (known === 0) {
    stream.offset += bytes.length;
    return token;
  }
  if (known < 0) return "a part of the text is missing";
  try {
    const delta = strictUtf8.decode(bytes.subarray(known));
    const rest = { ...token, offset: stream.offset, delta };
    stream.offset += Math.max(0, bytes.length - known);
    return delta ? rest : null;
  } catch {
    return "the text was cut differently";
  }
}

/** A client's streams: what was asked, what the server may know, and how far the text came. */
class Streams {
  constructor() {
    this.live = new Map();
    this.ended = new Map();
  }

  get started() {
    return [...this.live.values()].some((stream) => stream.state !== "waiting");
  }

  /** A resume is of use: one runs, or the store may not know of an end and its bill (§4.9). */
  get unsettled() {
    return this.started || this.ended.size > 0;
  }

  add(frame) {
    if (this.live.size >= STREAMS_MAX) {
      const message = `this client already holds ${STREAMS_MAX} generations: wait for one to end`;
      throw new SeedanceError(errorFrame(frame.id, "overloaded", message));
    }
    if (this.live.has(frame.id) || this.ended.has(frame.id)) {
      throw new SeedanceError(errorFrame(frame.id, "bad_request", "`id` must be new in the session"));
    }
    this.live.set(frame.id, { frame, state: "waiting", offset: 0, aborted: false });
  }

  /** What a session that just opened has to hear, oldest first. */
  unheard() {
    const frames = [];
    for (const [id, stream] of this.live) {
      // Also one of which nothing was heard but `accepted`: that may have been said while the store
      // was away, by a gateway that is gone. Whoever knows it does not run it twice.
      if (stream.state !== "waiting" && !stream.offset) frames.push(stream.frame);
      if (stream.aborted) frames.push({ type: "cancel", id });
    }
    return frames.concat(this.waiting());
  }

  /** The generations whose turn has come, oldest first: as many as the session has room for. */
  waiting() {
    const waiting = [...this.live.values()].filter((stream) => stream.state === "waiting");
    const next = waiting.slice(0, Math.max(0, LIVE_MAX - (this.live.size - waiting.length)));
    for (const stream of next) stream.state = "sent";
    return next.map((stream) => stream.frame);
  }

  abort(id, connected) {
    const stream = this.live.get(id);
    if (!stream || stream.aborted) return [];
    stream.aborted = true;
    if (stream.state === "waiting") {
      this.live.delete(id);
      const usage = { prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0, total_tokens: 0 };
      return [{ deliver: { type: "done", id, finish_reason: "cancelled", usage, timing: {} } }];
    }
    return connected ? [{ send: { type: "cancel", id } }] : [];
  }

  /** Take a frame whose turn has come; a stream's second `accepted` or end is dropped. */
  take(frame, seq) {
    const stream = this.live.get(frame.id);
    if (!stream) return [];
    switch (frame.type) {
      case "accepted":
        if (stream.state === "accepted") return [];
        stream.state = "accepted";
        break;
      case "token": {
        const part = fresh(stream, frame);
        if (typeof part === "string") {
          this.end(frame.id, seq);
          const error = errorFrame(frame.id, "resume_gap", part);
          return [{ send: { type: "cancel", id: frame.id } }, { deliver: error }];
        }
        return part ? [{ deliver: part }] : [];
      }
      case "error":
        // With `usage` it is an end (§3), and so is the refusal of a `generate`.
        if (!frame.usage && stream.state === "accepted") return [];
        this.end(frame.id, seq);
        break;
      case "done":
        this.end(frame.id, seq);
        break;
    }
    return [{ deliver: frame }];
  }

  end(id, seq) {
    this.live.delete(id);
    this.ended.set(id, seq);
    if (this.ended.size > ENDED_MAX) this.ended.delete(this.ended.keys().next().value);
  }

  /** `resume.offsets`: bytes processed of what is open, -1 for what has ended. */
  offsets() {
    const offsets = {};
    for (const [id, stream] of this.live) {
      if (stream.state !== "waiting") offsets[id] = stream.offset;
    }
    for (const id of this.ended.keys()) offsets[id] = -1;
    return offsets;
  }

  committed(sequenceId) {
    for (const [id, seq] of this.ended) if (seq <= sequenceId) this.ended.delete(id);
  }

  /** The session is gone, and with it what it had; what it never had may go to another. */
  loseSession(code, message) {
    this.ended.clear();
    const lost = [];
    for (const [id, stream] of this.live) {
      if (stream.state === "accepted") lost.push(id);
      else stream.state = "waiting";
    }
    for (const id of lost) this.live.delete(id);
    return lost.map((id) => ({ deliver: errorFrame(id, code, message) }));
  }

  fail(code, message) {
    const lost = [...this.live.keys()];
    this.live.clear();
    this.ended.clear();
    return lost.map((id) => ({ deliver: errorFrame(id, code, message) }));
  }
}

/**
 * The client's half of a session, without I/O. Times are milliseconds.
 *
 * Events: `{connect}`, `{submit: frame}`, `{abort: id}`, `{opened}`, `{received: frame}`,
 * `{lost: closeCode}`, `{reading: id, behind}`, `{tick}`, `{shut}`.
 * Effects: `{dial: url}`, `{send: frame}`, `{hangup: closeCode}`, `{deliver: frame}`.
 * States: idle, connecting, resuming, open, closed.
 */
export class ClientMachine {
  constructor(url, { jitter = Math.random, backoff = {} } = {}) {
    this.state = "idle";
    this.pressure = NO_PRESSURE; // what the server said last of how much less it asks for
    this.session = null;
    this.jitter = jitter;
    this.backoff = { ...BACKOFF, ...backoff };
    this.reconnect = new Reconnect(url, jitter, this.backoff);
    this.window = new ReceiveWindow(1);
    this.streams = new Streams();
    this.behind = new Set();
    this.timers = new Map(); // dial, leave, ping, silence: when
    this.openedAt = 0;
    this.refusal = null;
    this.effects = [];
  }

  /** When the host should call with `{tick}`; null while there is nothing to wait for. */
  deadline() {
    const times = [...this.timers.values()];
    const ackAt = this.window.ackDeadline();
    if (ackAt !== null && this.#mayAcknowledge()) times.push(ackAt);
    return times.length ? Math.min(...times) : null;
  }

  step(event, now) {
    if ("received" in event) this.#received(event.received, now);
    else if ("connect" in event) this.#connect();
    else if ("submit" in event) this.#submit(event.submit);
    else if ("abort" in event) {
      // On probation its `generate` may be unheard; both are said afterwards.
      const connected = this.state === "open" && !this.reconnect.probing;
      this.effects.push(...this.streams.abort(event.abort, connected));
    } else if ("opened" in event) this.#opened(now);
    else if ("lost" in event) this.#lost(event.lost, now);
    else if ("reading" in event) {
      if (event.behind) this.behind.add(event.reading);
      else this.behind.delete(event.reading);
    } else if ("tick" in event) this.#tick(now);
    else if ("shut" in event) this.#shut();
    const ackAt = this.window.ackDeadline();
    if (ackAt !== null && ackAt <= now && this.#mayAcknowledge()) this.#send(this.window.ack());
    const effects = this.effects;
    this.effects = [];
    return effects;
  }

  #connect() {
    if (this.state !== "idle") return;
    this.state = "connecting";
    this.effects.push({ dial: this.reconnect.url });
  }

  #submit(frame) {
    if (this.state === "closed") {
      throw new SeedanceError(errorFrame(frame.id, "unavailable", "the client is closed"));
    }
    this.streams.add(frame);
    this.#ask();
    this.#connect();
  }

  #shut() {
    if (this.state === "closed") return;
    if (this.state === "open") this.#send({ type: "close" });
    if (this.state !== "idle") this.effects.push({ hangup: 1000 });
    this.#end("closed", "unavailable", "the client was closed");
  }

  #opened(now) {
    if (this.state !== "connecting") return;
    this.openedAt = now;
    this.refusal = null;
    this.timers = new Map([["silence", now + GREETING_MS]]);
    if (this.session && this.streams.unsettled) {
      this.state = "resuming";
      const { session, token } = this.session;
      const offsets = this.streams.offsets();
      this.#send({ type: "resume", session, token, last_seq: this.window.base - 1, offsets });
    } else {
      // Nothing is left to fetch from the old session: begin a new one.
      this.session = null;
      this.effects.push(...this.streams.loseSession(...GAVE_UP));
    }
  }

  #lost(code, now) {
    if (this.state === "idle" || this.state === "closed") return;
    this.pressure = NO_PRESSURE;
    if (this.state === "open") this.reconnect.lost(now - this.openedAt);
    else this.reconnect.breaker.failed();
    if (code === 4410 && this.session) {
      this.session = null;
      this.effects.push(...this.streams.loseSession(...ERROR_OF_CLOSE.get(4410)));
      if (this.streams.live.size) this.#retry(now);
      else this.#end("idle", ...ERROR_OF_CLOSE.get(4410));
    } else if (RETRY.has(code)) {
      // Where there was only an end to tell, nobody has to wait for that.
      const { live, started } = this.streams;
      if (this.state === "resuming" && live.size && !started) this.session = null;
      this.#retry(now);
    } else this.#end("idle", ...this.#reason(code));
  }

  #retry(now) {
    const delay = this.reconnect.nextDelay();
    if (delay === null) {
      this.#end("idle", ...GAVE_UP);
      return;
    }
    this.state = "connecting";
    this.timers = new Map([["dial", now + delay]]);
  }

  #reason(code) {
    // What the server said in words is better than what its number means.
    if (this.refusal) return [this.refusal.code, this.refusal.message];
    const unknown = ["internal", `the server closed the connection with ${code}`];
    return ERROR_OF_CLOSE.get(code) ?? unknown;
  }

  #end(state, code, message) {
    this.effects.push(...this.streams.fail(code, message));
    this.session = null;
    this.behind.clear();
    this.timers.clear();
    this.state = state;
  }

  #tick(now) {
    const due = [...this.timers].filter(([, at]) => at <= now).map(([name]) => name);
    for (const name of due) this.timers.delete(name);
    if (due.includes("silence") || due.includes("leave")) {
      this.effects.push({ hangup: 1001 });
      this.#lost(1001, now);
    } else if (due.includes("dial")) this.effects.push({ dial: this.reconnect.url });
    else if (due.includes("ping")) this.#ping(now);
  }

  #received(frame, now) {
    if (this.state === "idle" || this.state === "closed") return;
    this.#heard(now);
    switch (frame.type) {
      case "session":
        // While resuming it is the provisional session that every connection is greeted with.
        if (this.state === "connecting") {
          this.window = new ReceiveWindow(Math.max(1, frame.window.max));
          this.#open(frame, now);
        }
        break;
      case "resumed":
        if (this.state === "resuming") {
          this.window.restart(Math.max(frame.from_seq, this.window.base));
          this.#open(frame, now);
        }
        break;
      case "ping":
        this.#send("t" in frame ? { type: "pong", t: frame.t } : { type: "pong" });
        break;
      case "pong":
        if (this.state === "open") this.#beat(now);
        break;
      case "pressure":
        this.pressure = { level: frame.level, reason: frame.reason };
        break;
      case "checkpoint":
        if (frame.ack_level === "committed") this.streams.committed(frame.sequence_id);
        break;
      case "goaway":
        // Not all at the same moment: a drained process has thousands of us.
        this.timers.set("leave", now + this.jitter() * frame.reconnect_ms);
        break;
      case "error":
        if (frame.id === undefined) this.refusal = frame;
        break;
    }
    if (SEQUENCED.has(frame.type) && this.state === "open") this.#take(frame, now);
  }

  #heard(now) {
    if (this.state !== "open") return;
    const quiet = this.session.heartbeat.session * 1000;
    this.timers.set("silence", now + quiet);
    this.timers.set("ping", now + quiet / 3);
  }

  #open(session, now) {
    this.session = session;
    this.reconnect.learn(session.gateways);
    this.state = "open";
    this.timers.clear();
    this.#heard(now);
    if (this.reconnect.probing) this.#ping(now);
    else this.#send(...this.streams.unheard());
  }

  #beat(now) {
    if (this.reconnect.breaker.beat()) this.#send(...this.streams.unheard());
    else if (this.reconnect.probing) this.#ping(now);
  }

  #ping(now) {
    this.#send({ type: "ping", t: Math.trunc(now) });
  }

  /** Send the generations whose turn it is, on a connection that need not prove itself first. */
  #ask() {
    if (this.state === "open" && !this.reconnect.probing) this.#send(...this.streams.waiting());
  }

  #take(frame, now) {
    if (frame.seq === undefined) {
      this.effects.push(...this.streams.take(frame, this.window.base - 1));
      return;
    }
    for (const ready of this.window.receive(frame.seq, frame, now)) {
      this.reconnect.tries = 0;
      this.effects.push(...this.streams.take(ready, ready.seq));
      if (ready.type === "done" || ready.type === "error") {
        this.behind.delete(ready.id);
        this.#ask();
      }
    }
  }

  #mayAcknowledge() {
    // No `ack` while a reader is behind: the server's window closes, and the engine rests.
    // One whose stream has ended, perhaps with its session, holds nobody back.
    const holds = (id) => this.streams.live.has(id);
    return this.state === "open" && ![...this.behind].some(holds);
  }

  #send(...frames) {
    for (const frame of frames) this.effects.push({ send: frame });
  }
}

/** A running generation: `for await (const chunk of stream)`; errors are thrown by the iteration. */
export class ChatStream {
  constructor(id, { abort, onBehind }) {
    this.id = id;
    this.accepted = null;
    this.end = null;
    this.#abort = abort;
    this.#onBehind = onBehind;
  }

  #abort;
  #onBehind;
  #chunks = [];
  #bytes = 0;
  #behind = false;
  #wake = () => {};

  /** What is billed, once it ended. */
  get usage() {
    return this.end?.usage ?? null;
  }

  /** The signed receipt, once it ended well and if one was asked for; `receipt.js` checks it. */
  get receipt() {
    return this.end?.receipt ?? null;
  }

  /** Where the time went in milliseconds, once it ended well. */
  get timing() {
    return this.end?.timing ?? null;
  }

  /** stop, length, cancelled, or error; null while it runs. */
  get finishReason() {
    if (!this.end) return null;
    return this.end.type === "done" ? this.end.finish_reason : "error";
  }

  /** Ask for no more; what is on the way still arrives. */
  cancel() {
    this.#abort(this.id);
  }

  /** Take a frame of this stream; called by the client. */
  put(frame) {
    if (frame.type === "token") {
      const { delta, offset, timestamp, tokens = 1, logprobs } = frame;
      this.#chunks.push({ delta, offset, timestamp, tokens, logprobs });
      this.#bytes += utf8.encode(delta).length;
      if (this.#bytes > BUFFER_BYTES_MAX && !this.#behind) {
        this.#behind = true;
        this.#onBehind(this.id, true);
      }
    } else if (frame.type === "accepted") this.accepted = frame;
    else if (frame.type === "done" || frame.type === "error") this.end = frame;
    this.#wake();
  }

  #take() {
    const chunks = this.#chunks;
    this.#chunks = [];
    this.#bytes = 0;
    if (this.#behind) {
      this.#behind = false;
      this.#onBehind(this.id, false);
    }
    return chunks;
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        const chunks = this.#take();
        yield* chunks;
        if (chunks.length) continue;
        if (this.end?.type === "error") throw new SeedanceError(this.end);
        if (this.end) return;
        await new Promise((resolve) => (this.#wake = resolve));
      }
    } finally {
      // Left by `break` or by an error of the reader: nobody wants the rest.
      if (!this.end) this.cancel();
    }
  }

  /** Wait for the end: `{text, finishReason, usage, timing}`. */
  async completion() {
    let text = "";
    for await (const chunk of this) text += chunk.delta;
    const { finish_reason: finishReason, usage, timing } = this.end;
    return { id: this.id, text: this.end.text ?? text, finishReason, usage, timing };
  }
}

/**
 * A client of the mesh.
 *
 *   const client = new SeedanceClient("ws://localhost:8080/v2/infer");
 *   for await (const chunk of client.chat({ messages })) show(chunk.delta);
 *
 * `apiKey` travels as a subprotocol item, which a browser can set and no log keeps (§1).
 * `onState` hears of idle, connecting, resuming, open, closed; `onPressure` of `{level, reason}` when it
 * changes: none, throttle or pause.
 */
export class SeedanceClient {
  #machine;
  #protocols;
  #onState;
  #onPressure;
  #WebSocket;
  #streams = new Map();
  #socket = null;
  #timer = null;
  #timerAt = Infinity;

  constructor(url, options = {}) {
    const { apiKey, onState, onPressure, backoff, WebSocket = globalThis.WebSocket } = options;
    this.#machine = new ClientMachine(url, { backoff });
    this.#protocols = [SUBPROTOCOL];
    if (apiKey) this.#protocols.push(`seedance.auth.${base64url(apiKey)}`);
    this.#onState = onState ?? (() => {});
    this.#onPressure = onPressure ?? (() => {});
    this.#WebSocket = WebSocket;
  }

  /** idle, connecting, resuming, open or closed. */
  get state() {
    return this.#machine.state;
  }

  /** How much less the mesh asks for now: `{level, reason}`, level none, throttle or pause. */
  get pressure() {
    return this.#machine.pressure;
  }

  /** What the server said of the session, while one holds. */
  get session() {
    return this.#machine.session;
  }

  /** Begin a generation; `request` has the fields of `generate` (§3) under their own names. */
  chat(request) {
    const id = request.id ?? freshId();
    // A copy, for it may be said again: a page that goes on with its `messages` asks for nothing else.
    const frame = JSON.parse(JSON.stringify({ type: "generate", ...request, id }));
    const stream = new ChatStream(id, {
      abort: (streamId) => this.#streams.has(streamId) && this.#step({ abort: streamId }),
      onBehind: (streamId, behind) => this.#step({ reading: streamId, behind }),
    });
    this.#step({ submit: frame });
    this.#streams.set(id, stream);
    return stream;
  }

  /** Connect now instead of at the first `chat`. */
  connect() {
    this.#step({ connect: true });
  }

  /** End the session and everything in it. */
  close() {
    this.#step({ shut: true });
  }

  #step(event) {
    const before = this.state;
    const pressed = this.pressure;
    for (const effect of this.#machine.step(event, performance.now())) this.#do(effect);
    this.#setTimer();
    if (this.state !== before) this.#onState(this.state);
    const { level, reason } = this.pressure;
    if (level !== pressed.level || reason !== pressed.reason) this.#onPressure(this.pressure);
  }

  #do(effect) {
    if ("deliver" in effect) {
      const frame = effect.deliver;
      const stream = this.#streams.get(frame.id);
      if (frame.type === "done" || frame.type === "error") this.#streams.delete(frame.id);
      stream?.put(frame);
    } else if ("send" in effect) {
      if (this.#socket?.readyState === 1) this.#socket.send(JSON.stringify(effect.send));
    } else if ("dial" in effect) this.#dial(effect.dial);
    else if ("hangup" in effect) {
      const socket = this.#socket;
      this.#socket = null;
      // A page may close with 1000 or an application's own code only; 4000 means: moved on.
      socket?.close(effect.hangup === 1000 ? 1000 : 4000);
    }
  }

  #dial(url) {
    const socket = new this.#WebSocket(url, this.#protocols);
    this.#socket = socket;
    const report = (event) => socket === this.#socket && this.#step(event);
    socket.onopen = () => report({ opened: true });
    socket.onclose = (event) => report({ lost: event.code });
    socket.onmessage = (event) => {
      let frame = null;
      try {
        frame = JSON.parse(event.data);
      } catch {
        // Falls through to the same answer as a frame without a type.
      }
      if (typeof frame?.type === "string") report({ received: frame });
      else if (socket === this.#socket) {
        this.#socket = null;
        socket.close(4000);
        this.#step({ lost: 4400 });
      }
    };
  }

  #setTimer() {
    // A timer that is early only asks again, so most frames leave it as it is.
    const deadline = this.#machine.deadline() ?? Infinity;
    if (deadline >= this.#timerAt && deadline !== Infinity) return;
    clearTimeout(this.#timer);
    this.#timerAt = deadline;
    if (deadline === Infinity) return;
    const fire = () => {
      this.#timerAt = Infinity;
      this.#step({ tick: true });
    };
    this.#timer = setTimeout(fire, Math.max(0, Math.ceil(deadline - performance.now())));
  }
}

// `randomUUID` is missing where a page came without TLS.
function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base64url(text) {
  const binary = String.fromCharCode(...utf8.encode(text));
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
