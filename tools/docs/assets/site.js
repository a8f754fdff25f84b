// SPDX-License-Identifier: Apache-2.0
//
// Search: every word, or another one for the same, must begin a word of the section. Words in headings count more,
// and so do pages that say what to do. The index is a script next to this one, loaded when somebody wants to search.
"use strict";
const box = document.getElementById("search"), list = document.getElementById("results");
const root = new URL(".", document.currentScript.src);
let wanted = false, chosen = -1;

function load() {
  if (wanted) return;
  wanted = true;
  const script = document.createElement("script");
  script.src = new URL("search.js", root);
  script.onload = show;
  document.head.append(script);
}

// How much a page's part of the list of pages counts.
const weights = { start: 1.5, tasks: 1.5, concepts: 1.2, registries: 1, reference: 0.8, inside: 0.3 };

// What people look for by another word than these pages have.
const others = {
  rollback: ["undo", "go back"], revert: ["undo", "go back"], canary: ["partition", "a few pods first"],
  imagepullbackoff: ["imagepull", "errimagepull"], crashloopbackoff: ["crashloop"], stuck: ["does not go"],
  uninstall: ["leaving"], prometheus: ["metrics", "alerts"], grafana: ["dashboard"],
};

// pattern finds a word as the beginning of one, or what stands for it.
function pattern(word) {
  const low = word.toLowerCase();
  const known = low.length < 4 ? [] : Object.keys(others).filter((name) => name.startsWith(low)).flatMap((name) => others[name]);
  const all = [word, ...known].map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`(?<![\\p{L}\\p{N}])(?:${all.join("|")})`, "giu");
}

function score(section, words) {
  const { page, heading, text, part } = section;
  let sum = 0;
  for (const word of words) {
    const found = (s) => (s.match(word) || []).length;
    const points = 20 * Math.min(found(heading), 1) + 8 * Math.min(found(page), 1) + Math.min(found(text), 5);
    if (points === 0) return 0;
    sum += points;
  }
  return sum * (weights[part] ?? 1);
}

function marked(text, words) {
  const first = Math.max(0, Math.min(...words.map((w) => text.search(w)).filter((at) => at >= 0), text.length) - 40);
  const begin = first === 0 ? 0 : text.indexOf(" ", first) + 1;
  const part = document.createElement("small"), cut = text.slice(begin, begin + 160);
  let from = 0;
  for (const hit of cut.matchAll(new RegExp(words.map((w) => w.source).join("|"), "giu"))) {
    part.append(cut.slice(from, hit.index));
    part.appendChild(document.createElement("mark")).textContent = hit[0];
    from = hit.index + hit[0].length;
  }
  part.append(cut.slice(from));
  return part;
}

function row({ to, page, heading, text }, at, words) {
  const item = document.createElement("li"), link = document.createElement("a");
  item.role = "option";
  item.id = "result-" + at;
  link.href = new URL(to, root);
  link.tabIndex = -1;
  link.append(heading === page ? page : `${page} › ${heading}`, marked(text, words));
  item.append(link);
  return item;
}

function show() {
  const words = box.value.trim().split(/\s+/).filter(Boolean).map(pattern);
  chosen = -1;
  box.removeAttribute("aria-activedescendant");
  const open = words.length > 0 && typeof sections !== "undefined";
  list.hidden = !open;
  box.setAttribute("aria-expanded", open);
  if (!open) return;
  const found = sections.map((s) => [score(s, words), s]).filter(([n]) => n > 0).sort((a, b) => b[0] - a[0]).slice(0, 12);
  list.replaceChildren(...found.map(([, s], at) => row(s, at, words)));
  if (found.length === 0) list.append(Object.assign(document.createElement("li"), { textContent: "Nothing found." }));
}

function choose(step) {
  const rows = [...list.querySelectorAll("[role=option]")];
  if (rows.length === 0) return;
  rows[chosen]?.setAttribute("aria-selected", "false");
  chosen = (chosen + step + rows.length) % rows.length;
  rows[chosen].setAttribute("aria-selected", "true");
  rows[chosen].scrollIntoView({ block: "nearest" });
  box.setAttribute("aria-activedescendant", rows[chosen].id);
}

box.addEventListener("focus", load);
box.addEventListener("input", () => { load(); show(); });
box.addEventListener("keydown", (e) => {
  if (e.key === "ArrowDown") choose(1);
  else if (e.key === "ArrowUp") choose(chosen < 0 ? 0 : -1);
  else if (e.key === "Enter") list.querySelectorAll("a")[Math.max(chosen, 0)]?.click();
  else if (e.key === "Escape") { box.value = ""; show(); }
  else return;
  e.preventDefault();
});
document.addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.target.closest("input, textarea")) return;
  e.preventDefault();
  box.focus();
});
document.addEventListener("click", (e) => { if (!e.target.closest(".search")) list.hidden = true; });

// Commands and manifests can be copied; what programs print has no language.
for (const code of document.querySelectorAll("pre > code[class*=language-]")) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.innerText);
      button.textContent = "Copied";
    } catch { // a browser that forbids it: the text is selected instead
      getSelection().selectAllChildren(code);
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  const frame = document.createElement("div");
  frame.className = "code";
  code.parentNode.replaceWith(frame);
  frame.append(code.parentNode, button);
}

// On a narrow screen the list of pages begins folded.
if (matchMedia("(max-width: 60rem)").matches) document.querySelector("nav details").open = false;
// The page's own entry is in view.
document.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
// Closed parts have to be on paper as well.
addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((d) => { d.open = true; }));
