"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const svgSpace = "http://www.w3.org/2000/svg";
  const slider = document.getElementById("block");
  const layerNames = Object.fromEntries(data.layers.map((one) => [one.key, one.name]));
  const state = { at: data.blocks.indexOf(data.block), layer: data.layer, peek: false };
  const pad = (number, width) => String(number).padStart(width, "0");
  const picture = (layer, column, row, block) => `img/${layer}-m${column}-i${pad(row, 3)}-b${pad(block, 2)}.png`;

  function shape(parent, name, attributes) {
    const node = document.createElementNS(svgSpace, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    parent.appendChild(node);
  }

  function outline(parent, box, kind) {
    shape(parent, "rect", { x: box[0], y: box[1], width: box[2] - box[0], height: box[3] - box[1], class: kind });
  }

  function setImage(image, address, isPhoto, alt) {
    if (image.getAttribute("src") !== address) image.setAttribute("src", address);
    image.classList.toggle("photo", isPhoto);
    image.alt = alt;
  }

  function drawReference(cell, layer) {
    const row = Number(cell.dataset.row);
    const info = data.images[row];
    const truth = layer === "probe" && info.label;
    const address = truth ? `img/label-${pad(row, 3)}.png` : `img/photo-${pad(row, 3)}.jpg`;
    setImage(cell.querySelector(".base"), address, true, `${truth ? "Ground-truth labels" : "Photograph"} ${info.id}`);
    cell.querySelector(".who").textContent = truth ? "Ground truth" : "Photograph";
    const over = cell.querySelector("svg");
    over.replaceChildren();
    if (layer === "cut") for (const box of info.boxes) outline(over, box, "truth");
  }

  function drawModel(cell, layer, block) {
    const row = Number(cell.dataset.row);
    const column = Number(cell.dataset.column);
    const info = data.images[row];
    const entry = (data.cells[column][row][layer] || {})[block];
    const over = cell.querySelector("svg");
    const whole = entry && !entry.cover;
    const address = whole ? picture(layer, column, row, block) : `img/photo-${pad(row, 3)}.jpg`;
    const alt = `${data.models[column]}, ${layerNames[layer]} of block ${block}: ${info.id}`;
    setImage(cell.querySelector(".base"), address, !whole, alt);
    cell.querySelector(".frame").classList.toggle("missing", !entry && layer !== "photo");
    cell.querySelector(".note").textContent = entry ? entry.text : "";
    over.replaceChildren();
    if (!entry || !entry.cover) return;
    shape(over, "image", {
      href: picture(layer, column, row, block), width: entry.cover[0], height: entry.cover[1], preserveAspectRatio: "none",
    });
    if (!entry.box) return;
    for (const box of info.boxes) outline(over, box, "truth");
    outline(over, entry.box, "halo");
    outline(over, entry.box, "box");
  }

  function drawCharts(block) {
    const x = 6 + (228 * state.at) / Math.max(1, data.blocks.length - 1);
    for (const line of document.querySelectorAll(".chart .now")) {
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
    }
    for (const value of document.querySelectorAll("[data-values]")) {
      value.textContent = JSON.parse(value.dataset.values)[block] ?? "–";
    }
  }

  function draw() {
    const block = data.blocks[state.at];
    const layer = state.peek ? "photo" : state.layer;
    for (const cell of document.querySelectorAll(".cell")) {
      if (cell.dataset.column === undefined) drawReference(cell, layer);
      else drawModel(cell, layer, block);
    }
    slider.value = state.at;
    slider.setAttribute("aria-valuetext", `Block ${block}`);
    document.getElementById("number").value = block;
    for (const button of document.querySelectorAll("[data-layer]")) {
      const on = button.dataset.layer === state.layer;
      button.setAttribute("aria-checked", on);
      button.tabIndex = on ? 0 : -1;
    }
    for (const legend of document.querySelectorAll("[data-for]")) legend.hidden = legend.dataset.for !== layer;
    drawCharts(block);
  }

  function step(by) {
    state.at = Math.min(data.blocks.length - 1, Math.max(0, state.at + by));
    draw();
  }

  function choose(layer) {
    state.layer = layer;
    draw();
  }

  function smooth() {
    const on = document.body.classList.toggle("smooth");
    document.getElementById("smooth").setAttribute("aria-pressed", on);
  }

  function readAddress() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const at = data.blocks.indexOf(Number(asked.get("block")));
    if (at >= 0) state.at = at;
    if (Object.hasOwn(layerNames, asked.get("layer"))) state.layer = asked.get("layer");
    draw();
  }

  slider.addEventListener("input", () => step(Number(slider.value) - state.at));
  document.getElementById("previous").addEventListener("click", () => step(-1));
  document.getElementById("next").addEventListener("click", () => step(1));
  document.getElementById("smooth").addEventListener("click", smooth);
  for (const button of document.querySelectorAll("[data-layer]")) {
    button.addEventListener("click", () => choose(button.dataset.layer));
  }
  for (const chart of document.querySelectorAll(".chart svg")) {
    chart.addEventListener("click", (event) => {
      const place = chart.getBoundingClientRect();
      const share = ((event.clientX - place.left) / place.width * 240 - 6) / 228;
      step(Math.round(share * (data.blocks.length - 1)) - state.at);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const layer = data.layers[Number(event.key) - 1];
    if (event.key === "ArrowLeft") step(-1);
    else if (event.key === "ArrowRight") step(1);
    else if (event.key === "s") smooth();
    else if (event.key === " " && event.target === document.body) { state.peek = true; if (!event.repeat) draw(); }
    else if (layer) choose(layer.key);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keyup", (event) => {
    if (event.key === " " && state.peek) { state.peek = false; draw(); }
  });
  window.addEventListener("hashchange", readAddress);
  readAddress();
})();
