// Every view with its headline, its last hours and how fresh it is; above them the pulse of the platform.

import { every, fill, h, say } from "../dom.js";
import { Offline, Problem, get, post } from "../api.js";
import { ago, day, duration, eventsBelow, number } from "../format.js";
import { seconds } from "../query.js";
import { failure } from "../tables.js";
import { errorOf, isProvisional, numbersOf, numeric, shown } from "../values.js";
import { spark } from "../chart.js";

const REFRESH_MS = 2_000;
const AT_ONCE = 10;
const RATE_S = 20;
const DAY = 86_400;

export async function show(main) {
  const pulse = h("dl", { class: "pulse", "aria-label": "Pulse of the platform" });
  const cards = h("div", { class: "cards" });
  const problem = h("div", {});
  const known = new Map(), rate = rates(), alone = new Set();
  fill(main, h("h1", { class: "only-read" }, "Overview"), pulse, problem, cards);

  async function refresh() {
    try {
      const [{ views }, status] = await Promise.all([get("/views"), get("/sources")]);
      drawPulse(pulse, status, rate(status.sources));
      const answers = await answersOf(views.filter((view) => view.version !== null), alone);
      fill(problem);
      if (!views.length) fill(cards, h("p", { class: "empty" }, "There is no view that this key may see. ", h("code", {}, "tidemark views new NAME --dir my_views"), " begins one."));
      const elements = views.map((view) => {
        const card = known.get(view.name) ?? newCard(view);
        known.set(view.name, card);
        card.draw(view, answers.get(view.name));
        return card.element;
      });
      if (elements.length !== cards.children.length || elements.some((each, index) => cards.children[index] !== each)) fill(cards, elements);
    } catch (error) {
      if (!(error instanceof Offline)) fill(problem, failure(error));
    }
  }
  return every(REFRESH_MS, refresh);
}

/** The answers of views by name, or the problem of a view. A view with a problem is asked `alone` from then on, so that
 * the others have their answers. */
async function answersOf(views, alone) {
  const found = new Map(), together = views.filter((view) => !alone.has(view.name));
  const some = Array.from({ length: Math.ceil(together.length / AT_ONCE) }, (_, number) => together.slice(AT_ONCE * number, AT_ONCE * (number + 1)));
  for (const each of [...some, ...views.filter((view) => alone.has(view.name)).map((view) => [view])]) {
    try {
      await ask(each, found);
      each.forEach((view) => alone.delete(view.name));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      for (const view of each) {
        alone.add(view.name);
        await ask([view], found).catch((own) => {
          if (!(own instanceof Problem)) throw own;
          found.set(view.name, { problem: own });
        });
      }
    }
  }
  return found;
}

/** Two queries for each view, all of one source at one cut: the headline, and its periods. A view without recent
 * events shows its newest ones. */
async function ask(views, found) {
  const questions = views.flatMap((view) => {
    const own = seconds(view.grain), range = own >= DAY ? "14d" : "24h", newest = newestOf(view, range);
    const names = numbersOf(view).slice(0, 3);
    const one = { view: view.name, ...(newest ?? { from: `-${range}` }), ...(names.length && { answers: names }) };
    return [one, { ...one, grain: own >= DAY ? "day" : own >= 3_600 ? view.grain : "hour", fill: "zero", explain: true }];
  });
  const { answers } = await post("/query", { questions });
  views.forEach((view, index) => {
    const { from, to } = questions[2 * index];
    found.set(view.name, { total: answers[2 * index], series: answers[2 * index + 1], range: to ? `the ${span(from, to)} until ${day(to)}` : from.slice(1) });
  });
}

// The range at the end of the data, if all of it is older than a range that ends now.
function newestOf(view, range) {
  if (!view.data || Date.parse(view.data.to) > Date.now() - seconds(range) * 1_000) return null;
  const end = Date.parse(view.data.to);
  return { from: new Date(end - seconds(range) * 1_000).toISOString(), to: view.data.to };
}

function span(from, to) {
  return duration((Date.parse(to) - Date.parse(from)) / 1_000);
}

function newCard(view) {
  const headline = h("span", { class: "headline" }), label = h("span", { class: "headline-label" });
  const others = h("p", { class: "others" }), picture = h("div", { class: "card-spark" }), fresh = h("p", { class: "fresh" });
  const element = h("a", { class: "card", href: `#/views/${encodeURIComponent(view.name)}` },
    h("h2", {}, view.name), h("p", { class: "doc" }, view.doc), h("p", { class: "figures" }, headline, " ", label), others, picture, fresh);

  function draw(now, answer) {
    const { freshness } = now;
    element.classList.toggle("is-degraded", freshness.degraded);
    if (!answer) {
      say(headline, "–");
      say(label, "not computed yet: it joins at the next run");
      return fill(fresh, freshness.degraded && freshness.why);
    }
    if (answer.problem) {
      element.classList.add("is-degraded");
      say(headline, "–");
      say(label, "no answer");
      fill(others);
      fill(picture);
      return fill(fresh, h("span", { class: "dot-state bad", "aria-hidden": "true" }), answer.problem.message);
    }
    const [first, ...rest] = numbersOf(now), row = answer.total.rows[0] ?? {};
    const about = (name) => errorOf(now.answers[name]) ? "≈ " : "";
    say(headline, first ? about(first) + shown(row[first]) : number(null));
    say(label, `${first ?? ""} in ${answer.range}`);
    fill(others, rest.slice(0, 2).map((name) => h("span", {}, `${name} `, h("b", {}, about(name) + shown(row[name])))));
    fill(picture, spark(answer.series.rows.map((each) => ({ value: numeric(each[first]), isProvisional: isProvisional(each) })), `${first} in ${answer.range}`));
    fill(fresh, dot(freshness), freshness.degraded ? freshness.why : freshText(freshness));
  }
  return { element, draw };
}

function dot(freshness) {
  const state = freshness.degraded ? "bad" : freshness.lag_s === null || freshness.lag_s > 30 ? "late" : "good";
  return h("span", { class: `dot-state ${state}`, "aria-hidden": "true" });
}

export function freshText(freshness) {
  const speed = freshness.lag_s === null ? "speed layer: not known" : `${duration(freshness.lag_s)} behind Kafka`;
  return `${speed} · ${freshness.run ? `run ${freshness.run}, ${ago(freshness.published)}` : "no run yet"}`;
}

/** Events a second over the last moments, from how far the speed layer has applied all sources. */
export function rates() {
  const samples = [];
  return (sources) => {
    const now = performance.now() / 1_000;
    samples.push([now, sources.reduce((sum, each) => sum + eventsBelow(each.freshness.applied), 0)]);
    while (samples.length > 2 && now - samples[0][0] > RATE_S) samples.shift();
    const [[then, before], [, last]] = [samples[0], samples.at(-1)];
    return now - then < 1 ? null : Math.max(0, (last - before) / (now - then));
  };
}

function drawPulse(pulse, { sources, services }, perSecond) {
  const worst = (name) => sources.reduce((most, { freshness }) => (freshness[name] === null ? most : Math.max(most ?? 0, freshness[name])), null);
  const dead = sources.every((each) => each.archiver === null) ? null : sources.reduce((sum, each) => sum + (each.archiver?.dead_letters ?? 0), 0);
  const problems = [
    ...sources.filter((each) => each.freshness.degraded).map((each) => `${each.name}: degraded`),
    ...sources.filter((each) => each.archiver?.refused).map((each) => `archiver refuses ${each.name}`),
    ...(services ?? []).filter((each) => each.state !== "ready").map((each) => `${each.name}: ${each.state}`),
  ];
  const run = sources.find((each) => each.working);
  const figure = (label, value, note, state = "") => h("div", { class: `figure ${state}` }, h("dt", {}, label), h("dd", {}, value, note && h("small", {}, note)));
  const lag = worst("lag_s");
  fill(pulse,
    figure("events a second", perSecond === null ? "…" : number(Math.round(perSecond * 10) / 10)),
    figure("behind Kafka", duration(lag), worst("lag_events") ? `${number(worst("lag_events"))} events` : null, lag === null || lag > 30 ? "late" : ""),
    figure("last batch run", run ? "under way" : worst("batch_age_s") === null ? "none yet" : `${duration(worst("batch_age_s"))} ago`),
    figure("dead letters", dead === null ? "–" : number(dead), null, dead ? "late" : ""),
    figure("health", problems.length ? `${problems.length} ${problems.length > 1 ? "problems" : "problem"}` : "all ready", problems.join(" · ") || null, problems.length ? "bad" : "good"));
}
