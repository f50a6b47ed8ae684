// The page: one slide, its layers, and the bench. S is the set under test, P the patches present; both are bytes over the bag.
"use strict";

const COLORS = { S: "#e6a000", evidence: "#a50ff0", none: "#788691", truth: "#1b1b1b", accepted: "#1b6e3a", rejected: "#b3261e" };
const SUBSET_COLORS = ["#1f77b4", "#e6a000", "#4b2a7b"];
const ACCEPTED = 1;
const REJECTED = 2;
const $ = (id) => document.getElementById(id);
const page = { slide: null, benches: new Map(), shown: new Set(["S", "evidence", "truth"]), heat: "attention", lasso: null, asked: 0 };

const picture = OpenSeadragon({
  element: $("picture"), showNavigationControl: false, drawer: "canvas", animationTime: 0.3, visibilityRatio: 0.3,
  maxZoomPixelRatio: 4, gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true }, keyboardNavEnabled: false,
});

async function ask(path, options) {
  const answer = await fetch(path, options);
  if (answer.ok) return answer;
  const text = await answer.text();
  let why = text;
  try { why = JSON.parse(text).error; } catch { /* the guard answers in plain text */ }
  throw new Error(why);
}

function say(text, isProblem = false) {
  $("message").textContent = text || "\u00a0";
  $("message").classList.toggle("problem", isProblem);
}

function guarded(action) {
  return async (...given) => {
    try { await action(...given); } catch (error) { say(error.message, true); document.body.dataset.state = "ready"; }
  };
}

// ---- opening -------------------------------------------------------------------------------------------------------

const start = guarded(async () => {
  const run = await (await ask("/api/slides")).json();
  $("run").textContent = `${run.run} \u00b7 fold ${run.fold} \u00b7 ${run.host}${run.wrapped ? " + GCE" : ""}`;
  $("slide").replaceChildren(...run.slides.map((name) => new Option(run.labels[name] || name, name)));
  page.rows = run.rows;
  listSlides();
  $("claim").hidden = run.claim.length === 0;
  $("claim-text").replaceChildren(...run.claim.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
  await open(run.first || run.slides[0]);
});

async function open(name) {
  document.body.dataset.state = "loading";
  const about = await (await ask(`/api/slides/${encodeURIComponent(name)}`)).json();
  const bytes = await (await ask(`/api/slides/${encodeURIComponent(name)}/patches`)).arrayBuffer();
  const n = about.stop - about.start;
  const values = {};
  about.layers.forEach((layer, i) => { values[layer.key] = new Float32Array(bytes, 8 * n + 4 * n * i, n); });
  const map = new PatchMap(new Int32Array(bytes, 0, 2 * n), about.patch_size);
  const marks = new Uint8Array(n);
  for (const { patch, mark } of about.marks) marks[patch] = mark === "accept" ? ACCEPTED : REJECTED;
  page.slide = { ...about, name, n, values, map, marks, subsets: null, shares: {} };
  // Slides of one case share a bag, so they share S, P and what can be undone.
  if (!page.benches.has(about.bag_id)) page.benches.set(about.bag_id, newBench(about));
  $("slide").value = name;
  showFacts(name);
  document.body.dataset.slide = name;
  $("note").textContent = about.note || "";
  $("note").title = about.note || "";
  $("verdict").textContent = about.verdict && about.verdict !== "not checked" ? `The evidence of this slide: ${about.verdict}.` : "";
  $("verdict").classList.toggle("none", about.is_no_evidence);
  $("compared").hidden = about.predictions.length === 0;
  $("compared-list").replaceChildren(...about.predictions.map((text) =>
    Object.assign(document.createElement("li"), { textContent: text })));
  showLayerChoices();
  showPicture(about);
  await Promise.all([judge(), showAgreement()]);
  if (about.marks_problem) say(about.marks_problem, true);
}

// What is known of a slide before it is opened; a prediction that is wrong is red.
function showFacts(name) {
  const { patient, label, prediction } = page.rows.find((row) => row.slide === name);
  const facts = [label && `label ${label}`, prediction && `predicted ${prediction}`, patient !== name && `patient ${patient}`];
  $("facts").textContent = facts.filter(Boolean).join(" \u00b7 ");
  listSlides();
}

function listSlides() {
  const words = $("find").value.toLowerCase().split(/\s+/);
  const rows = page.rows.filter((row) => words.every((word) => Object.values(row).join(" ").toLowerCase().includes(word)));
  $("found").textContent = `${rows.length} of ${count(page.rows.length, "slide")}`;
  $("slides").tBodies[0].replaceChildren(...rows.map((row) => {
    const line = document.createElement("tr");
    const name = document.createElement("td");
    name.append(Object.assign(document.createElement("button"), { type: "button", textContent: row.slide }));
    const cells = ["patient", "label", "prediction", "verdict"].map((key) => Object.assign(document.createElement("td"), { textContent: row[key] }));
    cells[2].classList.toggle("wrong", Boolean(row.prediction && row.label && row.prediction !== row.label));
    line.append(name, ...cells);
    line.setAttribute("aria-current", String(page.slide !== null && row.slide === page.slide.name));
    line.addEventListener("click", () => { showPanel("slides-panel", false); openChosen(row.slide); });
    return line;
  }));
}

function newBench(about) {
  const chosen = new Uint8Array(about.n_bag);
  const regions = new Uint32Array(about.n_bag);
  about.chosen.forEach((i, k) => { chosen[i] = 1; regions[i] = about.regions[k] || 0; });
  return { chosen, regions, S: chosen.slice(), P: new Uint8Array(about.n_bag).fill(1), undo: [] };
}

function showPicture({ frame, slide_id: id }) {
  picture.open({
    width: frame.width, height: frame.height, tileSize: 256, tileOverlap: 0,
    minLevel: frame.min_level, maxLevel: frame.max_level,
    getTileUrl: (level, x, y) => `/api/slides/${encodeURIComponent(id)}/tiles/${level}/${x}_${y}`,
  });
}

function move(step) {
  const list = $("slide");
  const next = list.selectedIndex + step;
  if (next >= 0 && next < list.length) openChosen(list.options[next].value);
}
const openChosen = guarded(open);

// ---- layers --------------------------------------------------------------------------------------------------------

function showLayerChoices() {
  const { layers } = page.slide;
  const heats = layers.filter((layer) => layer.kind === "heat");
  if (!heats.some((layer) => layer.key === page.heat)) page.heat = "attention";
  const none = { key: "none", label: "none" };
  $("heat").replaceChildren(...[none, ...heats].map((layer) => choice("radio", "heat", layer, page.heat === layer.key)));
  const sets = [{ key: "S", label: "selected patches, under test" }, ...layers.filter((layer) => layer.kind === "set"),
    { key: "subsets", label: "disjoint subsets" }, { key: "review", label: "review marks" }];
  $("sets").replaceChildren(...sets.map((set) => choice("checkbox", "sets", set, page.shown.has(set.key))));
  rebuild();
}

function choice(type, name, { key, label }, checked) {
  const line = document.createElement("label");
  const input = Object.assign(document.createElement("input"), { type, name, value: key, checked });
  line.append(input);
  if (type === "checkbox") {
    const swatch = document.createElement("i");
    swatch.className = "swatch";
    swatch.style.borderColor = setColor(key) || (key === "review" ? COLORS.accepted : SUBSET_COLORS[0]);
    line.append(swatch);
  }
  line.append(label);
  line.title = label;
  return line;
}

// Patches without which the prediction stays are drawn apart from evidence.
function setColor(key) {
  return key === "evidence" && page.slide.is_no_evidence ? COLORS.none : COLORS[key];
}

// What is drawn, in words; only what is shown.
function showLegend() {
  const layer = heatLayer();
  const label = (key) => (page.slide.layers.find((one) => one.key === key) || {}).label;
  const now = bench();
  const selected = now.S.every((one, i) => one === now.chosen[i]) ? "selected patches, under test: now the evidence" : "selected patches, under test";
  const lines = [];
  if (layer) lines.push(["ramp", "", `${layer.label}, low to high${layer.ranked ? " by rank" : ""}`]);
  for (const key of ["evidence", "S", "truth"]) {
    if (page.shown.has(key) && (key === "S" || label(key))) lines.push(["", setColor(key), key === "S" ? selected : label(key)]);
  }
  if (now.P.some((there) => !there)) lines.push(["veil", "", "removed patches"]);
  $("legend").replaceChildren(...lines.map(([kind, color, text]) => {
    const line = document.createElement("li");
    const sign = Object.assign(document.createElement("i"), { className: kind });
    if (color) sign.style.borderColor = color;
    line.append(sign, text);
    return line;
  }));
}

function count(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

function heatLayer() {
  return page.slide.layers.find((layer) => layer.key === page.heat) || null;
}

// What the colours and the threshold of a layer go by: its rank where a score has no scale of its own, else its value.
function shares(layer) {
  const known = page.slide.shares;
  if (known[layer.key]) return known[layer.key];
  const values = page.slide.values[layer.key];
  const span = layer.high - layer.low || 1;
  const found = Float32Array.from(values, (value) => (value - layer.low) / span);
  if (layer.ranked) {
    const order = Uint32Array.from(values.keys()).sort((a, b) => values[a] - values[b]);
    // Equal values share the rank of the last of them.
    for (let i = order.length - 1, rank = 0; i >= 0; i--) {
      if (i === order.length - 1 || values[order[i]] !== values[order[i + 1]]) rank = i + 1;
      found[order[i]] = rank / order.length;
    }
  }
  known[layer.key] = found;
  return found;
}

function lowestShare() {
  return $("threshold").value / 1000;
}

function describeThreshold(layer) {
  if (layer.ranked) return `highest ${((1 - lowestShare()) * 100).toFixed(0)}%`;
  return short(layer.low + lowestShare() * (layer.high - layer.low));
}

function short(value) {
  return value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1e5) ? value.toFixed(3) : value.toExponential(1);
}

// Everything that is drawn, made anew when a layer, a slider or a set changes; zooming only draws it again.
function rebuild() {
  const { slide } = page;
  if (!slide) return;
  const layer = heatLayer();
  $("low").textContent = layer ? (layer.ranked ? "lowest" : short(layer.low)) : "";
  $("high").textContent = layer ? (layer.ranked ? "highest" : short(layer.high)) : "";
  $("threshold-value").textContent = layer ? describeThreshold(layer) : "";
  $("mark-above").disabled = !layer;
  page.rasters = [];
  page.outlines = [];
  if (layer) page.rasters.push(new Raster(slide.map, heatColors(layer)));
  page.gone = new Raster(slide.map, goneColors());
  for (const key of ["truth", "evidence"]) {
    if (page.shown.has(key) && slide.values[key]) outline(setColor(key), (patch) => slide.values[key][patch]);
  }
  if (page.shown.has("subsets") && slide.subsets) {
    SUBSET_COLORS.forEach((color, i) => outline(color, (patch) => slide.subsets[patch] === i + 1));
  }
  if (page.shown.has("review")) {
    outline(COLORS.accepted, (patch) => slide.marks[patch] === ACCEPTED);
    outline(COLORS.rejected, (patch) => slide.marks[patch] === REJECTED);
  }
  const { S } = bench();
  // Drawn last and thinner, so that what lies below it stays visible.
  if (page.shown.has("S")) outline(COLORS.S, (patch) => S[slide.start + patch], 2);
  showLegend();
  document.body.dataset.layers = [page.heat, ...page.shown].join(" ");
  redraw();
}

function outline(color, isMember, width = 5) {
  const members = Uint8Array.from({ length: page.slide.n }, (_, i) => (isMember(i) ? 1 : 0));
  page.outlines.push(new Outline(page.slide.map, members, color, width));
}

function heatColors(layer) {
  const found = shares(layer);
  const colors = new Uint32Array(found.length);
  const lowest = lowestShare();
  for (let i = 0; i < found.length; i++) if (found[i] >= lowest) colors[i] = heatColor(found[i]);
  return colors;
}

function goneColors() {
  const { P } = bench();
  return Uint32Array.from({ length: page.slide.n }, (_, i) => (P[page.slide.start + i] ? 0 : 0xffffffff));
}

function view() {
  const { viewport } = picture;
  const zero = viewport.imageToViewerElementCoordinates(new OpenSeadragon.Point(0, 0));
  const far = viewport.imageToViewerElementCoordinates(new OpenSeadragon.Point(1000, 1000));
  const scale = (far.x - zero.x) / 1000;
  return { scale, x: (at) => zero.x + at * scale, y: (at) => zero.y + at * scale,
    width: $("overlay").clientWidth, height: $("overlay").clientHeight,
    toPicture: (x, y) => [(x - zero.x) / scale, (y - zero.y) / scale] };
}

let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function draw() {
  if (!picture.world.getItemAt(0) || !page.rasters) return;
  const canvas = $("overlay");
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  const now = view();
  context.globalAlpha = $("opacity").value / 100;
  for (const raster of page.rasters) raster.draw(context, now);
  context.globalAlpha = 0.85;
  page.gone.draw(context, now);
  context.globalAlpha = 1;
  for (const one of page.outlines) one.draw(context, now);
  if (page.lasso) drawLasso(context);
  drawScale(now);
}

// A round number of micrometres, about a fifth of the stage long.
function drawScale({ scale, width }) {
  const { mpp } = page.slide;
  $("scale-bar").hidden = !mpp;
  if (!mpp) return;
  const most = (width / 5) * (mpp / scale);
  const power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].find((step) => step * power <= most) * power;
  $("scale-bar").firstElementChild.style.width = `${(length * scale) / mpp}px`;
  $("scale-bar").lastElementChild.textContent = length >= 1000 ? `${length / 1000} mm` : `${length} \u00b5m`;
}

function drawLasso(context) {
  context.beginPath();
  for (let i = 0; i < page.lasso.length; i += 2) context.lineTo(page.lasso[i], page.lasso[i + 1]);
  context.setLineDash([5, 4]);
  context.strokeStyle = COLORS.S;
  context.lineWidth = 2;
  context.stroke();
  context.setLineDash([]);
}

const showSubsets = guarded(async () => {
  const { slide } = page;
  if (slide.subsets) return;
  say("Looking for disjoint sufficient subsets\u2026");
  const bytes = await (await ask(`/api/slides/${encodeURIComponent(slide.name)}/subsets`)).arrayBuffer();
  slide.subsets = new Uint8Array(bytes);
  const most = slide.subsets.reduce((highest, one) => Math.max(highest, one), 0);
  say(most ? `${count(most, "disjoint set")} that each keep the prediction: the evidence, and alternatives in steps of 8 patches.`
    : "The evidence alone does not keep the prediction, so there is no alternative to it.");
  rebuild();
});
