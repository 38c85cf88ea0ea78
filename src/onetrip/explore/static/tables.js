// The lower part: tables that do all that the graph does, charts, and what was done.
"use strict";
(() => {
  const MOST_ROWS = 300, MOST_NAMES = 12;
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

  const SIGNS = { fused: "━", cut: "✂", yours: "✎", other: "⇄", locked: "⊘" };

  // Boundaries as rows: where an edit changes all copies of a layer, those of one state are one row.
  function folded(edges) {
    const rows = new Map();
    for (const e of edges) {
      const key = O.view.everywhere ? [e.form, ...O.data.status.get(e.id)].join(" ") : e.id;
      if (!rows.has(key)) rows.set(key, []);
      rows.get(key).push(e);
    }
    return [...rows.values()];
  }

  function boundaries() {
    const { data } = O;
    const found = folded(data.edges.filter((e) => !O.isFiltered([e.id])).sort((a, b) => b.bytes - a.bytes || a.id - b.id));
    const rows = found.slice(0, MOST_ROWS).map((alike) => {
      const e = alike.find((x) => x.id === O.pick.edge) || alike[0];
      const [state, code] = data.status.get(e.id);
      const [a, b] = [data.nodes[e.a], data.nodes[e.b]];
      const act = state === "fused" ? "Cut" : "Fuse";
      const button = O.make("button", {
        "aria-label": `${act} ${a.key} to ${b.key}`, disabled: O.isLocked(state) || O.exported ? "" : null,
        onclick: (event) => { event.stopPropagation(); O.chooseEdge(e.id); O.toggle(); },
      }, act);
      return O.make("tr", { "data-edge": e.id, class: e.id === O.pick.edge ? "chosen" : "", onclick: () => O.chooseEdge(e.id) },
        cell(`${SIGNS[state]} ${O.words[state]}`), cell(O.make("button", { "aria-label": `Show ${a.key} to ${b.key}`, onclick: () => O.chooseEdge(e.id) }, a.key)), cell(b.key), cell(O.bytes(e.bytes), true), cell(alike.length > 1 ? `×${alike.length}` : ""), cell(code), cell(button));
    });
    put(table(["state", "producer", "consumer", "#bytes", "copies", "reason", "change"], rows, "Boundaries"), ...more(found.length - rows.length));
  }

  function kernels() {
    const found = [...O.data.groups.values()].sort((a, b) => b.us - a.us || a.calls[0] - b.calls[0]);
    const rows = found.slice(0, MOST_ROWS).map((g) => O.make("tr", { class: g.name === O.pick.kernel ? "chosen" : "", onclick: () => O.chooseKernel(g.name) },
      cell(O.make("button", { onclick: () => O.chooseKernel(g.name) }, g.name)), cell(g.title), cell(g.kind), cell(O.bytes(g.reads), true), cell(O.bytes(g.writes), true), cell(`${O.us(g.us)} (${O.range(g)})`, true), cell(g.bound),
      cell(g.registers === null ? "–" : `${g.source === "estimated" ? "~" : ""}${g.registers}${g.spill ? ` +${g.spill} B spilled` : ""}`, true), cell(g.occupancy === null ? "–" : O.percent(g.occupancy), true), cell(O.percent(g.roof), true), cell(pin(g))));
    put(O.make("p", {}, launches(found)), table(["kernel", "operators", "kind", "#reads", "#writes", "#estimate", "bound by", "#registers", "#occupancy", "#of the roofline", "pin"], rows, "Kernels"), ...more(found.length - rows.length));
  }

  // Why the table may have more rows than the meter has kernels.
  function launches(groups) {
    const { shared } = O.data.state, drawn = groups.filter((g) => !g.launched);
    const notes = shared.map((names) => `${names.join(", ")} share one launch`);
    if (drawn.length) notes.push(`${drawn.map((g) => g.name).join(", ")} only ${drawn.length > 1 ? "draw seeds" : "draws a seed"}, which is no kernel`);
    return [`${O.kernels(O.data.state.totals.kernels)} of ${groups.length} ${groups.length === 1 ? "group" : "groups"}`, ...notes.slice(0, MOST_NAMES)].join("; ");
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

  const RATES = [[1e15, "PFLOP/s"], [1e12, "TFLOP/s"], [1e9, "GFLOP/s"], [1e6, "MFLOP/s"]];
  const rate = (value) => {
    const [unit, name] = RATES.find(([least]) => value >= least) || [1, "FLOP/s"];
    return `${Number((value / unit).toPrecision(3))} ${name}`;
  };
  const decades = (low, high) => Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, k) => 10 ** (Math.ceil(low) + k));

  function roofline() {
    const { roof } = O.data.graph;
    const dearest = [...O.data.groups.values()].filter((g) => g.flops > 0 && g.us > 0).sort((a, b) => b.us - a.us).slice(0, MOST_ROWS);
    const kernels = dearest.map((g) => ({ g, x: g.intensity, y: (g.flops / g.us) * 1e6 })).sort((a, b) => a.x - b.x);
    const xs = kernels.map((k) => k.x), low = Math.log10(Math.min(0.05, ...xs)), high = Math.log10(Math.max(1e4, ...xs));
    const peak = Math.log10(Math.max(roof.matrix, roof.vector)) + 0.3, floor = Math.min(peak - 6, ...kernels.map((k) => Math.log10(k.y)));
    let X, Y;
    chart("Roofline: FLOP/s over FLOPs a byte for each kernel, by estimate; the Kernels table has the figures", (pen, w, h) => {
      X = (v) => 84 + ((Math.log10(v) - low) / (high - low)) * (w - 104);
      Y = (v) => h - 34 - ((Math.log10(v) - floor) / (peak - floor)) * (h - 48);
      const line = (color, ...points) => {
        pen.strokeStyle = O.color(color);
        pen.beginPath();
        for (const [x, y] of points) pen.lineTo(x, y);
        pen.stroke();
      };
      pen.fillStyle = O.color("--dim");
      for (const v of decades(low, high)) { line("--rule", [X(v), 10], [X(v), h - 30]); pen.fillText(v >= 1e3 ? `${v / 1e3}k` : String(Number(v.toPrecision(1))), X(v) - 8, h - 18); }
      for (const v of decades(floor, peak)) { line("--rule", [80, Y(v)], [w - 20, Y(v)]); pen.fillText(rate(v), 4, Y(v) + 4); }
      pen.fillText("FLOPs a byte; both axes are logarithmic, times are estimates", 84, h - 4);
      for (const [name, most] of [["matrix units", roof.matrix], ["vector units", roof.vector]]) {
        line("--dim", [X(10 ** low), Y(10 ** low * roof.bandwidth)], [X(most / roof.bandwidth), Y(most)], [X(10 ** high), Y(most)]);
        pen.fillStyle = O.color("--ink");
        pen.fillText(`${name} ${rate(most)}`, w - 190, Y(most) - 4);
      }
    });
    const named = kernels.length <= MOST_NAMES;
    const dots = kernels.map(({ g, x, y }, k) => {
      const says = `${g.name}: ${g.title}; ${O.plain(x)} FLOPs a byte, ${rate(y)}`;
      const mine = g.name === O.pick.kernel;
      const dot = O.make("button", {
        class: `dot${mine ? " chosen" : ""}`, "aria-label": says, tabindex: mine || (k === 0 && !kernels.some((n) => n.g.name === O.pick.kernel)) ? 0 : -1,
        onclick: () => O.chooseKernel(g.name), onkeydown: (event) => stepDots(event, k),
      }, O.make("span", { class: "name", hidden: named ? null : "" }, g.name), O.make("span", { class: "says" }, says));
      dot.style.left = `${X(x)}px`;
      dot.style.top = `${Y(y)}px`;
      if (X(x) > X(10 ** high) / 2) dot.classList.add("late");
      return dot;
    });
    const stepDots = (event, k) => {
      const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      dots[(k + way + dots.length) % dots.length].focus();
    };
    document.querySelector("#table .chart").append(O.make("div", { class: "dots", role: "group", "aria-label": "Kernels, by FLOPs a byte: arrows go from one to the next" }, ...dots));
  }
})();
