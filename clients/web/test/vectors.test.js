// The golden vectors of tests/vectors, as every client replays them.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";

import { ClientMachine } from "../seedance.js";

const vectors = new URL("../../../tests/vectors/", import.meta.url);
const read = (name) => JSON.parse(readFileSync(new URL(name, vectors), "utf8"));

// A delivered frame may carry its number or not.
function plain(effect) {
  if (!("deliver" in effect)) return effect;
  const { seq: _, ...frame } = effect.deliver;
  return { deliver: frame };
}

for (const name of readdirSync(new URL("conversations/", vectors))) {
  test(`conversation ${name}: every step is answered as recorded`, () => {
    const { url, jitter, steps } = read(`conversations/${name}`);
    const machine = new ClientMachine(url, { jitter: () => jitter });
    for (const step of steps) {
      const effects = machine.step(step.event, step.at_ms).map(plain);
      const deadline = machine.deadline();
      const played = {
        at_ms: step.at_ms,
        event: step.event,
        effects,
        state: machine.state,
        deadline_ms: deadline === null ? null : Math.ceil(deadline - 1e-3),
      };
      assert.deepEqual(played, step);
    }
  });
}

test("every golden server frame is taken without complaint", () => {
  const machine = new ClientMachine("ws://127.0.0.1:8080/v2/infer");
  machine.step({ connect: true }, 0);
  machine.step({ opened: true }, 1);
  for (const text of read("frames.json").server) {
    machine.step({ received: JSON.parse(text) }, 2);
  }
  assert.equal(machine.state, "open");
});
