// The serving simulator: one configuration, or two side by side, each answered by a run of the engine.

import { bar, dollars, figure, gigabytes, lines, node, number, share } from "./charts.js";
import { ask, equations, failure, form, save, say, wait } from "./core.js";

const ms = (value) => (value === null || value === undefined ? "–" : value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`);

// Label, key, format, +1 where more is better, -1 where less is, 0 where neither.
const TILES = [
  ["within the SLO", "attainment", share, 1],
  ["p50 TTFT", "p50_ttft_ms", ms, -1],
  ["p95 TTFT", "p95_ttft_ms", ms, -1],
  ["p95 TPOT", "p95_tpot_ms", ms, -1],
  ["p95 E2E", "p95_e2el_ms", ms, -1],
  ["most load within SLO", "most", (value) => (value === undefined ? "…" : value === null ? "none" : `${number(value)}/s`), 1],
  ["requests a second", "request_throughput", number, 1],
  ["output tokens a second", "output_throughput", (value) => number(value, 4), 1],
  ["a million output tokens", "usd_per_million_output_tokens", dollars, -1],
  ["sequences in a step", "mean_batch", number, 0],
  ["KV memory in use", "kv_usage_mean", share, 0],
  ["of peak bandwidth", "mbu", share, 0],
];

// One change each, against the configuration that stands there: what a second configuration can start from.
const CHANGES = [
  ["FP8 weights", () => ({ quantization: "fp8" })],
  ["4-bit weights", () => ({ quantization: "awq-int4" })],
  ["twice the traffic", (now) => ({ rate: 2 * now.rate })],
  ["half the GPUs", (now) => ({ gpus: Math.max(1, Math.floor(now.gpus / 2)), tensor_parallel_size: Math.max(1, Math.min(now.tensor_parallel_size, Math.floor(now.gpus / 2))) })],
  ["one replica on all GPUs", (now) => ({ tensor_parallel_size: now.gpus })],
  ["L40S", () => ({ hardware: "l40s-48gb" })],
  ["static batches", () => ({ continuous_batching: false })],
  ["reserved KV", () => ({ paged_kv: false })],
  ["no KV cache", () => ({ kv_cache: false })],
  ["drafts", (now) => ({ speculative_decoding: !now.speculative_decoding })],
  ["a batch of 128", () => ({ max_num_seqs: 128 })],
];

const TOLD = 3; // percent from which a difference is called better or worse

function delta(key, better, mine, base) {
  if (!base) return null;
  if (mine === null || base[key] === null || mine === undefined || base[key] === undefined) return node("span", { class: "delta note", text: "\u00a0" });
  const was = base[key], change = key === "attainment" || key === "kv_usage_mean" || key === "mbu" ? 100 * (mine - was) : was ? (100 * (mine - was)) / Math.abs(was) : mine ? Infinity : 0;
  const unit = key === "attainment" || key === "kv_usage_mean" || key === "mbu" ? " pp" : "%";
  if (Math.abs(change) < 0.5) return node("span", { class: "delta note", text: "same as A" });
  // Of two runs of a minute or so, less than this is chance as well as not.
  const kind = better && Math.abs(change) >= TOLD ? (Math.sign(change) === better ? "better" : "worse") : "note";
  const word = kind === "note" ? "" : `, ${kind}`;
  return node("span", { class: `delta ${kind}`, text: `${change > 0 ? "+" : "−"}${Number.isFinite(change) ? number(Math.abs(change), 2) : "∞"}${unit}${word}` });
}

function tiles(figures, base, values) {
  const missed = { p95_ttft_ms: values.slo_ttft_ms, p95_tpot_ms: values.slo_tpot_ms };
  return node("dl", { class: "tiles" }, TILES.filter(([, key]) => key !== "most" || "most" in figures).map(([label, key, format, better]) => {
    const value = figures[key], isMissed = (key === "attainment" && value !== null && value < values.attainment) || (missed[key] && value > missed[key]) || (key === "most" && value !== undefined && !(value >= values.rate));
    return node("div", { class: isMissed ? "missed" : null, "data-key": key }, [node("dt", { text: label }), node("dd", { "data-value": value, text: format(value) }, [delta(key, better, value, base)])]);
  }));
}

// How latency and the objective go with the load: further runs, asked once the controls rest.
function loadFigure(load, other, values, named) {
  if (!load) return figure("The load it can sustain", "runs at other rates, as soon as the controls rest", node("p", { class: "note", text: "…" }));
  const words = load.most === null ? `misses the SLO even at ${number(load.least)}/s` : `${load.open_ended ? "more than" : "about"} ${number(load.most)} requests/s within the SLO; asked: ${number(values.rate)}`;
  const line = (each) => ({ x: each.curve.rate, y: each.curve.attainment });
  return figure("The load it can sustain", `${words} (${load.num_requests.toLocaleString("en-US")} requests a run, up to six runs a rate, as simserve capacity takes)`, lines({
    label: `Share of requests within the SLO over the rate of arrivals: ${words}`, logX: true, maxY: 1, x: { label: "requests a second, logarithmic" }, y: { label: "within the SLO", format: (value) => `${Math.round(100 * value)}%` },
    named, series: [{ name: "within the SLO", ...line(load) }], ghosts: other ? [{ name: "A", ...line(other) }] : [],
    marks: [{ at: values.rate, name: "asked", color: "var(--text)" }, ...(load.most && Math.abs(Math.log(load.most / values.rate)) > 0.02 ? [{ at: load.most, name: "most", row: 1 }] : [])], bounds: [{ at: values.attainment, name: `${Math.round(100 * values.attainment)}% asked` }],
  }));
}

function charts(found, values, scale, base) {
  const { series, spread } = found;
  const ghost = (make) => (base ? [{ name: "A", ...make(base) }] : []);
  const span = series.edges.at(-1), inMinutes = span > 180, clock = (value) => value / (inMinutes ? 60 : 1);
  const time = { label: inMinutes ? "simulated time, min" : "simulated time, s" };
  const levels = spread.ttft_ms.map((_, place) => place / (spread.ttft_ms.length - 1));
  const percent = { label: "share of requests", format: (value) => `${+(100 * value).toFixed(1)}%` };
  const edges = series.edges.map(clock);
  const tpotLevels = spread.tpot_ms.map((_, place) => place / Math.max(spread.tpot_ms.length - 1, 1));
  return [
    figure("Requests over time", null, lines({
      label: "Running and waiting requests over time", x: time, y: { label: "requests" }, maxY: scale?.requests,
      named: Boolean(scale), series: [{ name: "running", x: edges, y: series.running, steps: true }, { name: "waiting", x: edges, y: series.waiting, steps: true }],
      ghosts: base ? [{ name: "A", x: base.series.edges.map(clock), y: base.series.running, steps: true }, { x: base.series.edges.map(clock), y: base.series.waiting, steps: true, dash: "6 3" }] : [],
    })),
    figure("KV memory over time", null, lines({
      label: "Share of KV memory in use over time", x: time, y: { label: "share of KV memory", format: percent.format }, maxY: scale?.kv ?? kvTop([found]),
      named: Boolean(scale), series: [{ name: "in use", x: edges, y: series.kv_usage, steps: true }],
      ghosts: ghost((each) => ({ x: each.series.edges.map(clock), y: each.series.kv_usage, steps: true })),
    })),
    figure("TTFT of all requests", null, lines({
      label: "Cumulative share of requests over TTFT", logX: true, maxX: scale?.ttft, x: { label: "time to first token, logarithmic", format: (value) => (value < 1000 ? `${number(value, 1)} ms` : `${number(value / 1000, 1)} s`) }, y: percent, maxY: 1,
      named: Boolean(scale), series: [{ name: "TTFT", x: spread.ttft_ms, y: levels }], ghosts: ghost((each) => ({ x: each.spread.ttft_ms, y: levels })), marks: [{ at: values.slo_ttft_ms, name: `SLO ${ms(values.slo_ttft_ms)}` }],
    })),
    figure("TPOT of all requests", null, spread.tpot_ms.length ? lines({
      label: "Cumulative share of requests over TPOT", x: { label: "time per output token, ms" }, y: percent, maxY: 1, minX: 0, maxX: scale?.tpot,
      named: Boolean(scale), series: [{ name: "TPOT", x: spread.tpot_ms, y: tpotLevels }], ghosts: base?.spread.tpot_ms.length ? ghost((each) => ({ x: each.spread.tpot_ms, y: tpotLevels })) : [], marks: [{ at: values.slo_tpot_ms, name: `SLO ${ms(values.slo_tpot_ms)}` }],
    }) : node("p", { class: "note", text: "Undefined: all tokens of an answer come together." })),
    figure("Where the time of a step goes", `${number(found.step.ms)} ms on average, ${found.step.count.toLocaleString("en-US")} steps`, bar("A mean step", found.step.parts, (value) => `${number(value)} ms`, scale?.step)),
    figure("What requests waited for", null, Object.keys(found.waiting_for).length ? bar("Waiting", found.waiting_for, share, 1) : node("p", { class: "note", text: "No request waited." })),
    figure("Memory of one GPU", null, bar("Memory", {
      weights: found.memory.weights_bytes, "KV cache": found.memory.kv_bytes, "the rest": found.memory.total_bytes - found.memory.weights_bytes - found.memory.kv_bytes,
    }, gigabytes, found.memory.total_bytes)),
  ];
}

// The load that is borne comes later than the rest: "…" until then; undefined: nobody looks for it.
function figuresOf(found, load) {
  return found && (load === undefined ? found.figures : { ...found.figures, most: load === null ? undefined : load.most });
}

function answer(found, load, values, base, baseLoad, scale) {
  const kind = { holds: "holds", missed: "missed-answer" }[found.verdict] ?? "";
  const top = [
    node("h2", { class: kind, text: found.answer }),
    found.explanation ? node("p", { class: "note", text: found.explanation }) : null,
    ...found.warnings.map((warning) => node("p", { class: "warn", text: warning })),
    tiles(figuresOf(found, load), base ? figuresOf(base, baseLoad) : null, values),
  ].filter(Boolean);
  return [top, [
    node("div", { class: "charts" }, [...(load === undefined ? [] : [loadFigure(load, base ? baseLoad : null, values, Boolean(scale))]), ...charts(found, values, scale, base)]),
    equations([...found.equations, ...(load?.equations ?? [])]),
    node("p", { class: "note", text: `vllm ${found.engine}; ${found.formats}; ${found.fidelity.join("; ")}.` }),
    node("p", { class: "note", text: `${values.num_requests.toLocaleString("en-US")} requests and ${found.step.count.toLocaleString("en-US")} engine steps, answered in ${number(found.milliseconds, 2)} ms.` }),
  ].filter(Boolean)];
}

// One line that stays in sight on a narrow screen while controls are moved.
function briefly(found, name) {
  const { figures } = found;
  return [name, `${share(figures.attainment)} in SLO`, `TTFT ${ms(figures.p95_ttft_ms)}`, `TPOT ${ms(figures.p95_tpot_ms)}`, `${dollars(figures.usd_per_million_output_tokens)}/M`].filter(Boolean).join(" · ");
}

// Where an axis of KV memory ends: at all of it only where it nearly fills.
function kvTop(shown) {
  const most = Math.max(0, ...shown.flatMap((each) => each.series.kv_usage));
  return [0.05, 0.1, 0.2, 0.5].find((top) => top >= 1.1 * most) ?? 1;
}

function scaleOf(found) {
  const known = found.filter(Boolean);
  if (known.length < 2) return null;
  const most = (pick) => Math.max(...known.map(pick));
  return {
    requests: 1.06 * most((each) => Math.max(...each.series.running, ...each.series.waiting)),
    kv: kvTop(known), ttft: most((each) => each.spread.ttft_ms.at(-1) ?? 0), tpot: 1.02 * most((each) => each.spread.tpot_ms.at(-1) ?? 0), step: most((each) => each.step.ms),
  };
}

const REST = 350;

export function drawSimulator({ tab, panel, state, redraw, link, isCurrent, canTake, catalogue }) {
  const sides = [{ name: "A", values: state.values[tab.id] }];
  if (state.other) sides.push({ name: "B", values: state.other });
  const found = sides.map(() => null), loads = sides.map(() => (catalogue.offered ? undefined : null)), errors = sides.map(() => null);
  const areas = sides.map(() => node("div", { class: "answer" })), rests = sides.map(() => node("div", { class: "rest" }));
  const briefs = sides.map(() => node("p", { class: "brief", "aria-hidden": "true" }));

  const show = () => {
    const scale = scaleOf(found);
    sides.forEach((side, place) => {
      const [top, rest] = errors[place] ? [[failure(errors[place])], []] : found[place] ? answer(found[place], loads[place], side.values, place ? found[0] : null, loads[0], scale) : [[], []];
      areas[place].replaceChildren(...top);
      rests[place].replaceChildren(...rest);
      briefs[place].textContent = found[place] && !errors[place] ? briefly(found[place], sides.length > 1 ? side.name : "") : "";
    });
  };
  const rest = sides.map(() => 0);
  const bear = async (place) => {
    try {
      const load = await ask(`load-${place}`, "load", sides[place].values);
      if (!isCurrent()) return;
      loads[place] = load;
      show();
      areas[place].dataset.loads = String(Number(areas[place].dataset.loads ?? 0) + 1);
    } catch (error) { if (error.name !== "AbortError" && error.kind === undefined) throw error; }
  };
  const update = async (place) => {
    link();
    wait(areas[place], true);
    try {
      const began = performance.now(), answered = await ask(`simulator-${place}`, tab.question, sides[place].values);
      found[place] = { ...answered, milliseconds: performance.now() - began };
      errors[place] = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      [found[place], errors[place]] = [null, error];
    }
    if (!isCurrent()) return;
    wait(areas[place], false);
    loads[place] = catalogue.offered ? undefined : null;
    show();
    areas[place].dataset.done = String(Number(areas[place].dataset.done ?? 0) + 1);
    say(errors[place]?.message ?? found[place].answer);
    clearTimeout(rest[place]);
    if (!errors[place] && !catalogue.offered) rest[place] = setTimeout(() => { if (isCurrent()) bear(place); }, REST);
  };
  const timers = sides.map(() => 0);
  const against = (change) => { state.other = { ...sides[0].values, ...change(sides[0].values) }; link(); redraw(); };
  const drawn = sides.map((side, place) => {
    const change = (name) => {
      clearTimeout(timers[place]);
      clearTimeout(rest[place]);
      timers[place] = setTimeout(() => update(place), 40);
      if (sides.length > 1) {
        const field = drawn[1].querySelector(`#${tab.id}-b-${name}`)?.closest(".field, .check");
        field?.classList.toggle("changed", String(sides[0].values[name]) !== String(sides[1].values[name]));
      }
    };
    const made = form(tab, side.values, place ? sides[0].values : null, change);
    const saveButton = node("button", { type: "button", text: "Save as scenario", onclick: () => save(tab.question, side.values).catch((error) => areas[place].replaceChildren(failure(error))) });
    const other = state.other
      ? node("button", { type: "button", text: place ? "Remove B" : "Copy B to A", onclick: () => { if (place) state.other = null; else state.values[tab.id] = { ...state.other }; link(); redraw(); } })
      : node("button", { type: "button", id: "compare", text: "Compare with a second configuration", onclick: () => against(() => ({})) });
    return node("section", { class: "side", "aria-label": `Configuration ${side.name}` }, [
      node("div", { class: "sidehead" }, [node("strong", { text: state.other ? `Configuration ${side.name}` : "Configuration" }), node("span", { class: "actions" }, catalogue.offered ? [other] : [other, " ", saveButton])]),
      node("div", { class: "split" }, [briefs[place], areas[place], made, rests[place]]),
    ]);
  });
  panel.append(node("div", { class: "chips", role: "group", "aria-label": "Compare with one change" }, [
    node("span", { text: state.other ? "B is A, but" : "What if" }),
    ...CHANGES.filter(([, change]) => canTake(change(sides[0].values))).map(([name, change]) => node("button", { type: "button", class: "chip", text: name, onclick: () => against(change) })),
  ]));
  panel.append(sides.length > 1 ? node("div", { class: "both" }, drawn) : drawn[0]);
  sides.forEach((_, place) => update(place));
}
