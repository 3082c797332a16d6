"use strict";
/* Figures that can be hovered, zoomed and thinned out. Each <figure class="chart"> holds its numbers as JSON
   (vlista_core/charts.py says what is in them); everything here is drawn from these, panel by panel, as SVG. */

const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const shown = (value) => {
  const size = Math.abs(value);
  const text = size && (size < 0.001 || size >= 1e6) ? value.toExponential(1) : String(+value.toPrecision(4));
  return text.replace("-", "\u2212");
};

/* A scale from numbers to pixels and back. */
function scale(logarithmic, low, high, start, end) {
  const into = logarithmic ? Math.log10 : (value) => value;
  const back = logarithmic ? (value) => 10 ** value : (value) => value;
  const first = into(low), span = into(high) - first || 1;
  return {
    at: (value) => start + ((into(value) - first) / span) * (end - start),
    value: (pixel) => back(first + ((pixel - start) / (end - start)) * span),
  };
}

/* Round numbers between low and high: about `count` of them. */
function roundTicks(low, high, count, logarithmic) {
  const ticks = [];
  if (logarithmic && high / low > 4) {
    const steps = high / low > 300 ? [1] : [1, 2, 5];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
      for (const step of steps) ticks.push(+(step * 10 ** power).toPrecision(6));
  } else {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
    for (let index = Math.ceil(low / step); index * step <= high; index += 1) ticks.push(+(index * step).toPrecision(8));
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}

/* The corners of marks as angles in turns from straight up: Matplotlib's letters. */
const corners = (count, turn = 0) => Array.from({ length: count }, (_, index) => turn + index / count);
const POLYGONS = {
  s: corners(4, 1 / 8), D: corners(4), v: corners(3, 1 / 2), "^": corners(3), "<": corners(3, 3 / 4), ">": corners(3, 1 / 4),
  p: corners(5), h: corners(6), H: corners(6, 1 / 12), 8: corners(8, 1 / 16),
};
const STROKES = { x: corners(4, 1 / 8), "+": corners(4), 1: corners(3, 1 / 2), 2: corners(3), 3: corners(3, 3 / 4), _: [1 / 4, 3 / 4] };

function mark(kind, x, y, size, hollow) {
  const out = (turn, radius) =>
    `${(x + radius * Math.sin(2 * Math.PI * turn)).toFixed(1)},${(y - radius * Math.cos(2 * Math.PI * turn)).toFixed(1)}`;
  const radius = 0.62 * size, look = `class="mark${hollow ? " hollow" : ""}"`;
  if (kind in POLYGONS) return `<polygon ${look} points="${POLYGONS[kind].map((turn) => out(turn, radius)).join(" ")}"/>`;
  if (kind === "*") {
    const points = corners(10).map((turn, index) => out(turn, index % 2 ? 0.42 * radius : radius));
    return `<polygon ${look} points="${points.join(" ")}"/>`;
  }
  if (kind === "d") return `<polygon ${look} points="${[out(0, radius), out(0.25, 0.6 * radius), out(0.5, radius), out(0.75, 0.6 * radius)].join(" ")}"/>`;
  if (kind === "o") return `<circle ${look} cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${(0.5 * size).toFixed(1)}"/>`;
  const heavy = { X: "x", P: "+", "$+$": "+" }[kind], strokes = STROKES[heavy ?? kind];
  if (!strokes) return "";
  const path = strokes.map((turn) => `M${x.toFixed(1)},${y.toFixed(1)}L${out(turn, radius)}`).join("");
  return `<path ${look} stroke-width="${heavy ? 2.6 : 1.4}" d="${path}"/>`;
}

/* The line of a series and its width. */
function stroke(series) {
  const width = series.printed ? 1 : series.width + 0.4;
  const dashes = series.dashes.map((length) => (length * Math.max(width, 1.2)).toFixed(1)).join(" ");
  return `stroke-width="${width}"${dashes ? ` stroke-dasharray="${dashes}"` : ""}`;
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.known = new Map(this.data.panels.flatMap((panel) => panel.series).map((series) => [series.label, series]));
    this.start = this.data.first.length ? this.data.first.filter((label) => this.known.has(label)) : [...this.known.keys()];
    this.on = new Set(this.start);
    this.zooms = this.data.panels.map(() => null);
    this.pointed = null;
    figure.insertAdjacentHTML(
      "beforeend",
      `<div class="legend" role="group" aria-label="Curves that are shown"></div>
       <div class="panels">${this.data.panels.map(() => '<div class="panel"></div>').join("")}</div><div class="tools"></div>`,
    );
    this.panels = [...figure.querySelectorAll(".panel")];
    this.buttons();
    this.panels.forEach((element, index) => this.listen(element, index));
    new ResizeObserver(() => this.draw()).observe(figure);
    this.draw();
  }

  buttons() {
    const legend = this.figure.querySelector(".legend"), tools = this.figure.querySelector(".tools");
    for (const series of this.known.values()) {
      const line = this.data.marks && !series.bound ? "" : `<line class="line" x1="0" x2="35" y1="8" y2="8" ${stroke(series)}/>`;
      const sample = `<svg viewBox="0 0 35 16" aria-hidden="true"><g class="series" style="--own:${series.colour}">${line}${mark(series.marker, 17, 8, series.size * 1.2, series.printed)}</g></svg>`;
      const button = this.button(legend, sample + escaped(series.label), () => {
        if (!this.on.delete(series.label)) this.on.add(series.label);
      });
      button.dataset.label = series.label;
      button.classList.toggle("bound", series.bound);
      for (const [event, label] of [["pointerenter", series.label], ["pointerleave", null]])
        button.addEventListener(event, () => this.point(label));
    }
    const zoom = (factor) => () => this.panels.forEach((_, index) => this.zoomBy(index, factor));
    this.button(tools, "All curves", () => (this.on = new Set(this.known.keys())));
    if (this.start.length < this.known.size) this.button(tools, "The best and the bounds", () => (this.on = new Set(this.start)));
    this.button(tools, "Zoom in", zoom(0.6));
    this.button(tools, "Zoom out", zoom(1 / 0.6));
    this.button(tools, "Reset zoom", () => this.zooms.fill(null));
  }

  button(place, html, action) {
    const button = document.createElement("button");
    button.type = "button";
    button.innerHTML = html;
    button.addEventListener("click", () => {
      action();
      this.draw();
    });
    return place.appendChild(button);
  }

  point(label) {
    this.pointed = label;
    for (const group of this.figure.querySelectorAll(".panel .series")) group.classList.toggle("pointed", group.dataset.label === label);
    for (const svg of this.figure.querySelectorAll(".panel svg")) svg.classList.toggle("pointed", label !== null && this.on.has(label));
  }

  seen(index) {
    return this.data.panels[index].series.filter((series) => this.on.has(series.label));
  }

  /* What a panel shows: [left, right, bottom, top]. */
  range(index) {
    const { x, y, marks } = this.data, { limits, series } = this.data.panels[index];
    if (this.zooms[index]) return this.zooms[index];
    const every = series.filter((each) => !(marks && each.bound)).flatMap((each) => each.points.map((point) => point[0]));
    const ends = x.limits ?? this.widened(Math.min(...every), Math.max(...every), x.log, 0.03);
    const levels = this.seen(index).flatMap((each) => each.points.map((point) => point[1]));
    const [least, most] = limits ?? [-Infinity, Infinity];
    const kept = (levels.length ? levels : [0, 1]).map((level) => Math.min(Math.max(level, least), most));
    return [...ends, ...this.widened(Math.min(...kept), Math.max(...kept), y.log, 0.06)];
  }

  widened(low, high, logarithmic, share) {
    if (logarithmic) return [low / (high / low || 1) ** share / 1.02, high * (high / low || 1) ** share * 1.02];
    const margin = share * (high - low) || 0.5;
    return [low - margin, high + margin];
  }

  zoomBy(index, factor) {
    const [left, right, bottom, top] = this.range(index), { x, y } = this.data;
    const about = (low, high, logarithmic) => {
      const axis = scale(logarithmic, low, high, 0, 1);
      return [axis.value(0.5 - factor / 2), axis.value(0.5 + factor / 2)];
    };
    this.zooms[index] = [...about(left, right, x.log), ...about(bottom, top, y.log)];
  }

  draw() {
    const across = Math.max(1, Math.floor(this.figure.clientWidth / 290)), wanted = this.data.columns;
    const columns = [...Array(wanted + 1).keys()].filter((count) => count && count <= across && wanted % count === 0).pop();
    this.figure.querySelector(".panels").style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    for (const button of this.figure.querySelectorAll(".legend button")) button.setAttribute("aria-pressed", this.on.has(button.dataset.label));
    this.frames = this.panels.map((element, index) => this.drawPanel(element, index));
    this.point(this.pointed);
  }

  drawPanel(element, index) {
    const { x, y, band, level, title } = this.data, panel = this.data.panels[index];
    const width = Math.max(element.clientWidth, 240), height = Math.round(Math.min(400, Math.max(300, 0.62 * width)));
    const [left, right, top, bottom] = [58, width - 12, panel.title ? 28 : 10, height - 44];
    const range = this.range(index);
    const across = scale(x.log, range[0], range[1], left, right), up = scale(y.log, range[2], range[3], bottom, top);
    const ticks = (axis, low, high, count) => {
      const given = axis.ticks.filter((tick) => tick >= low && tick <= high);
      return given.length > 1 ? given : roundTicks(low, high, count, axis.log);
    };
    const columns = this.spaced(ticks(x, range[0], range[1], width / 90), across, 34);
    const rows = this.spaced(ticks(y, range[2], range[3], 6), up, 18);
    const clip = `clip-${[...document.querySelectorAll(".panel")].indexOf(element)}`;
    const names = this.data.marks ? this.nameMarks(index, across, up, left, right) : new Map();
    const inside = (value) => (value > range[2] ? Math.min(value, range[3]) : range[2]);
    element.innerHTML = `<svg role="img" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"
      aria-label="${escaped(`${title}. ${panel.title} ${y.label} over ${x.label}: ${this.seen(index).map((each) => each.label).join(", ")}`)}">
      <clipPath id="${clip}"><rect x="${left}" y="${top}" width="${right - left}" height="${bottom - top}"/></clipPath>
      ${columns.map((tick) => `<line class="grid" x1="${across.at(tick)}" x2="${across.at(tick)}" y1="${top}" y2="${bottom}"/><text x="${across.at(tick)}" y="${bottom + 17}" text-anchor="middle">${shown(tick)}</text>`).join("")}
      ${rows.map((tick) => `<line class="grid" x1="${left}" x2="${right}" y1="${up.at(tick)}" y2="${up.at(tick)}"/><text x="${left - 6}" y="${up.at(tick) + 4}" text-anchor="end">${shown(tick)}</text>`).join("")}
      <g clip-path="url(#${clip})">
        ${band ? `<rect class="band" x="${left}" width="${right - left}" y="${up.at(inside(band[1]))}" height="${up.at(inside(band[0])) - up.at(inside(band[1]))}"/>` : ""}
        ${level === null ? "" : `<line class="level" x1="${left}" x2="${right}" y1="${up.at(level)}" y2="${up.at(level)}"/>`}
        ${this.seen(index).map((series) => this.drawSeries(series, across, up, left, right, names.get(series))).join("")}
      </g>
      <path class="axis" fill="none" d="M${left},${top}V${bottom}H${right}"/>
      <text class="title" x="${left}" y="16">${escaped(panel.title)}</text>
      <text x="${(left + right) / 2}" y="${height - 8}" text-anchor="middle">${escaped(x.label)}</text>
      <text transform="translate(13 ${(top + bottom) / 2}) rotate(-90)" text-anchor="middle">${escaped(y.label)}</text>
      <g class="over"></g></svg><div class="tip" hidden></div>`;
    return { across, up, left, right, top, bottom, width };
  }

  /* Ticks that have `room` pixels each. */
  spaced(ticks, axis, room) {
    let last = Infinity;
    return ticks.filter((tick) => {
      const fits = Math.abs(axis.at(tick) - last) >= room;
      if (fits) last = axis.at(tick);
      return fits;
    });
  }

  /* Where the name of each mark and of each line across stands: the first place where it meets least of what is there. */
  nameMarks(index, across, up, left, right) {
    const places = new Map(), seen = this.seen(index);
    const at = (series) => [across.at(series.points[0][0]), up.at(series.points[0][1])];
    const taken = seen.filter((series) => !series.bound).map((series) => [at(series)[0] - 7, at(series)[1] - 7, at(series)[0] + 7, at(series)[1] + 7]);
    for (const series of seen) if (series.bound) taken.push([left, at(series)[1] - 1, right, at(series)[1] + 1]);
    const shared = (one, two) =>
      Math.max(0, Math.min(one[2], two[2]) - Math.max(one[0], two[0])) * Math.max(0, Math.min(one[3], two[3]) - Math.max(one[1], two[1]));
    for (const series of seen) {
      if (series.bound && right - left < 420) continue; /* The legend names them where there is no room. */
      const [x, y] = at(series), wide = 6.6 * series.label.length, middle = (left + right - wide) / 2;
      const starts = series.bound
        ? [right - wide - 4, middle, left + 4].flatMap((start) => [[start, y - 5], [start, y + 13]])
        : [[x + 10, y + 4], [x - 10 - wide, y + 4], [x - wide / 2, y - 10], [x - wide / 2, y + 19], [x + 8, y - 8], [x + 8, y + 16], [x - 8 - wide, y - 8], [x - 8 - wide, y + 16]];
      const boxes = starts.map(([start, base]) => [start, base - 11, start + wide, base + 3]);
      const costs = boxes.map((box) => taken.reduce((sum, other) => sum + shared(box, other), 20 * (Math.max(0, left - box[0]) + Math.max(0, box[2] - right))));
      const best = costs.indexOf(Math.min(...costs));
      taken.push(boxes[best]);
      places.set(series, starts[best]);
    }
    return places;
  }

  drawSeries(series, across, up, left, right, place) {
    const at = ([x, y]) => `${across.at(x).toFixed(1)},${up.at(y).toFixed(1)}`;
    const name = place ? `<text class="name" x="${place[0].toFixed(1)}" y="${place[1].toFixed(1)}">${escaped(series.label)}</text>` : "";
    let drawn = name;
    if (this.data.marks && series.bound) {
      const level = up.at(series.points[0][1]);
      drawn += `<line class="line" x1="${left}" x2="${right}" y1="${level}" y2="${level}" ${stroke(series)}/>`;
    } else if (this.data.marks) {
      drawn += mark(series.marker, across.at(series.points[0][0]), up.at(series.points[0][1]), 1.5 * series.size);
    } else {
      if (series.interval.length) {
        const [low, high] = [0, 1].map((end) => series.points.map(([x], index) => at([x, series.interval[index][end]])));
        drawn += `<polygon class="interval" points="${[...low, ...high.reverse()].join(" ")}"/>`;
      }
      drawn += `<polyline class="line" ${stroke(series)} points="${series.points.map(at).join(" ")}"/>`;
      const kind = series.marker || (series.points.length === 1 ? "_" : "");
      drawn += series.points.map(([x, y], index) => (index % series.every ? "" : mark(kind, across.at(x), up.at(y), 1.2 * series.size, series.printed))).join("");
    }
    return `<g class="series${series.printed ? " printed" : ""}" data-label="${escaped(series.label)}" style="--own:${series.colour}">${drawn}</g>`;
  }

  listen(element, index) {
    let from = null;
    const place = (event) => {
      const box = element.getBoundingClientRect(), { left, right, top, bottom } = this.frames[index];
      return [Math.min(Math.max(event.clientX - box.left, left), right), Math.min(Math.max(event.clientY - box.top, top), bottom)];
    };
    const over = (html) => (element.querySelector(".over").innerHTML = html);
    element.addEventListener("pointerdown", (event) => {
      from = event.button === 0 ? place(event) : null;
      this.hover(element, index, place(event));
    });
    element.addEventListener("pointermove", (event) => {
      const to = place(event);
      if (from && (event.buttons & 1) && Math.abs(to[0] - from[0]) > 8) {
        element.setPointerCapture(event.pointerId);
        const box = this.box(index, from, to);
        element.querySelector(".tip").hidden = true;
        over(`<rect class="drag" x="${box[0]}" y="${box[1]}" width="${box[2] - box[0]}" height="${box[3] - box[1]}"/>`);
      } else this.hover(element, index, to);
    });
    element.addEventListener("pointerup", (event) => {
      const to = place(event), start = from;
      from = null;
      if (!start || Math.abs(to[0] - start[0]) <= 8) return;
      const [x0, y0, x1, y1] = this.box(index, start, to), { across, up } = this.frames[index];
      this.zooms[index] = [across.value(x0), across.value(x1), up.value(y1), up.value(y0)];
      this.draw();
    });
    element.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "mouse") return; /* A finger that has tapped leaves the tip to be read. */
      over("");
      element.querySelector(".tip").hidden = true;
    });
    element.addEventListener("dblclick", () => {
      this.zooms[index] = null;
      this.draw();
    });
  }

  /* The rectangle of a drag; a flat one takes the whole height. */
  box(index, from, to) {
    const { top, bottom } = this.frames[index], flat = Math.abs(to[1] - from[1]) < 12;
    return [Math.min(from[0], to[0]), flat ? top : Math.min(from[1], to[1]), Math.max(from[0], to[0]), flat ? bottom : Math.max(from[1], to[1])];
  }

  /* What there is under the pointer: the nearest mark, or all curves at the nearest place, from top to bottom. */
  hover(element, index, [px, py]) {
    const { across, up, top, bottom, width } = this.frames[index], tip = element.querySelector(".tip"), { x, y, marks } = this.data;
    const found = this.seen(index).flatMap((series) =>
      marks && series.bound ? [] : series.points.map((point, number) => ({ series, point, interval: series.interval[number] })));
    if (!found.length) return;
    const distance = ({ point }) => Math.hypot(across.at(point[0]) - px, marks ? up.at(point[1]) - py : 0);
    const nearest = found.reduce((best, each) => (distance(each) < distance(best) ? each : best));
    const line = ({ series, point, interval }) =>
      `${escaped(series.label)}: ${shown(point[1])}${interval ? ` (${shown(interval[0])} \u2026 ${shown(interval[1])})` : ""}`;
    if (marks) tip.innerHTML = `<b>${escaped(nearest.series.label)}</b>${escaped(x.label)}: ${shown(nearest.point[0])}<br>${escaped(y.label)}: ${shown(nearest.point[1])}`;
    else {
      const here = found.filter((each) => each.point[0] === nearest.point[0]).sort((one, two) => two.point[1] - one.point[1]);
      const close = here.reduce((best, each) => (Math.abs(up.at(each.point[1]) - py) < Math.abs(up.at(best.point[1]) - py) ? each : best));
      const rows = here.map((each) => `<div${each === close ? ' class="near"' : ""}>${line(each)}</div>`);
      tip.innerHTML = `<b>${escaped(x.label)} ${shown(nearest.point[0])}</b>${rows.join("")}`;
    }
    const at = across.at(nearest.point[0]);
    element.querySelector(".over").innerHTML = `<line class="rule" x1="${at}" x2="${at}" y1="${top}" y2="${bottom}"/>`;
    tip.hidden = false;
    const beside = at + 14 + tip.offsetWidth < width ? at + 14 : at - 14 - tip.offsetWidth;
    tip.style.left = `${Math.max(2, Math.min(beside, width - tip.offsetWidth - 2))}px`;
    tip.style.top = `${Math.max(2, Math.min(py - tip.offsetHeight / 2, bottom - tip.offsetHeight))}px`;
  }
}

for (const figure of document.querySelectorAll("figure.chart")) new Chart(figure);
