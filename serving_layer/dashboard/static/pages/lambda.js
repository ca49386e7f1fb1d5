// The Lambda itself: what a run has confirmed, what the speed layer holds since, and the cut between them, moving.

import { announce, every, fill, h, refill, say } from "../dom.js";
import { Offline, get } from "../api.js";
import { ago, bytes, cut, duration, eventsBelow, moment, number } from "../format.js";
import { choice, failure, table } from "../tables.js";
import { notice } from "../notices.js";
import { rates } from "./overview.js";

const REFRESH_MS = 1_000;
const SHOWN_RUNS = 3;

export async function show(main, { query }) {
  const { sources } = await get("/sources");
  if (!sources.length) {
    fill(main, h("h1", {}, "The Lambda"), h("p", { class: "empty" }, "There is no source that this key may see."));
    return () => {};
  }
  const names = sources.map((each) => each.name);
  const name = names.includes(query.get("source")) ? query.get("source") : names[0];
  const page = {
    problem: h("div", {}), flow: flow(), cuts: h("div", { class: "cuts" }), runs: h("div", {}), generations: h("div", {}),
    timeline: timeline(), state: h("p", { class: "fresh" }),
  };
  fill(main,
    h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "The Lambda"),
      h("p", { class: "doc" }, "A run recomputes everything below its cut. The speed layer keeps what came since. An answer is both, merged: each event once."), page.state),
    names.length > 1 && choice("Source", names, name, (next) => { location.hash = `#/lambda?source=${encodeURIComponent(next)}`; })),
    page.problem, page.flow.element,
    h("section", { class: "panel", "aria-label": "The cut" }, h("h2", {}, "The cut, partition by partition"), page.cuts, cutLegend()),
    h("section", { class: "panel", "aria-label": "Generations" }, h("h2", {}, "Generations of the speed layer"), page.generations),
    h("section", { class: "panel", "aria-label": "Runs" }, h("h2", {}, "Runs"), page.runs),
    page.timeline.element);

  let newest = null;
  const rate = rates(), strips = new Map();
  return every(REFRESH_MS, async () => {
    try {
      const source = await get(`/sources/${encodeURIComponent(name)}`);
      fill(page.problem);
      const last = source.runs[0]?.run ?? 0;
      if (newest !== null && last > newest) published(source.runs);
      page.flow.draw(source, rate([source]), newest !== null && last > newest);
      drawState(page.state, source);
      drawCuts(page.cuts, strips, source);
      drawGenerations(page.generations, source);
      drawRuns(page.runs, source, newest);
      page.timeline.draw(source.runs);
      newest = last;
    } catch (error) {
      if (!(error instanceof Offline)) fill(page.problem, failure(error));
    }
  });
}

function published([run, before]) {
  const moved = eventsBelow(run.cut) - eventsBelow(before?.cut);
  const text = `Run ${run.run} was published: the cut moved by ${number(moved)} events.`;
  notice(text, { kind: "good" });
  announce(text);
}

function drawState(element, source) {
  const { freshness, working } = source;
  fill(element, working ? h("strong", { class: "working" }, `A run is under way for ${ago(working.since).replace(" ago", "")}. `) : "",
    source.failures ? h("strong", { class: "bad-text" }, source.failures.count === 1 ? `The last run failed ${ago(source.failures.at)}. `
      : `${number(source.failures.count)} runs in a row failed, the first ${ago(source.failures.since)}. `, "`tidemark status` says why. ") : "",
    source.pinned && !freshness.frozen ? h("strong", { class: "bad-text" }, `Readers are pinned to run ${source.pinned} by a rollback. `) : "",
    freshness.degraded ? h("strong", { class: "bad-text" }, freshness.why)
      : freshness.run ? `Run ${freshness.run} is served, published ${ago(freshness.published)}.` : "No run yet: every answer comes from the speed layer.");
}

// ---- the way of an event -------------------------------------------------------

function flow() {
  const figure = (title, className, note) => {
    const value = h("b", {}, "…"), more = h("small", {}, note);
    return { element: h("div", { class: `stage ${className}` }, h("span", {}, title), value, more), value, more };
  };
  const kafka = figure("Kafka", "", ""), batch = figure("Batch view", "batch", ""), speed = figure("Speed view", "speed", ""), answer = figure("Answer", "merged", "");
  const element = h("div", { class: "flow", role: "group", "aria-label": "The way of the events" }, kafka.element,
    h("div", { class: "layers" }, batch.element, speed.element), answer.element);

  function draw(source, perSecond, isNew) {
    const { freshness } = source, below = eventsBelow(freshness.cut), applied = freshness.applied ? eventsBelow(freshness.applied) : null;
    say(kafka.value, perSecond === null ? "…" : `${number(Math.round(perSecond * 10) / 10)} /s`);
    say(kafka.more, `${source.archiver ? `${number(source.archiver.rows)} in the master dataset, ${number(source.archiver.dead_letters)} dead letters` : "events a second"}`);
    say(batch.value, number(below));
    say(batch.more, freshness.run ? `events below the cut of run ${freshness.run}` : "no run yet");
    say(speed.value, applied === null ? "away" : number(applied - below));
    say(speed.more, applied === null ? (freshness.frozen ? "left out: a rollback" : "Redis does not answer") : `events since the cut, ${duration(freshness.lag_s)} behind`);
    say(answer.value, number(applied ?? below));
    say(answer.more, freshness.degraded ? "events; degraded" : "events, each once");
    if (isNew) { batch.element.classList.remove("flash"); void batch.element.offsetWidth; batch.element.classList.add("flash"); }
  }
  return { element, draw };
}

// ---- cuts ----------------------------------------------------------------------

function drawCuts(element, strips, source) {
  const served = source.freshness.cut ?? {}, applied = source.freshness.applied ?? served;
  const partitions = Object.keys({ ...served, ...applied }).sort((a, b) => a - b);
  if (!partitions.length) return fill(element, h("p", { class: "empty" }, "No event has come yet."));
  for (const partition of partitions) {
    if (!strips.has(partition)) { strips.set(partition, strip(partition)); }
    strips.get(partition).draw(source, served[partition] ?? 0, applied[partition] ?? 0);
  }
  if (element.children.length !== partitions.length) fill(element, partitions.map((each) => strips.get(each).element));
}

/** One partition as a strip: from a little before the newest runs to what is applied. */
function strip(partition) {
  const earlier = h("span", { class: "earlier" }), batch = h("span", { class: "batch" }), mark = h("span", { class: "mark" }), speed = h("span", { class: "speed" });
  const text = h("span", { class: "strip-text" });
  const ticks = h("div", { class: "ticks", "aria-hidden": "true" });
  const element = h("div", { class: "strip-row" }, h("span", { class: "strip-name" }, `partition ${partition}`),
    h("div", { class: "strip", "aria-hidden": "true" }, earlier, batch, mark, speed, ticks), text);

  function draw(source, cutAt, end) {
    const shown = source.runs.slice(0, SHOWN_RUNS + 1).map((each) => each.cut[partition] ?? 0);
    const begin = source.runs.length > SHOWN_RUNS ? shown.at(-1) : 0;
    const room = begin > 0 ? 6 : 0;  // for what came before
    const whole = Math.max(end - begin, 1), position = (offset) => `${((offset - begin) / whole) * (100 - room) + room}%`;
    earlier.style.width = `${room}%`;
    batch.style.width = `calc(${position(cutAt)} - ${room}%)`;
    mark.style.left = position(cutAt);
    speed.style.width = `calc(${position(Math.max(end, cutAt))} - ${position(cutAt)})`;
    fill(ticks, source.generations.map((each) => {
      const at = each.from[partition] ?? 0;
      if (at < begin) return null;
      const tick = h("i", { title: `generation of run ${each.run}` });
      tick.style.left = position(at);
      return tick;
    }));
    say(text, `cut ${number(cutAt)} · since ${number(Math.max(end - cutAt, 0))}`);
  }
  return { element, draw };
}

function cutLegend() {
  return h("ul", { class: "legend" },
    h("li", {}, h("span", { class: "swatch batch" }), "below the cut: in the batch views"),
    h("li", {}, h("span", { class: "swatch mark" }), "the cut: moves at each publish"),
    h("li", {}, h("span", { class: "swatch speed" }), "since the cut: in the speed views"),
    h("li", {}, h("span", { class: "swatch tick-swatch" }), "where a generation begins"));
}

function drawGenerations(element, source) {
  const published = source.speed?.published_run;
  refill(element, table("Generations of the speed layer", [
    { head: "opened by run", cell: (each) => (each.run ? `run ${each.run}` : "the beginning") },
    { head: "from cut", cell: (each) => h("code", {}, cut(each.from)) },
    { head: "views", isNumber: true, cell: (each) => number(each.views) },
    { head: "what it is for", cell: (each) => role(each, published, source) },
  ], source.generations, { empty: source.speed ? "Redis holds none: it was flushed, or the speed layer has not started yet." : "Redis does not answer." }));
}

function role(each, published, source) {
  if (each.run > published) return source.working ? "will go with the run that is under way" : "of a run that was not published";
  return each.run === published ? "since the cut that is served" : "kept for readers of an older run, then deleted";
}

/** A cell with a bar: how long a row took of the longest. */
function meterOf(rows) {
  const longest = Math.max(1e-9, ...rows.map((each) => each.seconds ?? 0));
  return (each) => {
    const inner = h("span", {});
    inner.style.width = `${((each.seconds ?? 0) / longest) * 100}%`;
    return h("span", { class: "meter", "aria-hidden": "true" }, inner);
  };
}

function drawRuns(element, source, newest) {
  const meter = meterOf(source.runs);
  const rows = source.runs.map((each) => ({ ...each, className: newest !== null && each.run > newest ? "is-new" : each.run === source.freshness.run ? "is-served" : "" }));
  refill(element, table("Runs, the newest first", [
    { head: "run", cell: (each) => h("b", {}, each.run, each.run === source.freshness.run ? h("span", { class: "tag" }, "served") : null) },
    { head: "published", cell: (each) => h("time", { datetime: each.published, title: moment(each.published, "UTC") }, ago(each.published)) },
    { head: "kind", cell: (each) => each.kind ?? "pruned" },
    { head: "took", isNumber: true, cell: (each) => duration(each.seconds) },
    { head: "", className: "share", cell: meter },
    { head: "events", isNumber: true, cell: (each) => number(each.events) },
    { head: "duplicates dropped", isNumber: true, cell: (each) => number(each.duplicates) },
    { head: "invalid", isNumber: true, cell: (each) => number(each.invalid) },
    { head: "groups", isNumber: true, cell: (each) => number(each.rows) },
    { head: "size", isNumber: true, cell: (each) => bytes(each.bytes) },
  ], rows, { empty: ["No run yet. ", h("code", {}, "tidemark batch run"), " makes one; the scheduler makes one every night."] }));
}

// ---- the timeline of a run -----------------------------------------------------

/** What of a run took how long: of the newest one, until another is chosen. */
function timeline() {
  const chooser = h("div", {}), title = h("h2", {}, "Timeline of a run"), phases = h("div", {});
  const element = h("section", { class: "panel", "aria-label": "Timeline" }, h("div", { class: "page-head" }, title, chooser), phases);
  let runs = [], chosen = null, listed = "";

  function draw(now) {
    runs = now.filter((each) => each.timeline?.length);
    const numbers = runs.map((each) => each.run);
    if (!numbers.includes(chosen)) chosen = null;  // the newest one, also when that is another
    if (listed !== `${numbers}`) {  // only then: a list that is open stays so
      listed = `${numbers}`;
      fill(chooser, numbers.length > 1 && choice("Run", numbers, chosen ?? numbers[0], (next) => { chosen = Number(next); drawPhases(); }));
    }
    drawPhases();
  }

  function drawPhases() {
    const run = runs.find((each) => each.run === chosen) ?? runs[0];
    say(title, run ? `Timeline of run ${run.run}` : "Timeline of a run");
    const meter = meterOf(run?.timeline ?? []);
    refill(phases, table("Phases of the run, in their order", [
      { head: "phase", cell: (each) => each.name },
      { head: "took", isNumber: true, cell: (each) => duration(each.seconds) },
      { head: "", className: "share", cell: meter },
      { head: "Spark jobs", isNumber: true, cell: (each) => number(each.jobs) },
    ], run?.timeline ?? [], { empty: "No run that is listed has a timeline." }));
  }
  return { element, draw };
}
