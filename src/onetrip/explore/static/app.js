// What is shown and chosen, and what an action changes. Every figure comes from Python.
"use strict";
const PATIENCE = 200; // milliseconds after which what is being planned can be cancelled
O.pick = { edge: null, node: null, kernel: null };
O.view = { mode: "module", open: new Set(), shut: new Set(), unfolded: new Set(), everywhere: true, reasons: new Set() };
O.detail = "Why";
O.tableName = "Boundaries";
O.frozen = () => O.exported.states[O.data.state.preset] || O.exported.states[O.exported.shown];

O.fail = (error) => {
  const box = O.by("problem");
  box.textContent = String(error.message || error);
  box.hidden = false;
  clearTimeout(O.hiding);
  O.hiding = setTimeout(() => { box.hidden = true; }, 8000);
  return null;
};

// ------------------------------------------------------------------ what Python says

O.takeGraph = (graph) => {
  const data = { graph, nodes: graph.nodes, edges: graph.edges, groups: new Map(), status: new Map(), homes: new Map(), into: new Map(), from: new Map() };
  const add = (map, key, edge) => { if (!map.has(key)) map.set(key, []); map.get(key).push(edge); };
  for (const e of graph.edges) { add(data.into, e.b, e); add(data.from, e.a, e); }
  for (const list of [...data.into.values(), ...data.from.values()]) list.sort((a, b) => b.bytes - a.bytes);
  data.tree = O.tree(graph.nodes);
  O.data = data;
  O.pick = { edge: null, node: null, kernel: null };
  O.view.shut.clear();
  O.view.unfolded.clear();
  O.openFew(data.tree, O.view);
};

O.takeState = (state) => {
  const { data } = O;
  if (state.whole) { data.groups.clear(); data.status.clear(); }
  for (const name of state.gone) data.groups.delete(name);
  for (const g of state.groups) data.groups.set(g.name, g);
  for (const [id, status] of Object.entries(state.edges)) data.status.set(Number(id), status);
  data.state = state;
  data.homes.clear();
  for (const g of data.groups.values()) for (const call of g.calls) {
    if (!data.homes.has(call)) data.homes.set(call, []);
    data.homes.get(call).push(g.name);
  }
  if (O.pick.kernel && !data.groups.has(O.pick.kernel)) O.pick.kernel = (data.homes.get(O.pick.node) || [null])[0];
};

O.load = async (opened) => {
  const { graph, state, forgotten } = O.exported ? O.exported.states[O.exported.shown] : await O.ask(opened ? "/graph?opened=1" : "/graph");
  O.takeGraph(graph);
  O.takeState(state);
  O.drawAll();
  if (forgotten) O.fail("The server had forgotten this page, with all that was done on it: others were opened, and this one was quiet longest. It begins anew.");
};

// One action at a time; answers come in the order of the actions.
O.queue = Promise.resolve();
O.asked = []; // what is waited for: the number of each action, and what is said meanwhile
O.number = 0; // of the last action
O.dropped = 0; // actions up to this number are wanted no more
O.announce = () => { const said = O.asked.map((a) => a.says).filter(Boolean); if (said.length) O.by("status").textContent = `planning ${said.join(", then ")} …`; };
O.says = (action) => (action.do === "preset" ? O.data.graph.presets[action.preset] : action.do === "go" ? action.target || action.size || O.data.graph.graphs[action.graph] : "");
O.act = (action) => {
  if (O.exported) return O.fail("A file without Python changes no plan: onetrip explore does.");
  const number = ++O.number, mine = { number, says: O.says(action) };
  if (mine.says && action.preset !== "best") O.stopBest?.(); // what is asked for goes first
  O.asked.push(mine);
  O.announce();
  const slow = setTimeout(() => { O.by("cancel").hidden = false; }, PATIENCE);
  const over = () => {
    clearTimeout(slow);
    O.asked = O.asked.filter((a) => a !== mine);
    if (!O.asked.length) O.by("cancel").hidden = true;
  };
  O.queue = O.queue.then(async () => {
    const began = performance.now();
    const state = number <= O.dropped ? { cancelled: true } : await O.ask("/plan", { ...action, number });
    O.spent = O.python;
    over();
    if (state.cancelled) { O.drawHead(); O.by("status").textContent = "cancelled: the plan is as it was"; return O.announce(); }
    O.by("problem").hidden = true;
    if (state.whole) { await O.load(); } else { O.takeState(state); O.drawChange(); }
    O.tell();
    O.announce();
    await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
    O.took = performance.now() - began; // until the new figures are painted; what follows may be later
    O.drawRest();
    document.body.dataset.acts = Number(document.body.dataset.acts || 0) + 1;
    return undefined;
  }).catch((error) => { over(); O.drawHead(); O.tell(); O.announce(); O.fail(error); });
  return O.queue;
};
O.cancel = () => {
  if (!O.asked.length) return O.fail("Nothing is being planned.");
  if (O.stopBest) O.stopBest();
  O.dropped = O.number;
  return O.ask(`/cancel?number=${O.dropped}`, {}).catch(O.fail);
};

O.preset = (name) => {
  if (!O.exported) return O.act({ do: "preset", preset: name });
  const found = O.exported.states[name];
  O.takeGraph(found.graph);
  O.takeState(found.state);
  O.drawAll();
  return O.tell();
};

O.toggle = () => {
  if (O.pick.edge === null) return O.fail("Choose a boundary first: n, p or a click.");
  return O.act({ do: "toggle", edge: O.pick.edge, everywhere: O.view.everywhere });
};

O.pin = () => {
  if (!O.data.groups.has(O.pick.kernel)) return O.fail("Choose a kernel first: an operator, or a row of the Kernels table.");
  return O.act({ do: "pin", kernel: O.pick.kernel, everywhere: O.view.everywhere });
};

O.save = async () => {
  if (O.exported) return O.fail("A file without Python saves no plan: onetrip explore does.");
  const found = await O.ask("/save").catch(O.fail);
  if (found) {
    O.saved = found.plan;
    O.download("fusion.json", found.plan, "application/json");
    const t = JSON.parse(found.plan).totals;
    O.by("status").textContent = `saved, in all ${O.kernels(t.kernels)} and ${O.us(t.estimated_us)}: onetrip.compile(model, plan="fusion.json") honours it`;
  }
  return found;
};

O.tell = () => {
  const { state } = O.data, t = state.totals;
  O.by("status").textContent = `${state.label}: ${O.kernels(t.kernels)} (${O.signed(t.kernels - state.eager.kernels, String)} against eager), ${O.bytes(t.traffic)} moved (${O.signed(t.traffic - state.eager.traffic, O.bytes)})`
    + (state.lost.length ? `; ${state.lost.length} fused pairs are not possible on ${state.target}: see History` : "");
};

// ------------------------------------------------------------------ what is drawn

O.drawAll = () => { O.drawHead(); O.drawSide(); O.drawStage(); O.drawMeters(); O.chooseDetail(O.detail); O.chooseTable(O.tableName); };
O.drawChange = () => { O.drawMeters(); if (O.view.mode === "kernel") O.drawStage(); else O.drawWires(); };
O.drawRest = () => { O.drawReasons(); O.showDetail(O.detail); O.showTable(O.tableName); };
O.drawPick = () => { O.drawWires(); O.showDetail(O.detail); O.showTable(O.tableName); O.lightSource(); O.reveal(O.itemOfPick()); };

O.drawHead = () => {
  const { graph } = O.data;
  O.by("model").textContent = graph.model;
  document.title = `${graph.model} · onetrip explore`;
  const options = (id, names, chosen, value) => {
    O.fill(id, ...names.map((name, k) => O.make("option", { value: value ? k : name }, name)));
    O.by(id).value = value ? String(chosen) : chosen;
    O.by(id).disabled = Boolean(O.exported);
  };
  options("size", graph.sizes, graph.size);
  options("target", graph.targets, graph.target);
  options("graph", graph.graphs, graph.graph, true);
  O.by("graph-label").hidden = graph.graphs.length < 2;
};

O.drawMeters = () => {
  const { state, graph } = O.data, t = state.totals, e = state.eager;
  const change = (now, old, text) => {
    if (now === old) return null;
    return O.make("small", { class: now < old ? "less" : "more" }, `(${O.signed(now - old, text)})`);
  };
  const meter = (name, value, note, extra, cls) => O.make("div", { class: cls || "" }, O.make("dt", {}, name), O.make("dd", {}, value, ...[note, extra].filter(Boolean).flatMap((x) => [" ", x])));
  const limits = (budget) => {
    const rules = Object.entries(budget), over = rules.filter(([, r]) => r.found > r.limit).length;
    const texts = rules.map(([rule, r]) => [rule === "kernels" ? [r.found, r.limit] : [O.bytes(r.found), O.bytes(r.limit)], r.found > r.limit, r.noun]);
    const notes = texts.map(([[found, limit], beyond, noun]) => O.make("small", { class: beyond ? "more" : "" }, `${found} of ${limit} ${noun}`));
    if (!rules.length) return ["–", O.make("small", {}, `none for ${graph.target}`), null];
    return [over ? "✘ over" : "✔", O.make("span", { class: "limits" }, ...notes), null, over ? "over" : ""];
  };
  const gauge = O.make("span", { class: "gauge", "aria-hidden": "true" }, O.make("i"));
  gauge.firstChild.style.width = `${Math.min(100, (100 * t.registers) / t.limit)}%`;
  O.fill("meters",
    meter("KERNELS", String(t.kernels), change(t.kernels, e.kernels, String)),
    meter("TRAFFIC", O.bytes(t.traffic), change(t.traffic, e.traffic, O.bytes), t.spilled ? O.make("small", { class: "more" }, `${O.bytes(t.spilled)} of it spilled`) : null),
    meter("PEAK", O.bytes(t.peak), change(t.peak, e.peak, O.bytes)),
    meter("ESTIMATE", O.range(t), O.make("small", {}, `middle ${O.us(t.us)}`), t.bound ? O.make("small", { class: "wide" }, `bound ${O.us(t.bound)} (${t.bound_kind})`) : null),
    meter("WORST REGISTERS", `${t.registers}/${t.limit}`, gauge, t.spill ? O.make("small", { class: "more" }, `spills ${t.spill} B a thread`) : null, t.spill ? "over" : ""),
    ...(state.budget ? [meter("BUDGET", ...limits(state.budget))] : []));
  const presets = { ...graph.presets, mine: "Mine" };
  O.fill("presets", ...Object.entries(presets).map(([id, name]) => O.make("button", {
    "aria-pressed": state.preset === id, disabled: id === "mine" || (O.exported && !O.exported.states[id]) ? "" : null, onclick: () => O.preset(id),
  }, name)));
  O.by("undo").disabled = Boolean(O.exported) || state.history.length < 2;
  O.by("redo").disabled = Boolean(O.exported) || !state.undone.length;
};

O.drawSide = () => {
  const { data, view } = O;
  const list = (m) => O.make("ul", {}, ...m.children.filter((c) => c.call === undefined).filter((c) => !c.copyOf || view.unfolded.has(m.path)).flatMap((c) => {
    const shut = view.shut.has(c.path), folded = c.copies && !view.unfolded.has(m.path);
    const rows = [O.make("li", {}, O.make("button", { "aria-expanded": !shut, onclick: () => (shut ? O.open(c.path) : O.shut(c.path)) }, `${shut ? "▸" : "▾"} ${c.name}`),
      c.copies ? O.make("button", { "aria-pressed": !folded, title: "Fold identical layers, or show each", onclick: () => O.unfold(m.path) }, `×${c.copies}`) : null, shut ? null : list(c))];
    return rows;
  }));
  O.fill("modules", data.tree.children.some((c) => c.call === undefined) ? list(data.tree) : O.make("p", {}, "The model has no modules."));
  O.fill("other", ...(data.graph.other.length ? data.graph.other.map((a) => O.make("p", {}, `${a.taken ? "taken" : "not taken"}: ${a.kind}${a.note ? `, ${a.note}` : ""}. ${a.reason}`)) : [O.make("p", {}, "Best lists the rewrites that it has taken and refused.")]));
  O.drawReasons();
};

O.drawReasons = () => {
  const counts = new Map();
  for (const [state, code] of O.data.status.values()) counts.set(code || state, (counts.get(code || state) || 0) + 1);
  const names = [...counts.keys()].sort();
  O.fill("reasons", ...names.map((name) => O.make("label", {}, O.make("input", { type: "checkbox", ...(O.view.reasons.has(name) ? { checked: "" } : {}), onchange: (event) => {
    if (event.target.checked) O.view.reasons.add(name); else O.view.reasons.delete(name);
    O.drawWires();
    O.showTable(O.tableName);
  } }), `${name} ${counts.get(name)}`)));
};

// Whether none of these edges has a chosen reason, where some reason is chosen.
O.isFiltered = (edges) => O.view.reasons.size > 0 && !edges.some((id) => { const [state, code] = O.data.status.get(id) || []; return O.view.reasons.has(code || state); });

// ------------------------------------------------------------------ what is chosen

O.itemOfPick = () => {
  const { pick, placed, data } = O;
  if (pick.node !== null) return placed.item[pick.node];
  if (pick.edge !== null) return placed.item[data.edges[pick.edge].b];
  return pick.item || null;
};
O.isChosenItem = (item) => item === O.itemOfPick();

O.chooseEdge = (id, detail) => {
  const e = O.data.edges[id];
  O.pick = { edge: id, node: e.b, kernel: (O.data.homes.get(e.b) || [null])[0] };
  if (!detail) O.chooseDetail("Why");
  O.drawPick();
};
O.chooseItem = (item, detail) => {
  if (item[0] === "n") {
    const node = Number(item.slice(1));
    const near = [...(O.data.into.get(node) || []), ...(O.data.from.get(node) || [])];
    const edge = near.some((e) => e.id === O.pick.edge) ? O.pick.edge : near.length ? near[0].id : null;
    O.pick = { edge, node, kernel: (O.data.homes.get(node) || [null])[0] };
    if (!detail && O.detail === "Why") O.chooseDetail("Node");
  } else if (item[0] === "k") return O.chooseKernel(item.slice(1));
  else O.pick = { edge: null, node: null, kernel: null, item };
  O.drawPick();
  return undefined;
};
O.chooseKernel = (name) => {
  const g = O.data.groups.get(name);
  O.pick = { edge: null, node: g.calls[g.calls.length - 1], kernel: name };
  if (O.view.mode === "kernel" && !O.placed.items.has(`k${name}`)) O.drawStage();
  O.chooseDetail("Kernel");
  O.drawPick();
};

O.walk = (map, end) => {
  const start = O.pick.node ?? 0;
  const edges = (O.data[map].get(start) || []).filter((e) => O.placed.item[e[end]]);
  if (O.pick.node === null || !edges.length) return O.chooseItem(`n${start}`, true);
  const edge = edges[0];
  O.pick = { edge: edge.id, node: edge[end], kernel: (O.data.homes.get(edge[end]) || [null])[0] };
  return O.drawPick();
};
// The operators that read what the producer of the chosen one makes, or stand in its row.
O.sidestep = (way) => {
  const here = O.placed.items.get(O.itemOfPick() || "");
  if (!here) return O.walk("from", "b");
  const row = [...O.placed.items.values()].filter((p) => Math.abs(p.y - here.y) < 4).sort((a, b) => a.x - b.x);
  const next = row[(row.indexOf(here) + way + row.length) % row.length];
  return O.chooseItem(next.id, true);
};
// The next link that is cut, from where the chosen one stands, which may be fused by now.
O.stepBoundary = (way) => {
  const { links } = O.placed, count = links.length;
  const at = links.findIndex((l) => l.edges.includes(O.pick.edge));
  const start = at < 0 && way > 0 ? -1 : Math.max(at, 0);
  for (let k = 1; k <= count; k++) {
    const link = links[(start + way * k + 2 * count) % count];
    if (O.data.status.get(link.first)?.[0] !== "fused" && !O.isFiltered(link.edges)) return O.chooseEdge(link.first);
  }
  return O.fail("No boundary is left here.");
};

// ------------------------------------------------------------------ how it is shown

O.timed = (change) => {
  const began = performance.now();
  change();
  O.expanded = performance.now() - began;
};
O.redraw = () => { O.drawSide(); O.drawStage(); O.reveal(O.itemOfPick()); };
O.open = (path) => O.timed(() => { O.view.shut.delete(path); O.redraw(); });
O.shut = (path) => O.timed(() => { O.view.shut.add(path); O.redraw(); });
O.unfold = (path) => O.timed(() => { if (!O.view.unfolded.delete(path)) O.view.unfolded.add(path); O.openFew(O.data.tree, O.view); O.redraw(); });
O.openChosen = () => {
  const item = O.itemOfPick();
  if (item && item[0] === "m") O.open(item.slice(1));
  else if (O.pick.node !== null && O.data.nodes[O.pick.node].module) O.shut(O.data.nodes[O.pick.node].module);
};
O.setMode = (mode) => {
  O.view.mode = mode;
  O.by("by-module").setAttribute("aria-pressed", mode === "module");
  O.by("by-kernel").setAttribute("aria-pressed", mode === "kernel");
  O.redraw();
};
O.setScope = (everywhere) => {
  O.view.everywhere = everywhere;
  O.by("edit-all").setAttribute("aria-pressed", everywhere);
  O.by("edit-one").setAttribute("aria-pressed", !everywhere);
  if (O.placed) O.showTable(O.tableName);
};
O.setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  if (O.placed) { O.drawStrip(); O.showTable(O.tableName); }
};

O.search = (text) => {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length ? O.data.nodes.filter((n) => words.every((w) => n.key.toLowerCase().includes(w) || n.line.includes(w))) : [];
};
O.goTo = (node) => {
  for (let path = O.data.nodes[node].module; path; path = path.slice(0, Math.max(0, path.lastIndexOf(".")))) O.view.shut.delete(path);
  O.redraw();
  O.chooseItem(`n${node}`);
};

// ------------------------------------------------------------------ the beginning

O.listen = () => {
  const on = (id, event, run) => O.by(id).addEventListener(event, run);
  on("undo", "click", () => O.act({ do: "undo" }));
  on("redo", "click", () => O.act({ do: "redo" }));
  on("cancel", "click", O.cancel);
  on("save", "click", O.save);
  on("export", "click", async () => {
    const found = O.exported ? { html: document.documentElement.outerHTML } : await O.ask("/export").catch(O.fail);
    if (found) O.download("onetrip.html", found.html, "text/html");
  });
  on("target", "change", (event) => O.act({ do: "go", target: event.target.value }));
  on("size", "change", (event) => O.act({ do: "go", size: event.target.value }));
  on("graph", "change", (event) => O.act({ do: "go", graph: Number(event.target.value) }));
  on("by-module", "click", () => O.setMode("module"));
  on("by-kernel", "click", () => O.setMode("kernel"));
  on("edit-all", "click", () => O.setScope(true));
  on("edit-one", "click", () => O.setScope(false));
  on("theme", "click", () => O.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  on("search", "keydown", (event) => {
    if (event.key !== "Enter") return;
    const found = O.search(event.target.value);
    if (!found.length) { O.by("status").textContent = "no operator has that name"; return; }
    const at = found.findIndex((n) => n.id === O.pick.node);
    O.goTo(found[(at + 1) % found.length].id);
    O.by("status").textContent = `${((at + 1) % found.length) + 1} of ${found.length} operators`;
  });
  addEventListener("resize", () => { if (O.placed) { O.drawStrip(); O.showTable(O.tableName); } });
};

O.start = async () => {
  O.setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  O.chooseDetail = O.tabs("detail-tabs", "detail", ["Why", "Kernel", "Node"], O.showDetail);
  O.chooseTable = O.tabs("table-tabs", "table", O.tableNames, O.showTable);
  O.listen();
  await O.load(true);
  O.tell();
  O.by("nodes").focus();
  performance.mark("onetrip-shown");
  document.body.dataset.ready = "yes";
  // Planning shares Python with every toggle: of a large graph Best is planned when it is asked for.
  if (!O.exported && O.data.nodes.length <= 500) O.stopBest = O.best((event, found) => {
    if (event === "best" && !O.asked.length && O.data.state.history.length === 1)
      O.by("status").textContent += `. Best: ${O.kernels(found.kernels)}, ${O.us(found.us)}, ${O.percent(found.gap)} above its bound (${found.kind})`;
  });
};
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
O.start().catch(O.fail);
