// The serving simulator: one configuration, or two side by side, each answered by a run of the engine.

import { bar, dollars, download, figure, gigabytes, lines, node, number, share } from "./charts.js";
import { ask, equations, failure, form, say } from "./core.js";

const ms = (value) => (value === null || value === undefined ? "–" : value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`);

// Label, key, format, +1 where more is better, -1 where less is, 0 where neither.
const TILES = [
  ["within the SLO", "attainment", share, 1],
  ["p50 TTFT", "p50_ttft_ms", ms, -1],
  ["p95 TTFT", "p95_ttft_ms", ms, -1],
  ["p95 TPOT", "p95_tpot_ms", ms, -1],
  ["p95 E2E", "p95_e2el_ms", ms, -1],
  ["requests a second", "request_throughput", number, 1],
  ["output tokens a second", "output_throughput", (value) => number(value, 4), 1],
  ["a million output tokens", "usd_per_million_output_tokens", dollars, -1],
  ["sequences in a step", "mean_batch", number, 0],
  ["KV memory in use", "kv_usage_mean", share, 0],
  ["of peak bandwidth", "mbu", share, 0],
  ["preemptions", "preemptions", (value) => number(value), -1],
];

function delta(key, better, mine, base) {
  if (!base || mine === null || base[key] === null || mine === undefined || base[key] === undefined) return null;
  const was = base[key], change = key === "attainment" || key === "kv_usage_mean" || key === "mbu" ? 100 * (mine - was) : was ? (100 * (mine - was)) / Math.abs(was) : mine ? Infinity : 0;
  const unit = key === "attainment" || key === "kv_usage_mean" || key === "mbu" ? " pp" : "%";
  if (Math.abs(change) < 0.5) return node("span", { class: "delta note", text: "as A" });
  const kind = better ? (Math.sign(change) === better ? "better" : "worse") : "note";
  const word = better ? (kind === "better" ? ", better" : ", worse") : "";
  return node("span", { class: `delta ${kind}`, text: `${change > 0 ? "+" : "−"}${Number.isFinite(change) ? number(Math.abs(change), 2) : "∞"}${unit}${word}` });
}

function tiles(figures, base, values) {
  const missed = { p95_ttft_ms: values.slo_ttft_ms, p95_tpot_ms: values.slo_tpot_ms };
  return node("dl", { class: "tiles" }, TILES.map(([label, key, format, better]) => {
    const value = figures[key], isMissed = (key === "attainment" && value !== null && value < 0.95) || (missed[key] && value > missed[key]);
    return node("div", { class: isMissed ? "missed" : null, "data-key": key }, [node("dt", { text: label }), node("dd", { "data-value": value, text: format(value) }, [delta(key, better, value, base)])]);
  }));
}

function charts(found, values, scale) {
  const { series, spread } = found;
  const span = series.edges.at(-1), inMinutes = span > 180, clock = (value) => value / (inMinutes ? 60 : 1);
  const time = { label: inMinutes ? "simulated time, min" : "simulated time, s" };
  const levels = spread.ttft_ms.map((_, place) => place / (spread.ttft_ms.length - 1));
  const percent = { label: "share of requests", format: (value) => `${Math.round(100 * value)}%` };
  const edges = series.edges.map(clock);
  const tpotLevels = spread.tpot_ms.map((_, place) => place / Math.max(spread.tpot_ms.length - 1, 1));
  return node("div", { class: "charts" }, [
    figure("Requests over time", null, lines({
      label: "Running and waiting requests over time", x: time, y: { label: "requests" }, maxY: scale?.requests,
      series: [{ name: "running", x: edges, y: series.running, steps: true }, { name: "waiting", x: edges, y: series.waiting, steps: true }],
    })),
    figure("KV memory over time", null, lines({
      label: "Share of KV memory in use over time", x: time, y: { label: "share of KV memory", format: percent.format }, maxY: 1,
      series: [{ name: "in use", x: edges, y: series.kv_usage, steps: true }],
    })),
    figure("TTFT of all requests", null, lines({
      label: "Cumulative share of requests over TTFT", logX: true, maxX: scale?.ttft, x: { label: "time to first token, logarithmic", format: (value) => (value < 1000 ? `${number(value, 1)} ms` : `${number(value / 1000, 1)} s`) }, y: percent, maxY: 1,
      series: [{ name: "TTFT", x: spread.ttft_ms, y: levels }], marks: [{ at: values.slo_ttft_ms, name: `SLO ${ms(values.slo_ttft_ms)}` }],
    })),
    figure("TPOT of all requests", null, spread.tpot_ms.length ? lines({
      label: "Cumulative share of requests over TPOT", x: { label: "time per output token, ms" }, y: percent, maxY: 1, minX: 0, maxX: scale?.tpot,
      series: [{ name: "TPOT", x: spread.tpot_ms, y: tpotLevels }], marks: [{ at: values.slo_tpot_ms, name: `SLO ${ms(values.slo_tpot_ms)}` }],
    }) : node("p", { class: "note", text: "Undefined: all tokens of an answer come together." })),
    figure("Where the time of a step goes", `${number(found.step.ms)} ms on average, ${found.step.count.toLocaleString("en-US")} steps`, bar("A mean step", found.step.parts, (value) => `${number(value)} ms`, scale?.step)),
    figure("What requests waited for", null, Object.keys(found.waiting_for).length ? bar("Waiting", found.waiting_for, share, 1) : node("p", { class: "note", text: "Nobody waited." })),
    figure("Memory of one GPU", null, bar("Memory", {
      weights: found.memory.weights_bytes, "KV cache": found.memory.kv_bytes, "the rest": found.memory.total_bytes - found.memory.weights_bytes - found.memory.kv_bytes,
    }, gigabytes, found.memory.total_bytes)),
  ]);
}

function answer(found, values, base, scale) {
  const kind = { holds: "holds", missed: "missed-answer" }[found.verdict] ?? "";
  const top = [
    node("h2", { class: kind, text: found.answer }),
    found.explanation ? node("p", { class: "note", text: found.explanation }) : null,
    ...found.warnings.map((warning) => node("p", { class: "warn", text: warning })),
    tiles(found.figures, base?.figures, values),
  ].filter(Boolean);
  return [top, [
    charts(found, values, scale),
    equations(found.equations),
    node("p", { class: "note", text: `vllm ${found.engine}; ${found.fidelity.join("; ")}.` }),
  ].filter(Boolean)];
}

async function save(values) {
  const response = await fetch("api/scenario", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(values) });
  if (!response.ok) throw new Error((await response.json()).error);
  download(await response.text());
}

function scaleOf(found) {
  const known = found.filter(Boolean);
  if (known.length < 2) return null;
  const most = (pick) => Math.max(...known.map(pick));
  return {
    requests: 1.06 * most((each) => Math.max(...each.series.running, ...each.series.waiting)),
    ttft: most((each) => each.spread.ttft_ms.at(-1) ?? 0), tpot: 1.02 * most((each) => each.spread.tpot_ms.at(-1) ?? 0), step: most((each) => each.step.ms),
  };
}

export function drawSimulator({ tab, panel, state, redraw, link, isCurrent }) {
  const sides = [{ name: "A", values: state.values[tab.id] }];
  if (state.other) sides.push({ name: "B", values: state.other });
  const found = sides.map(() => null), errors = sides.map(() => null);
  const areas = sides.map(() => node("div", { class: "answer" })), rests = sides.map(() => node("div", { class: "rest" }));

  const show = () => {
    const scale = scaleOf(found);
    sides.forEach((side, place) => {
      const [top, rest] = errors[place] ? [[failure(errors[place])], []] : found[place] ? answer(found[place], side.values, place ? found[0] : null, scale) : [[], []];
      areas[place].replaceChildren(...top);
      rests[place].replaceChildren(...rest);
    });
  };
  const update = async (place) => {
    link();
    areas[place].classList.add("busy");
    try {
      found[place] = await ask(`simulator-${place}`, tab.question, sides[place].values);
      errors[place] = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      [found[place], errors[place]] = [null, error];
    }
    if (!isCurrent()) return;
    areas[place].classList.remove("busy");
    show();
    areas[place].dataset.done = String(Number(areas[place].dataset.done ?? 0) + 1);
    say(errors[place]?.message ?? found[place].answer);
  };
  const timers = sides.map(() => 0);
  const drawn = sides.map((side, place) => {
    const change = (name) => {
      clearTimeout(timers[place]);
      timers[place] = setTimeout(() => update(place), 40);
      if (sides.length > 1) {
        const field = drawn[1].querySelector(`#${tab.id}-b-${name}`)?.closest(".field, .check");
        field?.classList.toggle("changed", String(sides[0].values[name]) !== String(sides[1].values[name]));
      }
    };
    const made = form(tab, side.values, place ? sides[0].values : null, change);
    const saveButton = node("button", { type: "button", text: "Save as scenario", onclick: () => save(side.values).catch((error) => areas[place].replaceChildren(failure(error))) });
    const other = state.other
      ? node("button", { type: "button", text: place ? "Remove B" : "Make A as B", onclick: () => { if (place) state.other = null; else state.values[tab.id] = { ...state.other }; link(); redraw(); } })
      : node("button", { type: "button", id: "compare", text: "Compare with a second configuration", onclick: () => { state.other = { ...side.values }; link(); redraw(); } });
    return node("section", { class: "side", "aria-label": `Configuration ${side.name}` }, [
      node("div", { class: "sidehead" }, [node("strong", { text: state.other ? `Configuration ${side.name}` : "Configuration" }), node("span", { class: "actions" }, [other, " ", saveButton])]),
      node("div", { class: "split" }, [areas[place], made, rests[place]]),
    ]);
  });
  panel.append(sides.length > 1 ? node("div", { class: "both" }, drawn) : drawn[0]);
  sides.forEach((_, place) => update(place));
}
