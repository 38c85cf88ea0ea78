// The right side: why a boundary stands, a kernel with its source, an operator.
"use strict";
(() => {
  const WORDS = { fused: "fused", cut: "cut by the planner", yours: "cut by you", other: "another way in Best", locked: "impossible" };
  O.words = WORDS;
  O.isLocked = (state) => state === "locked" || state === "other";
  let asked = 0; // answers to older questions are dropped

  O.showDetail = (name) => {
    O.detail = name;
    ({ Why: why, Kernel: kernel, Node: node })[name]();
  };

  const put = (...children) => O.fill("detail", ...children);
  const row = (name, ...cells) => O.make("tr", {}, O.make("th", { scope: "row" }, name), ...cells.map((c) => O.make("td", { class: "n" }, c)));

  // ---------------------------------------------------------------- why

  async function why() {
    const id = O.pick.edge;
    if (id === null) return put(O.make("p", {}, "Choose a boundary: in the graph, in the table below, or with n and p."));
    const mine = ++asked;
    const found = O.exported ? O.frozen().why[id] : await O.ask(`/why?edge=${id}`).catch(O.fail);
    if (mine !== asked || O.detail !== "Why") return undefined;
    if (!found) return put(O.make("p", {}, O.exported ? "What a cut here would change is not in this file." : "No answer came."));
    return put(...(found.verdict ? cut(found) : fused(found)));
  }

  // The buttons of a boundary, and of the kernel at it.
  function acts(found, name, refused) {
    const pinned = found.pins.length && !refused ? O.make("p", {}, `${found.pins.join(", ")} ${found.pins.length > 1 ? "are" : "is"} pinned: free it before you change this boundary.`) : null;
    return [O.make("div", { class: "act" }, O.make("button", { disabled: refused || pinned || O.exported ? "" : null, onclick: O.toggle }, name), pin(O.data.groups.get(O.pick.kernel))), pinned];
  }
  const pin = (g) => (g && g.generated ? O.make("button", { "aria-pressed": g.pinned, disabled: O.exported ? "" : null, onclick: O.pin }, `${g.pinned ? "Unpin" : "Pin"} ${g.name} (i)`) : null);

  const head = (found) => [
    O.make("h3", {}, found.title),
    O.make("p", {}, `${O.bytes(found.bytes)} pass here${found.copies > 1 ? `, in ${found.copies} copies of the layer` : ""}.`),
    O.make("p", {}, [...new Set(found.lines.filter(Boolean))].join(" → ")),
  ];

  function cut(found) {
    return [
      ...head(found),
      O.make("p", { class: "verdict" }, [...new Set([WORDS[found.state[0]], found.verdict, found.code])].join(" · ")),
      O.make("p", {}, found.reason),
      found.way ? O.make("p", {}, `As it is written no kernel holds both. Best may compute them in another way, where that is cheaper: ${found.way}.`) : null,
      evidence(found.evidence),
      O.make("h3", {}, "If fused"),
      found.if_fused ? effect(found.if_fused) : O.make("p", {}, "No such kernel can be made."),
      ...acts(found, "Fuse here (x)", O.isLocked(found.state[0])),
      found.remedy ? O.make("p", {}, `To change it: ${found.remedy}`) : null,
    ].filter(Boolean);
  }

  const fused = (found) => [
    ...head(found),
    O.make("p", { class: "verdict" }, "fused"),
    O.make("p", {}, "Both are computed in one kernel; nothing lies in memory between them."),
    O.make("h3", {}, "If cut"),
    found.if_cut ? effect(found.if_cut) : O.make("p", {}, "They cannot be told apart here."),
    ...acts(found, "Cut here (x)", !found.if_cut),
  ].filter(Boolean);

  const evidence = (list) => O.make("table", {}, O.make("tbody", {}, ...list.map((e) => row(e.limit, O.quantity(e.value, e.unit), e.bound === null ? "" : `limit ${O.quantity(e.bound, e.unit)}`))));

  function effect(e) {
    if (e.kernel) return O.make("p", {}, `That kernel: ${O.bytes(e.kernel.bytes)}, ${O.us(e.kernel.us)}` + (e.kernel.registers === null ? "" : `, ${e.kernel.registers} registers`) + (e.kernel.spill ? `, ${e.kernel.spill} B spilled` : ""));
    return O.make("table", {}, O.make("tbody", {},
      row("kernels", O.signed(e.kernels, String)), row("traffic", O.signed(e.traffic, O.bytes)), row("peak", O.signed(e.peak, O.bytes)),
      row("estimate", O.signed(e.us, O.us)), row("worst registers", e.registers.join(" → ")), row("worst spill", `${e.spill.join(" → ")} B`)));
  }

  // ---------------------------------------------------------------- kernel

  async function kernel() {
    const g = O.data.groups.get(O.pick.kernel);
    if (!g) return put(O.make("p", {}, "Choose a kernel: an operator in the graph, or a row of the table below."));
    const mine = ++asked;
    put(...figures(g), O.make("p", {}, "Generating its source …"));
    const found = O.exported ? O.frozen().kernels[g.name] : await O.ask(`/kernel/${g.name}`).catch(O.fail);
    if (mine !== asked || O.detail !== "Kernel") return undefined;
    put(...figures(g), ...(found ? source(found, g) : [O.make("p", {}, "Its source is not in this file.")]));
    return O.lightSource();
  }

  function figures(g) {
    const rows = [
      ["operators", g.calls.map((c) => O.data.nodes[c].op).join(", ")], ["kind", `${g.kind}, ${g.generated ? "generated" : "a library's"}${g.pinned ? ", pinned" : ""}`],
      ["reads", O.bytes(g.reads)], ["writes", O.bytes(g.writes)], ["estimate", `${O.us(g.us)} (${O.range(g)})`], ["bound by", g.bound],
      ["of the roofline", O.percent(g.roof)], ["FLOPs a byte", O.plain(g.intensity)],
    ];
    if (g.registers !== null) rows.push(["registers", `${g.registers} (${g.source})${g.spill ? `, ${g.spill} B spilled` : ""}`], ["shared memory", O.bytes(g.shared)], ["occupancy", O.percent(g.occupancy)]);
    const clock = g.generated ? [O.make("button", { onclick: () => measured(g) }, "Measure here"), O.make("span", { id: "measured" })] : ["A library call is not measured by itself."];
    const measure = O.data.graph.measures ? [O.make("div", { class: "act" }, ...clock)] : [];
    return [O.make("h3", {}, `${g.name}: ${g.title}`), O.make("table", {}, O.make("tbody", {}, ...rows.map(([n, v]) => row(n, v)))), O.make("div", { class: "act" }, pin(g)), ...measure];
  }

  async function measured(g) {
    O.by("measured").textContent = "running …";
    const found = await O.ask(`/measure/${g.name}`).catch(O.fail);
    if (O.by("measured")) O.by("measured").textContent = found ? `measured ${O.us(found.us)}, estimated ${O.us(g.us)}` : "";
  }

  function source(found, g) {
    const lines = found.lines.map((line) => {
      const element = O.make("div", { class: line.calls.length ? "linked" : "", "data-calls": line.calls.join(" "), onclick: () => line.calls.length && O.chooseItem(`n${line.calls[0]}`, "Kernel") });
      element.innerHTML = line.html; // made by Pygments from escaped text
      return element;
    });
    return [
      O.make("div", { class: "act" }, O.make("button", { onclick: () => O.copy(found.text) }, "Copy source"), O.make("button", { onclick: () => O.copy(found.reproducer) }, "Copy a reproducer")),
      O.make("h3", {}, `${found.language} of ${g.name}`),
      O.make("div", { class: "code", role: "region", "aria-label": "Source", tabindex: 0 }, ...lines),
    ];
  }

  O.lightSource = () => {
    for (const line of document.querySelectorAll(".code .linked"))
      line.classList.toggle("lit", line.dataset.calls.split(" ").includes(String(O.pick.node)));
  };

  // ---------------------------------------------------------------- node

  function node() {
    const n = O.data.nodes[O.pick.node];
    if (!n) return put(O.make("p", {}, "Choose an operator in the graph, or search with /."));
    const near = (title, list, end) => [O.make("h3", {}, title), O.make("ul", {}, ...list.map((e) => O.make("li", {}, O.make("button", { onclick: () => O.chooseEdge(e.id, "Node") }, `${O.data.nodes[e[end]].key} — ${O.bytes(e.bytes)}, ${WORDS[O.data.status.get(e.id)[0]]}`))))];
    const rows = [["operator", n.op], ["key", n.key], ["module", n.module || "the model itself"], ["source line", n.line || "unknown"], ["result", `${n.shape} ${n.type}`], ["bytes", O.bytes(n.bytes)], ["kernels", (O.data.homes.get(n.id) || []).join(", ")], ["primitive steps", n.steps]];
    return put(
      O.make("h3", {}, n.key), O.make("table", {}, O.make("tbody", {}, ...rows.map(([name, v]) => row(name, String(v))))),
      ...near("Producers", O.data.into.get(n.id) || [], "a"), ...near("Consumers", O.data.from.get(n.id) || [], "b"),
    );
  }
})();
