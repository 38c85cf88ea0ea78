// The graph: operators, what passes between them, kernels as hulls over them, and the strip above.
"use strict";
(() => {
  const MARKS = { cut: "✂", yours: "✎", other: "⇄", locked: "⊘" };
  const ORDER = ["cut", "yours", "other", "locked", "fused"]; // of several edges between two items the first

  // ---------------------------------------------------------------- what stands

  O.drawStage = () => {
    const { data, view } = O;
    const placed = view.mode === "module" ? O.byModule(data, view) : O.byKernel(data, O.pick.kernel);
    O.placed = placed;
    const canvas = O.by("canvas");
    canvas.style.width = `${Math.max(placed.w, 200)}px`;
    canvas.style.height = `${placed.h}px`;
    O.set(O.by("wires"), { width: placed.w, height: placed.h });
    O.fill("boxes", ...placed.boxes.map(box));
    O.fill("nodes", ...[...placed.items.values()].map(node));
    links(placed);
    O.drawWires();
  };

  function at(element, p) {
    for (const [name, value] of [["left", p.x], ["top", p.y], ["width", p.w], ["height", p.h]])
      element.style[name] = `${value}px`;
    return element;
  }

  function box(b) {
    const { module } = b;
    const copies = module.copies && !O.view.unfolded.has(module.parent.path) ? ` … ×${module.copies} identical` : "";
    const shut = O.make("button", { tabindex: -1, title: "Shut this module", onclick: () => O.shut(module.path) }, `▾ ${module.name}${copies}`);
    return at(O.make("div", { class: "box" }, shut), b);
  }

  function node(p) {
    const of = p.of;
    const [title, small, extra] = p.id[0] === "n" ? callText(O.data.nodes[of.call]) : p.id[0] === "m" ? moduleText(of) : kernelText(of);
    const element = O.make("div", {
      class: `node ${extra}`, role: "option", id: `item-${p.id}`, "aria-selected": false, title: `${title}\n${small}`,
      onclick: () => O.chooseItem(p.id), ondblclick: () => p.id[0] === "m" && O.open(of.path),
    }, O.make("b", {}, title), O.make("span", { class: "k" }), O.make("small", {}, small));
    return at(element, p);
  }

  const callText = (n) => [n.op, [n.shape.replaceAll(" × ", "×"), n.type].filter(Boolean).join(" "), n.library ? "library" : ""];
  const moduleText = (m) => [
    `▸ ${m.name}${m.copies && !O.view.unfolded.has(m.parent.path) ? ` ×${m.copies}` : ""}`, `${m.calls.length} operators`, "module",
  ];
  const kernelText = (g) => [`${g.pinned ? "◆ " : ""}${g.name} ${g.title}`, `${O.bytes(g.reads + g.writes)}, ${O.us(g.us)}`, g.generated ? "" : "library"];

  // ---------------------------------------------------------------- what passes

  function links(placed) {
    const found = new Map();
    for (const e of O.data.edges) {
      const [a, b] = [placed.item[e.a], placed.item[e.b]];
      if (!a || !b || a === b) continue;
      const key = `${a}\n${b}`;
      if (!found.has(key)) found.set(key, { a, b, edges: [] });
      found.get(key).edges.push(e.id);
    }
    placed.links = [...found.values()];
    const route = O.router([...placed.items.values()]);
    for (const link of placed.links) link.curve = route(placed.items.get(link.a), placed.items.get(link.b));
  }

  // Lines, marks, hulls and badges: all that an action changes.
  O.drawWires = () => {
    const { placed, data } = O;
    const lines = [], marks = [], hits = [];
    for (const link of placed.links) {
      const state = ORDER.find((s) => link.edges.some((id) => data.status.get(id)?.[0] === s)) || "cut";
      link.first = link.edges.find((id) => data.status.get(id)?.[0] === state) ?? link.edges[0];
      const c = link.curve;
      const chosen = link.edges.includes(O.pick.edge);
      const faint = O.isFiltered(link.edges) ? " faint" : "";
      if (chosen) lines.push(O.svg("path", { d: c.path, class: "chosen" }));
      lines.push(O.svg("path", { d: c.path, class: `wire ${state}${faint}` }));
      const choose = () => O.chooseEdge(chosen ? O.pick.edge : link.first);
      hits.push(O.svg("path", { d: c.path, class: "hit", onclick: choose }));
      if (MARKS[state]) marks.push(O.svg("g", { class: `mark${faint}`, onclick: choose }, O.svg("circle", { cx: c.x, cy: c.y, r: 9 }), O.svg("text", { x: c.x, y: c.y }, MARKS[state])));
    }
    O.by("wires").replaceChildren(...hulls(), ...lines, ...hits, ...marks);
    O.by("legend-other").hidden = ![...data.status.values()].some(([state]) => state === "other");
    O.by("legend-pinned").hidden = ![...data.groups.values()].some((g) => g.pinned);
    badges();
    O.drawStrip();
  };

  function hulls() {
    const { placed, data } = O;
    if (O.view.mode !== "module") return [];
    const found = [];
    for (const g of data.groups.values()) {
      const items = new Set(g.calls.map((c) => placed.item[c]).filter((i) => i && i[0] === "n"));
      if (items.size < 2) continue;
      const paint = `hsl(${O.hue(g.name)} 75% 50%)`;
      const shapes = [...items].map((i) => placed.items.get(i)).map((p) => O.svg("rect", { x: p.x - 5, y: p.y - 5, width: p.w + 10, height: p.h + 10, rx: 10, fill: paint, stroke: paint, "stroke-width": 8 }));
      for (const link of placed.links) if (items.has(link.a) && items.has(link.b) && O.data.status.get(link.first)?.[0] === "fused") shapes.push(O.svg("path", { d: link.curve.path, stroke: paint, "stroke-width": 44 }));
      found.push(O.svg("g", { class: "hull" }, ...shapes));
    }
    return found;
  }

  function badges() {
    const { placed, data, pick } = O;
    for (const p of placed.items.values()) {
      const element = O.by(`item-${p.id}`);
      const names = p.id[0] === "n" ? data.homes.get(p.of.call) || [] : [];
      element.querySelector(".k").textContent = names.slice(0, 2).map((name) => (data.groups.get(name).pinned ? `◆ ${name}` : name)).join("+") + (names.length > 2 ? "…" : "");
      element.setAttribute("aria-selected", O.isChosenItem(p.id));
      element.classList.toggle("kin", O.isKin(p));
    }
    const item = O.itemOfPick();
    O.by("nodes").toggleAttribute("aria-activedescendant", false);
    if (item) O.by("nodes").setAttribute("aria-activedescendant", `item-${item}`);
  }

  O.isKin = (p) => {
    const kernel = O.pick.kernel;
    return Boolean(kernel) && p.id[0] === "n" && (O.data.homes.get(p.of.call) || []).includes(kernel);
  };

  O.reveal = (item) => {
    const p = item && O.placed.items.get(item), scroll = O.by("scroll");
    if (!p) return;
    const left = O.by("canvas").offsetLeft;
    const [x, y] = [p.x + left + p.w / 2, p.y + p.h / 2];
    if (y < scroll.scrollTop + 60 || y > scroll.scrollTop + scroll.clientHeight - 60) scroll.scrollTop = y - scroll.clientHeight / 2;
    if (x < scroll.scrollLeft + 90 || x > scroll.scrollLeft + scroll.clientWidth - 90) scroll.scrollLeft = x - scroll.clientWidth / 2;
  };

  // ---------------------------------------------------------------- the strip

  O.sharp = (canvas) => {
    const ratio = devicePixelRatio || 1, { clientWidth: w, clientHeight: h } = canvas;
    canvas.width = w * ratio;
    canvas.height = h * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    return { pen, w, h };
  };

  O.drawStrip = () => {
    const { pen, w, h } = O.sharp(O.by("strip"));
    const kernels = O.kernelsInOrder(O.data), most = Math.max(1, ...kernels.map((g) => g.reads + g.writes));
    const step = w / Math.max(1, kernels.length);
    kernels.forEach((g, k) => {
      const tall = Math.max(1, ((g.reads + g.writes) / most) * (h - 4));
      pen.fillStyle = g.name === O.pick.kernel ? O.color("--chosen") : g.generated ? O.color("--accent") : O.color("--dim");
      pen.fillRect(k * step, h - tall, Math.max(0.5, step - (step > 4 ? 2 : 0)), tall);
    });
  };
  O.by("strip").addEventListener("click", (event) => {
    const kernels = O.kernelsInOrder(O.data);
    const found = kernels[Math.floor((event.offsetX / event.target.clientWidth) * kernels.length)];
    if (found) O.chooseKernel(found.name);
  });
})();
