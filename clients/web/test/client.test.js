// The web SDK's host: sockets, timers and streams, on a WebSocket that is the test.
import assert from "node:assert/strict";
import test from "node:test";

import { SeedanceClient, SeedanceError } from "../seedance.js";

const SESSION = {
  type: "session", session: "s1", token: "t1", epoch: 1, tenant: "local",
  heartbeat: { connection: 30, session: 15, stream: 8 }, window: { initial: 32, min: 16, max: 128 },
  resume_ttl: 120, mode: "token", server: "test", gateways: ["ws://a:1", "ws://b:2"],
};
const messages = [{ role: "user", content: "hi" }];
const backoff = { baseMs: 1 };

class FakeSocket {
  static all = [];

  constructor(url, protocols) {
    Object.assign(this, { url, protocols, sent: [], readyState: 0 });
    FakeSocket.all.push(this);
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close(code) {
    this.readyState = 3;
    this.closedWith = code;
  }

  open() {
    this.readyState = 1;
    this.onopen();
  }

  say(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }

  drop(code = 1006) {
    this.readyState = 3;
    this.onclose({ code });
  }
}

function begin(options = {}) {
  FakeSocket.all = [];
  const states = [];
  const client = new SeedanceClient("ws://a:1/v2/infer", {
    WebSocket: FakeSocket, backoff, onState: (state) => states.push(state), ...options,
  });
  return { client, states };
}

async function socketNumber(n) {
  for (let tries = 0; FakeSocket.all.length < n; tries += 1) {
    assert.ok(tries < 500, `socket ${n} was never dialled`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  return FakeSocket.all[n - 1];
}

const accepted = (id, seq) => ({ type: "accepted", seq, id, instance: "i", adopted_batch_size: 1, token_quota: 9 });
const token = (id, seq, offset, delta) => ({ type: "token", seq, id, offset, delta, timestamp: 1 });
const done = (id, seq) => ({
  type: "done", seq, id, finish_reason: "stop", timing: { ttft_ms: 1 },
  usage: { prompt_tokens: 1, cached_tokens: 0, completion_tokens: 2, total_tokens: 3 },
});

test("text streams through a cut, exactly once", async () => {
  const { client, states } = begin();
  const stream = client.chat({ messages, temperature: 0.3 });
  const first = await socketNumber(1);
  first.open();
  first.say(SESSION);
  assert.deepEqual(first.sent, [{ type: "generate", messages, temperature: 0.3, id: stream.id }]);
  first.say(accepted(stream.id, 1));
  first.say(token(stream.id, 2, 0, "né"));
  first.drop();
  const second = await socketNumber(2);
  assert.equal(second.url, "ws://b:2/v2/infer");
  second.open();
  const [resume] = second.sent;
  assert.deepEqual([resume.type, resume.last_seq, resume.offsets], ["resume", 2, { [stream.id]: 3 }]);
  second.say({ ...SESSION, type: "resumed", from_seq: 3 });
  second.say(token(stream.id, 3, 0, "néon"));
  second.say(done(stream.id, 4));
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk.delta);
  assert.deepEqual(chunks, ["né", "on"]);
  assert.equal(stream.finishReason, "stop");
  assert.equal(stream.usage.total_tokens, 3);
  assert.deepEqual(states, ["connecting", "open", "connecting", "resuming", "open"]);
  client.close();
  assert.equal(second.sent.at(-1).type, "close");
  assert.equal(second.closedWith, 1000);
});

test("an acknowledgement leaves after fifty milliseconds", async () => {
  const { client } = begin();
  const stream = client.chat({ messages });
  const socket = await socketNumber(1);
  socket.open();
  socket.say(SESSION);
  socket.say(accepted(stream.id, 1));
  for (let tries = 0; socket.sent.length < 2 && tries < 500; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  assert.deepEqual(socket.sent[1], { type: "ack", seq: 2 });
  client.close();
});

test("an error is thrown by the iteration, after the text before it", async () => {
  const { client } = begin();
  const stream = client.chat({ messages });
  const socket = await socketNumber(1);
  socket.open();
  socket.say(SESSION);
  socket.say(accepted(stream.id, 1));
  socket.say(token(stream.id, 2, 0, "half"));
  socket.drop(4401);
  const chunks = [];
  await assert.rejects(
    async () => {
      for await (const chunk of stream) chunks.push(chunk.delta);
    },
    (error) => error instanceof SeedanceError && error.code === "unauthorized" && !error.retryable,
  );
  assert.deepEqual(chunks, ["half"]);
  assert.equal(FakeSocket.all.length, 1);
});

test("leaving the loop cancels the stream", async () => {
  const { client } = begin();
  const stream = client.chat({ messages });
  const socket = await socketNumber(1);
  socket.open();
  socket.say(SESSION);
  socket.say(accepted(stream.id, 1));
  socket.say(token(stream.id, 2, 0, "enough"));
  for await (const _ of stream) break;
  assert.deepEqual(socket.sent.at(-1), { type: "cancel", id: stream.id });
  client.close();
});

test("unread text is bounded: nothing is acknowledged while the buffer is full", async () => {
  const { client } = begin();
  const stream = client.chat({ messages });
  const socket = await socketNumber(1);
  socket.open();
  socket.say(SESSION);
  socket.say(accepted(stream.id, 1));
  const piece = "x".repeat(64 * 1024);
  for (let n = 0; n < 40; n += 1) socket.say(token(stream.id, n + 2, n * piece.length, piece));
  const acked = socket.sent.filter((frame) => frame.type === "ack").at(-1).seq;
  assert.ok(acked <= 18, `acknowledged up to ${acked}`);
  socket.say(done(stream.id, 42));
  let length = 0;
  for await (const chunk of stream) length += chunk.delta.length;
  assert.equal(length, 40 * piece.length);
  assert.equal(socket.sent.at(-1).seq, 43);
  client.close();
});

test("what is no frame ends the connection and is not tried again", async () => {
  const { client, states } = begin();
  const stream = client.chat({ messages });
  const socket = await socketNumber(1);
  socket.open();
  socket.onmessage({ data: "[]" });
  await assert.rejects(stream.completion(), { code: "internal" });
  assert.equal(states.at(-1), "idle");
});

test("a key travels as a subprotocol item beside the protocol", async () => {
  const { client } = begin({ apiKey: "sk-ü?" });
  client.connect();
  const socket = await socketNumber(1);
  assert.deepEqual(socket.protocols, ["seedance.v2.json", "seedance.auth.c2stw7w_"]);
  client.close();
});

test("pressure is told when it changes, and is over with its connection", async () => {
  const heard = [];
  const { client } = begin({ onPressure: ({ level }) => heard.push(level) });
  client.chat({ messages });
  const socket = await socketNumber(1);
  socket.open();
  socket.say(SESSION);
  socket.say({ type: "pressure", level: "throttle", reason: "few KV blocks are free" });
  socket.say({ type: "pressure", level: "throttle", reason: "few KV blocks are free" });
  assert.deepEqual(client.pressure, { level: "throttle", reason: "few KV blocks are free" });
  socket.drop();
  assert.deepEqual(heard, ["throttle", "none"]);
  client.close();
});

test("one more generation than a client may hold is refused, the others wait their turn", async () => {
  const { client } = begin();
  const streams = Array.from({ length: 1024 }, () => client.chat({ messages }));
  assert.throws(() => client.chat({ messages }), { name: "SeedanceError", code: "overloaded" });
  const socket = await socketNumber(1);
  socket.open();
  socket.say(SESSION);
  const asked = () => socket.sent.filter((frame) => frame.type === "generate").map((f) => f.id);
  assert.deepEqual(asked(), streams.slice(0, 64).map((stream) => stream.id));
  socket.say(accepted(streams[0].id, 1));
  socket.say(done(streams[0].id, 2));
  assert.deepEqual(asked(), streams.slice(0, 65).map((stream) => stream.id));
  client.close();
});

test("what a page does to its messages later changes nothing that is asked again", async () => {
  const { client } = begin();
  const own = [{ role: "user", content: "hi" }];
  client.chat({ messages: own });
  own.push({ role: "assistant", content: "…" });
  own[0].content = "changed";
  const first = await socketNumber(1);
  first.open();
  first.say(SESSION);
  first.drop();
  const second = await socketNumber(2);
  second.open();
  second.say({ ...SESSION, type: "resumed", from_seq: 1 });
  const asked = [first.sent[0], second.sent.find((frame) => frame.type === "generate")];
  assert.deepEqual(asked.map((frame) => frame.messages), [messages, messages]);
  client.close();
});

test("what cannot be said is refused at once and holds nothing up", async () => {
  const { client } = begin();
  assert.throws(() => client.chat({ messages, seed: 7n }), TypeError);
  client.chat({ messages, id: "a" });
  const socket = await socketNumber(1);
  socket.open();
  socket.say(SESSION);
  assert.deepEqual(socket.sent.map((frame) => frame.id), ["a"]);
  client.close();
});

test("an id is used once, and its first stream is none the worse for a second try", async () => {
  const { client } = begin();
  const stream = client.chat({ messages, id: "a" });
  const refused = { name: "SeedanceError", code: "bad_request", streamId: "a" };
  assert.throws(() => client.chat({ messages, id: "a" }), refused);
  const socket = await socketNumber(1);
  socket.open();
  socket.say(SESSION);
  socket.say(accepted("a", 1));
  socket.say(token("a", 2, 0, "text"));
  socket.say(done("a", 3));
  assert.equal((await stream.completion()).text, "text");
  assert.throws(() => client.chat({ messages, id: "a" }), refused);
  client.close();
});

test("a reader that was left behind with its session holds nobody back in the next one", async () => {
  const { client } = begin();
  const full = client.chat({ messages });
  const first = await socketNumber(1);
  first.open();
  first.say(SESSION);
  first.say(accepted(full.id, 1));
  for (let n = 0; n < 17; n += 1) first.say(token(full.id, n + 2, n * 65536, "x".repeat(65536)));
  const waiting = client.chat({ messages });
  first.drop();
  const second = await socketNumber(2);
  second.open();
  second.drop(4410); // nobody ever reads what is left of the first stream
  const third = await socketNumber(3);
  third.open();
  third.say(SESSION);
  third.say(accepted(waiting.id, 1));
  for (let n = 0; n < 8; n += 1) third.say(token(waiting.id, n + 2, n, "y"));
  assert.ok(third.sent.some((frame) => frame.type === "ack"), "nothing is acknowledged");
  client.close();
});
