// Checks a signed receipt offline (docs/protocol.md, §3 "Receipts"): WebCrypto alone, in browsers that know Ed25519 and in Node.

const utf8 = new TextEncoder();
const BLOCK_BYTES = 256;

// Whether the mesh signed `receipt`, and for `text`. `publicKeys`: base64url, as `GET /v1/receipts/key` lists them.
export async function verifyReceipt(receipt, text, publicKeys) {
  if (receipt?.format !== 1 || receipt.text_hash !== (await textHash(text))) return false;
  const { signature, ...signed } = receipt;
  for (const publicKey of publicKeys) {
    const raw = fromBase64url(publicKey);
    if (raw === null || toHex(await sha256(raw)).slice(0, 16) !== receipt.key) continue;
    const key = await crypto.subtle.importKey("raw", raw, "Ed25519", false, ["verify"]);
    const given = fromBase64url(signature);
    return given !== null && crypto.subtle.verify("Ed25519", key, given, utf8.encode(canonical(signed)));
  }
  return false;
}

async function textHash(text) {
  const bytes = utf8.encode(text);
  let hash = new Uint8Array(32);
  for (let at = 0; at < bytes.length; at += BLOCK_BYTES) {
    const block = bytes.subarray(at, at + BLOCK_BYTES);
    const joined = new Uint8Array(hash.length + block.length);
    joined.set(hash);
    joined.set(block, hash.length);
    hash = await sha256(joined);
  }
  return toHex(hash);
}

async function sha256(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

// RFC 8785: sorted names, no spaces. A receipt holds strings, integers and objects.
function canonical(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return JSON.stringify(value);
  const members = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
  return `{${members.join(",")}}`;
}

function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function fromBase64url(text) {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return Uint8Array.from(binary, (char) => char.charCodeAt(0));
  } catch {
    return null;
  }
}
