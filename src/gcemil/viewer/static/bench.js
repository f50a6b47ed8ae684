// The bench: sets of patches to the server, predictions and certificate back; files and reviews.
"use strict";

function bench() {
  return page.benches.get(page.slide.bag_id);
}

function change(alter) {
  const now = bench();
  now.undo.push({ S: now.S.slice(), P: now.P.slice() });
  if (now.undo.length > 100) now.undo.shift();
  alter(now);
  rebuild();
  return judge();
}

function undo() {
  const before = bench().undo.pop();
  if (!before) return say("There is nothing to undo.");
  Object.assign(bench(), before);
  rebuild();
  return judge();
}

function mark(patches, mode) {
  const { start, stop } = page.slide;
  return change((now) => {
    if (mode === "new") now.S.fill(0, start, stop);
    for (const patch of patches) now.S[start + patch] = mode === "take" ? 0 : 1;
  });
}

// A region of the model's set is taken whole: it becomes S or, with Shift, joins or leaves it.
function takeRegion(patch, joins) {
  const { regions, S } = bench();
  const at = page.slide.start + patch;
  if (!regions[at]) return say("No region of the model's set lies here.");
  const value = joins && S[at] ? 0 : 1;
  return change((now) => {
    if (!joins) now.S.fill(0);
    regions.forEach((number, i) => { if (number === regions[at]) now.S[i] = value; });
  });
}

function toggle(patch, joins = false) {
  if (patch >= 0 && $("unit").value === "region") return takeRegion(patch, joins);
  if (patch >= 0) return mark([patch], bench().S[page.slide.start + patch] ? "take" : "add");
}

function bits(...sets) {
  const length = Math.ceil(sets[0].length / 8);
  const bytes = new Uint8Array(length * sets.length);
  sets.forEach((set, k) => { for (let i = 0; i < set.length; i++) if (set[i]) bytes[k * length + (i >> 3)] |= 1 << (i & 7); });
  return bytes;
}

function post(path, sets) {
  return ask(path, { method: "POST", body: bits(...sets) });
}

const judge = guarded(async () => {
  const question = ++page.asked;
  document.body.dataset.state = "judging";
  const now = bench();
  const path = `/api/slides/${encodeURIComponent(page.slide.name)}/judge`;
  const answer = await (await post(path, [now.S, now.P])).json();
  if (question !== page.asked) return;
  showAnswer(answer);
  document.body.dataset.state = "ready";
});

function showAnswer(answer) {
  const { n_bag: total } = page.slide;
  $("live-label").textContent = answer.output_name;
  $("live-output").textContent = answer.live ? answer.live.output.toFixed(3) : "nothing is left";
  $("live-output").dataset.output = answer.live ? answer.live.output : "";
  $("live-of").textContent = `of ${answer.n_present} of ${total} patches \u00b7 ${answer.milliseconds.toFixed(0)} ms`;
  $("s-size").textContent = `${answer.n_selected} of ${total} patches${answer.is_evidence ? ": the evidence" : ""}`;
  $("undo").disabled = bench().undo.length === 0;
  for (const id of ["keep", "remove", "accept", "reject", "unmark"]) $(id).disabled = answer.n_selected === 0;
  showPredictions(answer.predictions);
  const empty = [{ held: null, sentence: "No patch is selected: nothing to test" }];
  $("verdicts").replaceChildren(...(answer.verdicts.length ? answer.verdicts : empty).map(({ held, sentence }) => {
    const line = Object.assign(document.createElement("li"), { textContent: sentence, title: sentence });
    line.dataset.held = String(held);
    return line;
  }));
  $("direction").textContent = answer.direction;
  $("coverage-title").textContent = answer.coverage ? "Concepts that the selected patches show" : "\u00a0";
  showCoverage(answer.coverage || []);
}

// Concepts that count for the prediction; the others behind a fold, since patches may resemble what plays no part.
function showCoverage(coverage) {
  const line = ({ index, name }) => {
    const row = document.createElement("div");
    const bar = document.createElement("u");
    const fill = document.createElement("i");
    fill.style.width = `${100 * coverage[index]}%`;
    bar.append(fill);
    row.append(Object.assign(document.createElement("span"), { textContent: name, title: name }), bar,
      Object.assign(document.createElement("b"), { textContent: coverage[index].toFixed(2) }));
    return row;
  };
  const shown = page.slide.anchors.filter(({ index }) => index < coverage.length);
  const others = shown.filter((one) => !one.counts);
  $("coverage").replaceChildren(...shown.filter((one) => one.counts).map(line));
  if (!others.length) return;
  const fold = document.createElement("details");
  fold.append(Object.assign(document.createElement("summary"),
    { textContent: `${count(others.length, "concept")} of little weight in this prediction`,
      title: "A patch may look like several concepts: these are what the patches resemble, not why the class was predicted." }),
  ...others.map(line));
  $("coverage").append(fold);
}

function showPredictions(found) {
  const names = Object.keys(found.full.values);
  const rows = [["all patches", found.full], ["all, gated", found.gated], ["selected alone", found.kept], ["without them", found.removed]];
  const cells = (tag, texts) => {
    const row = document.createElement("tr");
    row.append(...texts.map((text) => Object.assign(document.createElement(tag), { textContent: text, title: text })));
    return row;
  };
  $("predictions").tHead.replaceChildren(cells("th", ["bag", ...names.map((name) => name.replace("prob_", ""))]));
  $("predictions").tBodies[0].replaceChildren(...rows.map(([name, one]) =>
    cells("td", [name, ...names.map((key) => (one ? one.values[key].toFixed(3) : "\u2013"))])));
}

// ---- files and reviews -----------------------------------------------------------------------------------------------

const save = guarded(async (suffix) => {
  const path = `/api/slides/${encodeURIComponent(page.slide.name)}/evidence.${suffix}`;
  const blob = await (await post(path, [bench().S])).blob();
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${page.slide.name}.${suffix}` });
  link.click();
  URL.revokeObjectURL(link.href);
  say(`Saved ${link.download}.`);
});

const review = guarded(async (mark) => {
  const { slide } = page;
  const { S } = bench();
  const marks = slide.marks.slice();
  for (let i = 0; i < slide.n; i++) if (S[slide.start + i]) marks[i] = mark;
  const marked = (wanted) => Array.from(marks.keys()).filter((i) => marks[i] === wanted);
  const body = JSON.stringify({ accepted: marked(ACCEPTED), rejected: marked(REJECTED) });
  await ask(`/api/slides/${encodeURIComponent(slide.name)}/review`, { method: "PUT", body });
  slide.marks = marks;
  page.shown.add("review");
  showLayerChoices();
  await showAgreement();
});

const importMarks = guarded(async (file) => {
  const { slide } = page;
  const found = await (await ask(`/api/slides/${encodeURIComponent(slide.name)}/review.geojson`,
    { method: "PUT", body: await file.text() })).json();
  slide.marks.fill(0);
  for (const i of found.accepted) slide.marks[i] = ACCEPTED;
  for (const i of found.rejected) slide.marks[i] = REJECTED;
  page.shown.add("review");
  showLayerChoices();
  await showAgreement();
  say([`Imported ${count(found.n_imported, "mark")} from ${file.name}.`, ...found.notes.map((note) => `${note}.`)].join(" "));
});

async function showAgreement() {
  const { total, slides, problems } = await (await ask("/api/agreement")).json();
  if (problems.length) say(problems.join(" "), true);
  if (!total.n_marks) { $("agreement").textContent = "No patch of this fold is reviewed yet."; return; }
  const kappa = total.kappa === null ? "" : `, kappa ${total.kappa.toFixed(2)}`;
  $("agreement").textContent = `Agreement ${(100 * total.agreement).toFixed(0)}%${kappa}: ${count(total.n_marks, "mark")} on ` +
    `${count(Object.keys(slides).length, "slide")}; evidence ${total.accepted_evidence} accepted, ${total.rejected_evidence} rejected.`;
}
