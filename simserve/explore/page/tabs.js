// The tabs: what each lets one change, which question it asks, and how it shows the answer.

import { bar, blocks, bytesTick, charts, compact, dollars, figure, filmBox, formatName, gigabytes, key, lines, node, number, points, rowBars, share, slotsFilm, table, tiles, whole } from "./charts.js";
import { start } from "./core.js";
import { drawSimulator } from "./simulator.js";
import { drawTour } from "./tour.js";
import { drawTwin } from "./twin.js";

const SIZES = [1, 2, 4, 8, 16];
const RANGES = {
  gpus: { min: 1, max: 32 }, tensor_parallel_size: { options: SIZES }, rate: { min: 0.2, max: 200, log: true }, prompt_tokens: { min: 10, max: 8000, log: true }, output_tokens: { min: 1, max: 2000, log: true },
  length_cv: { min: 0, max: 2, step: 0.1 }, max_num_seqs: { min: 1, max: 512, log: true }, max_num_batched_tokens: { min: 64, max: 16384, log: true }, max_model_len: { min: 256, max: 131072, log: true },
  slo_ttft_ms: { min: 20, max: 20000, log: true }, slo_tpot_ms: { min: 5, max: 500, log: true }, acceptance_rate: { min: 0.05, max: 0.95, step: 0.05 }, num_requests: { min: 50, max: 4000, log: true }, seed: { min: 0, max: 50 },
  batch: { min: 1, max: 1024, log: true }, context_tokens: { min: 16, max: 131072, log: true }, slots: { min: 1, max: 32 }, draft_cost: { min: 0, max: 0.5, step: 0.01 },
  operations_usd: { min: 0, max: 20000 }, utilization: { min: 0.05, max: 1, step: 0.05 }, requests_per_month: { min: 1000, max: 1e9, log: true }, concurrency: { min: 1, max: 256, log: true }, discount: { min: 0, max: 0.9, step: 0.05 },
  attainment: { min: 0.5, max: 0.99, step: 0.01 }, shared_prefix_tokens: { min: 0, max: 4000, step: 50 }, billion_parameters: { min: 0.5, max: 500, log: true, fraction: true },
};
const tokens = { label: "tokens of a sequence, logarithmic" };

function stacked(curve, names) {
  const sums = curve.batch.map(() => 0);
  return names.map((name) => ({ name, x: curve.batch, y: curve[name].map((value, at) => (sums[at] += value)) }));
}

function memoryWall(found, values) {
  const parts = Object.keys(found.step), binds = found.intensity < found.ridge;
  // Beyond what fits the curves say nothing: they end a little after, or at the batch that is asked.
  const most = Math.floor(found.memory.kv_room / (found.memory.kv_bytes_per_token * values.context_tokens));
  const shown = found.curve.batch.filter((batch) => batch <= Math.max(1.3 * most, values.batch, 8)).length;
  const curve = Object.fromEntries(Object.entries(found.curve).map(([name, all]) => [name, all.slice(0, shown)]));
  const here = [{ at: values.batch, name: "here", color: "var(--text)" }, ...(most >= 1 && most < curve.batch.at(-1) ? [{ at: most, name: "memory full", row: 1 }] : [])];
  return [
    node("h2", { text: `A step with ${values.batch} sequence${values.batch === 1 ? "" : "s"} takes ${number(found.step_ms)} ms; ${binds ? "memory bandwidth" : "arithmetic"} is the bottleneck.` }),
    found.fits ? null : node("p", { class: "warn", text: "This much KV does not fit the GPU's memory: the figures are those of a GPU with more." }),
    tiles([["tokens a second, all", number(found.tokens_per_second), "tokens_per_second", found.tokens_per_second], ["tokens a second, each", number(found.tokens_per_second_each), "tokens_per_second_each", found.tokens_per_second_each], ["a step", `${number(found.step_ms)} ms`, "step_ms", found.step_ms], ["least it could take", `${number(found.bound_ms)} ms`, "bound_ms", found.bound_ms], ["FLOP a byte", number(found.intensity), "intensity", found.intensity], ["memory-bound below", number(found.ridge), "ridge", found.ridge]]),
    charts(
      figure("One step", null, bar("One step", found.step, (value) => `${number(value)} ms`)),
      figure("Memory of one GPU", null, bar("Memory", { weights: found.memory.weights, "KV of this batch": found.memory.kv, "free for KV": Math.max(found.memory.kv_room - found.memory.kv, 0), "runtime and reserve": found.memory.other }, gigabytes, found.memory.total)),
      figure("A step by batch size", "what its milliseconds go into", lines({ label: "Milliseconds of a step by part over the batch size", areas: true, logX: true, x: { label: "sequences in the batch, logarithmic" }, y: { label: "ms of a step" }, series: stacked(curve, parts), marks: here })),
      figure("Tokens a second by batch size", "weights are read once a step, for all its sequences", lines({ label: "Tokens a second over the batch size", logX: true, x: { label: "sequences in the batch, logarithmic" }, y: { label: "output tokens/s" }, series: [{ name: "tokens/s", x: curve.batch, y: curve.tokens_per_second }], marks: here })),
    ),
  ];
}

function kvGrowth(found, values) {
  const { curve } = found;
  return [
    node("h2", { class: found.fits ? "holds" : "missed-answer", text: found.fits ? `${values.batch} request${values.batch === 1 ? "" : "s"} of ${whole(values.context_tokens)} tokens take${values.batch === 1 ? "s" : ""} ${gigabytes(found.used)} of ${gigabytes(found.room)} for KV.` : `${values.batch} requests of ${whole(values.context_tokens)} tokens need ${gigabytes(found.used)}, and ${gigabytes(found.room)} are left for KV.` }),
    tiles([["KV of a token", `${Math.round(found.kv_bytes_per_token).toLocaleString("en-US")} B`, "kv_bytes_per_token", found.kv_bytes_per_token], ["requests that fit", found.most_requests.toLocaleString("en-US"), "most_requests", found.most_requests], ["KV of these requests", gigabytes(found.used), "used", found.used], ["one sequence outweighs the weights from", found.weights_crossing_tokens ? `${compact(found.weights_crossing_tokens)} tokens` : "–", "crossing", found.weights_crossing_tokens]]),
    charts(
      figure("KV memory by length", null, lines({ label: "KV memory over the length of sequences", logX: true, logY: true, x: tokens, y: { label: "bytes, logarithmic", format: bytesTick }, series: [{ name: "one request", x: curve.context, y: curve.one_request }, { name: `${values.batch} requests`, x: curve.context, y: curve.all_requests }], bounds: [{ at: found.room, name: "left for KV", left: true }], marks: [{ at: values.context_tokens, name: "here", color: "var(--text)" }] })),
      figure("Requests that fit by length", null, lines({ label: "Requests that fit over the length of sequences", logX: true, logY: true, x: tokens, y: { label: "requests at once, logarithmic" }, series: [{ name: "requests", x: curve.context, y: curve.most_requests }], bounds: [{ at: values.batch, name: "asked" }] })),
      figure("Memory of one GPU", null, bar("Memory", { weights: found.memory.weights, "KV of these requests": found.memory.kv, "free for KV": Math.max(found.memory.kv_room - found.memory.kv, 0), "runtime and reserve": found.memory.other }, gigabytes, Math.max(found.memory.total, found.memory.weights + found.memory.kv))),
    ),
  ];
}

const kilobytes = (value) => `${number(value / 1000)} kB`;

function attention(found) {
  const rows = found.rows.map((row) => ({ name: row.name, parts: [row.bytes_per_token], chosen: row.name === found.own_name, note: kilobytes(row.bytes_per_token) }));
  return [
    node("h2", { text: `This model uses ${found.own_name}: ${Math.round(found.own).toLocaleString("en-US")} B of KV a token on a GPU.` }),
    charts(figure("KV of a token", "the same model with its heads grouped otherwise", rowBars("KV of a token", rows, kilobytes)), figure("Requests that fit", null, rowBars("Requests that fit", found.rows.map((row) => ({ name: row.name, parts: [row.requests], chosen: row.name === found.own_name, note: number(Math.floor(row.requests)), color: 3 })), number))),
    table(["variant", "KV of a token", "KV of a request", "requests that fit"], found.rows.map((row) => ({ chosen: row.name === found.own_name, cells: [row.name, `${Math.round(row.bytes_per_token).toLocaleString("en-US")} B`, gigabytes(row.bytes_per_request), Math.floor(row.requests).toLocaleString("en-US")] }))),
  ];
}

function batching(found, values) {
  const { static: fixed, continuous } = found.forms;
  return [
    node("h2", { text: `Continuous batching is ${number(found.gain)} times as fast: ${continuous.steps} steps in place of ${fixed.steps}.` }),
    tiles([["idle slots, static", share(fixed.idle), "idle_static", fixed.idle], ["idle slots, continuous", share(continuous.idle), "idle_continuous", continuous.idle], ["tokens a step, static", number(fixed.tokens_per_step), "static", fixed.tokens_per_step], ["tokens a step, continuous", number(continuous.tokens_per_step), "continuous", continuous.tokens_per_step], ["gain", `${number(found.gain)}x`, "gain", found.gain]]),
    ...slotsFilm(found.forms, values.slots),
  ];
}

function paging(found) {
  const ways = { paged: "paged, in blocks", oracle: "reserved: the true length", pow2: "reserved: next power of two", static: "reserved: the longest sequence" };
  const entries = Object.entries(ways).map(([way, name]) => [way, name, found.ways[way]]);
  return [
    node("h2", { text: `Paging serves ${number(found.gain)} times the tokens of reserving the longest sequence.` }),
    tiles([["batch, paged", number(found.ways.paged.mean_batch), "batch_paged", found.ways.paged.mean_batch], ["batch, reserved", number(found.ways.static.mean_batch), "batch_static", found.ways.static.mean_batch], ["wasted, paged", share(found.ways.paged.internal_waste), "waste_paged", found.ways.paged.internal_waste], ["wasted, reserved", share(found.ways.static.internal_waste), "waste_static", found.ways.static.internal_waste]]),
    charts(...entries.filter(([way]) => way === "paged" || way === "static").map(([, name, way]) => figure(`KV memory, ${name}`, "a colour a request; pale: reserved and empty; grey: free", blocks(`${name}: ${way.map.length} requests in KV memory`, way.map, way.capacity_tokens)))),
    table(["allocation", "batch", "output tokens/s", "reserved, empty", "free, too scattered", "preemptions"], entries.map(([way, name, each]) => ({ chosen: way === "paged", cells: [name, number(each.mean_batch), number(each.output_throughput, 4), share(each.internal_waste), share(each.external_waste), number(each.preemptions)] }))),
    node("p", { class: "note", text: "Four runs of the same requests, all queued at once, on one GPU." }),
  ];
}

const MOST_LOSS = 0.05;

function quantization(found, values) {
  const name = (row) => formatName(row.format);
  const rows = found.rows.map((row) => ({ ...row, chosen: row.format === (values.quantization === "auto" ? found.stored : values.quantization) }));
  const chosen = rows.find((row) => row.chosen) ?? rows[0], base = rows[0];
  const quality = (row) => row.loss === null ? "–" : row.loss[0] === row.loss[1] ? `${number(-100 * row.loss[0], 2)}%` : `${number(-100 * row.loss[1], 2)} to ${number(-100 * row.loss[0], 2)}%`;
  // Fewest bits are fastest: what costs much of the published quality is no advice.
  const quickest = rows.filter((row) => row.fits && (row.loss === null || row.loss[1] <= MOST_LOSS)).reduce((best, row) => (row.ms_batch < best.ms_batch ? row : best), chosen);
  const told = chosen === base && quickest !== chosen
    ? `As stored, ${gigabytes(chosen.weights_bytes)} of weights; ${name(quickest)} takes ${gigabytes(quickest.weights_bytes)} and is ${number(chosen.ms_batch / quickest.ms_batch)} times as fast in a batch of ${values.batch}${quickest.loss === null ? "" : ` (published quality: ${quality(quickest)})`}.`
    : `${name(chosen)}: ${gigabytes(chosen.weights_bytes)} of weights, ${number(base.ms_batch / chosen.ms_batch)} times as fast in a batch of ${values.batch}.`;
  return [
    node("h2", { text: told }),
    charts(
      figure("Weights on one GPU", null, rowBars("Weights", rows.map((row) => ({ name: name(row), parts: [row.weights_bytes], chosen: row.chosen, note: gigabytes(row.weights_bytes) })), gigabytes)),
      figure("Milliseconds of a decode step", `batch of ${values.batch}`, rowBars("Step", rows.map((row) => ({ name: name(row), parts: [row.ms_batch], chosen: row.chosen, note: `${number(row.ms_batch)} ms`, color: 2 })), number)),
    ),
    table(["format", "bits", "weights", "requests that fit", "alone, tokens/s", `batch of ${values.batch}, tokens/s`, "published quality", "step times"], rows.map((row) => ({ chosen: row.chosen, cells: [name(row), number(row.bits), gigabytes(row.weights_bytes), row.fits ? Math.floor(row.requests).toLocaleString("en-US") : "does not fit", number(1000 / row.ms_alone), number(row.tokens_per_second), quality(row), row.fidelity] }))),
    node("p", { class: "note", text: "Quality: change of published scores against 16 bit on models of about this size; perplexity counted as its loss." }),
    ...found.refused.slice(0, 3).map((each) => node("p", { class: "note", text: `${each.format}: ${each.why}.` })),
  ];
}

function speculation(found, values) {
  const { closed, engine } = found;
  return [
    node("h2", { text: found.pays_up_to ? `${values.num_speculative_tokens} drafts bring ${number(found.accepted)} tokens a step; they pay up to a batch of ${found.pays_up_to}${found.pays_up_to === engine.batch.at(-1) ? " and beyond" : ""}.` : "Drafts do not pay here at any batch." }),
    tiles([["tokens a cycle", number(found.accepted), "accepted", found.accepted], ["best k, closed form", String(closed.best), "best", closed.best], ["alone, this engine", `${number(engine.speedup[0])}x`, "alone", engine.speedup[0]], [`batch ${engine.batch.at(-1)}`, `${number(engine.speedup.at(-1))}x`, "full", engine.speedup.at(-1)]]),
    charts(
      figure("Speed-up by number of drafts", "closed form, while memory is the bottleneck", lines({ label: "Speed-up over k", x: { label: "drafts a step, k" }, y: { label: "times as fast" }, minX: 1, series: [{ name: "speed-up", x: closed.k, y: closed.speedup }, { name: "tokens a cycle", x: closed.k, y: closed.tokens }], marks: [{ at: values.num_speculative_tokens, name: "here", color: "var(--text)" }] })),
      figure("Speed-up by batch", "this model and GPU, EAGLE drafts; verifying k + 1 tokens costs arithmetic", lines({ label: "Speed-up over the batch", logX: true, x: { label: "sequences in the batch, logarithmic" }, y: { label: "times as fast" }, series: [{ name: "speed-up", x: engine.batch, y: engine.speedup }], bounds: [{ at: 1, name: "no gain", left: true }] })),
    ),
    node("p", { class: "note", text: "Accept a draft while all before it were right; the first wrong one is replaced by the model's own token, so a step always brings one." }),
  ];
}

function parallel(found, values) {
  const rows = found.rows, most = Math.max(...rows.filter((row) => row.fits).map((row) => row.tokens_per_second), 1);
  const names = ["weights", "kv", "compute", "communication", "host"];
  return [
    node("h2", { text: found.best ? `Most tokens a second: ${found.best}; fastest step: ${found.quickest}.` : "No layout fits these GPUs." }),
    charts(
      figure("Milliseconds of a decode step", `${values.batch} sequences a replica`, key(["weights", "KV", "compute", "communication", "host"], "box"), rowBars("Step by layout", rows.map((row) => ({ name: row.layout, parts: names.map((name) => row.step[name]), chosen: row.layout === found.quickest, note: row.fits ? `${number(row.step_ms)} ms` : "does not fit" })), number)),
      figure("Output tokens a second, all replicas", null, rowBars("Tokens a second by layout", rows.map((row) => ({ name: row.layout, parts: [row.fits ? row.tokens_per_second : 0], chosen: row.layout === found.best, note: row.fits ? number(row.tokens_per_second) : "does not fit", color: 3 })), number, { most })),
    ),
    table(["layout", "fits", "weights a GPU", "KV tokens, all", "decode step", `prompt of ${values.prompt_tokens}`, "tokens/s"], rows.map((row) => ({ chosen: row.layout === found.best, cells: [row.layout, row.fits ? "yes" : "no", gigabytes(row.weights_bytes), compact(row.kv_tokens), `${number(row.step_ms)} ms`, `${number(row.prefill_ms)} ms`, row.fits ? number(row.tokens_per_second) : "–"] }))),
    ...found.refused.slice(0, 3).map((each) => node("p", { class: "note", text: `${each.layout}: ${each.why}.` })),
  ];
}

function cost(found, values, set) {
  const { curve, chosen, rows } = found, million = curve.requests.map((value) => value / 1e6);
  const priced = rows.filter((row) => row.usd_per_million !== null), running = rows.filter((row) => row.output_throughput > 0);
  const isChosen = (row) => row.name === chosen.name;
  const pick = (row) => node("input", { type: "radio", name: "chosen", value: row.name, checked: isChosen(row), disabled: Boolean(window.SIMSERVE), "aria-label": `${row.name} against the API`, onchange: () => set("chosen", row.name === found.cheapest ? "" : row.name) });
  const ms = (value) => (value === null ? "–" : `${number(value)} ms`);
  const cells = (row) => row.output_throughput
    ? [row.hardware, String(row.gpus), whole(row.output_throughput), ms(row.ttft_ms), ms(row.tpot_ms), dollars(row.usd_per_hour), dollars(row.usd_per_million_full), dollars(row.usd_per_million), row.fidelity]
    : [row.hardware, "–", "–", "–", "–", "–", "–", "–", row.why_not];
  return [
    node("h2", { text: `Cheapest: ${found.cheapest}, ${dollars(priced[0].usd_per_million)} a million output tokens at ${Math.round(100 * values.utilization)}% use.` }),
    node("p", { text: `${isChosen(priced[0]) ? "Against the API" : `${chosen.name} against the API`}: ${found.answer.charAt(0).toLowerCase()}${found.answer.slice(1)}` }),
    tiles([
      ["a million output tokens", dollars(chosen.usd_per_million), "usd_per_million", chosen.usd_per_million],
      ["output tokens/s a GPU", whole(chosen.tokens_per_second_a_gpu), "rate", chosen.tokens_per_second_a_gpu],
      ["self-hosted, a month", dollars(found.self_host.usd_per_month), "self_host", found.self_host.usd_per_month],
      [`${found.api.name}, a month`, dollars(found.api.usd_per_month), "api", found.api.usd_per_month],
      ["break-even, requests a month", found.break_even ? `${compact(found.break_even)}` : "never", "break_even", found.break_even],
      ["replicas", String(found.replicas), "replicas", found.replicas],
    ]),
    charts(
      figure("Dollars a million output tokens", `at ${Math.round(100 * values.utilization)}% use, cheapest first; ${found.api.name} charges its own price`, rowBars("Dollars a million output tokens", priced.slice(0, 16).map((row) => ({ name: row.name, parts: [row.usd_per_million], chosen: isChosen(row), note: dollars(row.usd_per_million), color: isChosen(row) ? 0 : 5 })), dollars, { start: 190 })),
      figure("Output tokens a second, one replica", `${values.concurrency} requests in flight at all times`, rowBars("Output tokens a second", priced.slice(0, 16).map((row) => ({ name: row.name, parts: [row.output_throughput], chosen: isChosen(row), note: whole(row.output_throughput), color: isChosen(row) ? 3 : 5 })), whole, { start: 190 })),
      figure("Dollars a month", `${chosen.name}; a further replica wherever one is full`, lines({ label: "Dollars a month over requests a month", x: { label: "million requests a month" }, y: { label: "dollars a month", format: (value) => `$${compact(value)}` }, series: [{ name: "self-hosted", x: million, y: curve.self_host }, { name: found.api.name, x: million, y: curve.api }], marks: [{ at: values.requests_per_month / 1e6, name: "this volume", color: "var(--text)" }, ...(found.break_even ? [{ at: found.break_even / 1e6, name: "break-even", row: 1 }] : [])] })),
      figure("Cheap or fast", "each point a framework on a GPU; left and below is better", points({ label: "Dollars a million output tokens over milliseconds a token", x: { label: "median TPOT, ms" }, y: { label: "$ a million output tokens", format: dollars }, points: priced.filter((row) => row.tpot_ms !== null).map((row) => ({ x: row.tpot_ms, y: row.usd_per_million, name: row.name, chosen: isChosen(row) })) })),
    ),
    node("h3", { text: "Every framework on every GPU" }),
    table(["against the API", "framework", "GPU", "GPUs", "tokens/s", "TTFT", "TPOT", "$/hour", "$/M, full", `$/M, ${Math.round(100 * values.utilization)}% used`, "step times"], rows.map((row) => ({ chosen: isChosen(row), cells: [row.usd_per_million === null ? "" : pick(row), row.version ? `${row.framework} ${row.version}` : row.framework, ...cells(row)] })), [true, true, true]),
    node("p", { class: "note", text: `${running.length} runs of the engine, each with ${values.concurrency} requests in flight; TTFT and TPOT are medians. Frameworks keep their own defaults (batch limits, schedulers), which is most of what sets them apart; the profile of each names where its constants are from.` }),
    ...Object.entries(found.parts).map(([title, words]) => node("div", {}, [node("h3", { text: title }), ...words.map((text) => node("p", { class: "note", text }))])),
  ];
}

const LATENCIES = (best) => [["p95 TTFT", `${number(best.p95_ttft_ms)} ms`, "p95_ttft_ms", best.p95_ttft_ms], ["p95 TPOT", `${number(best.p95_tpot_ms)} ms`, "p95_tpot_ms", best.p95_tpot_ms], ["within the SLO", share(best.attainment), "attainment", best.attainment]].filter(([, , , value]) => value !== null);

// Dollars against latency of fleets that hold, or tokens of the GPUs against tokens of a user.
function fleets({ fleets: all, best, objective }) {
  if (objective === "throughput")
    return figure("Many users or fast answers", "each point a deployment at a load that no other beats in both, by short runs; the large one is the answer, by long ones", points({ areAllBest: true, label: "Output tokens a second a GPU over those of a user", x: { label: "tokens/s of a user" }, y: { label: "tokens/s a GPU" }, points: all.map((each) => ({ x: each.tokens_per_second_per_user, y: each.tokens_per_second_per_gpu, name: `${each.label}, ${number(each.rate)}/s${each.holds ? "" : ", beyond the SLO"}`, chosen: each.label === best?.label && each.rate === best.rate })) }));
  return figure("Cheap or fast", "each point a fleet that holds the SLO, and that no other beats in both price and latency", points({ label: "Dollars a month over milliseconds a token", x: { label: "p95 TPOT, ms" }, y: { label: "dollars a month", format: (value) => `$${compact(value)}` }, points: all.filter((each) => each.usd_per_month !== null && each.p95_tpot_ms !== null).map((each) => ({ x: each.p95_tpot_ms, y: each.usd_per_month, name: each.label, chosen: each.label === best?.label })) }));
}

function manifests(all) {
  if (!all?.length) return [];
  return [
    node("h3", { text: "Deploy it" }),
    node("p", { class: "note", text: "What starts this fleet, for each target that can say it; simserve export writes the same, with a benchmark that holds the deployment to what was simulated." }),
    ...[...all].sort((one, other) => Boolean(one.refused) - Boolean(other.refused)).map(({ target, refused, files, notes }) => refused
      ? node("p", { class: "note", text: `${target}: ${refused}` })
      : node("details", { "data-target": target }, [node("summary", { text: `${target}: ${files.map((each) => each.name).join(", ")}` }), ...notes.map((text) => node("p", { class: "note", text })), ...files.map((each) => node("pre", { tabindex: 0, role: "group", "aria-label": `${target}: ${each.name}`, text: each.text }))])),
  ];
}

function wizard(found) {
  const { best } = found;
  const [first, ...others] = found.parts;
  const told = best && (found.objective === "throughput"
    ? [["GPUs", String(best.num_gpus), "num_gpus", best.num_gpus], ["requests a second", number(best.rate), "rate", best.rate], ["tokens a second a GPU", number(best.tokens_per_second_per_gpu), "tokens_per_second_per_gpu", best.tokens_per_second_per_gpu], ["tokens a second a user", number(best.tokens_per_second_per_user), "tokens_per_second_per_user", best.tokens_per_second_per_user]]
    : [["GPUs", String(best.num_gpus), "num_gpus", best.num_gpus], ["replicas", String(best.replicas), "replicas", best.replicas], ...(best.mean_gpus ? [["GPUs on average", number(best.mean_gpus), "mean_gpus", best.mean_gpus]] : []), ["a month", dollars(best.usd_per_month), "usd_per_month", best.usd_per_month]]);
  return [
    node("h2", { class: found.feasible ? "holds" : "missed-answer", text: first.lines[0] }),
    best ? tiles([...told, ...LATENCIES(best)]) : null,
    ...first.lines.slice(1).map((text) => node("p", { text })),
    found.fleets.length > 1 ? charts(fleets(found)) : null,
    ...manifests(found.manifests),
    ...others.flatMap((part) => [part.title ? node("h3", { text: part.title }) : null, ...part.lines.map((text) => node("p", { class: "note", text })), part.rows.length ? table(part.header, part.rows.map((cells) => ({ cells })), part.is_text) : null]),
    node("p", { class: "note", text: `${found.simulations} deployments were simulated; simserve plan tries more of them, and more of their knobs.` }),
  ];
}

function film(found, values) {
  const [own, other] = Object.entries(found.figures), ms = (value) => (value === null ? "–" : value >= 10_000 ? `${number(value / 1000)} s` : `${number(value)} ms`);
  const rows = [["p95 TTFT", "p95_ttft_ms", ms], ["p95 TPOT", "p95_tpot_ms", ms], ["output tokens a second", "output_throughput", whole], ["sequences in a step", "mean_batch", number], ["preemptions", "preemptions", number]];
  return [
    node("h2", { text: found.answer }),
    other
      ? table(["the whole run", own[0], other[0]], rows.map(([label, name, format]) => ({ cells: [label, format(own[1][name]), format(other[1][name])] })))
      : tiles(rows.map(([label, name, format]) => [label, format(own[1][name]), name, own[1][name]])),
    filmBox(found.film),
    node("p", { class: "note", text: `${values.num_requests.toLocaleString("en-US")} requests were run; the film shows the steps around the worst moment. Space plays, the arrow keys go from step to step.` }),
  ];
}

// What the page opens on: a model and a GPU of today.
const TODAY = { model: "qwen3-32b", hardware: "h200-sxm-141gb" };
const LONG_TAIL = [50, 50, 50, 50, 50, 50, 50, 500];

const TABS = [
  { id: "tour", title: "Tour", question: "tour", fields: "tour", draw: drawTour, controls: [{ items: ["stop"] }], lead: "Six stops, from a single token to a fleet. Guess first: simserve then computes the answer, shows it, and hands you the controls." },
  {
    id: "simulator", title: "Serving simulator", question: "simulator", fields: "simulator", compares: true, defaults: { ...TODAY, gpus: 2, rate: 8 }, draw: drawSimulator, ranges: RANGES,
    when: { num_speculative_tokens: "speculative_decoding", acceptance_rate: "speculative_decoding", paged_kv: "kv_cache" },
    lead: "A deployment under traffic, on the engine that simserve run uses. Move anything; compare two configurations; save one as a scenario file.",
    controls: [
      { title: "Traffic", items: ["rate", "prompt_tokens", "output_tokens", "length_cv", "shared_prefix_tokens"] },
      { title: "Deployment", items: ["model", "hardware", "gpus", "tensor_parallel_size", "quantization", "kv_cache_dtype"] },
      { title: "Limits", items: ["max_num_seqs", "max_num_batched_tokens", "max_model_len"] },
      { title: "Optimisations", items: ["continuous_batching", "kv_cache", "paged_kv", "chunked_prefill", "flash_attention", "cuda_graphs", "async_scheduling", "prefix_caching", "speculative_decoding", "num_speculative_tokens", "acceptance_rate"] },
      { title: "SLO and run", items: ["slo_ttft_ms", "slo_tpot_ms", "attainment", "num_requests", "seed"] },
    ],
  },
  {
    id: "film", title: "Film", question: "film", fields: "film", ranges: RANGES, render: film, patience: 250,
    when: { num_speculative_tokens: "speculative_decoding", acceptance_rate: "speculative_decoding", paged_kv: "kv_cache" },
    lead: "A run of the engine, step by step, as it was recorded: who waits, who runs, and what fills the KV memory. Beside it the same requests with one thing changed.",
    controls: [
      { title: "Beside it", items: ["against"] },
      { title: "Traffic", items: ["rate", "prompt_tokens", "output_tokens", "length_cv", "shared_prefix_tokens", "num_requests", "seed"] },
      { title: "Deployment", items: ["model", "hardware", "gpus", "tensor_parallel_size", "pipeline", "quantization", "kv_cache_dtype"] },
      { title: "Limits", items: ["max_num_seqs", "max_num_batched_tokens", "max_model_len"] },
      { title: "Optimisations", items: ["continuous_batching", "kv_cache", "paged_kv", "chunked_prefill", "cuda_graphs", "async_scheduling", "prefix_caching", "speculative_decoding", "num_speculative_tokens", "acceptance_rate"] },
    ],
  },
  { id: "memory-wall", title: "Memory wall", question: "memory-wall", fields: "memory", defaults: TODAY, ranges: RANGES, render: memoryWall, lead: "Every token reads all weights once, and the KV of its sequence. A larger batch shares the weights; every sequence has a KV cache of its own.", controls: [{ title: "Deployment", items: ["model", "billion_parameters", "hardware", "quantization", "kv_cache_dtype"] }, { title: "Step", items: ["batch", "context_tokens"] }] },
  { id: "kv-growth", title: "KV cache", question: "kv-growth", fields: "memory", defaults: TODAY, ranges: RANGES, render: kvGrowth, lead: "Keys and values of every token of every request stay in GPU memory. They grow with length times requests, and what weights leave is all there is.", controls: [{ title: "Deployment", items: ["model", "billion_parameters", "hardware", "quantization", "kv_cache_dtype"] }, { title: "Requests", items: ["batch", "context_tokens"] }] },
  { id: "attention", title: "Attention heads", question: "attention", fields: "memory", defaults: TODAY, ranges: RANGES, render: attention, lead: "Query heads that share keys and values (GQA, MQA), or a compressed latent in their place (MLA), shrink the KV cache.", controls: [{ title: "Deployment", items: ["model", "hardware", "quantization", "kv_cache_dtype"] }, { title: "Requests", items: ["context_tokens"] }] },
  { id: "batching", title: "Batching", question: "batching", fields: "batching", ranges: RANGES, render: batching, lead: "A static batch answers when its longest answer is done. Continuous batching gives a slot to the next request at once.", presets: { lengths: { "7 x 50 + 500": LONG_TAIL, "three times that": [...LONG_TAIL, ...LONG_TAIL, ...LONG_TAIL], "24 x 500": Array(24).fill(500), "24 x 20": Array(24).fill(20) } }, controls: [{ items: ["slots", "lengths"] }] },
  { id: "paging", title: "Paged KV", question: "paging", fields: "paging", defaults: { model: "qwen3-8b", hardware: "l40s-48gb" }, ranges: { ...RANGES, prompt_tokens: { min: 10, max: 2000, log: true }, output_tokens: { min: 10, max: 2000, log: true } }, render: paging, lead: "Reserving the longest sequence for every request leaves most of the reservation empty. Blocks on demand waste only part of the last block.", controls: [{ title: "Deployment", items: ["model", "hardware", "quantization", "max_model_len"] }, { title: "Requests", items: ["prompt_tokens", "output_tokens", "seed"] }] },
  { id: "quantization", title: "Quantisation", question: "quantization", fields: "memory", defaults: TODAY, ranges: RANGES, render: quantization, lead: "Fewer bits a weight: less to hold, less to read. What a step does besides is not shortened, and answers may get worse.", controls: [{ title: "Deployment", items: ["model", "billion_parameters", "hardware", "quantization"] }, { title: "Step", items: ["batch", "context_tokens"] }] },
  { id: "speculation", title: "Speculation", question: "speculation", fields: "speculation", ranges: { ...RANGES, num_speculative_tokens: { min: 1, max: 10 } }, render: speculation, lead: "A small drafter guesses k tokens, the model checks them in one step. It pays while memory bandwidth is the bottleneck; a large batch has no arithmetic to spare.", controls: [{ title: "Deployment", items: ["model", "hardware", "tensor_parallel_size", "quantization"] }, { title: "Drafts", items: ["num_speculative_tokens", "acceptance_rate", "draft_cost", "context_tokens"] }] },
  { id: "parallel", title: "Parallelism", question: "parallel", fields: "parallel", ranges: { ...RANGES, gpus: { options: SIZES }, batch: { min: 1, max: 256, log: true } }, render: parallel, lead: "The same GPUs as replicas, as tensor-parallel ranks that share every layer, or as pipeline stages of consecutive layers.", controls: [{ title: "Deployment", items: ["model", "hardware", "gpus", "quantization", "kv_cache_dtype"] }, { title: "Work", items: ["batch", "context_tokens", "prompt_tokens"] }] },
  {
    id: "cost", title: "Cost", question: "cost", fields: "cost", ranges: RANGES, render: cost, patience: 80,
    lead: "One model under several frameworks on several GPUs, each run on the engine: what a million tokens costs, and from what volume GPUs beat an API.",
    controls: [
      { title: "Work", items: ["model", "quantization", "prompt_tokens", "output_tokens", "concurrency"] },
      { title: "Month", items: ["requests_per_month", "utilization", "operations_usd", "discount", "api"] },
      { title: "Frameworks", items: ["frameworks"] },
      { title: "GPUs", items: ["hardware"] },
    ],
    linked: ["chosen"],
  },
  { id: "wizard", title: "What to deploy", question: "wizard", fields: "wizard", ranges: { ...RANGES, max_gpus: { min: 1, max: 64 }, headroom: { min: 0, max: 1, step: 0.05 }, peak_to_mean: { min: 1, max: 2, step: 0.1 } }, render: wizard, scenario: (found) => found?.scenario, patience: 400, inParts: true, soFar: "So far: without quantised formats. Looking further: formats, what a change would do.", cutShort: "The search took too long and was stopped. Found by then: the best without quantised formats. simserve plan takes its time.", when: { rate: "!throughput", peak_to_mean: "!throughput", headroom: "!throughput" }, lead: "The cheapest fleet that holds the SLO under your traffic, or the most that your GPUs can do within it: found by simserve plan, with fewer choices so that it is quick; and the manifests that deploy it.", controls: [{ title: "Traffic", items: ["model", "rate", "peak_to_mean", "prompt_tokens", "output_tokens"] }, { title: "SLO", items: ["throughput", "slo_ttft_ms", "slo_tpot_ms", "headroom", "spare_replicas"] }, { title: "To choose from", items: ["hardware", "max_gpus", "pools"] }] },
  { id: "twin", title: "Twin", question: "twin", fields: "twin", draw: drawTwin, controls: [], linked: ["hardware", "replicas", "tensor_parallel_size", "quantization", "kv_cache_dtype", "max_num_seqs"], lead: "A running deployment beside its simulation: what was predicted, what was observed, since when they differ, and what the coming hours need." },
];

start(TABS);
