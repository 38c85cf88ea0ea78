// Paths of wires: straight where nothing stands in between, else down a lane beside what does. Knows no graph.
"use strict";
(() => {
  const TURN = 34, NEAR = 12, STEP = 8, MOST_LANES = 48; // a row's gap; a lane beside an item, the next one, and how many are tried
  const SAMPLES = 16;

  // The points of a cubic curve.
  const bend = (a, b, c, d) => Array.from({ length: SAMPLES + 1 }, (_, k) => {
    const t = k / SAMPLES, u = 1 - t;
    return [0, 1].map((n) => u ** 3 * a[n] + 3 * u * u * t * b[n] + 3 * u * t * t * c[n] + t ** 3 * d[n]);
  });
  const inside = (p, [x, y]) => x > p.x - 2 && x < p.x + p.w + 2 && y > p.y - 2 && y < p.y + p.h + 2;

  function straight([x1, y1], [x2, y2]) {
    const reach = Math.max(16, (y2 - y1) / 2.2), [b, c] = [[x1, y1 + reach], [x2, y2 - reach]];
    return { path: `M${x1} ${y1}C${b} ${c} ${x2} ${y2}`, points: bend([x1, y1], b, c, [x2, y2]), x: (x1 + x2) / 2, y: (y1 + y2) / 2 };
  }

  // Aside to x, along the lane, and back; a wire that goes up turns around its ends.
  function aside([x1, y1], [x2, y2], x) {
    const t = y2 > y1 ? TURN : 0, h = TURN / 2;
    const first = [[x1, y1], [x1, y1 + h], [x, y1 + h], [x, y1 + t]], last = [[x, y2 - t], [x, y2 - h], [x2, y2 - h], [x2, y2]];
    const path = `M${first[0]}C${first.slice(1).join(" ")}L${last[0]}C${last.slice(1).join(" ")}`;
    return { path, ends: [...bend(...first), ...bend(...last)], lane: { x, top: Math.min(y1 + t, y2 - t), bottom: Math.max(y1 + t, y2 - t) }, x, y: (y1 + y2) / 2 };
  }

  // The router of a picture: from(p, to q) gives a path and where its mark stands. Lanes are used once.
  O.router = (items) => {
    const used = [];
    const crossed = (lane) => (p) => lane.x > p.x - 2 && lane.x < p.x + p.w + 2 && p.y < lane.bottom && p.y + p.h > lane.top;
    const taken = (lane) => used.some((u) => Math.abs(u.x - lane.x) < STEP - 1 && u.top < lane.bottom && u.bottom > lane.top);
    return (p, q) => {
      const from = [p.x + p.w / 2, p.y + p.h], to = [q.x + q.w / 2, q.y];
      const [top, bottom] = [Math.min(from[1], to[1]) - TURN, Math.max(from[1], to[1]) + TURN];
      const beside = items.filter((i) => i.y < bottom && i.y + i.h > top);
      const others = beside.filter((i) => i !== p && i !== q);
      const direct = straight(from, to);
      if (to[1] > from[1] && !others.some((i) => direct.points.some((point) => inside(i, point)))) return direct;
      const xs = beside.flatMap((i) => [0, 1, 2].flatMap((k) => [i.x - NEAR - k * STEP, i.x + i.w + NEAR + k * STEP]));
      const far = (x) => Math.abs(x - from[0]) + Math.abs(x - to[0]);
      const lanes = [...new Set(xs)].sort((a, b) => far(a) - far(b)).slice(0, MOST_LANES).map((x) => aside(from, to, x));
      const free = lanes.filter((l) => !beside.some(crossed(l.lane)) && !others.some((i) => l.ends.some((point) => inside(i, point))));
      const found = free.find((l) => !taken(l.lane)) || free[0] || (to[1] > from[1] ? direct : lanes[lanes.length - 1]);
      if (found.lane) used.push(found.lane);
      return found;
    };
  };
})();
