"use strict";
// Moves and zooms the drawing, finds nodes, and shows the title of the one pointed at.
const drawing = document.getElementById("drawing");
const details = document.getElementById("details");
const search = document.getElementById("search");
const found = document.getElementById("found");
const whole = { w: Number(drawing.dataset.width), h: Number(drawing.dataset.height) };
const view = { x: 0, y: 0, scale: 1 };
const nodes = Array.from(drawing.querySelectorAll("g.node"));
// The browser's own tooltip would cover what the panel shows.
const texts = new Map(nodes.map((node) => {
  const title = node.querySelector("title");
  title.remove();
  return [node, title.textContent];
}));

function show() {
  const box = drawing.getBoundingClientRect();
  drawing.setAttribute("viewBox", [view.x, view.y, box.width / view.scale, box.height / view.scale].join(" "));
}

function fit(x, y, w, h, most) {
  const box = drawing.getBoundingClientRect();
  view.scale = Math.min(box.width / w, box.height / h, most);
  view.x = x + (w - box.width / view.scale) / 2;
  view.y = y + (h - box.height / view.scale) / 2;
  show();
}

function start() {
  // Tall drawings begin at their top, wide enough to be read.
  const box = drawing.getBoundingClientRect();
  view.scale = Math.min(Math.max(box.width / whole.w, 0.5), 1.2);
  view.x = Math.min(0, (whole.w - box.width / view.scale) / 2);
  view.y = 0;
  show();
}

drawing.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = drawing.getBoundingClientRect();
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  const scale = Math.min(Math.max(view.scale * Math.exp(-event.deltaY * 0.0015), 0.002), 8);
  view.x += px / view.scale - px / scale;
  view.y += py / view.scale - py / scale;
  view.scale = scale;
  show();
}, { passive: false });

drawing.addEventListener("pointerdown", (event) => {
  drawing.setPointerCapture(event.pointerId);
  drawing.classList.add("moving");
});
drawing.addEventListener("pointermove", (event) => {
  if (!drawing.hasPointerCapture(event.pointerId)) return;
  view.x -= event.movementX / view.scale;
  view.y -= event.movementY / view.scale;
  show();
});
drawing.addEventListener("pointerup", () => drawing.classList.remove("moving"));

drawing.addEventListener("mouseover", (event) => {
  const node = event.target.closest("g.node");
  details.hidden = !node;
  if (node) details.textContent = texts.get(node);
});

let hits = [];
let current = -1;
function find() {
  const wanted = search.value.trim().toLowerCase();
  hits = wanted ? nodes.filter((node) => texts.get(node).toLowerCase().includes(wanted)) : [];
  current = -1;
  drawing.classList.toggle("searching", wanted !== "");
  for (const node of nodes) node.classList.remove("hit", "now");
  for (const node of hits) node.classList.add("hit");
  found.textContent = wanted ? `${hits.length} found` : "";
}
function next(step) {
  if (hits.length === 0) return;
  if (current >= 0) hits[current].classList.remove("now");
  current = (current + step + hits.length) % hits.length;
  const node = hits[current];
  node.classList.add("now");
  found.textContent = `${current + 1} of ${hits.length}`;
  details.hidden = false;
  details.textContent = texts.get(node);
  const box = node.getBBox();
  fit(box.x - 300, box.y - 200, box.width + 600, box.height + 400, 1.2);
}
search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
});
document.getElementById("fit").addEventListener("click", () => fit(0, 0, whole.w, whole.h, 1.2));
for (const button of document.querySelectorAll("button[data-section]")) {
  button.addEventListener("click", () => {
    const box = document.getElementById(button.dataset.section).getBBox();
    const shown = drawing.getBoundingClientRect();
    fit(box.x - 20, box.y - 20, box.width + 40, Math.min(box.height, box.width * shown.height / shown.width) + 40, 1.2);
  });
}
window.addEventListener("resize", show);
start();
