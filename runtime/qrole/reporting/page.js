"use strict";
(() => {
  const view = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const started = performance.now();
  const chosen = { candidate: 0, what: "", metric: "sqnr_db" };
  const PAGE = 200;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function layout(extra) {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), family: "system-ui, sans-serif" },
      margin: { l: 60, r: 20, t: 10, b: 40 },
      ...extra,
      xaxis: { ...axis, ...(extra.xaxis || {}) }, yaxis: { ...axis, ...(extra.yaxis || {}) },
    };
  }

  function draw(id, traces, extra) {
    const place = byId(id);
    if (!place) return;
    Plotly.react(place, traces, layout(extra), { responsive: true, displaylogo: false });
  }

  const unique = (values) => [...new Set(values)];
  const metric = () => view.metrics.find((m) => m[0] === chosen.metric);
  const cells = () => view.cells[chosen.candidate] || [];
  const shown = () => cells().filter((c) => c.what === chosen.what && chosen.metric in c.values);

  function fill(id, options, key) {
    const select = byId(id);
    if (!options.some((o) => o.value === chosen[key])) chosen[key] = options.length ? options[0].value : "";
    select.replaceChildren(...options.map((o) => new Option(o.text, o.value, false, o.value === chosen[key])));
  }

  function fillControls() {
    fill("candidate", view.candidates.map((name, i) => ({ text: name, value: i })), "candidate");
    fill("what", unique(cells().map((c) => c.what)).map((w) => ({ text: w, value: w })), "what");
    const measured = new Set(cells().filter((c) => c.what === chosen.what).flatMap((c) => Object.keys(c.values)));
    fill("metric", view.metrics.filter((m) => measured.has(m[0])).map((m) => ({ text: m[1], value: m[0] })), "metric");
  }

  function drawHeatmap() {
    const some = shown();
    const blocks = unique(cells().map((c) => c.block));
    const kinds = unique(some.map((c) => c.kind));
    const row = new Map(blocks.map((b, i) => [b, i]));
    const column = new Map(kinds.map((k, i) => [k, i]));
    const z = blocks.map(() => Array(kinds.length).fill(null));
    const text = blocks.map(() => Array(kinds.length).fill(""));
    for (const c of some) {
      z[row.get(c.block)][column.get(c.kind)] = c.values[chosen.metric];
      text[row.get(c.block)][column.get(c.kind)] = `${c.module}<br>${c.what} ${c.format}`;
    }
    const kept = blocks.map((_, i) => i).filter((i) => z[i].some((v) => v !== null));
    draw("heatmap", [{
      type: "heatmap", x: kinds, y: kept.map((i) => blocks[i]), z: kept.map((i) => z[i]), text: kept.map((i) => text[i]),
      hovertemplate: "%{text}<br>%{z:.4g}<extra></extra>", colorscale: "Cividis", reversescale: !(metric() || [])[2],
      colorbar: { title: { text: (metric() || ["", ""])[1] } }, xgap: kept.length > 100 ? 0 : 1, ygap: kept.length > 100 ? 0 : 1,
    }], { height: Math.min(900, Math.max(260, 90 + 18 * kept.length)), yaxis: { autorange: "reversed", type: "category" }, xaxis: { type: "category", side: "top" }, margin: { l: 60, r: 20, t: 60, b: 20 } });
  }

  function median(values) {
    const sorted = values.slice().sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

  function drawDepth() {
    const blocks = unique(cells().map((c) => c.block));
    const traces = ["fprop", "dgrad", "wgrad", "layer output"].map((what) => {
      const perBlock = new Map();
      for (const c of cells()) {
        if (c.what !== what || !(chosen.metric in c.values)) continue;
        if (!perBlock.has(c.block)) perBlock.set(c.block, []);
        perBlock.get(c.block).push(c.values[chosen.metric]);
      }
      const found = blocks.filter((b) => perBlock.has(b));
      return { type: "scatter", mode: found.length > 100 ? "lines" : "lines+markers", name: what, x: found, y: found.map((b) => median(perBlock.get(b))) };
    }).filter((t) => t.x.length);
    draw("depthchart", traces, { height: 340, xaxis: { type: "category", nticks: 20 }, yaxis: { title: { text: `median ${(metric() || ["", ""])[1]}` } } });
  }

  function cell(tag, text, className) {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function tableRow(texts, numbers = new Set()) {
    const made = document.createElement("tr");
    made.append(...texts.map((t, i) => cell("td", t, numbers.has(i) ? "number" : "")));
    return made;
  }

  function drawWorst() {
    const sign = (metric() || [])[2] ? 1 : -1;
    const worst = shown().sort((a, b) => sign * (a.values[chosen.metric] - b.values[chosen.metric])).slice(0, 20);
    byId("worsttable").tBodies[0].replaceChildren(...worst.map((c) => tableRow(
      [c.module, c.what, c.format, c.values[chosen.metric].toPrecision(5)], new Set([3]))));
  }

  function drawCurves() {
    draw("curves", Object.entries(view.curves).map(([name, y]) => ({ type: "scatter", mode: "lines", name, y })),
      { height: 340, xaxis: { title: { text: "step" } }, yaxis: { title: { text: "loss" } } });
  }

  function drawSensitivity() {
    const traces = Object.entries(view.sensitivity).map(([name, groups]) => {
      const some = groups.slice(0, 30);
      const error = (g) => g.kl ?? g.grad_rel_err ?? g.rel_err;
      return { type: "bar", orientation: "h", name, y: some.map((g) => g.group), x: some.map(error) };
    });
    const rows = Math.max(1, ...traces.map((t) => t.y.length));
    draw("sensitivitychart", traces, { height: 120 + 26 * rows * traces.length, yaxis: { autorange: "reversed", type: "category" }, xaxis: { title: { text: "the model's error when only this group is quantized" } } });
  }

  function drawFormats() {
    const bars = new Map();
    const add = (bar, label, amount) => {
      if (!bars.has(label)) bars.set(label, {});
      bars.get(label)[bar] = (bars.get(label)[bar] || 0) + amount;
    };
    for (const f of view.formats.formats || []) add("parameters", f.label, f.numel);
    for (const g of view.formats.gemms || []) add(`${g.gemm} FLOPs`, unique(g.operands).join(" x "), g.macs);
    const names = ["parameters", "fprop FLOPs", "dgrad FLOPs", "wgrad FLOPs"];
    const totals = Object.fromEntries(names.map((n) => [n, [...bars.values()].reduce((sum, b) => sum + (b[n] || 0), 0)]));
    const traces = [...bars].map(([label, amounts]) => ({
      type: "bar", orientation: "h", name: label, y: names, x: names.map((n) => totals[n] ? (100 * (amounts[n] || 0)) / totals[n] : 0),
      hovertemplate: `${label}: %{x:.2f} %<extra>%{y}</extra>`,
    }));
    draw("formatchart", traces, { barmode: "stack", height: 300, xaxis: { title: { text: "%" }, range: [0, 100] }, yaxis: { autorange: "reversed" } });
  }

  function matches(text, query) {
    return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function listFindings() {
    const query = byId("findingfilter").value;
    const found = view.findings.filter((f) => matches(JSON.stringify(f).toLowerCase(), query));
    byId("findingcount").textContent = `${found.length} of ${view.findings.length} findings`;
    byId("findinglist").replaceChildren(...found.slice(0, PAGE).map((f) => {
      const made = document.createElement("article");
      made.className = f.severity;
      made.append(cell("h3", `${f.code} ${f.severity}: ${f.meaning}`), cell("p", f.message));
      const shown = f.where.slice(0, 12).join(", ");
      made.append(cell("p", `where: ${shown}${f.where.length > 12 ? ` and ${f.where.length - 12} more` : ""}`));
      if (f.to_do) made.append(cell("p", `to do: ${f.to_do}`));
      const more = document.createElement("details");
      more.append(cell("summary", "explanation"), cell("p", f.explanation));
      made.append(more);
      return made;
    }));
  }

  let planShown = PAGE;
  const slotTexts = view.slots.map((s) => Object.values(s).join(" ").toLowerCase());
  function listPlan() {
    const query = byId("planfilter").value;
    const found = view.slots.filter((_, i) => matches(slotTexts[i], query));
    byId("plancount").textContent = `${found.length} of ${view.slots.length} slots; ${Math.min(found.length, planShown)} shown`;
    byId("plantable").tBodies[0].replaceChildren(...found.slice(0, planShown).map((s) => tableRow(
      [s.id, s.copies > 1 ? `${s.role} x${s.copies}` : s.role, s.class, s.shape, s.reads, s.label])));
    byId("planmore").hidden = found.length <= planShown;
  }

  function drawMeasured() {
    if (!view.candidates.length) return;
    fillControls(); drawHeatmap(); drawDepth(); drawWorst();
  }

  function drawAll() {
    drawMeasured();
    if (Object.keys(view.curves).length) drawCurves();
    if (Object.keys(view.sensitivity).length) drawSensitivity();
    if (Object.keys(view.formats).length) drawFormats();
  }

  for (const [id, key] of [["candidate", "candidate"], ["what", "what"], ["metric", "metric"]]) {
    const select = byId(id);
    if (select) select.addEventListener("change", () => { chosen[key] = key === "candidate" ? Number(select.value) : select.value; drawMeasured(); });
  }
  if (view.findings.length) { byId("findingfilter").addEventListener("input", listFindings); listFindings(); }
  if (view.slots.length) {
    byId("planfilter").addEventListener("input", () => { planShown = PAGE; listPlan(); });
    byId("planmore").addEventListener("click", () => { planShown += 5 * PAGE; listPlan(); });
    listPlan();
  }
  const theme = byId("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.setAttribute("aria-pressed", String(isDark())); theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); drawAll(); });
  prefersDark.addEventListener("change", () => { nameTheme(); drawAll(); });
  nameTheme();
  byId("sections").append(...[...document.querySelectorAll("main section")].map((s) => {
    const item = document.createElement("li");
    const link = cell("a", s.querySelector("h2").textContent);
    link.href = `#${s.id}`;
    item.append(link);
    return item;
  }));
  drawAll();
  document.documentElement.dataset.readyMs = String(Math.round(performance.now() - started));
})();
