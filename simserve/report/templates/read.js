// Reads a chart: a crosshair and one box of words for what is under the pointer, or where the arrow keys went. A plain
// script, for pages that are one file and for simserve explore alike; it knows spots in a chart's own units, no chart.
{
  let box = null;

  const told = (words, x, y) => {
    if (!box) {
      box = document.createElement("div");
      box.className = "tip";
      box.setAttribute("role", "status");
      document.body.append(box);
    }
    box.hidden = !words;
    if (!words) return;
    box.textContent = words;
    box.style.left = `${Math.max(Math.min(x + 14, window.innerWidth - box.offsetWidth - 8), 4)}px`;
    box.style.top = `${Math.max(Math.min(y + 14, window.innerHeight - box.offsetHeight - 8), 4)}px`;
  };

  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("[data-tip], [data-read]");
    if (mark?.dataset.tip) told(mark.dataset.tip, event.clientX, event.clientY);
    else if (!mark && box) told("");
  });
  window.addEventListener("scroll", () => box && told(""), { passive: true });

  const shape = (svg, name, attributes) => {
    const made = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // Lets a chart be read: spots [{x, y, dots: [[x, y, color]], words()}] in its own units; `axis` says by which of them
  // the nearest is found, the room where its lines end. The arrow keys go from one spot to the next.
  const readable = (svg, spots, axis, { left, right, top, bottom }) => {
    if (!spots.length) return svg;
    const cross = shape(svg, "g", { class: "cross" });
    svg.append(cross);
    let here = -1;
    const own = (clientX, clientY) => {
      const size = svg.getBoundingClientRect(), view = svg.viewBox.baseVal, scale = size.width / view.width;
      return { size, scale, view, x: (clientX - size.left) / scale + view.x, y: (clientY - size.top) / scale + view.y };
    };
    const go = (place, clientX, clientY) => {
      here = place;
      const spot = spots[place], { size, scale, view } = own(0, 0);
      cross.replaceChildren(
        ...(axis === "y" ? [] : [shape(svg, "line", { x1: spot.x, x2: spot.x, y1: top, y2: bottom })]),
        ...(axis === "x" ? [] : [shape(svg, "line", { x1: left, x2: right, y1: spot.y, y2: spot.y })]),
        ...(spot.dots ?? []).map(([x, y, color]) => shape(svg, "circle", { cx: x, cy: y, r: 3.5, fill: color })),
      );
      told(spot.words(), clientX ?? size.left + scale * (spot.x - view.x), clientY ?? size.top + scale * ((spot.y ?? top) - view.y));
    };
    const leave = () => { here = -1; cross.replaceChildren(); told(""); };
    svg.setAttribute("tabindex", 0);
    svg.dataset.read = "";
    svg.addEventListener("pointermove", (event) => {
      const { x, y } = own(event.clientX, event.clientY);
      const far = (spot) => (axis === "y" ? 0 : (spot.x - x) ** 2) + (axis === "x" ? 0 : (spot.y - y) ** 2);
      go(spots.reduce((best, spot, place) => (far(spot) < far(spots[best]) ? place : best), 0), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = steps ? Math.min(Math.max(here + steps, 0), spots.length - 1) : { Home: 0, End: spots.length - 1 }[event.key];
      if (event.key === "Escape") leave();
      if (next === undefined) return;
      event.preventDefault();
      go(next);
    });
    return svg;
  };

  // Of a page that is one file: each chart carries its spots.
  for (const svg of document.querySelectorAll("svg[data-spots]")) {
    const { axis, room, spots } = JSON.parse(svg.dataset.spots);
    readable(svg, spots.map(([x, y, words, dots]) => ({ x, y, dots, words: () => words })), axis, room);
  }
  globalThis.reading = { readable };
}
