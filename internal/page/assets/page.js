// SPDX-License-Identifier: Apache-2.0
//
// Draws a recording as internal/page documents it. The numbers of lanes that a screen shows
// bound all work per frame: rows are made for those alone, and the lanes are canvases.
"use strict";
(() => {
// BEAT is how often a server says that it is there, as in server.go.
const BEAT = 5000;
// Of more than MANY Pods, ALIKE or more that say the same are one row.
const ROW = 22, OVERSCAN = 6, MOST_TROUBLE = 8, MANY = 40, ALIKE = 5;
const KINDS = {
  Normal: "serve", PreparingNormal: "join", Updated: "join", PreparingUpdate: "leave", Updating: "change",
  PreparingDelete: "go", Draining: "go", Terminating: "go", Succeeded: "go", Failed: "trouble", Unknown: "unknown",
};
const LEGEND = [
  ["bar serve", "Normal"], ["bar join", "PreparingNormal, Updated"], ["bar leave", "PreparingUpdate"],
  ["bar change", "Updating"], ["bar go", "PreparingDelete, Draining, Terminating"], ["bar hollow", "not ready"],
  ["listed", "a registry lists it"], ["restart", "restart"], ["lost", "lost request"],
];
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600].map(s => s * 1000);

const $ = id => document.getElementById(id);
const make = (tag, className, ...children) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
};
const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const set = (element, name, value) => { if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value); };
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

// length is a stretch of time for people.
function length(ms) {
  const s = Math.max(Math.round(ms / 1000), 0);
  if (s < 120) return s + "s";
  if (s < 7200) return Math.floor(s / 60) + "m" + (s < 600 && s % 60 ? s % 60 + "s" : "");
  return s < 172800 ? Math.floor(s / 3600) + "h" : Math.floor(s / 86400) + "d";
}

// ---- What is known -------------------------------------------------------------------

const known = {runs: []};
const views = [];
// heard is when the server was last heard, and lost the moment after which it was not; null while it is.
let heard = 0, lost = null, frozen = null, needle = "", span = 300000;

// fold replaces what is known of one thing by what a delta says of it, and appends lists.
function fold(old, delta, ...lists) {
  for (const name of Object.keys(old)) if (!lists.includes(name) && !(old[name] instanceof Map)) delete old[name];
  for (const [name, value] of Object.entries(delta)) {
    if (!lists.includes(name) && !(old[name] instanceof Map)) old[name] = value;
  }
  for (const name of lists) (old[name] ??= []).push(...delta[name] ?? []);
  return old;
}

function merge(delta) {
  if (delta.reset) {
    known.runs.length = views.length = 0;
    $("runs").replaceChildren();
  }
  for (const name of ["title", "note", "live", "silent", "namespace", "namespaces", "empty", "keep"]) known[name] = delta[name];
  (delta.runs ?? []).forEach((change, at) => {
    const run = known.runs[at] ??= {sets: new Map()};
    fold(run, change, "marks");
    run.heard = performance.now();
    for (const one of change.sets ?? []) mergeSet(run, one);
    forget(run);
  });
}

function mergeSet(run, change) {
  if (change.gone) return run.sets.delete(change.id);
  const one = run.sets.get(change.id) ?? {lanes: new Map(), lost: 0};
  const lost = one.lost;
  run.sets.set(change.id, fold(one, change, "marks"));
  one.lost = lost + requests(change.marks);
  for (const lane of change.lanes ?? []) {
    one.lanes.set(lane.name, fold(one.lanes.get(lane.name) ?? {}, lane, "segments", "marks"));
    one.lost += requests(lane.marks);
  }
}

// lostText sums up a run, if requests were counted in any.
function lostText(run) {
  const sum = one => [...one.sets.values()].reduce((n, s) => n + s.lost, requests(one.marks)), lost = sum(run);
  const text = lost ? `${count(lost, "request")} lost` : known.runs.some(sum) ? "no request lost" : "";
  return text && !known.live ? `${text} in ${length(run.now)}` : text;
}

const requests = marks => (marks ?? []).filter(m => m.kind === "lost").reduce((sum, m) => sum + (m.count || 1), 0);
const ended = lane => lane.segments.length > 0 && lane.segments.at(-1).state === "";

// forget drops what ended long ago.
function forget(run) {
  if (!known.keep) return;
  const before = run.now - known.keep;
  for (const one of run.sets.values()) {
    for (const lane of one.lanes.values()) {
      const s = lane.segments;
      let old = 0;
      while (old + 1 < s.length && s[old + 1].at < before) old++;
      if (old) s.splice(0, old);
      if (ended(lane) && s.at(-1).at < before) one.lanes.delete(lane.name);
    }
  }
}

// present is how far a run is, and told how much of it is known: less while nobody tells what happens.
const present = run => run.now + (known.live ? performance.now() - run.heard : 0);
const told = run => Math.min(present(run),
  known.silent ? known.silent - run.start : Infinity, lost === null ? Infinity : run.now + lost - run.heard);
const current = () => lost === null && !known.silent;

// range is the stretch of time on the screen.
function range(run) {
  if (!known.live) return [0, Math.max(run.now, 1000)];
  const end = frozen === null ? present(run) : Math.min(frozen, present(run));
  let from = end - span;
  if (!span) {
    from = end - 60000;
    for (const one of run.sets.values()) for (const lane of one.lanes.values()) from = Math.min(from, lane.segments[0]?.at ?? from);
    from = Math.max(from, known.keep ? end - known.keep : from);
  }
  return [from, end + (end - from) * 0.01];
}

// at is a moment for people: by the clock on a live page, else since the run's start.
function at(run, ms, fine = true) {
  if (!known.live) {
    const s = Math.floor(ms / 1000);
    return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
  }
  return new Date(run.start + ms).toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit", second: fine ? "2-digit" : undefined});
}

// moment is a time of the API in a run's time; NaN if there is none.
const moment = (run, time) => Date.parse(time) - run.start;

function waitText(run, wait) {
  const now = told(run), since = moment(run, wait.since), until = moment(run, wait.until), deadline = moment(run, wait.deadline);
  let text = wait.what;
  if (wait.since) text += `, since ${length(now - since)}`;
  if (until > now) text += `, ${length(until - now)} to go`;
  else if (wait.deadline) text += now > deadline ? ", past its deadline" : `, deadline in ${length(deadline - now)}`;
  return text;
}

// rank puts the worst first: who is in trouble, waits, is not available, serves, has ended.
const rank = lane => ended(lane) ? 9 : lane.trouble ? 0 : lane.waits?.length ? 1 : lane.available ? 3 : 2;
const problems = one => (one.problems ?? []).map(p => `${p.reason}: ${p.message}`);

// ---- How it is drawn -----------------------------------------------------------------

const colours = {};
function readColours() {
  const css = getComputedStyle(document.documentElement);
  for (const name of ["serve", "join", "leave", "change", "go", "trouble", "unknown", "listed", "ink", "dim", "line"]) {
    colours[name] = css.getPropertyValue("--" + name).trim();
  }
  colours.font = "11px " + getComputedStyle(document.body).fontFamily;
}

// sized gives a canvas that size in CSS pixels, cleared.
function sized(canvas, width, height) {
  const scale = devicePixelRatio || 1, w = Math.round(width * scale), h = Math.round(height * scale);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

// ticks are where the grid has lines.
function ticks(run, [from, to], width) {
  const step = STEPS.find(s => s / (to - from) * width >= 84) ?? STEPS.at(-1);
  const offset = known.live ? run.start - new Date(run.start).getTimezoneOffset() * 60000 : 0;
  const list = [];
  for (let t = Math.ceil((from + offset) / step) * step - offset; t <= to; t += step) list.push(t);
  return {list, fine: step < 60000};
}

class SetView {
  constructor(run, id) {
    Object.assign(this, {run, id, rows: [], order: [], opened: new Set(), active: 0});
    this.title = make("h2");
    this.title.id = `set-${views.length}-${id}`;
    this.phase = make("span", "phase");
    this.bar = make("progress");
    this.text = make("span", "text");
    this.lost = make("span", "bad");
    this.actions = make("span", "actions");
    this.about = make("p", "about");
    this.problems = make("ul", "problems");
    const head = make("tr"), columns = make("colgroup");
    for (const [name, text] of [["name", "Pod"], ["state", "State"], ["lane", "In time"], ["waits", "Waits for"]]) {
      const cell = make("th", name, text);
      cell.scope = "col";
      head.append(cell);
      columns.append(make("col", name));
    }
    this.body = make("tbody");
    this.table = make("table", "", columns, make("thead", "unseen", head), this.body);
    this.canvas = make("canvas");
    this.lanes = make("div", "lanes", this.table, this.canvas);
    this.root = make("section", "set",
      make("header", "", this.title, this.phase, this.bar, this.text, this.lost, this.actions), this.about, this.problems, this.lanes);
    set(this.root, "aria-labelledby", this.title.id);
    set(this.canvas, "aria-hidden", true);
    set(this.table, "role", "grid");
    set(this.table, "aria-readonly", true);
    this.table.tabIndex = 0;
    this.table.addEventListener("keydown", event => this.key(event));
    this.lanes.addEventListener("click", event => this.open(this.under(event)));
    this.lanes.addEventListener("pointermove", event => this.hover(event));
    this.lanes.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  }

  get data() { return this.run.sets.get(this.id); }

  // update shows what a delta has changed.
  update() {
    const d = this.data;
    say(this.title, d.title ?? d.id);
    say(this.phase, d.phase ?? "");
    this.phase.className = "phase " + (d.phase ?? "").toLowerCase();
    this.bar.hidden = d.updated >= d.toUpdate;
    this.bar.max = Math.max(d.toUpdate, 1);
    this.bar.value = Math.min(d.updated, d.toUpdate);
    set(this.bar, "aria-label", `${d.updated} of ${d.toUpdate} updated`);
    const numbers = d.desired ? [`${d.updated} of ${d.toUpdate} updated`, `${d.available} of ${d.desired} available`] : [];
    if (d.deadline) numbers.push(`stalls in ${length(moment(this.run, d.deadline) - told(this.run))}`);
    say(this.text, [...numbers, d.text].filter(Boolean).join(" · "));
    say(this.lost, d.lost ? count(d.lost, "request") + " lost" : "");
    say(this.about, (d.about ?? []).join(" · "));
    this.about.title = this.about.textContent;
    this.problems.replaceChildren(...problems(d).map(text => make("li", "bad", text)));
    this.offer(d.actions ?? []);
    const active = keyOf(this.order[this.active]);
    this.order = [...d.lanes.values()].filter(lane => matches(lane));
    this.order.sort(known.live
      ? (a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1)
      : (a, b) => (a.segments[0]?.at ?? 0) - (b.segments[0]?.at ?? 0) || (a.name < b.name ? -1 : 1));
    const grouped = known.live && !needle && this.order.length > MANY;
    if (grouped) this.order = groups(this.order, this.opened);
    set(this.table, "role", grouped ? "treegrid" : "grid");
    this.active = Math.max(this.order.findIndex(lane => keyOf(lane) === active), 0);
    this.lanes.style.height = this.order.length * ROW + "px";
    set(this.table, "aria-rowcount", this.order.length + 1);
    set(this.table, "aria-label", "Pods of " + (d.title ?? d.id));
    this.root.hidden = Boolean(needle) && !this.order.length;
  }

  // offer shows buttons, and leaves those alone that stay: one may have the focus.
  offer(actions) {
    for (const button of [...this.actions.children]) {
      if (!actions.some(a => a.title === button.textContent)) button.remove();
    }
    for (const action of actions) {
      let button = [...this.actions.children].find(b => b.textContent === action.title);
      if (!button) {
        button = make("button", "", action.title);
        button.type = "button";
        this.actions.append(button);
      }
      set(button, "aria-label", `${action.title} ${this.data.title ?? this.id}`);
      button.disabled = !current();
      button.onclick = () => ask(this.data, action);
    }
  }

  // draw makes the rows that are on the screen, and their lanes.
  draw() {
    const top = this.lanes.getBoundingClientRect().top;
    const first = clamp(Math.floor(-top / ROW) - OVERSCAN, 0, this.order.length);
    const last = clamp(Math.ceil((innerHeight - top) / ROW) + OVERSCAN, first, this.order.length);
    this.fill(first, last);
    const cell = this.body.firstChild?.children[2];
    this.left = cell?.offsetLeft ?? 0;
    this.width = cell?.offsetWidth ?? 0;
    this.body.style.transform = first ? `translateY(${first * ROW}px)` : "";
    this.canvas.style.transform = `translate(${this.left}px, ${first * ROW}px)`;
    const pen = sized(this.canvas, this.width, cell ? (last - first) * ROW : 0);
    if (cell) this.paint(pen, first, last);
  }

  fill(first, last) {
    while (this.rows.length < last - first) {
      const name = make("th", "name");
      name.scope = "row";
      const row = make("tr", "", name, make("td", "state"), make("td", "lane", make("span", "unseen")), make("td", "waits"));
      row.id = `${this.title.id}-${this.rows.length}`;
      this.rows.push(row);
    }
    const shown = this.rows.slice(0, last - first);
    if (this.body.children.length !== shown.length) this.body.replaceChildren(...shown);
    shown.forEach((row, i) => this.label(row, this.order[first + i], first + i));
    const active = this.active - first;
    set(this.table, "aria-activedescendant", shown[active]?.id ?? "");
  }

  label(row, lane, index) {
    const [name, state, history, waits] = row.children, s = lane.segments.at(-1);
    const gone = ended(lane), trouble = known.live && rank(lane) === 0;
    say(name, lane.name);
    say(state, gone ? "gone" : lane.state ?? s?.state ?? "");
    const parts = gone ? [] : [s?.ready ? "ready" : "not ready", s?.in?.length ? "listed by " + s.in.join(", ") : "not listed"];
    if (lane.restarts) parts.push(count(lane.restarts, "restart"));
    const lost = requests(lane.marks);
    if (lost) parts.push(count(lost, "request") + " lost");
    say(history.firstChild, parts.join(", "));
    const more = (lane.waits?.length ?? 0) - 1;
    say(waits, gone || !lane.waits?.length ? "" : waitText(this.run, lane.waits[0]) + (more > 0 ? ` (and ${more} more)` : ""));
    waits.title = waits.textContent;
    set(row, "aria-rowindex", index + 2);
    set(row, "aria-selected", index === this.active);
    if (lane.members) set(row, "aria-expanded", this.opened.has(lane.key));
    else row.removeAttribute("aria-expanded");
    row.className = (trouble ? "bad" : gone ? "gone" : "") + (lane.members ? " group" : "");
  }

  paint(pen, first, last) {
    const [from, to] = range(this.run), width = this.width, height = (last - first) * ROW;
    const x = ms => (ms - from) / (to - from) * width;
    pen.fillStyle = colours.line;
    for (const t of ticks(this.run, [from, to], width).list) pen.fillRect(Math.round(x(t)), 0, 1, height);
    for (let i = first; i < last; i++) this.lane(pen, this.order[i], (i - first) * ROW, x, from, to);
    pen.fillStyle = colours.dim;
    for (const mark of this.run.marks) if (mark.kind === "phase") dotted(pen, Math.round(x(mark.at)), height);
    for (const mark of this.data.marks) {
      pen.fillStyle = mark.kind === "lost" ? colours.trouble : colours.dim;
      pen.fillRect(x(mark.at) - 0.5, 0, 1, height);
    }
  }

  lane(pen, lane, y, x, from, to) {
    const segments = lane.segments, registries = this.data.registries ?? [];
    const now = Math.min(told(this.run), to), thick = registries.length > 2 ? 1 : 2;
    for (let i = segments.length - 1; i >= 0; i--) {
      const one = segments[i], end = segments[i + 1]?.at ?? now;
      if (end < from) break;
      if (one.state === "" || one.at > to) continue;
      const x0 = Math.max(Math.round(x(one.at)), -4), w = Math.max(Math.round(Math.min(x(end), this.width)) - x0, 1);
      bar(pen, colours[KINDS[one.state] ?? "unknown"], one, x0, y + 4, w);
      pen.fillStyle = colours.listed;
      registries.forEach((name, j) => {
        if (one.in?.includes(name)) pen.fillRect(x0, y + 15 + j * (thick + 1), w, thick);
      });
    }
    for (const mark of lane.marks) if (mark.at >= from && mark.at <= to) point(pen, mark, Math.round(x(mark.at)), y);
  }

  // under is the index of the lane below the pointer.
  under(event) { return Math.floor((event.clientY - this.lanes.getBoundingClientRect().top) / ROW); }

  hover(event) {
    const lane = this.order[this.under(event)], tip = $("tip");
    const px = event.clientX - this.lanes.getBoundingClientRect().left - this.left;
    tip.hidden = !lane || px < 0 || px > this.width;
    if (tip.hidden) return;
    const [from, to] = range(this.run), t = from + px / this.width * (to - from);
    const i = t > told(this.run) ? -1 : lane.segments.findLastIndex(s => s.at <= t), s = lane.segments[i];
    const near = lane.marks.filter(m => Math.abs(m.at - t) < (to - from) / this.width * 4).map(m => markText(m));
    const state = s?.state ? `${s.state}, ${s.ready ? "ready" : "not ready"}, ${s.in?.length ? "in " + s.in.join(", ") : "not listed"}` : t > told(this.run) ? "not known" : "not there";
    const since = s?.state ? `since ${at(this.run, s.at)} for ${length((lane.segments[i + 1]?.at ?? told(this.run)) - s.at)}` : "";
    say(tip, [`${lane.name} at ${at(this.run, t)}`, state, since, ...near].filter(Boolean).join("\n"));
    tip.style.transform = `translate(${Math.min(event.clientX + 14, innerWidth - 280)}px, ${Math.min(event.clientY + 16, innerHeight - 90)}px)`;
  }

  key(event) {
    const page = Math.max(Math.floor(innerHeight / ROW) - 6, 1);
    const step = {ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity}[event.key];
    if (event.key === "Enter") this.open(this.active);
    else if (step === undefined) return;
    else {
      this.active = clamp(this.active + step, 0, Math.max(this.order.length - 1, 0));
      const y = this.lanes.getBoundingClientRect().top + this.active * ROW, margin = 5 * ROW;
      if (y < margin) scrollBy(0, y - margin);
      else if (y > innerHeight - margin) scrollBy(0, y - innerHeight + margin);
      redraw();
    }
    event.preventDefault();
  }

  open(index) {
    const lane = this.order[index];
    if (lane?.members) {
      if (!this.opened.delete(lane.key)) this.opened.add(lane.key);
      this.active = index;
      this.update();
      redraw();
    } else if (lane) details(this.run, lane);
  }
}

const keyOf = lane => lane?.key ?? lane?.name;

// alike is what lanes say that are one row. A lane keeps it until a delta replaces the lane's fields.
const alike = lane => [ended(lane) ? "gone" : lane.state, lane.ready, lane.available, lane.revision, lane.trouble, lane.waits?.[0]?.what].join("\n");

// groups puts lanes that say the same into one row, which shows since when all of them do, and which opens.
function groups(lanes, opened) {
  const byKey = Map.groupBy(lanes, lane => lane.alike ??= alike(lane)), rows = [];
  for (const [key, members] of byKey) {
    if (members.length < ALIKE) {
      rows.push(...members);
      continue;
    }
    const open = opened.has(key), last = members.map(lane => lane.segments.at(-1)).filter(Boolean);
    const all = {...last[0], at: Math.max(...last.map(s => s.at)), in: last[0]?.in?.filter(name => last.every(s => s.in?.includes(name)))};
    rows.push({
      ...members[0], key, members, name: `${open ? "▾" : "▸"} ${count(members.length, "Pod")}`, segments: last.length ? [all] : [],
      marks: [], restarts: members.reduce((sum, lane) => sum + (lane.restarts ?? 0), 0),
    });
    if (open) rows.push(...members);
  }
  return rows;
}

function bar(pen, colour, segment, x, y, width) {
  pen.fillStyle = colour;
  if (segment.state === "Unknown") return pen.fillRect(x, y + 4, width, 2);
  if (segment.ready) return pen.fillRect(x, y, width, 9);
  pen.globalAlpha = 0.25;
  pen.fillRect(x, y, width, 9);
  pen.globalAlpha = 1;
  pen.fillRect(x, y, width, 1);
  pen.fillRect(x, y + 8, width, 1);
}

function point(pen, mark, x, y) {
  if (mark.kind === "restart") {
    pen.fillStyle = colours.ink;
    pen.beginPath();
    pen.moveTo(x - 4, y + 1);
    pen.lineTo(x + 4, y + 1);
    pen.lineTo(x, y + 7);
    pen.fill();
    return;
  }
  pen.fillStyle = mark.kind === "lost" ? colours.trouble : colours.dim;
  pen.fillRect(x - 1, y + 1, 2, ROW - 2);
}

function dotted(pen, x, height) {
  for (let y = 0; y < height; y += 4) pen.fillRect(x, y, 1, 2);
}

const markText = m => m.kind === "lost" ? count(m.count || 1, "request") + " lost" + (m.text ? ": " + m.text : "")
  : (m.text || m.kind) + (m.count > 1 ? ` ×${m.count}` : "");

class RunView {
  constructor(run) {
    this.run = run;
    this.sets = new Map();
    this.title = make("h2");
    this.lost = make("span");
    this.axis = make("canvas", "axis");
    set(this.axis, "aria-hidden", true);
    this.root = make("section", "run", make("header", "", this.title, this.lost), make("div", "axis-box", this.axis));
    $("runs").append(this.root);
  }

  update() {
    say(this.title, this.run.title ?? "");
    this.title.parentNode.hidden = !this.run.title;
    say(this.lost, lostText(this.run));
    this.lost.className = /^\d/.test(this.lost.textContent) ? "bad" : "text";
    for (const [id, view] of this.sets) {
      if (this.run.sets.has(id)) continue;
      view.root.remove();
      this.sets.delete(id);
    }
    const worst = one => Math.min(one.problems?.length ? 0 : one.phase === "Done" ? 3 : 2, ...[...one.lanes.values()].map(rank));
    const order = [...this.run.sets.values()];
    if (known.live) order.sort((a, b) => worst(a) - worst(b) || (a.id < b.id ? -1 : 1));
    order.forEach((one, i) => {
      const view = this.sets.get(one.id) ?? new SetView(this.run, one.id);
      this.sets.set(one.id, view);
      if (this.root.children[i + 2] !== view.root) this.root.insertBefore(view.root, this.root.children[i + 2] ?? null);
      view.update();
    });
  }

  draw() {
    let place = null;
    for (const view of this.sets.values()) {
      view.draw();
      if (view.width) place = view;
    }
    if (!place) return;
    const [from, to] = range(this.run), pen = sized(this.axis, this.root.clientWidth, ROW);
    const x = ms => place.left + (ms - from) / (to - from) * place.width;
    pen.font = colours.font;
    pen.textBaseline = "middle";
    pen.fillStyle = colours.dim;
    const {list, fine} = ticks(this.run, [from, to], place.width);
    const phases = this.run.marks.filter(m => m.kind === "phase" && m.at >= from && m.at <= to);
    for (const t of list) if (!phases.length) pen.fillText(at(this.run, t, fine), x(t) + 3, ROW / 2);
    phases.forEach((mark, i) => {
      const room = x(phases[i + 1]?.at ?? to) - x(mark.at) - 6;
      pen.fillRect(Math.round(x(mark.at)), 4, 1, ROW - 4);
      const text = `${mark.text} ${at(this.run, mark.at)}`;
      const fits = [text, mark.text].find(s => pen.measureText(s).width <= room);
      if (fits) pen.fillText(fits, x(mark.at) + 4, ROW / 2);
    });
  }
}

const matches = lane => !needle || [lane.name, lane.state, lane.revision, lane.node].some(text => text?.toLowerCase().includes(needle));

// inTrouble are the Pods of a set that are in trouble, those that wait for the same together.
function inTrouble(title, one) {
  const alike = new Map();
  for (const lane of one.lanes.values()) {
    if (rank(lane) !== 0 || !lane.waits?.length) continue;
    const {what, next = ""} = lane.waits[0], key = JSON.stringify([what, next.replaceAll(lane.name, "POD")]);
    if (!alike.has(key)) alike.set(key, {names: [], what, next});
    alike.get(key).names.push(lane.name);
  }
  return [...alike.values()].map(({names, what, next}) =>
    [`${title}: ${names[0]}${names.length > 1 ? ` (and ${names.length - 1} more)` : ""}`, what, next]);
}

// trouble lists what needs somebody. What stays is left alone, so that it is read out once.
function trouble() {
  const list = [];
  for (const run of known.live ? known.runs : []) {
    for (const one of run.sets.values()) {
      const title = one.title ?? one.id;
      for (const text of problems(one)) list.push([title, text, ""]);
      list.push(...inTrouble(title, one));
    }
  }
  list.sort((a, b) => a[0] < b[0] ? -1 : 1);
  const shown = list.slice(0, MOST_TROUBLE), ul = $("trouble");
  if (list.length > shown.length) shown.push([`and ${list.length - shown.length} more`, "", ""]);
  while (ul.children.length > shown.length) ul.lastChild.remove();
  shown.forEach(([who, what, next], i) => {
    const item = ul.children[i] ?? ul.appendChild(make("li", "", make("b"), " ", make("span"), " ", make("code")));
    say(item.children[0], who);
    say(item.children[1], what);
    say(item.children[2], next);
  });
  $("blocks").hidden = !list.length;
}

function update() {
  const title = known.title || "Usher";
  say($("title"), title);
  document.title = title;
  say($("note"), known.note ?? "");
  $("note").hidden = !known.note;
  for (const id of ["window", "find"]) $(id).parentNode.hidden = !known.live;
  $("freeze").hidden = !known.live;
  offerNamespaces(known.namespaces ?? []);
  $("legend").lastChild.hidden = known.live;
  set($("runs"), "class", known.runs.length > 1 ? "several" : "");
  document.body.classList.toggle("stale", !current());
  $("ask-yes").disabled = !current();
  known.runs.forEach((run, i) => (views[i] ??= new RunView(run)).update());
  trouble();
  nothing();
  redraw();
}

// offerNamespaces lets the reader choose one of several.
function offerNamespaces(names) {
  const list = $("namespace");
  if ([...list.options].map(o => o.value).join() !== names.join()) {
    list.replaceChildren(...names.map(name => make("option", "", name)));
  }
  if (document.activeElement !== list || list.dataset.shown !== known.namespace) list.value = known.namespace ?? "";
  list.dataset.shown = known.namespace ?? "";
  list.disabled = !current();
  list.parentNode.hidden = names.length < 2;
}

// nothing says what to do if there is nothing to see.
function nothing() {
  const all = views.flatMap(view => [...view.sets.values()]);
  const text = needle && all.length && all.every(view => !view.order.length)
    ? `No Pod's name, state, revision or node has “${needle}” in it.`
    : known.live && !all.length && known.runs.length ? known.empty ?? "There is nothing to show yet." : "";
  say($("nothing"), text);
  $("nothing").hidden = !text;
}

// ---- When it is drawn ----------------------------------------------------------------

const calm = matchMedia("(prefers-reduced-motion: reduce)");
let asked = false, timer = 0;

function redraw() {
  if (!asked) requestAnimationFrame(draw);
  asked = true;
}

// draw draws what is on the screen, and again as soon as time has moved by a pixel.
function draw() {
  asked = false;
  for (const view of views) view.draw();
  clearTimeout(timer);
  if (known.live && frozen === null) {
    timer = setTimeout(redraw, calm.matches ? 1000 : clamp((span || 900000) / 1000, 16, 1000));
  }
}

addEventListener("scroll", redraw, {passive: true});
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
addEventListener("keydown", event => {
  if (event.key !== "/" || event.target.matches("input, select") || document.querySelector("dialog[open]")) return;
  $("find").focus();
  event.preventDefault();
});
$("find").addEventListener("input", () => { needle = $("find").value.trim().toLowerCase(); update(); });
$("window").addEventListener("change", () => { span = Number($("window").value); redraw(); });
$("namespace").addEventListener("change", async () => {
  try {
    await act({set: "", action: "namespace", to: $("namespace").value});
  } catch (problem) {
    $("namespace").value = known.namespace;
    say($("note"), problem.message);
    $("note").hidden = false;
  }
});
$("freeze").addEventListener("click", () => {
  frozen = frozen === null && known.runs.length ? present(known.runs[0]) : null;
  set($("freeze"), "aria-pressed", frozen !== null);
  redraw();
});

// ---- What the reader does ------------------------------------------------------------

function details(run, lane) {
  say($("pod-title"), lane.name);
  const facts = [["Revision", lane.revision], ["Node", lane.node], ["Images", lane.images?.join(", ")], ["Restarts", lane.restarts]];
  for (const wait of ended(lane) ? [] : lane.waits ?? []) facts.push(["Waits", waitText(run, wait)], ["Next", wait.next]);
  $("pod-facts").replaceChildren(...facts.filter(f => f[1]).flatMap(([name, value]) =>
    [make("dt", "", name), make("dd", "", name === "Next" ? make("code", "", value) : String(value))]));
  const rows = lane.segments.map(s => [s.at, s.state || "gone", s.state ? (s.ready ? "yes" : "no") : "", s.in?.join(", ") ?? ""]);
  for (const mark of lane.marks) rows.push([mark.at, markText(mark), "", ""]);
  rows.sort((a, b) => b[0] - a[0]);
  $("pod-states").replaceChildren(...rows.slice(0, 50).map(([from, ...cells]) =>
    make("tr", "", ...[at(run, from), ...cells].map(text => make("td", "", text)))));
  $("pod").showModal();
}

function ask(one, action) {
  say($("ask-title"), `${action.title} ${one.title ?? one.id}?`);
  say($("ask-text"), action.text);
  say($("ask-error"), "");
  const yes = $("ask-yes");
  say(yes, action.title);
  yes.disabled = !current();
  yes.onclick = async () => {
    yes.disabled = true;
    say($("ask-error"), "");
    try {
      await act({set: one.id, action: action.name, to: action.to ?? ""});
      $("ask").close();
    } catch (problem) {
      say($("ask-error"), problem.message);
      yes.disabled = !current();
    }
  };
  $("ask").showModal();
}

// ---- Where it comes from -------------------------------------------------------------

let token = "";

// act asks the server for a change.
async function act(wanted) {
  const answer = await fetch("do", {
    method: "POST", headers: {"Content-Type": "application/json", Authorization: "Bearer " + token}, body: JSON.stringify(wanted),
  });
  if (!answer.ok) throw new Error(await answer.text());
}

// listen follows a server. The token comes after the # of its address, where no server and
// no other page sees it, and stays with this tab.
function listen() {
  token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
  const events = new EventSource("events?token=" + encodeURIComponent(token));
  const up = () => {
    heard = performance.now();
    lost = null;
    link();
  };
  const down = () => {
    lost ??= heard;
    link(events.readyState === EventSource.CLOSED);
    update();
  };
  events.onopen = up;
  events.onerror = down;
  events.onmessage = event => { merge(JSON.parse(event.data)); up(); update(); };
  events.addEventListener("beat", () => { const back = lost !== null; up(); if (back) update(); });
  setInterval(() => { if (performance.now() - heard > 3 * BEAT) down(); }, BEAT);
}

// link says whether what is shown is so, and if not, since when.
function link(refused = false) {
  const clock = ms => new Date(ms).toLocaleTimeString("en-GB"), since = Date.now() - performance.now() + (lost ?? 0);
  say($("link"), refused ? "the server refuses: open the address that was printed at the start"
    : lost !== null ? `no answer since ${clock(since)}: the command that serves this page has ended, or hangs`
    : known.silent ? `no answer from the API server since ${clock(known.silent)}` : "live");
  set($("link"), "class", current() ? "" : "bad");
}

$("legend").append(...LEGEND.map(([sample, text]) => make("li", "", make("i", sample), text)));
readColours();
const recording = JSON.parse($("recording").textContent);
if (recording) {
  merge(recording);
  update();
} else {
  known.live = true;
  say($("link"), "connecting");
  listen();
}
})();
