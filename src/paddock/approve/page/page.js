// Text from the server is inserted as text, never as markup. A question can be answered only after
// it stood still for a moment.
"use strict";

const SETTLE_MS = 700; // time to notice that another question is in this place; index.html names it
const $ = (id) => document.getElementById(id);
let shown = []; // ids of the questions, in the order of the page
let chosen = null;
let timer = null;
let skew = 0;

function lock() {
  document.body.classList.add("locked");
  clearTimeout(timer);
  timer = setTimeout(() => document.body.classList.remove("locked"), SETTLE_MS);
}

const locked = () => document.body.classList.contains("locked") || document.body.classList.contains("gone");

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function fill(card, question) {
  card.querySelector("h2").textContent = question.title;
  card.querySelector(".lines").textContent = question.lines.join("\n");
  card.querySelector("dl").replaceChildren(
    ...question.facts.flatMap(([label, text]) => [element("dt", label), element("dd", text)]));
  const diff = card.querySelector(".diff");
  diff.hidden = question.diff.length === 0;
  diff.replaceChildren(...question.diff.map((line) =>
    element("div", line || " ", line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "")));
  if (question.more_lines) diff.after(element("p", `lines that are not shown here: ${question.more_lines}`, "more"));
}

function cardOf(question) {
  const card = $("card").content.firstElementChild.cloneNode(true);
  card.dataset.id = question.id;
  card.dataset.ends = question.ends_at;
  card.querySelector(".asker").textContent = question.asker;
  card.querySelector(".whole").hidden = !question.cut;
  fill(card, question);
  card.addEventListener("click", (event) => {
    const act = event.target.closest("[data-act]");
    if (act) answer(question.id, act.dataset.act);
    choose(question.id, false);
  });
  return card;
}

function render(state) {
  skew = state.now - Date.now() / 1000;
  const ids = state.pending.map((one) => one.id);
  const stays = shown.every((id, at) => ids[at] === id);
  for (const card of [...$("pending").children]) if (!ids.includes(Number(card.dataset.id))) card.remove();
  for (const one of state.pending) if (!shown.includes(one.id)) $("pending").append(cardOf(one));
  if (!stays || shown.length === 0) lock();
  shown = ids;
  if (!ids.includes(chosen)) choose(ids.length ? ids[0] : null, false);
  $("none").hidden = ids.length > 0;
  $("more").hidden = state.more === 0;
  $("more").textContent = `more questions: ${state.more}`;
  $("state").textContent = ids.length ? `open questions: ${ids.length + state.more}` : "connected";
  document.title = ids.length ? `(${ids.length + state.more}) paddock approvals` : "paddock approvals";
  $("history").replaceChildren(...state.history.map((one) => {
    const line = element("li", "");
    const how = one.by ? `${one.by}, after ${one.after_s} s` : `after ${one.after_s} s`;
    const verdict = element("span", one.verdict, "verdict");
    verdict.classList.add(one.verdict.split(" ")[0]);
    line.append(verdict, element("span", one.line, "what"), element("span", how, "how"));
    return line;
  }));
}

function choose(id, scroll = true) {
  if (chosen !== id) lock();
  chosen = id;
  for (const card of $("pending").children) {
    const is = Number(card.dataset.id) === id;
    card.classList.toggle("chosen", is);
    if (is) card.setAttribute("aria-current", "true"); else card.removeAttribute("aria-current");
    if (is && scroll) { card.focus({ preventScroll: true }); card.scrollIntoView({ block: "nearest" }); }
  }
}

function step(by) {
  if (!shown.length) return;
  const at = shown.indexOf(chosen);
  choose(shown[Math.min(shown.length - 1, Math.max(0, at + by))]);
}

async function post(name, body) {
  const response = await fetch(name, { method: "POST", body: JSON.stringify(body) });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

async function answer(id, act) {
  if (act !== "whole" && locked()) return;
  try {
    if (act === "whole") {
      const card = document.querySelector(`[data-id="${Number(id)}"]`);
      const whole = await post("whole", { id });
      card.querySelectorAll(".more, .whole").forEach((one) => one.remove());
      fill(card, whole);
      return;
    }
    if (act === "always" && !(await agreed(id))) return;
    lock();
    await post("answer", { id, verdict: act });
  } catch (error) {
    $("state").textContent = error.message;
  }
}

async function agreed(id) {
  const { place, rule } = await post("rule", { id });
  $("place").textContent = place;
  $("text").textContent = rule;
  const dialog = $("rule");
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  return dialog.returnValue === "yes";
}

const KEYS = { y: "once", s: "session", a: "always", n: "deny", w: "whole" };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || document.querySelector("dialog[open]")) return;
  if (event.key === "j" || event.key === "ArrowDown") step(1);
  else if (event.key === "k" || event.key === "ArrowUp") step(-1);
  else if (event.key === "?") $("keys").showModal();
  else if (KEYS[event.key] && chosen !== null) answer(chosen, KEYS[event.key]);
  else return;
  event.preventDefault();
});

$("help").addEventListener("click", () => $("keys").showModal());

setInterval(() => {
  for (const card of $("pending").children) {
    const left = Math.max(0, Math.round(card.dataset.ends - skew - Date.now() / 1000));
    card.querySelector(".left").textContent = `${left} s`;
  }
}, 500);

const events = new EventSource("events");
events.addEventListener("open", () => document.body.classList.remove("gone"));
events.addEventListener("message", (event) => render(JSON.parse(event.data)));
events.addEventListener("error", () => {
  document.body.classList.add("gone");
  $("state").textContent = "the server has ended: open questions are denied";
});
