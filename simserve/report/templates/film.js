"use strict";
// Plays what a run recorded: a clock moves over steps, requests and KV memory. Nothing is simulated here.
(() => {
  const KINDS = { queue: ["--grey", "waiting"], prefill: ["--orange", "prompt"], decode: ["--blue", "answering"],
    "link queue": ["--grey", "waiting for the link"], transfer: ["--sky", "KV on its way"], "seat queue": ["--grey", "waiting for a seat"],
    held: ["--line", "done, until its batch ends"], preempted: ["--vermilion", "preempted"], recompute: ["--sky", "computed again"], static: ["--green", "KV memory"] };
  const WAITING = new Set(["queue", "link queue", "transfer", "seat queue", "preempted"]);
  const GAP = 2, STRIP = 132, BAR = 14, PLAYED = 30;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
  const count = (value) => Math.round(value).toLocaleString("en-US");
  const percent = (share) => (100 * share).toFixed(share > 0 && share < .1 ? 1 : 0) + "%";
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

  // The decode steps of a phase that have ended at a time.
  const stepsOf = (lane, request, [, start, end], at) => {
    const from = Math.max(start, 0), to = Math.min(end, at);
    if (to < from) return 0;
    return (start <= 0 ? request.begun : 0) + before(lane.steps, to, 1) - before(lane.steps, from, 1);
  };

  // Tokens that a request has at a time: those it began the film with, and what the steps that ended since brought.
  const tokensAt = (lane, request, at) => {
    let made = request.made, last = "";
    for (const phase of request.phases) {
      const previous = last;
      last = phase[0];
      if (phase[0] !== "decode") continue;
      if (previous !== "preempted" && phase[1] > 0 && at >= phase[1]) made += 1;
      made += Math.floor(request.pace * stepsOf(lane, request, phase, at));
    }
    return Math.min(made, request.output);
  };

  // Drafts of a request that its last step accepted; null: none was verified yet.
  const acceptedBy = (lane, request, phase, at) => {
    const steps = lane.drafts && phase[0] === "decode" ? stepsOf(lane, request, phase, at) : 0;
    if (!steps) return null;
    return Math.floor(request.pace * steps) - Math.floor(request.pace * (steps - 1)) - 1;
  };

  // The steps under way between two times, as places in the list.
  const between = (steps, since, until) => {
    const found = [];
    for (let place = Math.max(before(steps, since), 0); place < steps.length && steps[place][0] < until; place += 1) found.push(place);
    return found;
  };

  // A view of the steps around the clock, some of them wide, in a canvas of its own.
  class Close {
    constructor(lane, name, text, height, steps) {
      Object.assign(this, { lane, height, hits: [] });
      const durations = lane.steps.map((step) => step[1] - step[0]).sort((one, other) => one - other);
      this.span = Math.min(steps * (durations[durations.length >> 1] || lane.film.length), lane.film.length);
      lane.box.appendChild(element("div", "quiet", text));
      this.canvas = lane.box.appendChild(element("canvas", `film-close ${name}`));
      this.canvas.setAttribute("role", "img");
      this.canvas.style.height = height + "px";
    }

    size(ratio) {
      this.width = this.lane.width;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.pen = this.canvas.getContext("2d");
      this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    }

    draw(at) {
      const pen = this.pen, length = this.lane.film.length;
      this.since = Math.min(Math.max(at - this.span / 2, 0), length - this.span);
      this.hits = [];
      pen.clearRect(0, 0, this.width, this.height);
      pen.textBaseline = "middle";
      pen.textAlign = "center";
      this.fill(pen, between(this.lane.steps, this.since, this.since + this.span));
      pen.strokeStyle = colour("--text");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(this.x(at), 0);
      pen.lineTo(this.x(at), this.height);
      pen.stroke();
      const now = this.lane.steps[before(this.lane.steps, at)];
      this.canvas.setAttribute("aria-label", now && at < now[1] ? this.words(before(this.lane.steps, at)) : "no step");
    }

    x(time) { return ((time - this.since) / this.span) * this.width; }

    told(x, y) {
      const hit = this.hits.find(([left, top, width, height]) => x >= left && x < left + width && y >= top && y < top + height);
      return hit ? hit[4] : "";
    }
  }

  // Stages of a pipeline: a row each, a box a micro-batch, and nothing where a stage idles.
  class Stages extends Close {
    constructor(lane) {
      const { layers, idle } = lane.pipeline;
      super(lane, "film-stages", `The ${layers.length} stages of the pipeline around the clock, a row each: a box is a micro-batch, numbered, orange with a prompt; empty is a bubble, in which the stage idles. In these seconds stages idle for ${percent(idle)} of their rounds.`, layers.length * 22 + 2, 6);
      let done = 0;
      this.most = Math.max(...layers);
      this.reached = layers.map((each) => { const here = done; done += each / this.most; return here; });
    }

    words(place) {
      const [, idle, ...groups] = this.lane.pipeline.rounds[place], count = groups.reduce((sum, group) => sum + group[0], 0);
      return `${this.lane.stepText(this.lane.steps[place])}: ${count} micro-batch${count > 1 ? "es" : ""} on ${this.reached.length} stages, which idle for ${percent(idle)} of it`;
    }

    fill(pen, places) {
      const { layers, rounds } = this.lane.pipeline;
      pen.font = "11px system-ui, sans-serif";
      for (const place of places) {
        const [start, end, , prefilling] = this.lane.steps[place], [slots, , ...groups] = rounds[place], slot = (end - start) / slots;
        const batches = groups.flatMap(([count, tokens, share], number) => Array(count).fill([tokens, share, prefilling && !number]));
        for (let stage = 0; stage < layers.length; stage += 1) {
          const top = stage * 22 + 2;
          pen.fillStyle = colour("--panel");
          const left = this.x(start), right = this.x(end);
          pen.fillRect(left, top, right - left, 18);
          this.hits.push([left, top, right - left, 18, `Stage ${stage + 1} idles here. ${this.words(place)}.`]);
          batches.forEach(([tokens, share, hasPrompt], number) => {
            const begin = (number + this.reached[stage]) % slots, width = (share * layers[stage]) / this.most;
            const said = `Stage ${stage + 1} (${count(layers[stage])} layers), micro-batch ${number + 1}: ${count(tokens)} token${tokens > 1 ? "s" : ""}, ${seconds(width * slot)} of a slot of ${seconds(slot)}. ${this.words(place)}.`;
            // What reaches the next round is drawn at the beginning of this one, as in steady flow.
            this.box(pen, start + begin * slot, Math.min(width, slots - begin) * slot, top, hasPrompt, number, said);
            if (begin + width > slots + 1e-6) this.box(pen, start, (begin + width - slots) * slot, top, hasPrompt, number, said);
          });
        }
        pen.strokeStyle = colour("--grey");
        pen.lineWidth = 1;
        pen.strokeRect(this.x(start) + .5, .5, 0, this.height);
      }
    }

    box(pen, start, duration, top, hasPrompt, number, said) {
      const left = this.x(start), width = Math.max(this.x(start + duration) - left, .8);
      pen.fillStyle = colour(hasPrompt ? "--orange" : number % 2 ? "--sky" : "--blue");
      pen.fillRect(left, top, Math.max(width - .6, .6), 18);
      if (width > 16) { pen.fillStyle = hasPrompt || number % 2 ? "#14171c" : "#ffffff"; pen.fillText(String(number + 1), left + width / 2, top + 9.5); }
      this.hits.unshift([left, top, width, 18, said]);
    }
  }

  // Drafts of every step: accepted below, rejected above.
  class Drafts extends Close {
    constructor(lane) {
      const { ahead, accepted } = lane.drafts;
      const drafted = lane.steps.reduce((sum, step) => sum + step[2] * ahead, 0), kept = accepted.reduce((sum, each) => sum + each, 0);
      super(lane, "film-drafts", `Drafts around the clock, a bar a step: accepted in green, rejected above it. Each sequence has ${count(ahead)} verified in a step; of ${count(drafted)} in these seconds ${percent(drafted ? kept / drafted : 0)} were accepted. Each request accepts at the rate that was drawn for it, spread evenly over its steps; its seat shows those of its last step.`, 84, 40);
      this.most = Math.max(1, ...lane.steps.map((step) => step[2] * ahead));
    }

    words(place) {
      const { ahead, accepted } = this.lane.drafts, [, , decoding] = this.lane.steps[place], all = decoding * ahead;
      if (!all) return `${this.lane.stepText(this.lane.steps[place])}: no drafts`;
      return `${count(decoding)} sequence${decoding > 1 ? "s" : ""} verify ${count(all)} drafts: ${count(accepted[place])} accepted, ${count(all - accepted[place])} rejected, ${count(decoding + accepted[place])} tokens gained`;
    }

    fill(pen, places) {
      const { ahead, accepted } = this.lane.drafts, room = this.height - 4;
      for (const place of places) {
        const [start, end, decoding] = this.lane.steps[place], left = this.x(start), width = Math.max(this.x(end) - left - 1, .6);
        const whole = (room * decoding * ahead) / this.most, kept = (room * accepted[place]) / this.most;
        pen.fillStyle = colour("--line");
        pen.fillRect(left, this.height - whole, width, whole - kept);
        pen.strokeStyle = colour("--grey");
        pen.lineWidth = 1;
        if (whole > 1 && width > 3) pen.strokeRect(left + .5, this.height - whole + .5, width - 1, whole - kept - 1);
        pen.fillStyle = colour("--green");
        pen.fillRect(left, this.height - kept, width, kept);
        this.hits.push([left, 0, width + 1, this.height, this.words(place) + "."]);
      }
    }
  }

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
      this.closes = [this.pipeline && new Stages(this), this.drafts && new Drafts(this)].filter(Boolean);
      const told = element("div", "quiet", "Every seat over these seconds, and the engine's steps below: with prompts, or with answers alone.");
      told.appendChild(element("span", "film-hint", " Click to go there."));
      this.box.appendChild(told);
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
      for (const close of this.closes) close.size(ratio);
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
      const accepted = side >= 18 ? acceptedBy(this, request, phase, at) : null;
      if (accepted !== null) {
        // A mark a draft along the seat's foot.
        const step = (side - 2) / this.drafts.ahead;
        for (let draft = 0; draft < this.drafts.ahead; draft += 1) {
          pen.fillStyle = colour(draft < accepted ? "--green" : "--page");
          pen.fillRect(x + 1 + draft * step, y + side - 6, Math.max(step - 1, 1), 5);
        }
      }
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

    draw(at) {
      this.drawStage(at);
      for (const close of this.closes) close.draw(at);
      this.drawStrip(at);
    }

    told(x, y, at) {
      const hit = this.hits.find(([left, top, width, height]) => x >= left && x < left + width && y >= top && y < top + height);
      if (!hit) return "";
      if (!hit[4]) return hit[5];
      return this.about(hit[4], hit[5], at);
    }

    about(request, [name, start, end], at) {
      const doing = (KINDS[name] || [0, name])[1];
      const progress = name === "decode" ? `, token ${count(tokensAt(this, request, at))} of ${count(request.output)}` : "";
      const accepted = acceptedBy(this, request, [name, start, end], at);
      const drafts = accepted === null ? "" : `, ${count(accepted)} of ${count(this.drafts.ahead)} drafts accepted in its last step`;
      const lost = request.preemptions ? `, preempted ${count(request.preemptions)} times` : "";
      return `Request ${request.id}: prompt of ${count(request.prompt)} tokens; ${doing} for ${seconds(Math.max(at - start, 0))}${progress}${drafts}${lost}.`;
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
    const heading = document.querySelector("h2") ? "h3" : "h2";  // alone on its page it stands right below the title
    for (const scene of film.scenes) {
      const box = host.appendChild(element("section", "film-scene"));
      if (film.scenes.length > 1) box.appendChild(element(heading, "", scene.name));
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
      for (const close of lane.closes) {
        close.canvas.addEventListener("pointermove", (event) => show(close.told(...point(close.canvas, event)), event));
        close.canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
      }
      lane.strip.addEventListener("pointermove", (event) => show(lane.toldStrip(...point(lane.strip, event)), event));
      for (const canvas of [lane.stage, lane.strip]) canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
      lane.strip.addEventListener("click", (event) => go((point(lane.strip, event)[0] / lane.width) * film.length));
    }

    // A film that was taken off the page has no width to draw on.
    const layout = () => { if (!host.clientWidth) return; for (const lane of lanes) lane.size(); draw(); };
    new ResizeObserver(layout).observe(host);
    // Paper has colours of its own.
    for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", layout);
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
