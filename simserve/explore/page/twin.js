// The twin: the last look at the deployment that simserve explore was started with, asked for again as long as the tab is open.

import { charts, figure, formatName, lines, node, number, table, tiles } from "./charts.js";
import { defaults, failure, say, wait } from "./core.js";

const ASK_AGAIN = 3000; // milliseconds
const NAMES = { rate: "Requests a second", prompt_tokens: "Prompt, tokens", output_tokens: "Answer, tokens", ttft_ms: "TTFT, ms", tpot_ms: "TPOT, ms", itl_ms: "ITL, ms", e2e_ms: "E2E, ms", running: "Running", waiting: "Waiting", kv_usage: "KV memory in use", prefix_hit_rate: "Prefix hit rate", preemptions: "Preemptions" };
const nameOf = (key) => NAMES[key] ?? key;
const clock = (seconds) => new Date(1000 * seconds).toISOString().slice(11, 19);
const day = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 10);
const times = (seconds) => (seconds % 3600 === 0 ? `${seconds / 3600} h` : seconds % 60 === 0 ? `${seconds / 60} min` : `${number(seconds)} s`);

// Times of a chart: minutes, or hours, since its first look.
function axis(start, end) {
  const unit = end - start > 3 * 3600 ? 3600 : 60;
  return { at: (seconds) => (seconds - start) / unit, label: `${unit === 60 ? "minutes" : "hours"} since ${clock(start).slice(0, 5)} UTC` };
}

function curve(key, found, drift, { at, label }) {
  const x = found.end_s.map(at), hasBand = found.low.some((value) => value !== null);
  const marks = drift.since_s ? [{ at: Math.max(at(drift.since_s), 0), name: "differs" }] : [];
  return figure(nameOf(key), null, lines({
    label: `${nameOf(key)} observed and predicted over time`, x: { label }, y: { label: nameOf(key) }, marks, minX: 0,
    band: hasBand ? { name: "expected within", x, low: found.low, high: found.high } : null,
    series: [{ name: "observed", x, y: found.observed }, { name: "predicted", x, y: found.predicted }],
  }));
}

function forecast(rows) {
  if (!rows.length) return null;
  const start = rows[0].start_s, { at, label } = axis(start, rows.at(-1).start_s + 3600), x = rows.map((row) => at(row.start_s));
  const needs = rows.some((row) => row.replicas !== null);
  const step = rows.length > 1 ? x[1] - x[0] : 1, edges = [...x, x.at(-1) + step];
  return charts(
    figure("Requests a second, forecast", "mean of an hour, and where it lies nine times in ten", lines({ label: "Forecast of the rate", x: { label }, y: { label: "requests/s" }, minX: 0, band: { name: "90% within", x, low: rows.map((row) => row.low), high: rows.map((row) => row.high) }, series: [{ name: "forecast", x, y: rows.map((row) => row.rate) }] })),
    needs ? figure("Replicas needed", "the high end of the forecast over what one replica can sustain within the SLO", lines({ label: "Replicas over time", x: { label }, y: { label: "replicas" }, minX: 0, series: [{ name: "replicas", x: edges, y: rows.map((row) => row.replicas), steps: true }] })) : null,
  );
}

function shown(summary) {
  const outside = Object.entries(summary.drift).filter(([, row]) => row.inside === false), { stretch } = summary;
  const first = outside.map(([, row]) => row.since_s).filter((since) => since !== null).sort((one, other) => one - other)[0];
  const head = outside.length
    ? `Not as predicted: ${outside.map(([key]) => nameOf(key).split(",")[0]).join(", ")}${first ? `, since ${clock(first)} UTC` : ""}.`
    : "As predicted: every figure that is judged lies where it was expected.";
  const next = summary.forecast.find((row) => row.replicas !== null);
  const ends = (row) => (row.interval ? `${number(row.interval[0])} to ${number(row.interval[1])}` : "–");
  const rows = Object.entries(summary.drift).map(([key, row]) => ({ chosen: row.inside === false, cells: [nameOf(key), row.inside === null ? "not judged" : row.inside ? "yes" : "no", number(summary.observed[key]), number(summary.predicted[key]), ends(row), number(row.ratio), row.since_s ? clock(row.since_s) : "–"] }));
  const over = axis(stretch.start_s, stretch.end_s);
  const curves = Object.entries(summary.series).filter(([, each]) => each.end_s.length > 1).map(([key, each]) => curve(key, each, summary.drift[key], over));
  const calibration = summary.calibration ? `Latencies are those after ${clock(summary.calibration.end_s)}, compared with the simulation times the factors seen before: ${Object.entries(summary.calibration.factors).map(([key, factor]) => `${key} x ${number(factor)}`).join(", ")}.` : null;
  return [
    node("h2", { class: outside.length ? "missed-answer" : "holds", text: head }),
    tiles([
      ["requests a second, observed", number(summary.observed.rate), "rate", summary.observed.rate],
      ["figures outside", String(outside.length), "outside", outside.length],
      ["one replica can sustain", summary.per_replica_rate ? `${number(summary.per_replica_rate)}/s` : "–", "per_replica_rate", summary.per_replica_rate],
      ["replicas in the next hour", next ? String(next.replicas) : "–", "replicas", next?.replicas],
    ]),
    table(["figure", "as predicted", "observed", "predicted", "expected within", "ratio", "differs since (UTC)"], rows),
    node("p", { class: "note", text: `${day(stretch.start_s)}, ${clock(stretch.start_s)} to ${clock(stretch.end_s)} UTC, ${stretch.windows} windows. Traffic is predicted by the scenario, everything else by its deployment under the traffic that came. While traffic is as the scenario says, a false alarm comes no more often than once in ${number(summary.false_alarms.mean_days_between)} days on average. Shaded: for rate and lengths what chance allows, for latencies the range of 90% of real servers.` }),
    calibration ? node("p", { class: "note", text: calibration }) : null,
    curves.length ? charts(...curves) : null,
    forecast(summary.forecast),
    ...summary.notes.map((words) => node("p", { class: "note", text: words })),
  ].filter(Boolean);
}

// ---- what if: another look at the same hours, with some settings of the deployment changed.

const SETTINGS = { hardware: "GPU", replicas: "Replicas", tensor_parallel_size: "GPUs a replica (tensor parallel)", quantization: "Weights", kv_cache_dtype: "KV cache format", max_num_seqs: "Batch limit" };

function beside(summary, other) {
  const cell = (row) => (row === undefined || row === null ? "–" : number(row));
  const ends = (row) => (row?.interval ? `${number(row.interval[0])} to ${number(row.interval[1])}` : "–");
  // Traffic is what came, whatever serves it.
  const keys = Object.keys(summary.predicted).filter((key) => !["rate", "prompt_tokens", "output_tokens"].includes(key));
  const needs = (found) => found.forecast.find((row) => row.replicas !== null)?.replicas;
  return [
    node("h3", { text: `With ${other.changes.map((each) => each.replace(/^deployment\.(engine\.)?/, "").replace("=", " ")).join(", ")}` }),
    tiles([
      ["one replica could sustain", other.summary.per_replica_rate ? `${number(other.summary.per_replica_rate)}/s` : "–", "what_if_per_replica_rate", other.summary.per_replica_rate],
      ["replicas in the next hour", needs(other.summary) === undefined ? "–" : String(needs(other.summary)), "what_if_replicas", needs(other.summary)],
    ]),
    table(["figure", "observed", "predicted as it is", "predicted if changed", "expected within", "changed / as it is"], keys.map((key) => ({ cells: [nameOf(key), cell(summary.observed[key]), cell(summary.predicted[key]), cell(other.summary.predicted[key]), ends(other.summary.drift[key]), summary.predicted[key] ? number(other.summary.predicted[key] / summary.predicted[key]) : "–"] }))),
    node("p", { class: "note", text: `The traffic that came, simulated on another deployment. On the command line: simserve twin SOURCE --scenario SCENARIO ${other.changes.map((each) => `--set ${each}`).join(" ")}` }),
    ...other.summary.notes.filter((words) => !summary.notes.includes(words)).map((words) => node("p", { class: "note", text: words })),
  ];
}

function whatIf({ catalogue, values, last, change }) {
  const found = node("div", { class: "what-if", "aria-live": "polite" });
  const choices = { hardware: catalogue.hardware, quantization: catalogue.fields.simulator.quantization.choices.map((name) => ({ name, about: formatName(name) })), kv_cache_dtype: catalogue.fields.simulator.kv_cache_dtype.choices.map((name) => ({ name })) };
  const field = (name) => {
    const id = `what-if-${name}`, about = catalogue.fields.twin[name].about;
    const set = (event) => { values[name] = choices[name] ? event.target.value : Number(event.target.value) || 0; change(); };
    const entry = choices[name]
      ? node("select", { id, onchange: set }, [{ name: "", label: "as it is" }, ...choices[name]].map((each) => node("option", { value: each.name, selected: each.name === values[name], text: each.label ?? (each.about ? `${each.name} (${each.about})` : each.name) })))
      : node("input", { id, type: "number", min: catalogue.fields.twin[name].min, max: catalogue.fields.twin[name].max, step: 1, value: values[name] || "", placeholder: "as it is", onchange: set });
    return node("div", { class: "field", title: about }, [node("label", { for: id, text: SETTINGS[name] }), entry]);
  };
  const button = node("button", { class: "primary", text: "What would it have done?" });
  const asked = async (event) => {
    event.preventDefault();
    wait(found, true);
    try {
      const response = await fetch("api/twin/what-if", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(values) });
      const answer = await response.json();
      if (!response.ok) throw Object.assign(new Error(answer.error), { kind: answer.kind });
      found.replaceChildren(...beside(last(), answer));
    } catch (error) {
      found.replaceChildren(failure(error));
    }
    wait(found, false);
    found.dataset.done = String(Number(found.dataset.done ?? 0) + 1);
  };
  return node("section", { "aria-label": "What if" }, [node("h3", { text: "What if another deployment had served this traffic?" }), node("form", { class: "row", "aria-label": "What if", onsubmit: asked }, [...Object.keys(SETTINGS).map(field), button]), found]);
}

function idle() {
  return [
    node("h2", { text: "No deployment is being watched." }),
    node("p", { text: "Start the page with one: saved metrics, the address of a vLLM, SGLang or TensorRT-LLM server, or of a Prometheus server." }),
    node("pre", {}, [node("code", { text: "simserve import metrics ADDRESS --for 5min --gpus 2xH100 --out observed.yaml\nsimserve explore --twin ADDRESS --scenario observed.yaml --watch 5min" })]),
  ];
}

function status(state) {
  const looked = state.count ? `Look ${state.count.toLocaleString("en-US")}` : state.every_s ? "Scraping" : "Comparing";
  const next = state.every_s ? `, the next at ${clock(state.due_s)} UTC (every ${times(state.every_s)})` : state.count ? ", of saved metrics, which do not change" : "";
  return `${state.source} beside ${state.scenario}. ${looked}${next}.`;
}

export function drawTwin({ tab, panel, state: page, catalogue, link, isCurrent }) {
  const answer = node("div", { class: "answer twin" }), words = node("p", { class: "note", "aria-live": "off" });
  const recorded = window.SIMSERVE?.twin, values = (page.values[tab.id] ??= defaults(tab));
  let last = null;
  const asking = recorded ? null : whatIf({ catalogue, values, last: () => last, change: link });
  if (asking) asking.hidden = true;
  panel.append(...[words, answer, asking].filter(Boolean));
  link();
  let shownCount = -1;
  const look = async () => {
    if (!isCurrent()) return;
    let state = null;
    try {
      state = recorded ?? await (await fetch("api/twin")).json();
    } catch {
      words.textContent = "simserve explore no longer answers.";
    }
    if (!isCurrent()) return;
    if (state?.source === null) {
      answer.replaceChildren(...idle());
    } else if (state) {
      words.textContent = recorded ? `Recorded: ${state.source} beside ${state.scenario}. simserve explore --twin ADDRESS --scenario FILE shows yours as it goes, and answers what-ifs.` : status(state);
      if (state.count !== shownCount) {
        shownCount = state.count;
        const problem = state.error ? [failure(new Error(state.error))] : [];
        last = state.summary;
        if (asking) asking.hidden = !last;
        answer.replaceChildren(...problem, ...(last ? shown(last) : []));
        say(answer.querySelector("h2")?.textContent ?? state.error ?? words.textContent);
      }
    }
    answer.dataset.done = String(Number(answer.dataset.done ?? 0) + (state && (state.source === null || state.count) ? 1 : 0));
    if (state?.source !== null && (state?.every_s || !state?.count)) setTimeout(look, ASK_AGAIN);
  };
  look();
}
