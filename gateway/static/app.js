// The chat page: what the reader sees of a conversation. Everything about connections, resuming
// and exactly-once text is the SDK's business.
import { SeedanceClient } from "./seedance.js";

const STATE_TEXT = {
  idle: "Not connected",
  connecting: "Connecting…",
  resuming: "Resuming…",
  open: "Connected",
  closed: "Closed",
};
const HISTORY_KEY = "seedance.history";
const NEAR_END_PX = 120; // a reader who is this near the end is taken along

const $ = (id) => document.getElementById(id);
const [log, prompt, send, stop] = ["log", "prompt", "send", "stop"].map($);

let client = null;
let running = null; // the stream of the answer being written
let history = restore();

// ---------------------------------------------------------------- connection

function connect() {
  client?.close();
  const url = new URL("/v2/infer", location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  client = new SeedanceClient(url.href, { apiKey: $("api-key").value || undefined, onState: showState });
  client.connect();
}

function showState(state) {
  const before = $("state").dataset.state;
  $("state").dataset.state = state;
  $("state-text").textContent = STATE_TEXT[state];
  if (before === "open" && state === "connecting" && running) announce("Connection lost, reconnecting.");
  if (before === "resuming" && state === "open" && running) {
    running.resumes += 1;
    announce("Connected again, the answer goes on.");
  }
}

async function listModels() {
  try {
    const answer = await fetch("/v1/models");
    if (!answer.ok) return;
    for (const { id } of (await answer.json()).data) $("model").append(new Option(id, id));
  } catch {
    // The list is a convenience: without it the default model answers.
  }
}

// ---------------------------------------------------------------- one answer

async function ask(question) {
  if (running) return;
  history.push({ role: "user", content: question });
  addMessage("user", question);
  await answer();
}

async function answer() {
  const conversation = history; // a new chat may begin meanwhile
  const message = addMessage("assistant", "");
  message.item.classList.add("streaming");
  const progress = { text: "", tokens: 0, sentAt: performance.now(), firstAt: 0, lastAt: 0 };
  const stream = startStream();
  setRunning(stream);
  announce("The answer begins.");
  const repaint = painter(() => {
    paint(message.text, progress.text);
    showMetrics(message.metrics, progress, stream);
  });
  try {
    for await (const chunk of stream) {
      progress.lastAt = performance.now();
      progress.firstAt ||= progress.lastAt;
      progress.text += chunk.delta;
      progress.tokens += chunk.tokens;
      repaint.soon();
    }
    if (conversation === history) announce(progress.text || "The answer is empty.");
  } catch (error) {
    showFailure(message.item, error);
  }
  progress.tokens = stream.usage?.completion_tokens ?? progress.tokens;
  repaint.now();
  message.item.classList.remove("streaming");
  if (progress.text) conversation.push({ role: "assistant", content: progress.text });
  save();
  if (running === stream) setRunning(null);
}

function startStream() {
  const longest = Math.trunc($("max-tokens").valueAsNumber);
  const stream = client.chat({
    messages: history,
    temperature: Number($("temperature").value),
    ...($("model").value && { model: $("model").value }),
    ...(longest >= 1 && { max_tokens: longest }),
  });
  stream.resumes = 0;
  return stream;
}

function setRunning(stream) {
  running = stream;
  stop.hidden = stream === null;
  send.hidden = stream !== null;
}

// ---------------------------------------------------------------- what is shown

function addMessage(role, text) {
  $("welcome").hidden = true;
  const item = $("message-template").content.firstElementChild.cloneNode(true);
  const message = { item, text: item.querySelector(".text"), metrics: item.querySelector(".metrics") };
  item.classList.toggle("mine", role === "user");
  item.querySelector(".who").textContent = role === "user" ? "You" : "Seedance";
  paint(message.text, text);
  log.append(item);
  $("scroller").scrollTop = $("scroller").scrollHeight;
  return message;
}

/** Text into blocks: paragraphs, and code between lines that begin with ```. */
function blocksOf(text) {
  return text
    .split(/^```.*\n?/m)
    .map((part, index) => (index % 2 ? { tag: "pre", text: part } : { tag: "p", text: part.trim() }))
    .filter((block, index) => index === 0 || block.text);
}

/** Bring `element` up to date with as few changes as it takes; text is only ever text. */
function paint(element, text) {
  const blocks = blocksOf(text);
  while (element.children.length > blocks.length) element.lastElementChild.remove();
  blocks.forEach((block, index) => {
    let child = element.children[index];
    if (child?.localName !== block.tag) {
      const fresh = document.createElement(block.tag);
      // Code may be wider than the page: it scrolls, by keyboard too.
      if (block.tag === "pre") Object.assign(fresh, { tabIndex: 0, role: "group", ariaLabel: "Code" });
      child ? child.replaceWith(fresh) : element.append(fresh);
      child = fresh;
    }
    if (child.source === block.text) return;
    child.source = block.text;
    child.replaceChildren(...(block.tag === "pre" ? [block.text] : inline(block.text)));
  });
}

/** A paragraph with its `code` marked; what is not closed yet stays as it is. */
function inline(text) {
  return text.split(/`([^`\n]+)`/).map((part, index) => {
    if (index % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  });
}

function showMetrics(element, { tokens, sentAt, firstAt, lastAt }, stream) {
  if (!firstAt) return;
  const parts = [`${tokens} ${tokens === 1 ? "token" : "tokens"}`];
  const seconds = (lastAt - firstAt) / 1000;
  if (tokens > 1 && seconds > 0) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  parts.push(`first token after ${Math.round(firstAt - sentAt)} ms`);
  if (stream?.resumes) parts.push(`resumed ${stream.resumes}×`);
  if (stream?.finishReason === "cancelled") parts.push("stopped");
  if (stream?.finishReason === "length") parts.push("cut at its longest length");
  element.replaceChildren(...parts.map((part) => {
    const span = document.createElement("span");
    span.textContent = part;
    return span;
  }));
  element.hidden = false;
}

function showFailure(item, error) {
  const box = document.createElement("div");
  box.className = "failure";
  const words = document.createElement("span");
  words.textContent = error.message;
  const again = document.createElement("button");
  again.type = "button";
  again.textContent = "Try again";
  again.onclick = () => {
    if (running) return;
    if (history.at(-1)?.role === "assistant") history.pop();
    item.remove();
    prompt.focus();
    answer();
  };
  box.append(words, again);
  item.append(box);
  announce(`The answer failed: ${error.message}`);
}

/** At most one repaint a frame, taking along a reader who is at the end. */
function painter(draw) {
  let asked = 0;
  const now = () => {
    cancelAnimationFrame(asked);
    asked = 0;
    const scroller = $("scroller");
    const follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
    draw();
    if (follows) scroller.scrollTop = scroller.scrollHeight;
  };
  return { now, soon: () => (asked ||= requestAnimationFrame(now)) };
}

/** Tell a screen reader, once and whole: never token by token. */
function announce(text) {
  $("announcer").textContent = text;
}

// ---------------------------------------------------------------- history

function restore() {
  try {
    return JSON.parse(sessionStorage.getItem(HISTORY_KEY)) ?? [];
  } catch {
    return [];
  }
}

function save() {
  try {
    sessionStorage.setItem(HISTORY_KEY, JSON.stringify(history));
  } catch {
    // Full or forbidden: the conversation lives as long as the page.
  }
}

function newChat() {
  running?.cancel();
  setRunning(null);
  history = [];
  save();
  log.replaceChildren();
  $("welcome").hidden = false;
  announce("New chat.");
  prompt.focus();
}

// ---------------------------------------------------------------- hands

function submit() {
  const question = prompt.value.trim();
  if (!question || running) return;
  prompt.value = "";
  prompt.focus(); // the button that was pressed goes away
  ask(question);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
prompt.addEventListener("keydown", (event) => {
  // While an input method composes, Enter belongs to it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if ($("settings").open) {
    $("settings").open = false;
    $("settings").querySelector("summary").focus();
  } else running?.cancel();
});
document.addEventListener("click", (event) => {
  if (!$("settings").contains(event.target)) $("settings").open = false;
});
stop.addEventListener("click", () => {
  running?.cancel();
  prompt.focus();
});
$("new-chat").addEventListener("click", newChat);
$("settings-form").addEventListener("submit", (event) => event.preventDefault());
$("temperature").addEventListener("input", () => ($("temperature-value").value = $("temperature").value));
$("api-key").addEventListener("change", connect);
for (const idea of document.querySelectorAll(".idea")) {
  idea.addEventListener("click", () => {
    prompt.focus();
    ask(idea.textContent);
  });
}

for (const { role, content } of history) addMessage(role, content);
connect();
listModels();
