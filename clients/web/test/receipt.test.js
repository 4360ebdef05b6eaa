// A receipt that the gateway's code signed, checked by the web SDK.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { verifyReceipt } from "../receipt.js";

const vector = JSON.parse(readFileSync(new URL("../../../tests/vectors/receipt.json", import.meta.url), "utf8"));
const { public_key: key, text, receipt } = vector;

test("a receipt holds for its text", async () => {
  assert.equal(await verifyReceipt(receipt, text, [key]), true);
});

test("another text, id, usage or signature does not", async () => {
  const usage = { ...receipt.usage, completion_tokens: 1 };
  for (const changed of [{ id: "other" }, { usage }, { signature: "AAAA" }, { signature: 7 }, { key: "0" }, { format: 2 }]) {
    assert.equal(await verifyReceipt({ ...receipt, ...changed }, text, [key]), false);
  }
  assert.equal(await verifyReceipt(receipt, `${text}!`, [key]), false);
  assert.equal(await verifyReceipt(receipt, text, []), false);
  assert.equal(await verifyReceipt(null, text, [key]), false);
});
