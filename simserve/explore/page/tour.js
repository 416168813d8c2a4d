// The tour: a question, the visitor's prediction, what simserve computes, something that moves, and the way to a tab.

import { bytesTick, dollars, figure, filmBox, key, node, number, player, rowBars, slotsFilm } from "./charts.js";
import { ask, equations, failure, filmsAdded, permalink, say, wait } from "./core.js";

// What was predicted in this visit: stop -> {guess, truth}.
const predicted = new Map();
const NEAR = 1.5;

const grouped = (value) => (value >= 1000 ? Math.round(value).toLocaleString("en-US") : String(+value.toPrecision(3)));
const spoken = (stop, value) => (stop.choices.length ? value : `${grouped(value)} ${stop.unit}`);
const ratio = (guess, truth) => Math.max(guess / truth, truth / guess);
const isNear = (stop, { guess, truth }) => (stop.choices.length ? guess === truth : ratio(guess, truth) <= NEAR);

function verdict(stop, { guess, truth }) {
  if (stop.choices.length) return guess === truth ? `You chose ${guess}, and that is right.` : `You chose ${guess}.`;
  const off = ratio(guess, truth);
  if (off <= 1.1) return `You said ${spoken(stop, guess)}, which is right.`;
  return `You said ${spoken(stop, guess)}: ${off <= NEAR ? "close, but " : ""}${grouped(+off.toPrecision(2))} times too ${guess > truth ? "high" : "low"}.`;
}

// The prediction: options, or a slider over logarithms.
function entry(stop, answered) {
  if (stop.choices.length)
    return stop.choices.map((name) => node("label", { class: "check" }, [node("input", { type: "radio", name: "guess", value: name, required: true, checked: answered?.guess === name }), document.createTextNode(name)]));
  const steps = 200, value = (at) => Number((stop.low * (stop.high / stop.low) ** (at / steps)).toPrecision(2));
  const at = steps * Math.log((answered?.guess ?? stop.start) / stop.low) / Math.log(stop.high / stop.low);
  const slider = node("input", { type: "range", name: "guess", min: 0, max: steps, step: 1, value: at, "aria-label": stop.ask });
  const words = node("output", {});
  const tell = () => { slider.dataset.value = value(Number(slider.value)); words.textContent = spoken(stop, value(Number(slider.value))); slider.setAttribute("aria-valuetext", words.textContent); };
  slider.addEventListener("input", tell);
  tell();
  return [node("div", { class: "guess" }, [slider, words, node("span", { class: "note", text: grouped(stop.low) }), node("span", { class: "note", text: grouped(stop.high) })])];
}

const FORMATS = { ms: (value) => `${number(value)} ms`, bytes: bytesTick, dollars };

function frames({ label, title, note, format, parts, most, mark, frames: all }) {
  const area = node("div"), says = node("p", { class: "says" });
  const highest = most ?? Math.max(...all.flatMap((each) => each.rows.map((row) => row.parts.reduce((sum, part) => sum + part, 0))));
  const start = all[0].rows.length > 1 ? Math.min(190, 12 + 6.2 * Math.max(...all.flatMap((each) => each.rows.map((row) => row.name.length)))) : 66;
  const used = parts.filter((_, place) => all.some((each) => each.rows.some((row) => row.parts[place] > 0)));
  const paint = (place) => {
    const each = all[Math.round(place)];
    // Every chart keeps its scale while it moves; where one frame dwarfs the others, its own.
    const own = Math.max(...each.rows.map((row) => row.parts.reduce((sum, part) => sum + part, 0)));
    area.replaceChildren(rowBars(title, each.rows.map((row) => ({ ...row, parts: row.parts.filter((_, at) => used.includes(parts[at])) })), FORMATS[format], { most: most ?? (format === "dollars" ? own : highest), mark, start, parts: used }));
    says.textContent = each.says;
  };
  return [player({ label, last: all.length - 1, start: 0, name: (at) => all[Math.round(at)].name, paint, seconds: 0.9 * all.length }), says, figure(title, note, used.length > 1 ? key(used, "box") : "", area)];
}

function shown(play) {
  if (play.kind === "slots") return slotsFilm(play.forms, play.slots);
  if (play.kind === "film") return [filmBox(play.film)];
  return frames(play);
}

function tally(stops) {
  const known = stops.filter((stop) => predicted.has(stop.id));
  return [
    node("h3", { text: `${known.filter((stop) => isNear(stop, predicted.get(stop.id))).length} of ${known.length} predictions were right, or within a factor of ${NEAR}.` }),
    node("ul", {}, known.map((stop) => { const { guess, truth } = predicted.get(stop.id); return node("li", { text: `${stop.title}: you said ${spoken(stop, guess)}, it is ${spoken(stop, truth)}.` }); })),
  ];
}

export function drawTour({ tab, panel, state, redraw, link, isCurrent, catalogue, titleOf }) {
  const values = state.values[tab.id], stops = catalogue.stops;
  const place = Math.max(stops.findIndex((each) => each.id === values.stop), 0), stop = stops[place];
  const visit = (id) => { values.stop = id; link(); redraw(); document.querySelector(".tour h2").focus(); };
  link();
  const marks = stops.map((each, at) => node("li", {}, [node("button", { type: "button", "aria-current": at === place ? "step" : null, class: predicted.has(each.id) ? "done" : null, onclick: () => visit(each.id) }, [node("span", { text: String(at + 1) }), document.createTextNode(` ${each.title}`), predicted.has(each.id) ? node("span", { class: "sr", text: ", answered" }) : null])]));
  const reveal = node("div", { class: "answer reveal" });
  // While the visitor thinks, simserve computes.
  const computing = ask(`tour-${stop.id}`, tab.question, { stop: stop.id });
  computing.catch(() => null);

  const show = async (guess, focus) => {
    wait(reveal, true);
    if (!reveal.childElementCount) reveal.append(node("p", { class: "note", text: "simserve is computing…" }));
    try {
      const found = await computing;
      if (!isCurrent()) return;
      predicted.set(stop.id, { guess, truth: found.truth });
      const next = stops[place + 1], isRight = isNear(stop, predicted.get(stop.id));
      marks[place].firstChild.classList.add("done");
      const head = node("h3", { class: isRight ? "holds" : "missed-answer", tabindex: -1, "data-truth": found.truth, text: found.answer });
      reveal.replaceChildren(
        head,
        node("p", { class: "verdict", text: verdict(stop, predicted.get(stop.id)) }),
        ...found.lines.map((line) => node("p", { text: line })),
        node("section", { class: "play", "aria-label": "Play" }, shown(found.play)),
        equations(found.equations),
        node("p", { class: "onward" }, [
          node("a", { class: "yours", href: permalink(stop.tab, stop.values), text: `Now yours: these settings in “${titleOf(stop.tab)}”` }),
          next ? node("button", { type: "button", class: "next", text: `Next: ${next.title}`, onclick: () => visit(next.id) }) : null,
        ]),
        ...(next ? [] : tally(stops)),
      );
      filmsAdded();
      if (focus) head.focus();
      say(found.answer);
    } catch (error) {
      if (error.name === "AbortError" || !isCurrent()) return;
      reveal.replaceChildren(failure(error));
    }
    wait(reveal, false);
    reveal.dataset.done = String(Number(reveal.dataset.done ?? 0) + 1);
  };
  const chosen = (form) => (stop.choices.length ? new FormData(form).get("guess") : Number(form.querySelector("[name=guess]").dataset.value));
  const before = predicted.get(stop.id);
  const form = node("form", { class: "predict", onsubmit: (event) => { event.preventDefault(); show(chosen(event.target), true); } }, [
    node("fieldset", {}, [node("legend", { text: "Your prediction" }), ...entry(stop, before)]),
    node("button", { type: "submit", class: "primary", text: "Show the answer" }),
  ]);
  panel.append(
    node("nav", { "aria-label": "Stops of the tour" }, [node("ol", { class: "stops" }, marks)]),
    node("section", { class: "tour" }, [node("div", { class: "asked" }, [node("p", { class: "note", text: `Stop ${place + 1} of ${stops.length}: ${stop.title}` }), node("p", { class: "setting", text: stop.setting }), node("h2", { tabindex: -1, text: stop.ask }), form]), reveal]),
  );
  if (before) show(before.guess, false);
}
