// Charts as inline SVG: no library, colours by name, every one with a description. They know numbers, no tab.

import "./read.js";

const SVG = "http://www.w3.org/2000/svg";
export const COLORS = ["blue", "vermilion", "orange", "green", "sky", "grey"].map((name) => `var(--${name})`);
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2", ""];
// A drawing is as wide as its place, its letters with it: on a telephone fewer units, so that they can be read.
const IS_NARROW = window.innerWidth < 480;
const W = IS_NARROW ? 330 : 420, H = IS_NARROW ? 220 : 230, LEFT = 62, RIGHT = 12, TOP = 12, BOTTOM = 40;

export function node(name, attributes = {}, children = []) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function download(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/yaml" }));
  node("a", { href: address, download: "explore.yaml" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  const decimals = Math.max(0, digits - 1 - size);
  return value.toLocaleString("en-US", { minimumFractionDigits: Math.min(decimals, 6), maximumFractionDigits: Math.min(decimals, 6) });
}
// Weights as the model's files hold them are `none` in a scenario: no quantisation.
export const formatName = (format) => ({ auto: "as stored", none: "16 bit" })[format] ?? format;
export const share = (value) => (value === null || value === undefined ? "–" : value > 0.9995 && value < 1 ? "99.9%" : `${number(100 * value, value >= 0.1 ? 3 : 2)}%`);
export const gigabytes = (bytes) => (bytes >= 1e12 ? `${number(bytes / 1e12)} TB` : bytes >= 1e9 ? `${number(bytes / 1e9)} GB` : `${number(bytes / 1e6)} MB`);
export const whole = (value) => Math.floor(value).toLocaleString("en-US");
export const bytesTick = (bytes) => (bytes >= 1e12 ? `${+(bytes / 1e12).toPrecision(2)} TB` : bytes >= 1e9 ? `${+(bytes / 1e9).toPrecision(2)} GB` : `${+(bytes / 1e6).toPrecision(2)} MB`);
export const dollars = (value) => (value === null || value === undefined ? "–" : value >= 1000 ? `$${Math.round(value).toLocaleString("en-US")}` : value >= 1 ? `$${value.toFixed(2)}` : `$${number(value)}`);
export const compact = (value) => (Math.abs(value) >= 1e9 ? `${+(value / 1e9).toPrecision(3)}B` : Math.abs(value) >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(3)}`);

function linearTicks(low, high) {
  const raw = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= raw) * power;
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) ticks.push(value);
  return ticks;
}
function logTicks(low, high) {
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
      for (const step of steps) if (step * 10 ** power >= low * 0.999 && step * 10 ** power <= high * 1.001) ticks.push(step * 10 ** power);
    if (ticks.length <= 6) return ticks;
  }
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) all.push(10 ** power);
  return all.filter((value, place) => value >= low && value <= high && place % Math.ceil(all.length / 6) === 0);
}

// ---- what is under the pointer, or where the arrow keys went: as in the reports, within the axes of these charts.

const readable = (svg, spots, axis, room = {}) =>
  globalThis.reading.readable(svg, spots, axis, { left: LEFT, right: W - RIGHT, top: TOP, bottom: H - BOTTOM, ...room });

// What moves: a button that plays, and a slider. `name(at)` says where it stands, `paint(at)` draws it; `at` goes from 0 to `last`.
export function player({ label, last, start, name, paint, step, seconds = 5 }) {
  const slider = node("input", { type: "range", min: 0, max: last, step: step ?? 1, "aria-label": label });
  const words = node("output", {}), button = node("button", { type: "button", text: "Play" });
  let playing = false;
  const go = (at) => {
    slider.value = at;
    slider.setAttribute("aria-valuetext", name(Number(slider.value)));
    words.textContent = name(Number(slider.value));
    paint(Number(slider.value));
  };
  const stop = () => { playing = false; button.textContent = "Play"; };
  slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
  button.addEventListener("click", () => {
    if (playing) { stop(); return; }
    playing = true;
    button.textContent = "Pause";
    const from = Number(slider.value) >= last ? 0 : Number(slider.value), began = performance.now();
    const frame = (now) => {
      if (!playing || !slider.isConnected) return;
      const at = Math.min(from + (last * Math.max(now - began, 0)) / (1000 * seconds), last);
      go(at);
      if (at < last) requestAnimationFrame(frame); else stop();
    };
    requestAnimationFrame(frame);
  });
  go(start ?? last);
  return node("div", { class: "player" }, [button, node("span", { class: "player-name", text: label }), slider, words]);
}

// A film, as simserve.report.film makes it; film.js plays it once it is told that there is one.
export function filmBox(film) {
  const said = `${number(film.end - film.start)} seconds of the run, as it was recorded, around ${film.why}.`;
  return node("div", { class: "film" }, [node("p", { class: "quiet", text: said }), node("script", { type: "application/json", text: JSON.stringify(film) })]);
}

export function figure(title, note, ...parts) {
  return node("figure", {}, [node("figcaption", { text: title }, note ? [node("span", { text: note })] : []), ...parts]);
}

// ---- what stands beside charts: figures in boxes, charts in a row, tables.

export const tiles = (entries) => node("dl", { class: "tiles" }, entries.map(([label, value, name, raw]) => node("div", { "data-key": name }, [node("dt", { text: label }), node("dd", { text: value, "data-value": raw })])));
export const charts = (...figures) => node("div", { class: "charts" }, figures);
// `isText`: the columns of words, flush left; by default the first alone.
export const table = (head, rows, isText = [true]) => node("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `Table: ${head.filter(Boolean).join(", ")}` }, [node("table", {}, [
  node("thead", {}, [node("tr", {}, head.map((text, place) => node(text ? "th" : "td", { scope: text ? "col" : null, class: isText[place] ? "text" : null, text })))]),
  node("tbody", {}, rows.map((row) => node("tr", { class: row.chosen ? "chosen" : null }, row.cells.map((cell, place) => (typeof cell === "string" ? node(place || !cell ? "td" : "th", { scope: place || !cell ? null : "row", class: isText[place] ? (cell.length > 40 ? "text sentence" : "text") : null, text: cell }) : node("td", { class: isText[place] ? "text" : null }, [cell])))))),
])]);

function keyMark(drawn) {
  const mark = shape("svg", { viewBox: "0 0 28 14", "aria-hidden": "true" });
  mark.append(drawn);
  return mark;
}

export function key(names, style = "line") {
  return node("ul", { class: "key" }, names.map((name, place) => node("li", {}, [
    keyMark(style === "line"
      ? shape("line", { x1: 0, x2: 28, y1: 8, y2: 8, stroke: COLORS[place % 6], "stroke-width": 3, "stroke-dasharray": DASHES[place % 6] })
      : shape("rect", { x: 2, y: 1, width: 16, height: 12, fill: COLORS[place % 6] })),
    document.createTextNode(name),
  ])));
}

// series: [{name, x, y, steps}]; x has one more entry than y where steps is set. ghosts: the same, of what one compares with.
// band: {name, x, low, high}, what lies between two lines.
export function lines({ label, series, x, y, logX, logY, maxX, maxY, minX, marks = [], bounds = [], areas, ghosts = [], named, band }) {
  const finite = (values) => values.filter((value) => Number.isFinite(value) && value !== null);
  const drawnFirst = [...ghosts, ...series];
  const xs = finite(drawnFirst.flatMap((each) => each.x).concat(marks.map((each) => each.at)));
  const ys = finite(drawnFirst.flatMap((each) => each.y).concat(bounds.map((each) => each.at), band?.high ?? []));
  if (!xs.length || !ys.length) return node("p", { class: "note", text: "Undefined here." });
  let [x0, x1] = [minX ?? (logX ? Math.min(...xs.filter((value) => value > 0)) : Math.min(0, ...xs)), maxX ?? Math.max(...xs)];
  let [y0, y1] = [logY ? Math.min(...ys.filter((value) => value > 0)) / 1.2 : 0, maxY ?? Math.max(...ys) * (logY ? 1.2 : 1.06)];
  if (!(x1 > x0)) x1 = x0 + (x0 || 1);
  if (!(y1 > y0)) y1 = y0 + 1;
  const px = (value) => LEFT + (W - LEFT - RIGHT) * (logX ? Math.log(value / x0) / Math.log(x1 / x0) : (value - x0) / (x1 - x0));
  const py = (value) => H - BOTTOM - (H - TOP - BOTTOM) * (logY ? Math.log(Math.max(value, y0) / y0) / Math.log(y1 / y0) : (value - y0) / (y1 - y0));
  const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  for (const tick of logY ? logTicks(y0, y1) : linearTicks(y0, y1)) {
    svg.append(shape("line", { class: "gridline", x1: LEFT, x2: W - RIGHT, y1: py(tick), y2: py(tick) }));
    svg.append(shape("text", { x: LEFT - 5, y: py(tick) + 4, "text-anchor": "end" }, (y.format ?? compact)(tick)));
  }
  for (const tick of logX ? logTicks(x0, x1) : linearTicks(x0, x1)) {
    svg.append(shape("line", { class: "gridline", x1: px(tick), x2: px(tick), y1: TOP, y2: H - BOTTOM }));
    svg.append(shape("text", { x: px(tick), y: H - BOTTOM + 15, "text-anchor": "middle" }, (x.format ?? compact)(tick)));
  }
  const pointsOf = (each) => {
    const points = [];
    if (each.steps) each.y.forEach((value, at) => points.push([each.x[at], value], [each.x[at + 1], value]));
    else each.x.forEach((value, at) => points.push([value, each.y[at]]));
    return points.filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b) && b !== null && (!logX || a > 0));
  };
  const pathOf = (drawn) => drawn.map(([a, b], at) => `${at ? "L" : "M"}${px(a).toFixed(1)} ${Math.max(py(b), 0).toFixed(1)}`).join("");
  if (band) {
    const inside = band.x.map((at, place) => [at, band.low[place], band.high[place]]).filter(([, low, high]) => Number.isFinite(low) && Number.isFinite(high) && low !== null && high !== null);
    const edge = [...inside.map(([at, , high]) => [at, high]), ...inside.toReversed().map(([at, low]) => [at, low])];
    if (inside.length) svg.append(shape("path", { d: `${pathOf(edge)}Z`, fill: "var(--grey)", "fill-opacity": 0.28 }));
  }
  for (const each of ghosts) svg.append(shape("path", { d: pathOf(pointsOf(each)), fill: "none", stroke: "var(--grey)", "stroke-width": 1.5, "stroke-dasharray": each.dash ?? null }));
  series.forEach((each, place) => {
    const drawn = pointsOf(each), path = pathOf(drawn);
    const color = each.color ?? COLORS[place % 6];
    if (areas && drawn.length) {
      const base = place ? series[place - 1] : null;
      const back = base
        ? base.x.map((value, at) => [value, base.y[at]]).reverse().map(([a, b]) => `L${px(a).toFixed(1)} ${py(b).toFixed(1)}`).join("")
        : `L${px(drawn.at(-1)[0]).toFixed(1)} ${py(y0)}L${px(drawn[0][0]).toFixed(1)} ${py(y0)}`;
      svg.append(shape("path", { d: `${path}${back}Z`, fill: color, "fill-opacity": 0.85 }));
    } else svg.append(shape("path", { d: path, fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": DASHES[place % 6] || null, "stroke-linejoin": "round" }));
  });
  for (const bound of bounds) {
    svg.append(shape("line", { x1: LEFT, x2: W - RIGHT, y1: py(bound.at), y2: py(bound.at), stroke: "var(--bad)", "stroke-dasharray": "3 3" }));
    svg.append(shape("text", { class: "halo", x: bound.left ? LEFT + 4 : W - RIGHT - 2, y: py(bound.at) - 4, "text-anchor": bound.left ? "start" : "end" }, bound.name));
  }
  for (const mark of marks) {
    if (!(mark.at >= x0 && mark.at <= x1)) continue;
    const left = px(mark.at) > W / 2;
    svg.append(shape("line", { x1: px(mark.at), x2: px(mark.at), y1: TOP, y2: H - BOTTOM, stroke: mark.color ?? "var(--bad)", "stroke-dasharray": "3 3" }));
    svg.append(shape("text", { class: "halo", x: px(mark.at) + (left ? -4 : 4), y: TOP + 9 + 13 * (mark.row ?? 0), "text-anchor": left ? "end" : "start" }, mark.name));
  }
  svg.append(shape("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }), shape("line", { class: "axis", x1: LEFT, x2: LEFT, y1: TOP, y2: H - BOTTOM }));
  svg.append(shape("text", { x: (LEFT + W - RIGHT) / 2, y: H - 6, "text-anchor": "middle" }, x.label));
  svg.append(shape("text", { x: 0, y: 0, transform: `translate(11 ${(TOP + H - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.label));
  const plain = (words) => words.replace(", logarithmic", "");
  const rows = series.map((each, place) => ({ ...each, color: each.color ?? COLORS[place % 6], points: pointsOf(each) })).filter((each) => each.points.length);
  const places = [...new Set(rows.flatMap((each) => each.points.map(([a]) => a)))].filter((a) => a >= x0 && a <= x1).sort((a, b) => a - b);
  // Of a line of steps the last one that began; of any other the nearest point.
  const valueAt = (each, at) => {
    if (each.steps) return each.points.findLast(([a]) => a <= at)?.[1];
    return each.points.reduce((best, one) => (Math.abs(px(one[0]) - px(at)) < Math.abs(px(best[0]) - px(at)) ? one : best))[1];
  };
  readable(svg, places.map((at) => ({
    x: px(at), y: TOP,
    dots: rows.map((each) => [px(at), py(valueAt(each, at) ?? 0), each.color]),
    words: () => {
      const values = rows.map((each) => valueAt(each, at));
      const own = areas ? values.map((value, place) => value - (values[place - 1] ?? 0)) : values;
      return [`${plain(x.label)}: ${(x.format ?? compact)(at)}`, ...rows.map((each, place) => `${each.name}: ${own[place] === undefined ? "–" : (y.format ?? number)(own[place])}`)].join("\n");
    },
  })), "x");
  const names = key(series.map((each) => each.name), areas ? "box" : "line");
  if (ghosts.length) names.append(node("li", {}, [keyMark(shape("line", { x1: 0, x2: 28, y1: 8, y2: 8, stroke: "var(--grey)", "stroke-width": 2 })), document.createTextNode(ghosts[0].name)]));
  if (band) names.append(node("li", {}, [keyMark(shape("rect", { x: 2, y: 1, width: 16, height: 12, fill: "var(--grey)", "fill-opacity": 0.28 })), document.createTextNode(band.name)]));
  return node("div", {}, [named || band || series.length > 1 || ghosts.length ? names : null, svg]);
}

// points: [{x, y, name, chosen}], both axes from 0; names on hover, and of those that nothing beats in both (smaller is
// better). areAllBest: nothing beats any of them, whatever is better; then the chosen one alone is named.
export function points({ label, points: all, x, y, areAllBest }) {
  if (!all.length) return node("p", { class: "note", text: "Undefined here." });
  const [x1, y1] = [1.12 * Math.max(...all.map((each) => each.x)), 1.12 * Math.max(...all.map((each) => each.y))];
  const px = (value) => LEFT + ((W - LEFT - RIGHT) * value) / x1, py = (value) => H - BOTTOM - ((H - TOP - BOTTOM) * value) / y1;
  const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${label}: ${all.map((each) => `${each.name} ${number(each.x)}, ${number(each.y)}`).join("; ")}` });
  for (const tick of linearTicks(0, y1)) {
    svg.append(shape("line", { class: "gridline", x1: LEFT, x2: W - RIGHT, y1: py(tick), y2: py(tick) }));
    svg.append(shape("text", { x: LEFT - 5, y: py(tick) + 4, "text-anchor": "end" }, (y.format ?? compact)(tick)));
  }
  for (const tick of linearTicks(0, x1)) svg.append(shape("text", { x: px(tick), y: H - BOTTOM + 15, "text-anchor": "middle" }, compact(tick)));
  const front = areAllBest ? all : all.filter((each) => !all.some((other) => other !== each && other.x <= each.x && other.y <= each.y));
  for (const each of all) {
    svg.append(shape("circle", { cx: px(each.x), cy: py(each.y), r: each.chosen ? 6 : 4, fill: front.includes(each) ? COLORS[0] : COLORS[5], stroke: each.chosen ? "var(--text)" : "none", "stroke-width": 1.5 }));
  }
  // The chosen one is named first; of names that would lie on another, the later stay for the pointer alone.
  const placed = [];
  const covers = (from, to, y) => all.some((other) => px(other.x) > from && px(other.x) < to && Math.abs(py(other.y) - y + 4) < 8);
  for (const each of [...new Set([...all.filter((one) => one.chosen), ...(areAllBest ? [] : front)])]) {
    const wide = 6.4 * each.name.length, left = px(each.x) > W / 2 && px(each.x) - 9 - wide > LEFT, at = px(each.x) + (left ? -9 - wide : 9);
    const spot = [py(each.y) + 4, py(each.y) - 10, py(each.y) + 18].find((y) => y > TOP && y < H - BOTTOM && !covers(at, at + wide, y) && !placed.some((other) => Math.abs(other.y - y) < 12 && at < other.to && other.from < at + wide));
    if (spot === undefined) continue;
    placed.push({ y: spot, from: at, to: at + wide });
    svg.append(shape("text", { class: "halo", x: px(each.x) + (left ? -9 : 9), y: spot, "text-anchor": left ? "end" : "start" }, each.name));
  }
  svg.append(shape("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }), shape("line", { class: "axis", x1: LEFT, x2: LEFT, y1: TOP, y2: H - BOTTOM }));
  svg.append(shape("text", { x: (LEFT + W - RIGHT) / 2, y: H - 6, "text-anchor": "middle" }, x.label));
  svg.append(shape("text", { x: 0, y: 0, transform: `translate(11 ${(TOP + H - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.label));
  const spots = [...all].sort((one, other) => one.x - other.x).map((each) => ({ x: px(each.x), y: py(each.y), words: () => `${each.name}\n${x.label}: ${number(each.x)}\n${y.label}: ${(y.format ?? number)(each.y)}` }));
  return readable(svg, spots, "both");
}

// One bar of parts: {name: value}; the rest up to `most` stays empty.
export function bar(label, parts, format, most) {
  const shown = Object.entries(parts).filter(([, value]) => value > 0);
  const total = most ?? shown.reduce((sum, [, value]) => sum + value, 0);
  const svg = shape("svg", { viewBox: `0 0 ${W} 34`, role: "img", "aria-label": `${label}: ${shown.map(([name, value]) => `${name} ${format(value)}`).join(", ")}` });
  let at = 0;
  const spots = [];
  svg.append(shape("rect", { x: 0.5, y: 3.5, width: W - 1, height: 26, fill: "none", stroke: "var(--line)" }));
  shown.forEach(([name, value], place) => {
    const width = (Math.min(value, total - at) / total) * W;
    svg.append(shape("rect", { x: (at / total) * W, y: 3, width: Math.max(width, 0), height: 27, fill: COLORS[place % 6] }));
    spots.push({ x: (at / total) * W + width / 2, y: 16, words: () => `${name}: ${format(value)}${total > value ? `, ${share(value / total)}` : ""}` });
    at += value;
  });
  readable(svg, spots, "x", { top: 3, bottom: 30 });
  const names = key(shown.map(([name, value]) => `${name} ${format(value)}`), "box");
  return node("div", {}, [svg, names]);
}

// Horizontal bars: rows of {name, parts: [values], note}.
export function rowBars(label, rows, format, { most, mark, start = 118, parts = [] } = {}) {
  const height = 24 * rows.length + 6;
  const top = most ?? Math.max(...rows.map((row) => row.parts.reduce((sum, value) => sum + value, 0)), 1e-12);
  const room = W - start - 72;
  const svg = shape("svg", { viewBox: `0 0 ${W} ${height}`, role: "img", "aria-label": `${label}: ${rows.map((row) => `${row.name} ${format(row.parts.reduce((sum, value) => sum + value, 0))}`).join(", ")}` });
  rows.forEach((row, line) => {
    const y = 24 * line + 4;
    svg.append(shape("text", { x: start - 6, y: y + 13, "text-anchor": "end", "font-weight": row.chosen ? 700 : 400 }, row.name));
    let at = 0;
    row.parts.forEach((value, place) => {
      const from = Math.min(at / top, 1), to = Math.min((at + value) / top, 1);
      svg.append(shape("rect", { x: start + from * room, y, width: Math.max((to - from) * room, 0), height: 17, fill: COLORS[(row.color ?? place) % 6] }));
      at += value;
    });
    svg.append(shape("text", { x: start + Math.min((at / top) * room, room) + 5, y: y + 13 }, row.note ?? format(at)));
  });
  if (mark) svg.append(shape("line", { x1: start + (mark / top) * room, x2: start + (mark / top) * room, y1: 0, y2: height, stroke: "var(--bad)", "stroke-dasharray": "3 3" }));
  const wordsOf = (row) => [`${row.name}: ${row.note ?? format(row.parts.reduce((sum, value) => sum + value, 0))}`, ...(row.parts.length > 1 ? row.parts.map((value, place) => value > 0 && parts[place] && `${parts[place]}: ${format(value)}`).filter(Boolean) : [])].join("\n");
  return readable(svg, rows.map((row, line) => ({ x: start, y: 24 * line + 13, words: () => wordsOf(row) })), "y", { left: start, right: W });
}

// Slots over steps: spans [slot, start, working until, held until, request].
export function slots(label, spans, count, steps, most, now) {
  const wide = 900, row = Math.max(9, Math.min(22, 240 / count));
  const height = row * count + 2;
  const px = (step) => (step / most) * (wide - 4) + 2;
  const svg = shape("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": label });
  for (let slot = 0; slot < count; slot += 1) svg.append(shape("rect", { x: 2, y: slot * row + 1, width: Math.max(px(Math.min(steps, now)) - 2, 0), height: row - 2, fill: "var(--grid)" }));
  for (const [slot, start, working, held, request] of spans) {
    if (start >= now) continue;
    const end = Math.min(working, now);
    svg.append(shape("rect", { x: px(start), y: slot * row + 1, width: Math.max(px(end) - px(start) - 0.6, 0.5), height: row - 2, fill: COLORS[request % 5], "data-tip": `request ${request + 1}: ${working - start} tokens, steps ${start} to ${working}${held > working ? `; its slot is held until ${held}` : ""}` }));
    if (held > working && now > working)
      svg.append(shape("rect", { x: px(working), y: slot * row + 1, width: Math.max(px(Math.min(held, now)) - px(working), 0), height: row - 2, fill: "none", stroke: "var(--bad)", "stroke-width": 0.7, "stroke-dasharray": "2 2" }));
  }
  // As text of the page, since the drawing is scaled down on a narrow screen.
  return node("div", {}, [svg, node("p", { class: "span", style: null }, [node("span", { text: "step 0" }), node("span", { text: `${steps} of ${most} steps` })])]);
}

// KV memory as cells: each request's reserved tokens, of which held ones are full.
export function blocks(label, requests, capacity) {
  const columns = 60, rows = 16, cells = columns * rows, size = W / columns;
  const svg = shape("svg", { viewBox: `0 0 ${W} ${rows * size + 2}`, role: "img", "aria-label": label });
  let token = 0;
  const fill = new Array(cells).fill(null);
  const owner = new Array(cells).fill(null);
  requests.forEach(([reserved, held], place) => {
    const from = Math.floor((token / capacity) * cells), full = Math.floor(((token + held) / capacity) * cells);
    token += reserved;
    const to = Math.max(Math.floor((token / capacity) * cells), from);
    for (let cell = from; cell < Math.min(Math.max(to, full), cells); cell += 1) [fill[cell], owner[cell]] = [[COLORS[place % 5], cell < full], `request ${place + 1}: ${held.toLocaleString("en-US")} tokens held, ${reserved.toLocaleString("en-US")} reserved`];
  });
  fill.forEach((found, cell) => {
    const [x, y] = [(cell % columns) * size, Math.floor(cell / columns) * size];
    svg.append(shape("rect", { x: x + 0.4, y: y + 0.4, width: size - 0.8, height: size - 0.8, fill: found ? found[0] : "var(--grid)", "fill-opacity": found && !found[1] ? 0.22 : 1, "data-tip": owner[cell] ?? "free" }));
  });
  return svg;
}

// Both forms of batching slot by slot, on one clock.
export function slotsFilm({ static: fixed, continuous }, count) {
  const most = Math.max(fixed.steps, continuous.steps), areas = [node("div"), node("div")];
  const paint = (now) => {
    areas[0].replaceChildren(slots(`Static batching: ${fixed.steps} steps, ${share(fixed.idle)} of the slots idle`, fixed.spans, count, fixed.steps, most, now));
    areas[1].replaceChildren(slots(`Continuous batching: ${continuous.steps} steps, ${share(continuous.idle)} of the slots idle`, continuous.spans, count, continuous.steps, most, now));
  };
  return [
    player({ label: "Step", last: most, name: (at) => `step ${Math.round(at).toLocaleString("en-US")} of ${most.toLocaleString("en-US")}`, paint }),
    figure("Static: a batch waits for its longest", "a row a slot, a colour a request; dashed: done, and the slot is held until the batch ends", areas[0]),
    figure("Continuous: the next request takes a slot as soon as it is free", null, areas[1]),
  ];
}
