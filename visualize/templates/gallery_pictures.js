"use strict";
// What the page knows, and how one picture is drawn; gallery.js decides which.
const data = JSON.parse(document.getElementById("data").textContent);

const pictures = (() => {
  const files = JSON.parse(document.getElementById("files").textContent); // base64 by name, where they are in the page
  const svgSpace = "http://www.w3.org/2000/svg";
  const layers = Object.fromEntries(data.layers.map((one) => [one.key, one]));
  const sheets = new Map();
  const features = new Map();

  function address(name) {
    return Object.hasOwn(files, name) ? `data:image/png;base64,${files[name]}` : `img/${name}`;
  }

  const numbered = (row) => String(row).padStart(3, "0");

  function sheet(name) {
    if (!sheets.has(name)) {
      const image = new Image();
      image.src = address(name);
      sheets.set(name, image);
    }
    return sheets.get(name);
  }

  // A sheet holds the maps of all blocks (rows) and parts (columns) without gaps; canvases have one pixel a token.
  function paintMap(canvas, name, [width, height], column, row) {
    const image = sheet(name);
    const wanted = `${name} ${column} ${row}`;
    canvas.dataset.shown = wanted;
    function copy() {
      if (canvas.dataset.shown !== wanted || !image.naturalWidth) return; // another was asked for meanwhile
      canvas.width = width;
      canvas.height = height;
      canvas.getContext("2d").drawImage(image, column * width, row * height, width, height, 0, 0, width, height);
    }
    if (image.complete) copy();
    else image.addEventListener("load", copy, { once: true });
  }

  // --- similarity to a patch ------------------------------------------------------------------------------

  function featuresOf(row) {
    if (!features.has(row)) {
      const holder = document.getElementById(`features-${row}`);
      features.set(row, holder ? JSON.parse(holder.textContent) : null);
    }
    return features.get(row);
  }

  function tokens(entry) {
    if (!entry.values) {
      const text = atob(entry.codes);
      const count = entry.scales.length;
      entry.values = new Float32Array(text.length);
      for (let i = 0; i < text.length; i += 1) {
        entry.values[i] = ((text.charCodeAt(i) << 24) >> 24) * entry.scales[i % count]; // a signed byte
      }
    }
    return entry.values;
  }

  // Of token ``index`` of ``source`` with every token of ``entry``; all images of a block share one basis.
  function cosines(entry, index, source = entry) {
    const values = tokens(entry);
    const from = tokens(source);
    const count = entry.scales.length;
    const found = new Float32Array(values.length / count);
    for (let token = 0; token < found.length; token += 1) {
      let sum = 0;
      for (let i = 0; i < count; i += 1) sum += from[index * count + i] * values[token * count + i];
      found[token] = sum;
    }
    return found;
  }

  function paintSimilarity(canvas, [width, height], found, index, stretched) {
    const others = found.filter((_, token) => token !== index);
    const low = stretched ? Math.min(...others) : 0;
    const high = stretched ? Math.max(...others) : 1;
    const pixels = new ImageData(width, height);
    for (let token = 0; token < found.length; token += 1) {
      const share = Math.min(1, Math.max(0, (found[token] - low) / Math.max(high - low, 1e-6)));
      pixels.data.set([...data.ramp[Math.round(255 * share)], 255], 4 * token);
    }
    canvas.dataset.shown = `similarity to ${index}`;
    canvas.width = width;
    canvas.height = height;
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    return [Math.min(...others), Math.max(...others)];
  }

  // --- outlines -------------------------------------------------------------------------------------------

  function outline(parent, [left, top, right, bottom], kind) {
    const node = document.createElementNS(svgSpace, "rect");
    const shape = { x: left, y: top, width: right - left, height: bottom - top, class: kind };
    for (const [key, value] of Object.entries(shape)) node.setAttribute(key, value);
    parent.append(node);
  }

  function outlineToken(parent, info, [width, height], index) {
    const [x, y] = [index % width, Math.floor(index / width)];
    const [w, h] = [info.width / width, info.height / height];
    outline(parent, [x * w, y * h, (x + 1) * w, (y + 1) * h], "halo");
    outline(parent, [x * w, y * h, (x + 1) * w, (y + 1) * h], "patch");
  }

  // --- cells ----------------------------------------------------------------------------------------------

  function drawReference(cell, row, view) {
    const info = data.images[row];
    const over = cell.querySelector("svg");
    const label = cell.querySelector(".label");
    const truth = view.layer === "probe" && info.label;
    if (truth && !label.hasAttribute("src")) label.src = address(`label-${numbered(row)}.png`);
    if (label) label.hidden = !truth;
    cell.querySelector(".who").textContent = truth ? "Ground truth" : "Photograph";
    over.replaceChildren();
    if (view.layer === "cut") for (const box of info.boxes) outline(over, box, "truth");
    if (view.layer === "similarity") {
      const column = (featuresOf(row) || []).findIndex(Boolean);
      const model = (featuresOf(row) || [])[column];
      const found = model && across(row, column, view);
      if (model) outlineToken(over, info, model.size, found ? nearest(found) : tokenAt(view.place, model.size));
    }
  }

  function tokenAt([x, y], [width, height]) {
    const inside = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    return inside(y, height) * width + inside(x, width);
  }

  // Cosines of this image's patches with the patch that was clicked in another; null where that is not asked for.
  function across(row, column, view) {
    if (view.part !== 2 || view.source.row === row) return null;
    const there = (featuresOf(view.source.row) || [])[column];
    const here = (featuresOf(row) || [])[column];
    const [source, entry] = [there, here].map((one) => one && one.blocks[view.block]);
    return source && entry ? cosines(entry, tokenAt(view.source.place, there.size), source) : null;
  }

  const nearest = (found) => found.indexOf(Math.max(...found));

  function drawSimilarity(parts, info, row, column, view) {
    const model = (featuresOf(row) || [])[column];
    const entry = model && model.blocks[view.block];
    if (!entry) return null;
    const found = across(row, column, view);
    if (found) {
      const index = nearest(found);
      paintSimilarity(parts.canvas, model.size, found, index, false);
      outlineToken(parts.over, info, model.size, index);
      return `nearest patch ${found[index].toFixed(2)}, ±${entry.error}`;
    }
    const index = tokenAt(view.place, model.size);
    const range = paintSimilarity(parts.canvas, model.size, cosines(entry, index), index, view.part === 1);
    outlineToken(parts.over, info, model.size, index);
    return `${range.map((value) => value.toFixed(2)).join(" to ")}, ±${entry.error}`;
  }

  function drawSheet(parts, info, row, column, view) {
    const entry = data.cells[column][row].layers[view.layer];
    const at = entry ? entry.blocks.indexOf(view.block) : -1;
    if (at < 0) return null;
    const part = entry.parts ? entry.parts[view.part] : 0;
    if (part === undefined) return null;
    paintMap(parts.canvas, `${view.layer}-m${column}-i${numbered(row)}.png`, entry.size, part, at);
    const [width, height] = entry.cover || [info.width, info.height];
    parts.canvas.style.width = `${(100 * width) / info.width}%`;
    parts.canvas.style.height = `${(100 * height) / info.height}%`;
    if (entry.boxes) {
      for (const box of info.boxes) outline(parts.over, box, "truth");
      const found = entry.boxes[view.block];
      if (!found) return "no cut";
      for (const kind of ["halo", "box"]) outline(parts.over, found, kind);
    }
    if (!entry.peaks) return "";
    const uniform = 100 / (entry.size[0] * entry.size[1]);
    return `peak ${entry.peaks[view.block][view.part]}\u00a0%, uniform ${uniform.toFixed(1)}\u00a0%`;
  }

  // Draws one model's picture of one image; ``view`` is block, layer, part and place. Returns its note, null if missing.
  function drawModel(cell, row, column, view) {
    const info = data.images[row];
    const parts = { canvas: cell.querySelector("canvas"), over: cell.querySelector("svg") };
    parts.over.replaceChildren();
    parts.canvas.style.width = parts.canvas.style.height = "100%";
    let note = "";
    if (view.layer === "similarity") note = drawSimilarity(parts, info, row, column, view);
    else if (view.layer !== "photo") note = drawSheet(parts, info, row, column, view);
    parts.canvas.hidden = note === null || view.layer === "photo";
    if (parts.canvas.hidden) parts.canvas.dataset.shown = "";
    cell.querySelector(".frame").classList.toggle("missing", note === null);
    const part = layers[view.layer].parts[view.part];
    const what = `${layers[view.layer].name}${part ? ` (${part})` : ""}`;
    const alt = `${data.models[column]}, ${what} of block ${view.block}: ${info.id}${note ? `, ${note}` : ""}`;
    parts.canvas.setAttribute("aria-label", note === null ? `${alt}: not available` : alt);
    return note;
  }

  return { drawModel, drawReference, layers, hasFeatures: (row) => Boolean(featuresOf(row)) };
})();
