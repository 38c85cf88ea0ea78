// The lower part: tables that do all that the graph does, charts, and what was done.
"use strict";
(() => {
  const MOST_ROWS = 300;
  let asked = 0;
  const TABLES = { Boundaries: boundaries, Kernels: kernels, "Memory timeline": memory, Roofline: roofline, Diff: diff, History: history };
  O.tableNames = Object.keys(TABLES);

  O.showTable = (name) => {
    O.tableName = name;
    asked += 1;
    TABLES[name]();
  };

  const put = (...children) => O.fill("table", ...children);
  const cell = (text, number) => O.make("td", number ? { class: "n" } : {}, text);
  const table = (heads, rows, label) => O.make("table", { "aria-label": label },
    O.make("thead", {}, O.make("tr", {}, ...heads.map((h) => O.make("th", h[0] === "#" ? { class: "n", scope: "col" } : { scope: "col" }, h.replace("#", ""))))),
    O.make("tbody", {}, ...rows));
  const more = (hidden) => (hidden > 0 ? [O.make("p", {}, `${hidden} more that move fewer bytes: choose reasons on the left, or search.`)] : []);

  // ---------------------------------------------------------------- tables

  const SIGNS = { fused: "━", cut: "✂", yours: "✎", locked: "⊘" };

  function boundaries() {
    const { data } = O;
    const found = data.edges.filter((e) => !O.isFiltered([e.id])).sort((a, b) => b.bytes - a.bytes || a.id - b.id);
    const rows = found.slice(0, MOST_ROWS).map((e) => {
      const [state, code] = data.status.get(e.id);
      const [a, b] = [data.nodes[e.a], data.nodes[e.b]];
      const act = state === "fused" ? "Cut" : "Fuse";
      const button = O.make("button", {
        "aria-label": `${act} ${a.key} to ${b.key}`, disabled: state === "locked" || O.exported ? "" : null,
        onclick: (event) => { event.stopPropagation(); O.chooseEdge(e.id); O.toggle(); },
      }, act);
      return O.make("tr", { "data-edge": e.id, class: e.id === O.pick.edge ? "chosen" : "", onclick: () => O.chooseEdge(e.id) },
        cell(`${SIGNS[state]} ${O.words[state]}`), cell(O.make("button", { "aria-label": `Show ${a.key} to ${b.key}`, onclick: () => O.chooseEdge(e.id) }, a.key)), cell(b.key), cell(O.bytes(e.bytes), true), cell(e.copies > 1 ? `×${e.copies}` : ""), cell(code), cell(button));
    });
    put(table(["state", "producer", "consumer", "#bytes", "copies", "reason", "change"], rows, "Boundaries"), ...more(found.length - rows.length));
  }

  function kernels() {
    const found = [...O.data.groups.values()].sort((a, b) => b.us - a.us || a.calls[0] - b.calls[0]);
    const rows = found.slice(0, MOST_ROWS).map((g) => O.make("tr", { class: g.name === O.pick.kernel ? "chosen" : "", onclick: () => O.chooseKernel(g.name) },
      cell(O.make("button", { onclick: () => O.chooseKernel(g.name) }, g.name)), cell(g.title), cell(g.kind), cell(O.bytes(g.reads), true), cell(O.bytes(g.writes), true), cell(`${O.us(g.us)} (${O.range(g)})`, true), cell(g.bound),
      cell(g.registers === null ? "–" : `${g.source === "estimated" ? "~" : ""}${g.registers}${g.spill ? ` +${g.spill} B spilled` : ""}`, true), cell(g.occupancy === null ? "–" : O.percent(g.occupancy), true), cell(O.percent(g.roof), true), cell(pin(g))));
    put(table(["kernel", "operators", "kind", "#reads", "#writes", "#estimate", "bound by", "#registers", "#occupancy", "#of the roofline", "pin"], rows, "Kernels"), ...more(found.length - rows.length));
  }

  const pin = (g) => (g.generated ? O.make("button", {
    "aria-label": `${g.pinned ? "Unpin" : "Pin"} ${g.name}`, disabled: O.exported ? "" : null,
    onclick: (event) => { event.stopPropagation(); O.pick.kernel = g.name; O.pin(); },
  }, g.pinned ? "◆ Unpin" : "Pin") : "");

  function history() {
    const { state } = O.data;
    const done = state.history.map((label) => O.make("li", {}, label));
    const undone = state.undone.map((label) => O.make("li", { class: "undone" }, label));
    const lost = state.lost.map((x) => O.make("li", {}, `${x.a} → ${x.b}: ${x.reason}`));
    put(O.make("ol", {}, ...done, ...undone), ...(lost.length ? [O.make("h3", {}, `Not possible on ${state.target}`), O.make("ul", {}, ...lost)] : []));
  }

  async function diff() {
    if (O.exported) return put(O.make("p", {}, "A file without Python compares no plans: onetrip diff does."));
    const mine = asked, against = O.against || "best";
    const choice = O.make("select", { onchange: (event) => { O.against = event.target.value; O.showTable("Diff"); } }, ...Object.entries(O.data.graph.presets).map(([id, name]) => O.make("option", { value: id, selected: id === against ? "" : null }, name)));
    const head = O.make("label", {}, "from ", choice, " to what is shown");
    put(head, O.make("p", {}, "Comparing …"));
    const found = await O.ask(`/diff?against=${against}`).catch(O.fail);
    if (mine === asked && found) put(head, O.make("pre", {}, found.text));
    return undefined;
  }

  // ---------------------------------------------------------------- charts

  function chart(label, draw, hit) {
    const canvas = O.make("canvas", { role: "img", "aria-label": label, onclick: (event) => hit && hit(event.offsetX, event.offsetY) });
    put(O.make("div", { class: "chart" }, canvas));
    const { pen, w, h } = O.sharp(canvas);
    pen.font = "11px system-ui, sans-serif";
    draw(pen, w, h);
  }

  async function memory() {
    const mine = asked;
    const found = O.exported ? O.frozen().memory : await O.ask("/memory").catch(O.fail);
    if (mine !== asked || !found) return;
    const top = found.arena + Math.max(0, ...beside(found));
    const boxes = [];
    chart(`Buffers by step and place: ${O.bytes(found.peak)} at the peak; the Kernels table has the figures`, (pen, w, h) => {
      const [left, base] = [64, h - 20], sx = (w - left - 8) / Math.max(1, found.steps.length), sy = (base - 14) / Math.max(1, top);
      const heap = new Array(found.steps.length + 1).fill(found.arena);
      for (const b of found.buffers) {
        const low = b.offset === null ? heap[b.first] : b.offset;
        if (b.offset === null) for (let k = b.first; k <= b.last; k++) heap[k] = Math.max(heap[k], low + b.bytes);
        const r = { x: left + b.first * sx, y: base - (low + b.bytes) * sy, w: Math.max(1, (b.last - b.first + 1) * sx - 1), h: Math.max(1, b.bytes * sy - 1), node: b.node };
        boxes.push(r);
        pen.fillStyle = b.node === O.pick.node ? O.color("--chosen") : b.where === "arena" ? O.color("--accent") : O.color("--dim");
        pen.globalAlpha = b.node === O.pick.node ? 1 : 0.7;
        pen.fillRect(r.x, r.y, r.w, r.h);
        pen.globalAlpha = 1;
        const name = b.node >= 0 ? O.data.nodes[b.node].op : "";
        if (r.h > 13 && pen.measureText(name).width < r.w - 8) { pen.fillStyle = O.color("--accent-ink"); pen.fillText(name, r.x + 4, r.y + 11); }
      }
      pen.fillStyle = O.color("--ink");
      pen.fillText(O.bytes(top), 4, 14);
      pen.fillText("0", 4, base);
      pen.fillText(`step 1 to ${found.steps.length}; blue: arena, grey: outputs and the library's own; ${O.bytes(found.peak)} at the peak, ${O.bytes(top)} with the arena's gaps`, left, h - 5);
    }, (x, y) => {
      const r = boxes.find((b) => x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h);
      if (r && r.node >= 0) O.chooseItem(`n${r.node}`);
    });
  }

  // What lies beside the arena at each step.
  function beside(found) {
    const sums = new Array(found.steps.length + 1).fill(0);
    for (const b of found.buffers) if (b.offset === null) for (let k = b.first; k <= b.last; k++) sums[k] += b.bytes;
    return sums;
  }

  function roofline() {
    const { roof } = O.data.graph, dots = [];
    chart("Roofline: FLOP/s over FLOPs a byte for each kernel, by estimate; the Kernels table has the figures", (pen, w, h) => {
      const kernels = [...O.data.groups.values()].filter((g) => g.flops > 0 && g.us > 0);
      const xs = kernels.map((g) => g.intensity), low = Math.log10(Math.min(0.05, ...xs)), high = Math.log10(Math.max(1e4, ...xs));
      const peak = Math.log10(Math.max(roof.matrix, roof.vector)) + 0.3, floor = Math.min(peak - 6, ...kernels.map((g) => Math.log10((g.flops / g.us) * 1e6)));
      const X = (v) => 70 + ((Math.log10(v) - low) / (high - low)) * (w - 90), Y = (v) => h - 22 - ((Math.log10(v) - floor) / (peak - floor)) * (h - 36);
      for (const [name, rate] of [["matrix units", roof.matrix], ["vector units", roof.vector]]) {
        const ridge = rate / roof.bandwidth;
        pen.strokeStyle = O.color("--dim");
        pen.beginPath();
        pen.moveTo(X(10 ** low), Y(10 ** low * roof.bandwidth));
        pen.lineTo(X(ridge), Y(rate));
        pen.lineTo(X(10 ** high), Y(rate));
        pen.stroke();
        pen.fillStyle = O.color("--ink");
        pen.fillText(`${name} ${Number((rate / 1e12).toPrecision(3))} TFLOP/s`, w - 190, Y(rate) - 4);
      }
      for (const g of kernels) {
        const dot = { x: X(g.intensity), y: Y((g.flops / g.us) * 1e6), name: g.name };
        dots.push(dot);
        pen.fillStyle = g.name === O.pick.kernel ? O.color("--chosen") : O.color("--accent");
        pen.beginPath();
        pen.arc(dot.x, dot.y, g.name === O.pick.kernel ? 7 : 4.5, 0, 7);
        pen.fill();
        if (kernels.length < 40) { pen.fillStyle = O.color("--ink"); pen.fillText(g.name, dot.x + 8, dot.y + 4); }
      }
      pen.fillStyle = O.color("--ink");
      pen.fillText("FLOPs a byte → (both axes logarithmic; times are estimates)", 70, h - 6);
    }, (x, y) => {
      const near = dots.map((d) => [Math.hypot(d.x - x, d.y - y), d]).sort((a, b) => a[0] - b[0])[0];
      if (near && near[0] < 20) O.chooseKernel(near[1].name);
    });
  }
})();
