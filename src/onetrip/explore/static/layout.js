// Where operators stand: by module, or by kernel. A cut moves nothing by module. Knows no figures.
"use strict";
(() => {
  const MOST = 150; // items that the page opens with, and kernels around the chosen one
  const CHUNK = 40; // calls in a row of a module without modules that are shown as one
  const SIZE = { w: 150, h: 42 }, GAP = { x: 26, y: 34 }, PAD = { x: 14, top: 26, bottom: 12 };

  // ---------------------------------------------------------------- the tree of modules

  O.tree = (nodes) => {
    const root = { path: "", name: "", children: [], calls: [] };
    const known = new Map([["", root]]);
    const module = (path) => {
      let found = known.get(path);
      if (found) return found;
      const dot = path.lastIndexOf(".");
      const parent = module(dot < 0 ? "" : path.slice(0, dot));
      found = { path, name: path.slice(dot + 1), children: [], calls: [], parent };
      known.set(path, found);
      parent.children.push(found);
      return found;
    };
    for (const node of nodes) {
      const home = module(node.module);
      home.children.push({ call: node.id, parent: home });
      for (let m = home; m; m = m.parent) m.calls.push(node.id);
    }
    for (const m of known.values()) chunk(m);
    finish(root, nodes, 0);
    return root;
  };

  // A long row of calls as modules of a few, so that it can be shut.
  function chunk(m) {
    const calls = m.children.filter((c) => c.call !== undefined).length;
    if (calls <= MOST) return;
    const made = [];
    for (const child of m.children) {
      let last = made[made.length - 1];
      if (child.call === undefined || !last || !last.part || last.children.length >= CHUNK) {
        last = { path: `${m.path}/${made.length}`, children: [], calls: [], parent: m, part: true };
        if (child.call === undefined) { made.push(child); continue; }
        made.push(last);
      }
      child.parent = last;
      last.children.push(child);
      last.calls.push(child.call);
      last.name = `${last.calls.length} calls`;
    }
    m.children = made;
  }

  function finish(m, nodes, depth) {
    m.depth = depth;
    m.children.forEach((c, k) => {
      c.place = k;
      if (c.call !== undefined) c.form = nodes[c.call].form;
      else finish(c, nodes, depth + 1);
    });
    m.form = m.children.map((c) => c.form).join("|");
    fold(m);
  }

  // Neighbours that are numbered and equal are copies of the first.
  function fold(m) {
    let first = null;
    for (const child of m.children) {
      const numbered = child.call === undefined && /^\d+$/.test(child.name);
      if (numbered && first && first.form === child.form && first.calls.length === child.calls.length) {
        child.copyOf = first;
        first.copies = (first.copies || 1) + 1;
      } else first = numbered ? child : null;
    }
  }

  // ---------------------------------------------------------------- what is visible

  // Shuts modules, the innermost first, until few enough items are left.
  O.openFew = (root, view) => {
    let deepest = 0;
    const visit = (m) => { deepest = Math.max(deepest, m.depth); m.children.forEach((c) => c.call === undefined && visit(c)); };
    visit(root);
    for (let depth = deepest; depth > 0 && count(root, view) > MOST; depth--) {
      const shut = (m) => m.children.forEach((c) => {
        if (c.call !== undefined) return;
        if (c.depth >= depth) view.shut.add(c.path);
        shut(c);
      });
      shut(root);
    }
  };

  const isHidden = (m, view) => m.copyOf && !view.unfolded.has(m.parent.path);
  function count(m, view) {
    let total = 0;
    for (const c of m.children) {
      if (c.call !== undefined) total += 1;
      else if (!isHidden(c, view)) total += view.shut.has(c.path) ? 1 : count(c, view);
    }
    return total;
  }

  // The item that stands for each call: itself, its shut module, or its place in the first copy.
  function stands(root, view, total) {
    const item = new Array(total).fill(null);
    const visit = (m, rename) => {
      for (const c of m.children) {
        if (c.call !== undefined) item[c.call] = rename ? rename.get(c.call) : `n${c.call}`;
        else if (isHidden(c, view)) {
          const first = c.copyOf;
          c.calls.forEach((call, k) => { item[call] = item[first.calls[k]]; });
        } else if (view.shut.has(c.path)) c.calls.forEach((call) => { item[call] = `m${c.path}`; });
        else visit(c, rename);
      }
    };
    visit(root, null);
    return item;
  }

  // ---------------------------------------------------------------- by module

  O.byModule = (data, view) => {
    const item = stands(data.tree, view, data.nodes.length);
    const chains = chainsOf(data.tree, view);
    const links = new Map();
    for (const e of data.edges) {
      const [a, b] = [chains.get(item[e.a]), chains.get(item[e.b])];
      let k = 0;
      while (k < a.length && k < b.length && a[k] === b[k]) k++;
      if (k === a.length || k === b.length || a[k].place >= b[k].place) continue;
      if (!links.has(a[k].parent)) links.set(a[k].parent, []);
      links.get(a[k].parent).push([a[k], b[k]]);
    }
    const placed = { items: new Map(), boxes: [], item };
    const whole = measure(data.tree, view, links);
    put(whole, 0, 0, placed);
    return Object.assign(placed, { w: whole.w, h: whole.h });
  };

  function chainsOf(root, view) {
    const chains = new Map();
    const visit = (m, above) => {
      for (const c of m.children) {
        const chain = [...above, c];
        if (c.call !== undefined) chains.set(`n${c.call}`, chain);
        else if (!isHidden(c, view)) {
          if (view.shut.has(c.path)) chains.set(`m${c.path}`, chain);
          else visit(c, chain);
        }
      }
    };
    visit(root, []);
    return chains;
  }

  function measure(m, view, links) {
    const boxes = m.children
      .filter((c) => c.call !== undefined || !isHidden(c, view))
      .map((c) => {
        if (c.call !== undefined) return { of: c, id: `n${c.call}`, ...SIZE };
        if (view.shut.has(c.path)) return { of: c, id: `m${c.path}`, ...SIZE };
        return measure(c, view, links);
      });
    const inner = ranked(boxes, (links.get(m) || []).map(([a, b]) => [a, b]), (box) => box.of);
    const frame = m.parent ? PAD : { x: 24, top: 24, bottom: 24 };
    return { of: m, rows: inner.boxes, w: inner.w + 2 * frame.x, h: inner.h + frame.top + frame.bottom, dx: frame.x, dy: frame.top, module: true };
  }

  function put(box, x, y, placed) {
    if (box.of && box.of.parent && box.module) placed.boxes.push({ module: box.of, x, y, w: box.w, h: box.h });
    for (const child of box.rows) {
      const [cx, cy] = [x + box.dx + child.x, y + box.dy + child.y];
      if (child.module) put(child, cx, cy, placed);
      else placed.items.set(child.id, { id: child.id, of: child.of, x: cx, y: cy, w: child.w, h: child.h });
    }
  }

  // Rows by the longest path from above; in a row each near the middle of what it reads.
  function ranked(boxes, links, key) {
    const at = new Map(boxes.map((b, k) => [key(b), k]));
    const above = boxes.map(() => []);
    for (const [a, b] of links) if (at.has(a) && at.has(b)) above[at.get(b)].push(at.get(a));
    const rank = boxes.map(() => 0);
    boxes.forEach((_, k) => { for (const a of above[k]) rank[k] = Math.max(rank[k], rank[a] + 1); });
    const rows = [];
    boxes.forEach((_, k) => (rows[rank[k]] = rows[rank[k]] || []).push(k));
    const w = Math.max(0, ...rows.map((row) => row.reduce((s, k) => s + boxes[k].w + GAP.x, -GAP.x)));
    const middle = [];
    let y = 0;
    for (const row of rows) {
      const wish = (k) => (above[k].length ? above[k].reduce((s, a) => s + middle[a], 0) / above[k].length : 0);
      row.sort((a, b) => wish(a) - wish(b) || a - b);
      let x = (w - row.reduce((s, k) => s + boxes[k].w + GAP.x, -GAP.x)) / 2;
      for (const k of row) {
        Object.assign(boxes[k], { x, y });
        middle[k] = x + boxes[k].w / 2;
        x += boxes[k].w + GAP.x;
      }
      y += Math.max(...row.map((k) => boxes[k].h)) + GAP.y;
    }
    return { boxes, w, h: Math.max(0, y - GAP.y) };
  }

  // ---------------------------------------------------------------- by kernel

  O.byKernel = (data, chosen) => {
    const order = O.kernelsInOrder(data);
    const at = Math.max(0, order.findIndex((g) => g.name === chosen));
    const start = Math.max(0, Math.min(at - MOST / 2, order.length - MOST));
    const shown = order.slice(start, start + MOST);
    const item = new Array(data.nodes.length).fill(null);
    for (const g of shown) for (const call of g.calls) item[call] = item[call] || `k${g.name}`;
    const boxes = shown.map((g) => ({ of: g, id: `k${g.name}`, ...SIZE, w: 210 }));
    const links = [];
    for (const e of data.edges) {
      const [a, b] = [item[e.a], item[e.b]];
      if (a && b && a !== b) links.push([a, b]);
    }
    const inner = ranked(boxes, links.filter(([a, b]) => before(shown, a, b)), (box) => box.id);
    const items = new Map(inner.boxes.map((b) => [b.id, { ...b, x: b.x + 24, y: b.y + 24 }]));
    return { items, boxes: [], item, w: inner.w + 48, h: inner.h + 48 };
  };
  const before = (shown, a, b) => shown.findIndex((g) => `k${g.name}` === a) < shown.findIndex((g) => `k${g.name}` === b);

  O.kernelsInOrder = (data) => [...data.groups.values()].sort((a, b) => Number(a.name.slice(1)) - Number(b.name.slice(1)));
})();
