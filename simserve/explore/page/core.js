// The page: tabs, controls, links that restore everything, questions to the engine. Which tabs there are says tabs.js.

import { download, formatName, node } from "./charts.js";
import "./film.js";

const state = { tab: null, values: {}, other: null, found: {} };
let tabs = [];
let catalogue = null;
let drawn = 0;

const fields = (tab) => catalogue.fields[tab.fields];
export const defaults = (tab) => Object.fromEntries(Object.entries(fields(tab)).filter(([name]) => tab.linked?.includes(name) || tab.controls.some((group) => group.items.includes(name))).map(([name, field]) => [name, offered(tab, name)?.[0] ?? (tab.defaults ?? {})[name] ?? field.default]));
// Of a page whose answers were computed in advance: what may be chosen.
const offered = (tab, name) => catalogue.offered?.[tab.question]?.[name];
const current = () => tabs.find((each) => each.id === state.tab);

// ---- links: #tab?name=value&..., only what differs from the defaults; names of the second configuration begin with b.

// Lists of names are joined with a tilde, since names may hold a point.
function text(value) { return Array.isArray(value) ? value.join(typeof value[0] === "string" ? "~" : ".") : String(value); }

// The address of a tab with some of its settings changed.
export function permalink(id, values) {
  const plain = defaults(tabs.find((each) => each.id === id)), query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (text(value) !== text(plain[name])) query.set(name, text(value));
  const tail = query.toString();
  return `#${id}${tail ? `?${tail}` : ""}`;
}

function link() {
  const tab = current(), plain = defaults(tab), query = new URLSearchParams();
  for (const [name, value] of Object.entries(state.values[tab.id])) if (text(value) !== text(plain[name])) query.set(name, text(value));
  if (state.other) {
    query.set("b", "1");
    for (const [name, value] of Object.entries(state.other)) if (text(value) !== text(plain[name])) query.set(`b.${name}`, text(value));
  }
  const tail = query.toString();
  history.replaceState(null, "", `#${tab.id}${tail ? `?${tail}` : ""}`);
}

function parsed(value, field, known) {
  if (known) return known.find((each) => text(each) === value) ?? known[0];
  if (Array.isArray(field.default) && typeof field.default[0] === "string") return value.split("~");
  if (Array.isArray(field.default)) return value.split(".").map(Number).filter((each) => Number.isInteger(each) && each > 0);
  if (typeof field.default === "boolean") return value === "true";
  if (typeof field.default === "number") return Number.isFinite(Number(value)) ? Number(value) : field.default;
  return value;
}

function readLink() {
  const [id, tail] = decodeURI(location.hash.slice(1)).split("?");
  const tab = tabs.find((each) => each.id === id) ?? tabs[0];
  state.tab = tab.id;
  const query = new URLSearchParams(tail ?? "");
  const values = defaults(tab), second = defaults(tab);
  for (const [name, value] of query) {
    const second_name = name.startsWith("b.") ? name.slice(2) : null;
    const known = fields(tab)[second_name ?? name];
    if (known) (second_name ? second : values)[second_name ?? name] = parsed(value, known, catalogue.offered ? offered(tab, second_name ?? name) ?? [known.default] : null);
  }
  state.values[tab.id] = values;
  state.other = tab.compares && query.get("b") ? second : null;
}

// ---- questions: one at a time of a place; of those that wait meanwhile the newest is asked, the others are abandoned.

const turns = new Map(), running = new Map(), stops = new Map();
const pause = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });
const abandoned = () => Object.assign(new Error("a newer question waits"), { name: "AbortError" });

// The answer that was computed in advance for exactly these values.
function looked(question, values) {
  const options = catalogue.offered[question] ?? {}, answers = window.SIMSERVE.answers[question] ?? {};
  const places = Object.entries(options).map(([name, known]) => known.findIndex((each) => text(each) === text(values[name] ?? known[0])));
  const found = answers[places.join(".")];
  if (found && !found.error) return found;
  throw Object.assign(new Error(found?.error ?? "This was not computed in advance. `simserve explore` answers it."), { kind: found?.kind ?? "input" });
}

async function request(question, values, isNewest, tell, signal) {
  if (catalogue.offered) return looked(question, values);
  for (;;) {
    const headers = { "content-type": "application/json", ...(tell ? { accept: "application/x-ndjson" } : {}) };
    const answer = await fetch(`api/${question}`, { method: "POST", headers, body: JSON.stringify(values), signal });
    const inParts = answer.headers.get("content-type")?.startsWith("application/x-ndjson");
    const found = inParts ? await lastOf(answer.body, tell) : await answer.json();
    if (inParts ? found.answer : answer.ok) return inParts ? found.answer : found;
    if ((found.status ?? answer.status) !== 429) throw Object.assign(new Error(found.error), { kind: found.kind });
    await pause(300);
    if (!isNewest()) throw abandoned();
  }
}

// An answer in parts: a line of JSON each, of which all but the last are told at once.
async function lastOf(body, tell) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const part = JSON.parse(line);
      if (part.answer || part.error) return part;
      tell(part);
    }
    if (done) return { error: "The answer ended early.", kind: "input", status: 422 };
  }
}

export async function ask(place, question, values, tell = null) {
  const turn = (turns.get(place) ?? 0) + 1, isNewest = () => turns.get(place) === turn;
  turns.set(place, turn);
  // What comes in parts takes long: it is ended, not waited for.
  stops.get(place)?.abort();
  while (running.has(place)) {
    await running.get(place).catch(() => null);
    if (!isNewest()) throw abandoned();
  }
  const stop = tell ? new AbortController() : null;
  if (stop) stops.set(place, stop);
  const answer = request(question, { ...values }, isNewest, tell, stop?.signal);
  running.set(place, answer);
  try { return await answer; } finally { running.delete(place); stops.delete(place); }
}

// ---- controls, from the fields that the server describes.

const LABELS = {
  billion_parameters: "Another size, billion parameters (0: as it is)", against: "Beside it, the same with",
  model: "Model", hardware: "GPU", gpus: "GPUs", tensor_parallel_size: "GPUs a replica (tensor parallel)", pipeline: "As pipeline stages, not tensor parallel", quantization: "Weights", kv_cache_dtype: "KV cache format",
  max_model_len: "Longest sequence, tokens", rate: "Requests a second", prompt_tokens: "Prompt, tokens", output_tokens: "Answer, tokens", length_cv: "Spread of lengths (cv)",
  num_requests: "Requests of the run", max_num_seqs: "Batch limit", max_num_batched_tokens: "Token budget of a step", continuous_batching: "Continuous batching", paged_kv: "Paged KV memory",
  kv_cache: "KV cache", chunked_prefill: "Chunked prefill", flash_attention: "FlashAttention", cuda_graphs: "CUDA graphs", async_scheduling: "Asynchronous scheduling",
  speculative_decoding: "Speculative decoding (EAGLE)", num_speculative_tokens: "Drafts a step", acceptance_rate: "A draft is right", slo_ttft_ms: "TTFT at most, ms", slo_tpot_ms: "TPOT at most, ms",
  peak_to_mean: "Peak of the day over its mean (1: level)", max_gpus: "GPUs at most", headroom: "Headroom (share of traffic)", spare_replicas: "Replicas that may be lost", seed: "Seed", attainment: "Share that must meet both", shared_prefix_tokens: "System prompt shared by all, tokens", prefix_caching: "Prefix caching", frameworks: "Frameworks", concurrency: "Requests in flight, a replica", discount: "Discount on GPU prices", batch: "Sequences in the batch", context_tokens: "Tokens of each sequence", lengths: "Answers, tokens each", slots: "Slots", operations_usd: "Operations, dollars a month",
  utilization: "Share of the capacity used", requests_per_month: "Requests a month", api: "API", throughput: "Most tokens a second of these GPUs", pools: "Pools", draft_cost: "Cost of a draft (closed form)",
};

function control(tab, name, values, base, change) {
  const field = fields(tab)[name], id = `${tab.id}-${base ? "b" : "a"}-${name}`;
  const label = LABELS[name] ?? name.replaceAll("_", " ");
  const mark = base && text(base[name]) !== text(values[name]) ? " changed" : "";
  const set = (value) => {
    values[name] = value;
    // Another model is stored in another format: what was chosen for this one may be none of its.
    if (name === "model" && values.quantization) { values.quantization = "auto"; const chosen = document.getElementById(`${tab.id}-${base ? "b" : "a"}-quantization`); if (chosen) chosen.value = "auto"; }
    change(name);
  };
  if (typeof field.default === "boolean")
    return node("label", { class: `check${mark}`, title: field.about }, [node("input", { type: "checkbox", id, checked: values[name], disabled: Boolean(catalogue.offered) && (offered(tab, name)?.length ?? 1) < 2, onchange: (event) => set(event.target.checked) }), document.createTextNode(label)]);
  const isMany = Array.isArray(field.default) && typeof field.default[0] === "string";
  const choices = name === "model" ? catalogue.models : name === "hardware" ? catalogue.hardware : name === "api" ? catalogue.apis.map((each) => ({ name: each })) : name === "frameworks" ? catalogue.frameworks.map((each) => ({ name: each })) : field.choices?.map((each) => ({ name: each }));
  if (choices && isMany && !catalogue.offered) {
    const chosenFirst = [...choices].sort((one, other) => values[name].includes(other.name) - values[name].includes(one.name));
    const boxes = chosenFirst.map((each) => node("label", { class: "check", title: each.about ?? null }, [node("input", { type: "checkbox", value: each.name, checked: values[name].includes(each.name), onchange: () => set(boxes.map((box) => box.firstChild).filter((box) => box.checked).map((box) => box.value)) }), document.createTextNode(each.name)]));
    return node("div", { class: `field${mark}`, title: field.about }, [node("div", { class: "many", id, role: "group", "aria-label": label, tabindex: 0 }, boxes)]);
  }
  const kids = [node("label", { for: id, text: label })];
  const known = catalogue.offered ? offered(tab, name) ?? [values[name]] : null;
  if (known) {
    const shown = (value) => (Array.isArray(value) ? value.join(" ") : name === "quantization" ? formatName(value) : typeof value === "number" ? value.toLocaleString("en-US") : String(value));
    kids.push(node("select", { id, disabled: known.length < 2, onchange: (event) => set(known[Number(event.target.value)]) }, known.map((each, place) => node("option", { value: place, selected: text(each) === text(values[name]), text: shown(each) }))));
    return node("div", { class: `field${mark}`, title: field.about }, kids);
  }
  if (choices) {
    kids.push(node("select", { id, onchange: (event) => set(event.target.value) }, choices.map((each) => node("option", { value: each.name, selected: each.name === values[name], text: each.about ? `${each.name} (${each.about})` : name === "quantization" ? formatName(each.name) : each.name }))));
  } else if (Array.isArray(field.default)) {
    // Numbers, as words in a text.
    const entry = node("textarea", { id, rows: 3, spellcheck: "false", onchange: (event) => set(event.target.value.split(/[^0-9]+/).map(Number).filter((each) => each > 0)), text: values[name].join(" ") });
    kids.push(entry);
    const presets = Object.entries(tab.presets?.[name] ?? {}).map(([words, value]) => node("button", { type: "button", class: "chip", text: words, onclick: () => { entry.value = value.join(" "); set([...value]); } }));
    if (presets.length) kids.push(node("div", { class: "chips wide", role: "group", "aria-label": `${label}: examples` }, presets));
  } else {
    const range = (tab.ranges ?? {})[name] ?? {};
    const low = range.min ?? field.min ?? (field.above ?? 0), high = range.max ?? field.max ?? field.below ?? 100;
    const isWhole = Number.isInteger(field.default) && !range.step && !range.fraction && field.min === Math.floor(field.min ?? 0.5);
    const toSlider = range.log ? (value) => 1000 * Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value) => value;
    const fromSlider = range.log ? (value) => { const found = low * (high / low) ** (value / 1000); return isWhole ? Math.round(found) : Number(found.toPrecision(3)); } : Number;
    const entry = node("input", { type: "number", id, value: values[name], min: field.min ?? field.above, max: field.max ?? field.below, step: range.step ?? (isWhole ? 1 : "any"), "aria-label": label, title: field.about });
    const slider = node("input", { type: "range", "aria-label": `${label}, slider`, min: range.log ? 0 : low, max: range.log ? 1000 : high, step: range.log ? 1 : (range.step ?? (isWhole ? 1 : (high - low) / 200)), value: toSlider(values[name]) });
    if (range.options) { slider.min = 0; slider.max = range.options.length - 1; slider.step = 1; slider.value = Math.max(range.options.indexOf(values[name]), 0); }
    // A slider may run over logarithms or places of a list: what it stands for is said, not where it stands.
    const tell = () => slider.setAttribute("aria-valuetext", Number(entry.value).toLocaleString("en-US"));
    slider.addEventListener("input", () => { const value = range.options ? range.options[Number(slider.value)] : fromSlider(Number(slider.value)); entry.value = value; tell(); set(value); });
    entry.addEventListener("change", () => { const value = Number(entry.value); if (entry.value !== "" && Number.isFinite(value)) { if (!range.options) slider.value = toSlider(value); tell(); set(value); } });
    tell();
    kids.push(entry, slider);
  }
  return node("div", { class: `field${mark}`, title: field.about }, kids);
}

export function form(tab, values, base, change) {
  const made = node("form", { "aria-label": base ? "Configuration B" : "Inputs", onsubmit: (event) => event.preventDefault() });
  const needed = tab.when ?? {}, rows = {};
  const reveal = () => { for (const [name, by] of Object.entries(needed)) rows[name].hidden = by.startsWith("!") ? values[by.slice(1)] : !values[by]; };
  const changed = (name) => { reveal(); change(name); };
  for (const group of tab.controls) made.append(node("fieldset", {}, [group.title ? node("legend", { text: group.title }) : null, ...group.items.map((name) => (rows[name] = control(tab, name, values, base, changed)))]));
  reveal();
  return made;
}

export function equations(found) {
  if (!found?.length) return null;
  return node("dl", { class: "equations" }, found.flatMap((each) => [node("dt", { text: each.name }), node("dd", { text: each.formula }), node("dd", { class: "numbers", text: each.numbers })]));
}

export function failure(error) {
  return node("div", { class: "warn", role: "alert", text: error.kind === "infeasible" ? `It does not fit: ${error.message}` : error.message });
}

export async function save(question, values) {
  if (catalogue.offered) throw new Error("Scenario files are written by `simserve explore`, which runs on your machine.");
  const response = await fetch(`api/${question}/scenario`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(values) });
  if (!response.ok) throw new Error((await response.json()).error);
  download(await response.text());
}

// While an area waits it is dimmed, and after a moment a wheel turns; screen readers are told as well.
export function wait(area, isWaiting) {
  area.classList.toggle("busy", isWaiting);
  area.setAttribute("aria-busy", isWaiting);
}

// Films that were put on the page begin to play.
export function filmsAdded() { document.dispatchEvent(new Event("simserve-film")); }

export function say(words) { document.getElementById("live").textContent = words; }

// ---- tabs.

function draw() {
  const tab = current(), turn = (drawn += 1), panel = document.getElementById("panel");
  for (const each of document.querySelectorAll("[role=tab]")) {
    const isCurrent = each.dataset.tab === tab.id;
    each.setAttribute("aria-selected", isCurrent);
    each.tabIndex = isCurrent ? 0 : -1;
    if (isCurrent) each.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  panel.setAttribute("aria-labelledby", `tab-${tab.id}`);
  document.title = `${tab.title}: simserve explore`;
  panel.replaceChildren(node("p", { class: "lead", text: tab.lead }));
  if (catalogue.offered && tab.question !== "twin") panel.append(node("p", { class: "note", text: `${Object.keys(window.SIMSERVE.answers[tab.question] ?? {}).length.toLocaleString("en-US")} answers of simserve ${catalogue.version}, computed in advance: choose among their values. simserve explore answers any.` }));
  document.getElementById("save").hidden = Boolean(tab.draw || (catalogue.offered && !tab.scenario));
  if (tab.draw) { tab.draw({ tab, panel, state, redraw: draw, link, catalogue, titleOf: (id) => tabs.find((each) => each.id === id).title, canTake: (values) => Object.entries(values).every(([name, value]) => !catalogue.offered || (offered(tab, name) ?? []).some((each) => text(each) === text(value))), isCurrent: () => turn === drawn }); return; }
  const answer = node("div", { class: "answer" }), rest = node("div", { class: "rest" });
  let waiting = 0;
  const update = async () => {
    link();
    wait(answer, true);
    const show = (found) => {
      state.found[tab.id] = found;
      const parts = tab.render(found, state.values[tab.id], (name, value) => { state.values[tab.id][name] = value; update(); }).filter(Boolean);
      const split = Math.max(parts.findLastIndex((each) => each.matches(".tiles, .film")), 0) + 1;
      answer.replaceChildren(...parts.slice(0, split));
      rest.replaceChildren(...parts.slice(split), ...[equations(found.equations)].filter(Boolean));
      filmsAdded();
    };
    let first = null;
    const bar = tab.inParts ? node("progress", { "aria-label": "How far the search is" }) : null;
    const words = node("p", { class: "note", text: "Searching…" });
    if (bar) {
      if (answer.childElementCount) answer.prepend(words, bar);
      else answer.replaceChildren(words, bar);
    }
    const tell = bar && ((part) => {
      if (turn !== drawn || !answer.contains(bar)) return;
      if (part.progress) { [bar.value, bar.max] = part.progress; words.textContent = `Looking further: ${part.progress[0]} of ${part.progress[1]} searches done.`; }
      if (part.first) { first = part.first; show(first); wait(answer, false); answer.prepend(words, bar); answer.dataset.firsts = String(Number(answer.dataset.firsts ?? 0) + 1); words.textContent = tab.soFar; }
    });
    try {
      const found = await ask("tab", tab.question, state.values[tab.id], tell);
      if (turn !== drawn) return;
      show(found);
    } catch (error) {
      if (error.name === "AbortError" || turn !== drawn) return;
      if (first && error.kind === "too_long") {
        // What was found by then is an answer, too.
        bar.remove();
        words.className = "warn";
        words.textContent = tab.cutShort;
      } else {
        state.found[tab.id] = null;
        answer.replaceChildren(failure(error));
        rest.replaceChildren();
      }
    }
    wait(answer, false);
    answer.dataset.done = String(Number(answer.dataset.done ?? 0) + 1);
    say(answer.querySelector("h2")?.textContent ?? answer.textContent.slice(0, 200));
  };
  const change = () => { clearTimeout(waiting); waiting = setTimeout(update, tab.patience ?? 50); };
  panel.append(node("div", { class: "split" }, [answer, form(tab, state.values[tab.id], null, change), rest]));
  update();
}

function open(id, focus) {
  state.tab = id;
  state.values[id] ??= defaults(current());
  if (!current().compares) state.other = null;
  link();
  draw();
  if (focus) document.getElementById(`tab-${id}`).focus();
}

// Show the page with these tabs, the first of them open.
export async function start(shown) {
  tabs = shown;
  state.tab = tabs[0].id;
  catalogue = window.SIMSERVE?.catalogue ?? await (await fetch("api/catalogue")).json();
  // The twin watches from where simserve runs: a page without it shows what was recorded.
  if (catalogue.offered && !window.SIMSERVE.twin) tabs.splice(tabs.findIndex((each) => each.id === "twin"), 1);
  const list = document.getElementById("tabs");
  tabs.forEach((tab, place) => {
    list.append(node("button", {
      type: "button", role: "tab", id: `tab-${tab.id}`, "data-tab": tab.id, "aria-controls": "panel", text: tab.title,
      onclick: () => open(tab.id),
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const next = step ? tabs[(place + step + tabs.length) % tabs.length] : event.key === "Home" ? tabs[0] : event.key === "End" ? tabs.at(-1) : null;
        if (next) { event.preventDefault(); open(next.id, true); }
      },
    }));
  });
  document.getElementById("copy").addEventListener("click", async (event) => {
    try { await navigator.clipboard.writeText(location.href); event.target.textContent = "Copied"; } catch { event.target.textContent = "Copy the address bar"; }
    setTimeout(() => { event.target.textContent = "Copy link"; }, 1500);
  });
  document.getElementById("save").addEventListener("click", async () => {
    const tab = current(), made = tab.scenario?.(state.found[tab.id]);
    try { if (made) download(made); else await save(tab.question, state.values[tab.id]); } catch (error) { document.querySelector(".answer")?.replaceChildren(failure(error)); }
  });
  document.getElementById("reset").addEventListener("click", () => { state.values[state.tab] = defaults(current()); state.other = null; link(); draw(); });
  window.addEventListener("hashchange", () => { readLink(); draw(); });
  readLink();
  draw();
}
