"use strict";
// Plays what a run recorded: a clock moves over steps, requests and KV memory. Nothing is simulated here.
(() => {
  const KINDS = { queue: ["--grey", "waiting"], prefill: ["--orange", "prompt"], decode: ["--blue", "answering"],
    "link queue": ["--grey", "waiting for the link"], transfer: ["--sky", "KV on its way"], "seat queue": ["--grey", "waiting for a seat"],
    preempted: ["--vermilion", "preempted"], recompute: ["--sky", "computed again"], static: ["--green", "KV memory"] };
  const WAITING = new Set(["queue", "link queue", "transfer", "seat queue", "preempted"]);
  const GAP = 2, STRIP = 132, BAR = 14, PLAYED = 30;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
  const count = (value) => Math.round(value).toLocaleString("en-US");
  const seconds = (value) => (value >= 1 ? value.toFixed(2) + " s" : (value * 1e3).toFixed(1) + " ms");
  const element = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // The last place of a sorted list of [time, ...] whose time is not after `at`; -1: none.
  const before = (rows, at, column = 0) => {
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle][column] <= at) low = middle + 1; else high = middle;
    }
    return low - 1;
  };

  const phaseAt = (request, at) => request.phases.find(([, start, end]) => start <= at && at < end);

  // Tokens that a request has at a time: those it began the film with, and one a step that ended since.
  const tokensAt = (lane, request, at) => {
    let made = request.made, last = "";
    for (const [name, start, end] of request.phases) {
      const previous = last;
      last = name;
      if (name !== "decode") continue;
      if (previous !== "preempted" && start > 0 && at >= start) made += 1;
      const from = Math.max(start, 0), to = Math.min(end, at);
      if (to > from) made += request.pace * (before(lane.steps, to, 1) - before(lane.steps, from, 1));
    }
    return Math.min(Math.round(made), request.output);
  };

  class Lane {
    constructor(data, film, host) {
      Object.assign(this, data);
      this.film = film;
      this.rows = 1 + Math.max(0, ...this.requests.map((each) => each.seat));
      this.mostWaiting = 0;
      this.box = host.appendChild(element("div", "film-lane"));
      this.box.appendChild(element("strong", "", this.name));
      this.now = this.box.appendChild(element("div", "film-now"));
      this.stage = this.box.appendChild(element("canvas", "film-stage"));
      this.box.appendChild(element("div", "quiet", "Every seat over these seconds, and the engine's steps below: with prompts, or with answers alone. Click to go there."));
      this.strip = this.box.appendChild(element("canvas", "film-strip"));
      this.stage.setAttribute("role", "img");
      this.strip.setAttribute("role", "img");
      this.strip.setAttribute("aria-label", `${this.name}: every request over the film, a row a seat`);
      this.hits = [];
    }

    size() {
      const width = this.box.clientWidth, ratio = window.devicePixelRatio || 1;
      const narrow = width < 560;
      this.queueWidth = narrow ? 64 : 132;
      this.kvWidth = narrow ? 76 : 150;
      const seatsWidth = Math.max(width - this.queueWidth - this.kvWidth - 24, 60);
      this.cell = this.rows > 192 ? 12 : this.rows > 64 ? 18 : 26;
      this.columns = Math.max(1, Math.floor(seatsWidth / (this.cell + GAP)));
      const lines = Math.ceil(this.rows / this.columns);
      const stageHeight = Math.max(lines * (this.cell + GAP) + 20, 92);
      for (const [canvas, height] of [[this.stage, stageHeight], [this.strip, STRIP + BAR + 22]]) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        canvas.style.height = height + "px";
        canvas.getContext("2d", { willReadFrequently: canvas === this.strip }).setTransform(ratio, 0, 0, ratio, 0, 0);
      }
      this.width = width;
      this.seatsWidth = seatsWidth;
      this.stageHeight = stageHeight;
      this.background = null;
    }

    x(at) { return (at / this.film.length) * this.width; }

    // The whole film of this lane, drawn once: a row a seat, steps below.
    drawStrip(at) {
      const pen = this.strip.getContext("2d", { willReadFrequently: true }), height = STRIP / this.rows;
      if (!this.background) {
        pen.clearRect(0, 0, this.width, STRIP + BAR + 22);
        pen.fillStyle = colour("--panel");
        pen.fillRect(0, 0, this.width, STRIP);
        for (const request of this.requests) {
          if (request.seat < 0) continue;
          for (const [name, start, end] of request.phases) {
            if (!KINDS[name] || WAITING.has(name)) continue;
            pen.fillStyle = colour(KINDS[name][0]);
            const left = this.x(Math.max(start, 0)), right = this.x(Math.min(end, this.film.length));
            pen.fillRect(left, request.seat * height, Math.max(right - left, .5), Math.max(height - (height > 3 ? 1 : 0), .6));
          }
        }
        for (const [start, end, decoding, prefilling] of this.steps) {
          pen.fillStyle = colour(prefilling ? (decoding ? "--orange" : "--vermilion") : "--blue");
          const left = this.x(Math.max(start, 0)), right = this.x(Math.min(end, this.film.length));
          pen.globalAlpha = prefilling && decoding ? .75 : .9;
          pen.fillRect(left, STRIP + 3, Math.max(right - left - .6, .4), BAR);
        }
        pen.globalAlpha = 1;
        pen.fillStyle = colour("--quiet");
        pen.font = "11px system-ui, sans-serif";
        pen.textBaseline = "top";
        for (let tick = 0; tick <= 4; tick += 1) {
          const time = (this.film.length * tick) / 4;
          pen.textAlign = tick === 0 ? "left" : tick === 4 ? "right" : "center";
          pen.fillText((this.film.start + time).toFixed(this.film.length < 2 ? 2 : 1) + " s", this.x(time), STRIP + BAR + 6);
        }
        this.background = pen.getImageData(0, 0, this.strip.width, this.strip.height);
      } else {
        pen.putImageData(this.background, 0, 0);
      }
      pen.strokeStyle = colour("--text");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(this.x(at), 0);
      pen.lineTo(this.x(at), STRIP + BAR + 4);
      pen.stroke();
    }

    drawStage(at) {
      const pen = this.stage.getContext("2d");
      this.hits = [];
      pen.clearRect(0, 0, this.width, this.stageHeight);
      pen.font = "12px system-ui, sans-serif";
      pen.textBaseline = "top";
      pen.textAlign = "left";
      const label = (text, x) => { pen.fillStyle = colour("--quiet"); pen.fillText(text, x, 0); };
      const seats = [], waiting = [];
      let held = 0;
      for (const request of this.requests) {
        const phase = phaseAt(request, at);
        if (!phase) continue;
        if (WAITING.has(phase[0])) waiting.push([request, phase]);
        else if (request.seat >= 0) { seats.push([request, phase]); held += 1; }
      }
      label(`queue ${count(waiting.length)}`, 0);
      this.drawQueue(pen, waiting);
      const left = this.queueWidth + 12;
      label(`running ${count(held)} of ${count(this.seats)}`, left);
      for (const [request, phase] of seats) this.drawSeat(pen, request, phase, at, left);
      this.drawKv(pen, at, this.width - this.kvWidth, label);
      const step = this.steps[before(this.steps, at)];
      const doing = step && at < step[1] ? this.stepText(step) : "idle";
      this.now.textContent = `${doing}; ${count(held)} running, ${count(waiting.length)} waiting` + (this.hidden ? `; ${count(this.hidden)} more in the queue are not drawn` : "");
      this.stage.setAttribute("aria-label", `${this.name}: ${this.now.textContent}`);
    }

    stepText([start, end, decoding, prefilling, tokens]) {
      const parts = [];
      if (decoding) parts.push(`${count(decoding)} answering`);
      if (prefilling) parts.push(`${count(prefilling)} prompt${prefilling > 1 ? "s" : ""} with ${count(tokens)} tokens`);
      return `step of ${seconds(end - start)}: ${parts.join(" and ") || "no token"}`;
    }

    drawQueue(pen, waiting) {
      const side = 9, across = Math.max(1, Math.floor(this.queueWidth / (side + GAP)));
      const down = Math.max(1, Math.floor((this.stageHeight - 20) / (side + GAP)));
      waiting.slice(0, across * down).forEach(([request, phase], place) => {
        const x = (place % across) * (side + GAP), y = 18 + Math.floor(place / across) * (side + GAP);
        pen.fillStyle = colour(KINDS[phase[0]][0]);
        pen.fillRect(x, y, side, side);
        this.hits.push([x, y, side, side, request, phase]);
      });
    }

    drawSeat(pen, request, phase, at, left) {
      const side = this.cell;
      const x = left + (request.seat % this.columns) * (side + GAP), y = 18 + Math.floor(request.seat / this.columns) * (side + GAP);
      const share = phase[0] === "decode" ? tokensAt(this, request, at) / Math.max(request.output, 1) : 1;
      pen.fillStyle = colour("--panel");
      pen.fillRect(x, y, side, side);
      pen.fillStyle = colour((KINDS[phase[0]] || KINDS.prefill)[0]);
      pen.fillRect(x, y + side * (1 - share), side, side * share);
      pen.strokeStyle = colour("--line");
      pen.lineWidth = 1;
      pen.strokeRect(x + .5, y + .5, side - 1, side - 1);
      this.hits.push([x, y, side, side, request, phase]);
    }

    drawKv(pen, at, left, label) {
      if (!this.kv_tokens) { label("no KV cache", left); return; }
      const row = this.kv[before(this.kv, at)], used = row ? row[1] : 0, share = Math.min(used / this.kv_tokens, 1);
      label(`KV ${(100 * share).toFixed(share < .1 ? 1 : 0)}%`, left);
      const across = Math.floor(this.kvWidth / 9), down = Math.max(3, Math.floor((this.stageHeight - 20) / 9)), cells = across * down;
      for (let place = 0; place < cells; place += 1) {
        pen.fillStyle = place < share * cells ? colour(share > .95 ? "--vermilion" : "--green") : colour("--line");
        pen.fillRect(left + (place % across) * 9, 18 + Math.floor(place / across) * 9, 7, 7);
      }
      this.hits.push([left, 18, this.kvWidth, down * 9, null, `${count(used)} of ${count(this.kv_tokens)} tokens of KV memory reserved; a square is ${count(this.kv_tokens / cells)}`]);
    }

    draw(at) { this.drawStage(at); this.drawStrip(at); }

    told(x, y, at) {
      const hit = this.hits.find(([left, top, width, height]) => x >= left && x < left + width && y >= top && y < top + height);
      if (!hit) return "";
      if (!hit[4]) return hit[5];
      return this.about(hit[4], hit[5], at);
    }

    about(request, [name, start, end], at) {
      const doing = (KINDS[name] || [0, name])[1];
      const progress = name === "decode" ? `, token ${count(tokensAt(this, request, at))} of ${count(request.output)}` : "";
      const lost = request.preemptions ? `, preempted ${count(request.preemptions)} times` : "";
      return `Request ${request.id}: prompt of ${count(request.prompt)} tokens; ${doing} for ${seconds(Math.max(at - start, 0))}${progress}${lost}.`;
    }

    toldStrip(x, y) {
      const at = (x / this.width) * this.film.length;
      if (y > STRIP) {
        const step = this.steps[before(this.steps, at)];
        return step && at < step[1] ? this.stepText(step) : "idle";
      }
      const seat = Math.floor((y / STRIP) * this.rows);
      for (const request of this.requests) {
        if (request.seat !== seat) continue;
        const phase = phaseAt(request, at);
        if (phase && !WAITING.has(phase[0])) return this.about(request, phase, at);
      }
      return "";
    }
  }

  const play = (host) => {
    const film = JSON.parse(host.querySelector("script[type='application/json']").textContent);
    film.length = film.end - film.start;
    let at = 0, playing = false, last = 0, rate = film.length / PLAYED;

    const controls = host.appendChild(element("div", "film-controls"));
    const button = controls.appendChild(element("button", "", "Play"));
    button.type = "button";
    const back = controls.appendChild(element("button", "", "\u2039 step"));
    const forth = controls.appendChild(element("button", "", "step \u203a"));
    const scrubLabel = controls.appendChild(element("label", "film-scrub"));
    const scrub = scrubLabel.appendChild(element("input"));
    Object.assign(scrub, { type: "range", min: 0, max: 1000, step: 1, value: 0 });
    scrub.setAttribute("aria-label", "time");
    const clock = controls.appendChild(element("output"));
    const speedLabel = controls.appendChild(element("label", "", "speed"));
    const speed = speedLabel.appendChild(element("select"));
    for (const factor of [.25, .5, 1, 2, 4]) {
      const choice = speed.appendChild(element("option", "", `${(rate * factor).toPrecision(2)}x`));
      choice.value = factor;
      choice.selected = factor === 1;
    }
    const key = host.appendChild(element("ul", "film-key"));
    const seen = new Set(film.scenes.flatMap((scene) => scene.replicas).flatMap((each) => each.requests).flatMap((each) => each.phases.map((phase) => phase[0])));
    for (const [kind, [name, text]] of Object.entries(KINDS)) {
      if (kind !== "static" && !seen.has(kind)) continue;
      const entry = key.appendChild(element("li"));
      const dot = entry.appendChild(element("i"));
      dot.style.background = `var(${name})`;
      entry.append(text);
    }
    const tip = host.appendChild(element("div", "film-tip"));
    tip.hidden = true;
    tip.setAttribute("role", "status");

    const lanes = [];
    for (const scene of film.scenes) {
      const box = host.appendChild(element("section", "film-scene"));
      if (film.scenes.length > 1) box.appendChild(element("h3", "", scene.name));
      for (const each of scene.replicas) lanes.push(new Lane(each, film, box));
      if (scene.hidden) box.appendChild(element("p", "quiet", `${scene.hidden} more replicas are not shown.`));
    }

    const draw = () => {
      scrub.value = (1000 * at) / film.length;
      clock.textContent = (film.start + at).toFixed(3) + " s";
      scrub.setAttribute("aria-valuetext", clock.textContent);
      for (const lane of lanes) lane.draw(at);
    };
    const go = (to) => { at = Math.min(Math.max(to, 0), film.length); draw(); };
    const frame = (now) => {
      if (!playing || !host.isConnected) return;
      go(at + ((now - last) / 1e3) * rate * Number(speed.value));
      last = now;
      if (at >= film.length) toggle(); else requestAnimationFrame(frame);
    };
    const toggle = () => {
      playing = !playing;
      button.textContent = playing ? "Pause" : "Play";
      if (!playing) return;
      if (at >= film.length) at = 0;
      last = performance.now();
      requestAnimationFrame(frame);
    };
    const edges = [...new Set(lanes.flatMap((lane) => lane.steps.map((step) => step[0])))].filter((time) => time >= 0).sort((a, b) => a - b);
    const jump = (by) => {
      const here = by > 0 ? edges.find((time) => time > at + 1e-9) : edges.filter((time) => time < at - 1e-9).pop();
      if (here !== undefined) go(here);
    };
    button.addEventListener("click", toggle);
    back.addEventListener("click", () => jump(-1));
    forth.addEventListener("click", () => jump(1));
    back.type = forth.type = "button";
    scrub.addEventListener("input", () => go((scrub.value / 1000) * film.length));
    host.addEventListener("keydown", (event) => {
      if (event.target === speed || event.ctrlKey || event.metaKey || event.altKey) return;
      const steps = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (steps && event.target !== scrub) { jump(steps); event.preventDefault(); }
      if (event.key === " " && event.target.tagName !== "BUTTON") { toggle(); event.preventDefault(); }
    });

    const point = (canvas, event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    for (const lane of lanes) {
      const show = (text, event) => {
        tip.hidden = !text;
        tip.textContent = text;
        tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
        tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + "px";
      };
      lane.stage.addEventListener("pointermove", (event) => show(lane.told(...point(lane.stage, event), at), event));
      lane.strip.addEventListener("pointermove", (event) => show(lane.toldStrip(...point(lane.strip, event)), event));
      for (const canvas of [lane.stage, lane.strip]) canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
      lane.strip.addEventListener("click", (event) => go((point(lane.strip, event)[0] / lane.width) * film.length));
    }

    // A film that was taken off the page has no width to draw on.
    const layout = () => { if (!host.clientWidth) return; for (const lane of lanes) lane.size(); draw(); };
    new ResizeObserver(layout).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", layout);
    at = film.length * .6;
    layout();
  };

  const playAll = () => {
    for (const host of document.querySelectorAll(".film")) {
      if (host.dataset.played) continue;
      host.dataset.played = "1";
      play(host);
    }
  };
  // A page that adds a film later says so.
  document.addEventListener("simserve-film", playAll);
  playAll();
})();
