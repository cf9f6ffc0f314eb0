// State, address, controls, order and captions.
(() => {
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const groups = find(".groups");
  const articles = all(".group"); // by row, whatever their order on the page
  const slider = find("#block");
  const metrics = Object.fromEntries(data.metrics.map((one) => [one.key, one]));
  const state = {
    at: data.blocks.indexOf(data.block), layer: data.layers[0].key, parts: {}, // part chosen, by layer
    image: null, model: null, sort: "", tag: "", places: {}, source: null, peek: false,
  };
  const ownLayers = new Set(data.images.map((image) => image.layer).filter(Boolean));
  const near = new Set(); // articles on the screen or close to it: only these are drawn

  const block = () => data.blocks[state.at];
  const layer = () => (state.peek ? "photo" : state.layer);
  const part = () => state.parts[layer()] || 0;
  const place = (row) => state.places[row] || [0.5, 0.5];
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  // --- scores and order -------------------------------------------------------------------------------------

  const score = (column, row, key) => (data.cells[column][row].scores[key] || {})[block()];

  function scoreText(column, row, key) {
    const value = score(column, row, key);
    if (value === undefined) return "";
    const hit = key === "iou" && value >= 0.5 ? " ✓" : "";
    return `${metrics[key].short} ${value.toFixed(metrics[key].digits)}${metrics[key].unit}${hit}`;
  }

  // "iou.1": of model 1; "iou.1-0": model 1 less model 0; a minus before it: the lowest first.
  function parseSort(text) {
    const found = /^(-?)([a-z]+)\.(\d+)(?:-(\d+))?$/.exec(text);
    if (!found || !Object.hasOwn(metrics, found[2])) return null;
    const columns = [found[3], found[4]].filter((one) => one !== undefined).map(Number);
    if (columns.some((column) => column >= data.models.length)) return null;
    return { sign: found[1] ? 1 : -1, key: found[2], columns };
  }

  function sortValue(row, { key, columns }) {
    const values = columns.map((column) => score(column, row, key));
    if (values.includes(undefined)) return null;
    return values.length > 1 ? values[0] - values[1] : values[0];
  }

  function order() {
    const rows = articles.map((_, row) => row);
    const sort = parseSort(state.sort);
    if (!sort) return rows;
    const values = rows.map((row) => sortValue(row, sort));
    const known = rows.filter((row) => values[row] !== null);
    known.sort((one, other) => sort.sign * (values[one] - values[other]) || one - other);
    return [...known, ...rows.filter((row) => values[row] === null)];
  }

  function shown(row) {
    if (state.tag && !data.images[row].tags.includes(state.tag)) return false;
    const own = data.images[row].layer; // a strip or a pair, which is drawn in one layer alone
    if (own ? layer() !== own && layer() !== "photo" : ownLayers.has(layer())) return false;
    return layer() !== "similarity" || pictures.hasFeatures(row);
  }

  // --- the address ------------------------------------------------------------------------------------------

  const ids = data.images.map((image) => image.id);
  const nameOf = (row) => (ids.indexOf(ids[row]) === ids.lastIndexOf(ids[row]) ? ids[row] : `@${row}`);

  function rowOf(name) {
    const found = ids.indexOf(name);
    if (found >= 0 || !/^@\d+$/.test(name)) return found;
    return Number(name.slice(1)) < ids.length ? Number(name.slice(1)) : -1;
  }

  function address() {
    const words = new URLSearchParams();
    if (state.image !== null) words.set("image", nameOf(state.image));
    words.set("block", block());
    words.set("layer", state.layer);
    if (state.parts[state.layer]) words.set("part", state.parts[state.layer]);
    if (state.model !== null) words.set("model", state.model + 1);
    if (state.sort) words.set("sort", state.sort);
    if (state.tag) words.set("class", state.tag);
    if (state.image !== null && state.places[state.image] && state.layer === "similarity") {
      words.set("patch", place(state.image).map((share) => share.toFixed(3)).join(","));
    }
    return `#${words}`;
  }

  function readAddress() {
    const words = new URLSearchParams(location.hash.slice(1));
    const has = (key) => words.has(key);
    const at = data.blocks.indexOf(Number(words.get("block")));
    if (at >= 0) state.at = at;
    if (Object.hasOwn(pictures.layers, words.get("layer"))) state.layer = words.get("layer");
    if (has("layer")) state.parts[state.layer] = 0;
    if (pictures.layers[state.layer].parts[words.get("part")]) state.parts[state.layer] = Number(words.get("part"));
    const row = has("image") ? rowOf(words.get("image")) : -1;
    state.image = row >= 0 ? row : null;
    const whole = has("block") || has("layer"); // a link to an image alone leaves the rest as it is
    const column = Number(words.get("model")) - 1;
    if (whole) state.model = Number.isInteger(column) && column >= 0 && column < data.models.length ? column : null;
    if (whole) state.sort = parseSort(words.get("sort") || "") ? words.get("sort") : "";
    if (whole) state.tag = data.tags.includes(words.get("class")) ? words.get("class") : "";
    const patch = (words.get("patch") || "").split(",").map(Number);
    if (row >= 0 && patch.length === 2 && patch.every((share) => share >= 0 && share <= 1)) state.places[row] = patch;
    draw();
  }

  // --- drawing ----------------------------------------------------------------------------------------------

  function note(column, row, drawn) {
    const sort = parseSort(state.sort);
    const keys = data.metrics.map((one) => one.key).filter((key) => state.image !== null ||
      metrics[key].layers.includes(layer()) || (sort && sort.key === key));
    const texts = [drawn, ...keys.map((key) => scoreText(column, row, key))];
    return texts.filter(Boolean).join(" · ");
  }

  function drawArticle(article) {
    const row = Number(article.dataset.row);
    const source = state.source ?? data.images.findIndex((_, other) => pictures.hasFeatures(other)); // clicked last
    const view = { block: block(), layer: layer(), part: part(), place: place(row), source: { row: source, place: place(source) } };
    pictures.drawReference(find(".reference", article), row, view);
    for (const cell of all("[data-column]", article)) {
      const column = Number(cell.dataset.column);
      cell.hidden = state.model !== null && state.model !== column;
      if (cell.hidden) continue;
      const photo = find(".photo", cell);
      if (!photo.hasAttribute("src")) photo.src = find(".reference .photo", article).src;
      find(".note", cell).textContent = note(column, row, pictures.drawModel(cell, row, column, view));
    }
  }

  function drawOrder() {
    const wanted = order().map((row) => articles[row]);
    if (wanted.some((article, index) => groups.children[index] !== article)) groups.append(...wanted);
    let count = 0;
    for (const article of articles) {
      const row = Number(article.dataset.row);
      article.hidden = state.image === null ? !shown(row) : row !== state.image;
      count += !article.hidden;
    }
    const cells = state.model === null ? data.models.length : 1;
    groups.className = `groups columns-${Math.min(5, cells)}`;
    const visible = wanted.filter((article) => shown(Number(article.dataset.row)));
    const at = visible.indexOf(articles[state.image]);
    const some = count < articles.length ? `${count} of them shown.` : "";
    find("#count").textContent = state.image === null ? some : `Image ${at + 1 || "–"} of ${visible.length}.`;
  }

  function drawControls() {
    slider.value = state.at;
    slider.setAttribute("aria-valuetext", `Block ${block()}`);
    find("#number").value = block();
    for (const button of all("[data-layer]")) button.setAttribute("aria-pressed", button.dataset.layer === state.layer);
    for (const bar of all("[data-parts]")) bar.hidden = bar.dataset.parts !== state.layer;
    for (const button of all("[data-part]")) {
      const own = button.parentElement.dataset.parts;
      button.setAttribute("aria-pressed", Number(button.dataset.part) === (state.parts[own] || 0));
    }
    for (const legend of all("[data-for]")) legend.hidden = legend.dataset.for !== layer();
    for (const button of all("[data-model]")) {
      button.setAttribute("aria-pressed", button.dataset.model === (state.model === null ? "" : String(state.model)));
    }
    const sort = find("#sort");
    sort.value = state.sort.replace(/^-/, "");
    find("#turn").disabled = !state.sort;
    find("#turn").textContent = state.sort.startsWith("-") ? "↑ lowest first" : "↓ highest first";
    if (find("#tag")) find("#tag").value = state.tag;
    document.body.classList.toggle("single", state.image !== null);
    document.body.dataset.layer = layer();
  }

  function drawCharts() {
    const x = 6 + (228 * state.at) / Math.max(1, data.blocks.length - 1);
    for (const line of all(".chart .now")) {
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
    }
    for (const value of all("[data-values]")) value.textContent = JSON.parse(value.dataset.values)[block()] ?? "–";
  }

  function element(name, text, kind) {
    const node = document.createElement(name);
    node.textContent = text;
    if (kind) node.className = kind;
    return node;
  }

  // Every field of every result row of this block: what all rows share once, the rest as a table.
  function drawFields() {
    const holder = find("#fields");
    if (!holder || !holder.open) return;
    const rows = data.rows.flatMap((found, column) => (state.model === null || state.model === column ? found : []))
      .filter((row) => row.block === String(block()));
    const keys = rows.length ? Object.keys(rows[0]) : [];
    const common = keys.filter((key) => rows.every((row) => row[key] === rows[0][key]));
    const table = element("table", "");
    const head = element("tr", "");
    head.append(...keys.filter((key) => !common.includes(key)).map((key) => element("th", key)));
    table.append(head);
    for (const row of rows) {
      const line = element("tr", "");
      line.append(...keys.filter((key) => !common.includes(key)).map((key) => element("td", row[key])));
      table.append(line);
    }
    const list = element("dl", "");
    for (const key of common.filter((one) => rows[0][one])) {
      const pair = element("div", "");
      pair.append(element("dt", key), element("dd", rows[0][key]));
      list.append(pair);
    }
    find(".scroll", holder).replaceChildren(list, rows.length ? table : element("p", "No rows of this block.", "muted"));
  }

  function draw() {
    drawOrder();
    drawControls();
    drawCharts();
    drawFields();
    for (const article of new Set([...near, ...(state.image === null ? [] : [articles[state.image]])])) {
      if (!article.hidden) drawArticle(article);
    }
  }

  // --- what a hand does -------------------------------------------------------------------------------------

  // Opening and closing an image are steps that the browser's back button takes; the rest replaces the address.
  function change(values) {
    const opened = "image" in values && (values.image === null) !== (state.image === null);
    const [top, was] = [scrollY, state.image];
    Object.assign(state, values);
    history[opened ? "pushState" : "replaceState"](null, "", address());
    draw();
    if (opened && state.image !== null) scrollTo(0, 0);
    else if (opened && was !== null) articles[was].scrollIntoView({ block: "center", behavior: "instant" });
    else if (scrollY !== top && !("sort" in values)) scrollTo(0, top);
  }

  const step = (by) => change({ at: clamp(state.at + by, 0, data.blocks.length - 1) });
  const choosePart = (index) => change({ parts: { ...state.parts, [state.layer]: index } });

  function turn(by) { // to another image while one is open
    const rows = order().filter(shown);
    const at = rows.indexOf(state.image);
    if (state.image !== null && rows.length) change({ image: rows[clamp(at + by, 0, rows.length - 1)] });
  }

  function toggle(id) {
    const on = document.body.classList.toggle(id);
    find(`#${id}`).setAttribute("aria-pressed", on);
  }

  function movePatch(x, y) {
    const row = state.image ?? articles.findIndex((article) => near.has(article) && !article.hidden);
    const holder = row >= 0 && document.getElementById(`features-${row}`);
    if (!holder) return;
    const [left, top] = place(row);
    const step = 1 / 28;
    change({ places: { ...state.places, [row]: [clamp(left + step * x, 0, 1), clamp(top + step * y, 0, 1)] } });
  }

  function pressPicture(event, article, cell) {
    const row = Number(article.dataset.row);
    const column = cell.dataset.column === undefined ? null : Number(cell.dataset.column);
    if (state.layer === "similarity") {
      const frame = find(".frame", cell).getBoundingClientRect();
      const at = [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height];
      change({ source: row, places: { ...state.places, [row]: at.map((share) => clamp(share, 0, 1)) } });
    } else if (state.image === null) change({ image: row });
    else if (column !== null && data.models.length > 1) change({ model: state.model === column ? null : column });
  }

  slider.addEventListener("input", () => change({ at: Number(slider.value) }));
  find("#previous").addEventListener("click", () => step(-1));
  find("#next").addEventListener("click", () => step(1));
  for (const id of ["smooth", "overlay"]) find(`#${id}`).addEventListener("click", () => toggle(id));
  for (const button of all("[data-layer]")) {
    button.addEventListener("click", () => change({ layer: button.dataset.layer }));
  }
  for (const button of all("[data-part]")) {
    button.addEventListener("click", () => choosePart(Number(button.dataset.part)));
  }
  for (const button of all("[data-model]")) {
    const column = button.dataset.model === "" ? null : Number(button.dataset.model);
    button.addEventListener("click", () => change({ model: column }));
  }
  find("#sort").addEventListener("change", (event) => change({ sort: event.target.value }));
  find("#turn").addEventListener("click", () => {
    change({ sort: state.sort.startsWith("-") ? state.sort.slice(1) : `-${state.sort}` });
  });
  if (find("#tag")) find("#tag").addEventListener("change", (event) => change({ tag: event.target.value }));
  find("#close").addEventListener("click", () => change({ image: null }));
  find("#before").addEventListener("click", () => turn(-1));
  find("#after").addEventListener("click", () => turn(1));
  if (find("#fields")) find("#fields").addEventListener("toggle", drawFields);
  for (const chart of all(".chart svg")) {
    chart.addEventListener("click", (event) => {
      const frame = chart.getBoundingClientRect();
      const share = (((event.clientX - frame.left) / frame.width) * 240 - 6) / 228;
      change({ at: clamp(Math.round(share * (data.blocks.length - 1)), 0, data.blocks.length - 1) });
    });
  }
  articles.forEach((article, row) => {
    article.style.setProperty("--aspect", data.images[row].width / data.images[row].height);
    find("h2 a", article).href = `#image=${encodeURIComponent(nameOf(row))}`;
    find(".zoom", article).addEventListener("click", () => change({ image: state.image === null ? row : null }));
    for (const cell of all(".cell", article)) {
      find(".frame", cell).addEventListener("click", (event) => pressPicture(event, article, cell));
    }
  });

  if (matchMedia("(max-width: 640px)").matches) find(".more").open = false;

  const arrows = {
    ArrowLeft: () => step(-1), ArrowRight: () => step(1),
    ArrowUp: () => turn(-1), ArrowDown: () => turn(1),
  };
  const patchArrows = {
    ArrowLeft: () => movePatch(-1, 0), ArrowRight: () => movePatch(1, 0),
    ArrowUp: () => movePatch(0, -1), ArrowDown: () => movePatch(0, 1),
  };

  function press(event) {
    const chosen = data.layers[Number(event.key) - 1];
    const parts = pictures.layers[state.layer].parts.length;
    if (event.shiftKey && patchArrows[event.key] && state.layer === "similarity") patchArrows[event.key]();
    else if (arrows[event.key] && (state.image !== null || !/Up|Down/.test(event.key))) arrows[event.key]();
    else if (event.key === "Escape" && state.model !== null) change({ model: null });
    else if (event.key === "Escape" && state.image !== null) change({ image: null });
    else if (event.key === "[" && parts) choosePart(clamp(part() - 1, 0, parts - 1));
    else if (event.key === "]" && parts) choosePart(clamp(part() + 1, 0, parts - 1));
    else if (event.key === "s") toggle("smooth");
    else if (event.key === "o") toggle("overlay");
    else if (event.key === " " && event.target === document.body) {
      state.peek = true;
      if (!event.repeat) draw();
    } else if (chosen) change({ layer: chosen.key });
    else return false;
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
    if (press(event)) event.preventDefault();
  });
  document.addEventListener("keyup", (event) => {
    if (event.key !== " " || !state.peek) return;
    state.peek = false;
    draw();
  });
  addEventListener("hashchange", readAddress);
  addEventListener("popstate", readAddress);
  addEventListener("beforeprint", () => articles.filter((article) => !article.hidden).forEach(drawArticle));

  const observer = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting) {
        near.add(target);
        drawArticle(target);
      } else near.delete(target);
    }
  }, { rootMargin: "800px 0px" });
  for (const article of articles) observer.observe(article);
  readAddress();
})();
