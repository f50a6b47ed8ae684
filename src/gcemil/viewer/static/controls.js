// Hands: pointer, lasso, buttons and keys. Loaded last, so that everything they call is there.
"use strict";

function place(event) {
  const box = $("overlay").getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function showHover(event) {
  if (!page.slide || !picture.world.getItemAt(0)) return;
  const patch = page.slide.map.at(...view().toPicture(...place(event)));
  $("hover").style.visibility = patch < 0 ? "hidden" : "visible";
  if (patch < 0) return;
  const { corners } = page.slide.map;
  const { frame, layers, values } = page.slide;
  const region = bench().regions[page.slide.start + patch];
  const lines = [["patch", String(patch)], ...(region ? [["region", String(region)]] : []), ["x, y", `${corners[2 * patch] + frame.left}, ${corners[2 * patch + 1] + frame.top}`],
    ...layers.map(({ key, label, kind }) => [label, kind === "set" ? (values[key][patch] ? "yes" : "no") : short(values[key][patch])])];
  $("hover").replaceChildren(...lines.flatMap(([name, value]) => [
    Object.assign(document.createElement("dt"), { textContent: name }),
    Object.assign(document.createElement("dd"), { textContent: value })]));
}

function setLasso(on) {
  $("lasso").setAttribute("aria-pressed", String(on));
  $("overlay").classList.toggle("drawing", on);
}

function endLasso(event) {
  const line = page.lasso;
  page.lasso = null;
  if (!line) return;
  const mode = event.shiftKey ? "add" : event.altKey ? "take" : $("mode").value;
  const now = view();
  if (line.length < 8) { toggle(page.slide.map.at(...now.toPicture(...place(event))), event.shiftKey); return; }
  const inPicture = [];
  for (let i = 0; i < line.length; i += 2) inPicture.push(...now.toPicture(line[i], line[i + 1]));
  mark(page.slide.map.inside(inPicture), mode);
}

function markAbove() {
  const found = shares(heatLayer());
  const lowest = lowestShare();
  mark(Array.from(found.keys()).filter((i) => found[i] >= lowest), "new");
}

const zoom = (factor) => { picture.viewport.zoomBy(factor); picture.viewport.applyConstraints(); };
const pan = (x, y) => { picture.viewport.panBy(picture.viewport.deltaPointsFromPixels(new OpenSeadragon.Point(x, y))); picture.viewport.applyConstraints(); };
const ACTIONS = {
  keep: () => change((now) => { now.P = now.P.map((there, i) => there & now.S[i]); }),
  remove: () => change((now) => { now.P = now.P.map((there, i) => there & (1 - now.S[i])); }),
  restore: () => change((now) => now.P.fill(1)),
  clear: () => change((now) => now.S.fill(0)),
  recovered: () => change((now) => { now.S = now.chosen.slice(); }),
  undo, "mark-above": markAbove,
  "export-json": () => save("json"), "export-geojson": () => save("geojson"),
  accept: () => review(ACCEPTED), reject: () => review(REJECTED), unmark: () => review(0),
  "import-marks": () => $("marks-file").click(),
  previous: () => move(-1), next: () => move(1),
  "zoom-in": () => zoom(1.5), "zoom-out": () => zoom(1 / 1.5), home: () => picture.viewport.goHome(),
  lasso: () => setLasso($("lasso").getAttribute("aria-pressed") !== "true"),
  help: () => showPanel("help-panel", $("help-panel").hidden), "help-close": () => showPanel("help-panel", false),
  browse: () => showPanel("slides-panel", $("slides-panel").hidden), "browse-close": () => showPanel("slides-panel", false),
};
const KEYS = { k: "keep", r: "remove", u: "undo", b: "restore", c: "clear", e: "recovered", l: "lasso", a: "accept", x: "reject",
  "[": "previous", "]": "next", "+": "zoom-in", "=": "zoom-in", "-": "zoom-out", 0: "home", "?": "help", "/": "browse" };
const SETS = { s: "S", t: "truth", v: "evidence", d: "subsets" };
const WORDS = [["K", "keep only the selected patches"], ["R", "remove them"], ["U", "undo"], ["B", "bring all patches back"],
  ["E", "select the evidence"], ["C", "select none"], ["L", "lasso on or off; Shift adds, Alt takes away"],
  ["Enter, Space", "the patch in the middle joins or leaves the selected"], ["S, V, T, D", "show or hide: selected, evidence, truth, disjoint subsets"],
  ["A, X", "accept or reject the selected patches"], ["[ and ]", "previous and next slide"], ["/", "find a slide"],
  ["+, -, 0", "zoom in, zoom out, whole slide"], ["arrows", "move, with the slide in focus"], ["?, Escape", "open and close this panel"]];

const PANELS = { "help-panel": ["help-close", "help"], "slides-panel": ["find", "browse"] };

function showPanel(id, open) {
  for (const other of Object.keys(PANELS)) $(other).hidden = other !== id || !open;
  $(PANELS[id][open ? 0 : 1]).focus();
}

function toggleSet(key) {
  const box = document.querySelector(`#sets input[value="${key}"]`);
  if (box) box.click();
}
$("keys").replaceChildren(...WORDS.flatMap(([key, what]) => [
  Object.assign(document.createElement("dt"), { textContent: key }), Object.assign(document.createElement("dd"), { textContent: what })]));
const STEPS = { ArrowLeft: [-60, 0], ArrowRight: [60, 0], ArrowUp: [0, -60], ArrowDown: [0, 60] };

for (const [id, action] of Object.entries(ACTIONS)) $(id).addEventListener("click", () => { if (page.slide) action(); });
$("find").addEventListener("input", listSlides);
$("slide").addEventListener("change", (event) => openChosen(event.target.value));
$("marks-file").addEventListener("change", ({ target }) => {
  if (target.files.length && page.slide) importMarks(target.files[0]);
  target.value = "";
});
$("threshold").addEventListener("input", rebuild);
$("opacity").addEventListener("input", (event) => { $("opacity-value").textContent = `${event.target.value}%`; redraw(); });
$("heat").addEventListener("change", (event) => { page.heat = event.target.value; rebuild(); });
$("sets").addEventListener("change", ({ target }) => {
  if (target.checked) page.shown.add(target.value); else page.shown.delete(target.value);
  if (target.value === "subsets" && target.checked) showSubsets();
  rebuild();
});
$("stage").addEventListener("pointermove", showHover);
$("stage").addEventListener("pointerleave", () => { $("hover").style.visibility = "hidden"; });
$("overlay").addEventListener("pointerdown", (event) => {
  $("overlay").setPointerCapture(event.pointerId);
  page.lasso = place(event);
});
$("overlay").addEventListener("pointermove", (event) => { if (page.lasso) { page.lasso.push(...place(event)); redraw(); } });
$("overlay").addEventListener("pointerup", endLasso);
$("overlay").addEventListener("pointercancel", () => { page.lasso = null; redraw(); });
picture.addHandler("canvas-click", (event) => {
  if (event.quick && page.slide) toggle(page.slide.map.at(...view().toPicture(event.position.x, event.position.y)), event.shift);
});
for (const name of ["update-viewport", "open", "resize"]) picture.addHandler(name, redraw);
picture.addHandler("tile-loaded", () => { document.body.dataset.tiles = String(Number(document.body.dataset.tiles || 0) + 1); });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !page.slide) return;
  const shown = Object.keys(PANELS).find((id) => !$(id).hidden);
  if (event.key === "Escape" && shown) { showPanel(shown, false); return; }
  if (event.target.matches("select, input[type=range]")) return;
  if (SETS[event.key]) { toggleSet(SETS[event.key]); event.preventDefault(); return; }
  if (event.target.matches("input")) return;
  if (KEYS[event.key]) { $(KEYS[event.key]).click(); event.preventDefault(); return; }
  if (!$("stage").contains(event.target) || event.target.matches("button")) return;
  if (STEPS[event.key]) { pan(...STEPS[event.key]); event.preventDefault(); }
  if (event.key === "Enter" || event.key === " ") {
    const stage = $("overlay");
    toggle(page.slide.map.at(...view().toPicture(stage.clientWidth / 2, stage.clientHeight / 2)), event.shiftKey);
    event.preventDefault();
  }
});

start();
