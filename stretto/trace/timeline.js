"use strict";
// The time line: one canvas, redrawn from the data of the page whenever the view changes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const host = document.getElementById("timeline");
  const canvas = host.querySelector("canvas");
  const tip = document.getElementById("tip");
  const ctx = canvas.getContext("2d");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const GUTTER = 148, RULER = 26, GROUP_GAP = 9, PAD_RIGHT = 14;
  const bySteps = data.queries.length === 1;
  const margin_s = data.wall_s * 0.005;
  const home = { from: -margin_s, to: (data.wall_s || 1) + margin_s };
  let view = { ...home };
  let chosen = null, hovered = null, width = 0;

  // Rows: the queries' bars, then one group per instance. A row is a lane; its bars are sorted by start.
  const queryBar = (q, i) => ({ start: q.start, end: q.end, queued: null, marks: [], parts: [[i, q.graph, "", 0]],
                                outcome: q.outcome, usage: null, started: true, query: q.name,
                                reason: "", terms: {} });
  const groups = [
    { label: "queries", lanes: data.query_lanes.map((lane) => lane.map((i) => queryBar(data.queries[i], i))) },
    ...data.groups.map((g) => ({ ...g, lanes: g.lanes.map((lane) => lane.map((i) => data.spans[i])) })),
  ];
  const numLanes = groups.slice(1).reduce((n, g) => n + g.lanes.length, 0);
  const laneHeight = numLanes <= 24 ? 20 : numLanes <= 60 ? 14 : numLanes <= 150 ? 8 : 4;
  const queryHeight = groups[0].lanes.length <= 8 ? 12 : groups[0].lanes.length <= 40 ? 5 : 3;
  let height = RULER;
  const rows = [];
  groups.forEach((group, i) => {
    height += GROUP_GAP;
    group.top = height;
    for (const lane of group.lanes) {
      const own = i === 0 ? queryHeight : laneHeight;
      rows.push({ lane, top: height, height: own, isQueries: i === 0 });
      height += own;
    }
    group.bottom = height = Math.max(height, group.top + 14);
  });
  height += GROUP_GAP;

  const chain = new Map();  // of the chosen query: span -> the stretch that the query waited for it
  const choose = (query) => {
    if (query < 0) return;
    chosen = query === chosen ? null : query;
    chain.clear();
    if (chosen !== null)
      for (const [start, end, span] of data.chains[chosen]) if (span >= 0) chain.set(data.spans[span], [start, end]);
    for (const row of document.querySelectorAll("tr[data-query]"))
      row.classList.toggle("chosen", Number(row.dataset.query) === chosen);
    draw();
  };

  const stepNumbers = new Map();
  const hueOf = (part) => {
    if (!bySteps || !part[2]) return part[0] * 137.508 + 210;
    if (!stepNumbers.has(part[1])) stepNumbers.set(part[1], stepNumbers.size);
    return stepNumbers.get(part[1]) * 137.508 + 210;
  };
  const fill = (part, alpha = 1) => `hsl(${hueOf(part) % 360} ${dark.matches ? "42% 36%" : "66% 76%"} / ${alpha})`;
  const edge = (part, alpha = 1) => `hsl(${hueOf(part) % 360} ${dark.matches ? "55% 62%" : "50% 45%"} / ${alpha})`;
  const theme = {};
  const readTheme = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["card", "soft", "line", "text", "muted", "bad"])
      theme[name] = style.getPropertyValue(`--${name}`).trim();
  };

  const xOf = (t) => GUTTER + ((t - view.from) / (view.to - view.from)) * (width - GUTTER - PAD_RIGHT);
  const tOf = (x) => view.from + ((x - GUTTER) / (width - GUTTER - PAD_RIGHT)) * (view.to - view.from);
  const time = (s) => {
    const a = Math.abs(s);
    if (a === 0) return "0";
    if (a < 1e-3) return `${+(s * 1e6).toPrecision(3)} µs`;
    if (a < 1) return `${+(s * 1e3).toPrecision(a < 0.01 ? 3 : 4)} ms`;
    return `${+s.toFixed(a < 100 ? 3 : 1)} s`;
  };
  const title = (bar) => {
    if (bar.query !== undefined) return bar.query;
    const steps = [...new Set(bar.parts.map((p) => p[1]))];
    const items = bar.parts.reduce((n, p) => n + p[3], 0);
    return (steps.length > 4 ? `${steps.slice(0, 3).join(", ")} and ${steps.length - 3} more` : steps.join(", ")) +
           (items > 1 ? ` ×${items}` : "");
  };
  const isOf = (bar, query) => bar.parts.some((p) => p[0] === query);
  const isBad = (bar) => bar.outcome !== "done" && bar.outcome !== "running";

  function draw() {
    const ratio = devicePixelRatio || 1;
    width = host.clientWidth;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.textBaseline = "middle";
    readTheme();
    drawGrid();
    ctx.save();
    ctx.beginPath();
    ctx.rect(GUTTER, RULER, width - GUTTER, height);
    ctx.clip();
    for (const row of rows) drawRow(row);
    ctx.restore();
    drawLabels();
  }

  function drawGrid() {
    ctx.fillStyle = theme.card;
    ctx.fillRect(0, 0, width, height);
    groups.forEach((g, i) => {
      if (i % 2) return;
      ctx.fillStyle = theme.soft;
      ctx.globalAlpha = 0.6;
      ctx.fillRect(0, g.top - GROUP_GAP / 2, width, g.bottom - g.top + GROUP_GAP);
      ctx.globalAlpha = 1;
    });
    const raw = ((view.to - view.from) * 110) / Math.max(1, width - GUTTER);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    ctx.font = "11px system-ui, sans-serif";
    for (let i = Math.ceil(view.from / step); i * step <= view.to; i++) {
      const x = Math.round(xOf(i * step)) + 0.5;
      if (x < GUTTER) continue;
      ctx.strokeStyle = theme.line;
      ctx.beginPath(); ctx.moveTo(x, RULER - 6); ctx.lineTo(x, height); ctx.stroke();
      ctx.fillStyle = theme.muted;
      ctx.textAlign = x > width - 60 ? "right" : "left";
      ctx.fillText(time(i * step), x + (x > width - 60 ? -4 : 4), RULER / 2);
    }
    ctx.textAlign = "left";
  }

  function drawRow({ lane, top, height: h, isQueries }) {
    let last = -1;  // what would fall on the same pixels is drawn once
    for (const bar of lane) {
      const from = bar.queued ?? bar.start;
      if (from > view.to || bar.end < view.from) continue;
      const a = xOf(bar.start), b = Math.max(a + 1, xOf(bar.end));
      if (b <= last + 0.5 && chosen === null && bar !== hovered) continue;
      last = b;
      const dim = chosen !== null && !isOf(bar, chosen) ? 0.13 : 1;
      if (bar.queued !== null) drawWait(bar, top + h - 2, dim);
      if (bar.started) drawBar(bar, a, b, top + (h > 6 ? 1 : 0), h > 6 ? h - 4 : Math.max(1.5, h - 1), dim, isQueries);
    }
  }

  function drawWait(bar, y, dim) {
    const a = xOf(bar.queued), b = xOf(bar.started ? bar.start : bar.end);
    if (b - a < 0.5) return;
    ctx.strokeStyle = edge(bar.parts[0], 0.75 * dim);
    ctx.lineWidth = 1.5;
    ctx.setLineDash(bar.started ? [] : [3, 2]);
    ctx.beginPath(); ctx.moveTo(a, y); ctx.lineTo(b, y); ctx.stroke();
    ctx.setLineDash([]);
  }

  function drawBar(bar, a, b, y, h, dim, isQueries) {
    const x = Math.max(a, GUTTER - 4), w = Math.min(b, width + 4) - x;
    const shares = new Map();  // a shared batch is striped by query
    for (const part of bar.parts) if (!shares.has(part[0])) shares.set(part[0], part);
    const stripes = [...shares.values()].slice(0, Math.max(1, Math.floor(h / 3)));
    const own = stripes.find((p) => p[0] === chosen);
    stripes.forEach((part, i) => {
      ctx.fillStyle = w > 4 ? fill(own ?? part, dim) : edge(own ?? part, 0.8 * dim);
      ctx.fillRect(x, y + (h * i) / stripes.length, w, h / stripes.length);
    });
    const waited = chain.get(bar);
    if (waited) {
      ctx.fillStyle = theme.text;
      const from = Math.max(xOf(waited[0]), x);
      ctx.fillRect(from, y + h - 1.5, Math.max(1, Math.min(xOf(waited[1]), x + w) - from), 2.5);
    }
    if (w > 4 && h > 3) {
      ctx.lineWidth = bar === hovered || waited ? 1.6 : 1;
      ctx.strokeStyle = bar === hovered ? theme.text : edge(stripes[0], 0.8 * dim);
      ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    if (isBad(bar)) {
      ctx.globalAlpha = dim;
      ctx.fillStyle = theme.bad;
      ctx.fillRect(Math.max(x, b - 4), y, Math.min(4, w), h);
      ctx.strokeStyle = theme.bad;
      if (w > 4 && h > 3) ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
      ctx.globalAlpha = 1;
    }
    if (h >= 8 && (b - a) > 5 * bar.marks.length) {
      ctx.fillStyle = edge(stripes[0], dim);
      for (const mark of bar.marks) {
        const at = xOf(mark);
        if (at >= x && at <= x + w) ctx.fillRect(at - 0.6, y + h * 0.6, 1.2, h * 0.4);
      }
    }
    if (w > 34 && h >= 9) {
      ctx.globalAlpha = dim;
      ctx.fillStyle = theme.text;
      ctx.font = `${Math.min(11, h - 1)}px system-ui, sans-serif`;
      ctx.save();
      ctx.beginPath(); ctx.rect(x, y, w - 3, h); ctx.clip();
      ctx.fillText(title(bar), x + 4, y + h / 2 + 0.5);
      ctx.restore();
      ctx.globalAlpha = 1;
    }
  }

  function drawLabels() {
    ctx.fillStyle = theme.line;
    ctx.fillRect(GUTTER - 1, 0, 1, height);
    groups.forEach((g) => {
      const y = g.top + 7;
      if (g.colour) {
        const own = getComputedStyle(document.querySelector(`.${g.colour}`)).getPropertyValue("--own");
        ctx.fillStyle = own || theme.muted;
        ctx.fillRect(14, y - 5, 10, 10);
      }
      ctx.fillStyle = theme.text;
      ctx.font = "600 12px system-ui, sans-serif";
      ctx.fillText(g.label, g.colour ? 31 : 14, y, GUTTER - 38);
      if (g.lanes.length > 1 && g.bottom - g.top > 26) {
        ctx.fillStyle = theme.muted;
        ctx.font = "11px system-ui, sans-serif";
        ctx.fillText(`up to ${g.lanes.length} at once`, g.colour ? 31 : 14, y + 15, GUTTER - 38);
      }
    });
  }

  function barAt(x, y) {
    const row = rows.find((r) => y >= r.top && y < r.top + r.height);
    if (!row || x < GUTTER) return null;
    const t = tOf(x), slack = (3 * (view.to - view.from)) / width;
    let best = null;
    for (const bar of row.lane) {
      if (bar.started && bar.start - slack <= t && t <= bar.end + slack) best = bar;
      if (bar.start <= t && t <= bar.end && bar.started) return bar;
    }
    return best ?? row.lane.find((bar) => bar.queued !== null && bar.queued <= t && t <= bar.end) ?? null;
  }

  function showTip(bar, event) {
    tip.hidden = bar === null;
    if (bar === null) return;
    const facts = [];
    const names = [...new Set(bar.parts.map((p) => data.queries[p[0]]?.name ?? "?"))];
    const items = bar.parts.reduce((n, p) => n + p[3], 0);
    if (bar.query === undefined) {
      facts.push(["what", `${[...new Set(bar.parts.map((p) => p[2]))].join(", ")}, ${items} item${items === 1 ? "" : "s"}`]);
      facts.push([names.length > 1 ? "queries" : "query",
                  names.slice(0, 8).join(", ") + (names.length > 8 ? ` and ${names.length - 8} more` : "")]);
    } else facts.push(["graph", bar.parts[0][1]]);
    facts.push(["start", time(bar.start)]);
    facts.push(["duration", bar.started ? time(bar.end - bar.start) : "never started"]);
    if (bar.queued !== null) facts.push(["queued", time((bar.started ? bar.start : bar.end) - bar.queued)]);
    if (bar.marks.length) facts.push(["pieces", String(bar.marks.length)]);
    if (bar.usage) facts.push(["tokens", `${bar.usage[0]} in (${bar.usage[1]} cached), ${bar.usage[2]} out`]);
    if (bar.reason) facts.push(["placed", bar.reason]);
    const terms = Object.entries(bar.terms).map(([name, term]) =>
      name.endsWith("_s") ? `${name.slice(0, -2)} ${time(term)}` : `${name} ${+term.toPrecision(4)}`);
    if (terms.length) facts.push(["predicted", terms.join(", ")]);
    facts.push(["outcome", bar.outcome]);
    const head = document.createElement("b"), list = document.createElement("dl");
    head.textContent = title(bar);
    for (const [name, value] of facts) {
      list.append(Object.assign(document.createElement("dt"), { textContent: name }),
                  Object.assign(document.createElement("dd"), { textContent: value }));
    }
    tip.replaceChildren(head, list);
    const { offsetWidth: w, offsetHeight: h } = tip;
    tip.style.left = `${event.clientX + w + 24 > innerWidth ? Math.max(4, event.clientX - w - 14) : event.clientX + 14}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - h - 8)}px`;
  }

  const least_s = Math.max(home.to - home.from, 1e-9) / 1e6;
  const look = (from, to) => {
    const span = Math.min(Math.max(to - from, least_s), home.to - home.from);
    const start = Math.min(Math.max(from, home.from), home.to - span);
    view = { from: start, to: start + span };
    requestAnimationFrame(draw);
  };
  const zoom = (factor, at) => look(at - (at - view.from) * factor, at + (view.to - at) * factor);
  const pan = (pixels) => {
    const by = (pixels * (view.to - view.from)) / (width - GUTTER - PAD_RIGHT);
    look(view.from + by, view.to + by);
  };

  let drag = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX);
    else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), tOf(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, moved: 0 };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      drag.moved += Math.abs(event.offsetX - drag.x);
      if (drag.moved > 3) {
        pan(drag.x - event.offsetX);
        canvas.classList.add("dragging");
      }
      drag.x = event.offsetX;
      return;
    }
    const bar = barAt(event.offsetX, event.offsetY);
    if (bar !== hovered) {
      hovered = bar;
      requestAnimationFrame(draw);
    }
    showTip(bar, event);
  });
  canvas.addEventListener("pointerup", (event) => {
    canvas.classList.remove("dragging");
    if (drag && drag.moved <= 3) {
      const bar = barAt(event.offsetX, event.offsetY);
      if (bar) choose(bar.parts[0][0]);
      else if (chosen !== null) choose(chosen);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { hovered = null; showTip(null); draw(); });
  canvas.addEventListener("dblclick", () => look(home.from, home.to));
  addEventListener("keydown", (event) => {
    const middle = (view.from + view.to) / 2;
    if (event.key === "0") look(home.from, home.to);
    else if (event.key === "+") zoom(0.7, middle);
    else if (event.key === "-") zoom(1 / 0.7, middle);
    else if (event.key === "Escape" && chosen !== null) choose(chosen);
  });
  for (const row of document.querySelectorAll("tr[data-query]"))
    row.addEventListener("click", () => choose(Number(row.dataset.query)));
  new ResizeObserver(draw).observe(host);
  dark.addEventListener("change", draw);
  draw();
})();
