// Pictures of time series. What a run confirmed is solid; what only the speed layer holds is hatched or dashed.

import { announce, fill, h, s } from "./dom.js";
import { short, tick } from "./format.js";

const HEIGHT = 270, LEFT = 52, RIGHT = 12, TOP = 14, BOTTOM = 28;
const SPARK_W = 160, SPARK_H = 40;
let count = 0;

/**
 * A chart to be drawn again and again: {element, draw}. `draw` takes
 * {points: [{iso, value, batch, speed, previous, low, high, bands, isProvisional}], style, label, tz, stepS, describe}.
 * `style`: "bars" where batch and speed add up, else "line". `describe(point)` gives [title, ...lines].
 */
export function chart() {
  const hatch = `hatch-${count += 1}`;
  const picture = s("svg", { class: "picture", "aria-hidden": "true" });
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const element = h("div", { class: "chart", tabindex: "0", role: "img", "aria-label": "Chart", onkeydown: keyed,
    onpointermove: pointed, onpointerleave: () => point(null), onblur: () => point(null) }, picture, tip);
  let data = null, at = null, centers = [];
  new ResizeObserver(() => data && paint()).observe(element);

  function draw(next) {
    data = next;
    element.setAttribute("aria-label", `${next.label}. ${next.points.length} periods. Arrow keys read them.`);
    paint();
  }

  function paint() {
    const width = Math.max(element.clientWidth, 280);
    const { points } = data;
    const top = scale(points);
    const step = (width - LEFT - RIGHT) / Math.max(points.length, 1);
    const x = (index) => LEFT + step * (index + 0.5);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    centers = points.map((_, index) => x(index));
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.setAttribute("height", HEIGHT);
    const marks = { points, x, y, step, top };
    fill(picture, pattern(hatch), axes(marks, width), previous(marks),
      data.style === "bars" ? bars(marks, hatch) : lines(marks),
      at !== null && s("line", { class: "at", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }));
    if (at !== null) describe();
  }

  function axes({ points, x, y, step, top }, width) {
    const levels = [0, 0.25, 0.5, 0.75, 1].map((share) => top * share);
    const apart = Math.max(1, Math.ceil(64 / step));
    return [
      levels.map((level) => s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(level), y2: y(level) })),
      levels.map((level) => s("text", { class: "tick", x: LEFT - 8, y: y(level) + 4, "text-anchor": "end" }, short(level))),
      points.map((each, index) => index % apart === 0 && index + apart / 3 < points.length &&
        s("text", { class: "tick", x: x(index), y: HEIGHT - 8, "text-anchor": "middle" }, tick(each.iso, data.tz, data.stepS))),
    ];
  }

  function point(next) {
    at = next !== null && data?.points.length ? Math.max(0, Math.min(next, data.points.length - 1)) : null;
    tip.hidden = at === null;
    if (data) paint();
  }

  function describe() {
    const lines = data.describe(data.points[at]);
    fill(tip, lines.map((line, index) => h("div", { class: index ? "" : "tip-head" }, line)));
    const half = tip.offsetWidth / 2;
    tip.style.left = `${Math.max(half, Math.min(centers[at], element.clientWidth - half))}px`;
    return lines;
  }

  function pointed(event) {
    if (!centers.length) return;
    const px = event.clientX - element.getBoundingClientRect().left;
    let best = 0;
    centers.forEach((each, index) => { if (Math.abs(each - px) < Math.abs(centers[best] - px)) best = index; });
    if (best !== at) point(best);
  }

  function keyed(event) {
    const last = (data?.points.length ?? 0) - 1;
    const next = { ArrowLeft: (at ?? last + 1) - 1, ArrowRight: (at ?? -1) + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") point(null);
    if (next === undefined) return;
    event.preventDefault();
    point(next);
    if (at !== null) announce(data.describe(data.points[at]).join(". "));
  }

  return { element, draw };
}

function pattern(id) {
  return s("defs", {}, s("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { class: "hatch-ground", width: 6, height: 6 }), s("rect", { class: "hatch-line", width: 2.5, height: 6 })));
}

function bars({ points, x, y, step }, hatch) {
  const wide = Math.max(1, Math.min(step * 0.72, 42));
  const zero = y(0);
  return points.map((each, index) => {
    const left = x(index) - wide / 2;
    const batch = Math.min(y(Math.max(each.batch ?? 0, 0)), zero), whole = Math.min(y(Math.max(each.value ?? 0, 0)), zero);
    return [
      batch < zero && s("rect", { class: "bar batch", x: left, y: batch, width: wide, height: zero - batch, rx: 1.5 }),
      whole < batch && s("rect", { class: "bar speed", x: left, y: whole, width: wide, height: batch - whole, fill: `url(#${hatch})` }),
    ];
  });
}

function lines({ points, x, y }) {
  const bands = points.some((each) => each.bands) ? band(points, x, y, (each) => each.bands) : [];
  const error = points.some((each) => each.low !== undefined) ? band(points, x, y, (each) => [each.low, each.high]) : [];
  const strokes = [];
  for (let index = 1; index < points.length; index += 1) {
    const from = points[index - 1], to = points[index];
    if (from.value === null || to.value === null) continue;
    strokes.push(s("line", { class: to.isProvisional ? "stroke speed" : "stroke batch",
      x1: x(index - 1), y1: y(from.value), x2: x(index), y2: y(to.value) }));
  }
  const dots = points.map((each, index) => each.value !== null && (points.length < 60 || each.isProvisional) &&
    s("circle", { class: each.isProvisional ? "dot speed" : "dot batch", cx: x(index), cy: y(each.value), r: 2.6 }));
  return [error, bands, strokes, dots];
}

// Areas between the numbers of each point, from the lowest to the highest.
function band(points, x, y, of) {
  const depth = Math.max(...points.map((each) => of(each)?.length ?? 0));
  const found = [];
  for (let level = 1; level < depth; level += 1) {
    for (const run of runsOf(points, (each) => of(each)?.[level] !== null && of(each)?.[level] !== undefined)) {
      const up = run.map((index) => `${x(index)},${y(of(points[index])[level])}`);
      const down = run.toReversed().map((index) => `${x(index)},${y(of(points[index])[level - 1])}`);
      found.push(s("polygon", { class: `band band-${level}`, points: [...up, ...down].join(" ") }));
    }
  }
  return found;
}

function runsOf(points, holds) {
  const runs = [];
  points.forEach((each, index) => {
    if (!holds(each)) return;
    const last = runs.at(-1);
    if (last && last.at(-1) === index - 1) last.push(index); else runs.push([index]);
  });
  return runs;
}

function previous({ points, x, y }) {
  return runsOf(points, (each) => typeof each.previous === "number").map((run) =>
    s("polyline", { class: "before", points: run.map((index) => `${x(index)},${y(points[index].previous)}`).join(" ") }));
}

function scale(points) {
  const highest = Math.max(0, ...points.flatMap((each) => [each.value ?? 0, each.previous ?? 0, each.high ?? 0, ...(each.bands ?? [])]));
  if (!highest) return 1;
  const size = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 2.5, 4, 5, 8, 10].map((each) => each * size).find((each) => each >= highest);
}

/** A small picture of points {value, isProvisional}, for a list. */
export function spark(points, label) {
  const highest = Math.max(1e-9, ...points.map((each) => each.value ?? 0));
  const step = SPARK_W / Math.max(points.length, 1);
  const wide = Math.max(step - 1.2, 1);
  return s("svg", { class: "spark", viewBox: `0 0 ${SPARK_W} ${SPARK_H}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    points.map((each, index) => {
      const tall = each.value ? Math.max((each.value / highest) * (SPARK_H - 2), 1.5) : 0.75;
      const kind = each.isProvisional ? "speed" : each.value ? "batch" : "none";
      return s("rect", { class: `bar ${kind}`, x: index * step, y: SPARK_H - tall, width: wide, height: tall });
    }));
}
