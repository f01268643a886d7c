// Who was busy when: a picture of all ranks over time, and the spans of one.
const UNKNOWN = 255;

// The legs whose spans are shown: what is chosen, and what lies beside it.
function shownLegs(data, state) {
  const run = data.runs[state.run], other = data.runs[state.beside], parts = [[run, run.legs[state.leg].timeline]];
  if (other) parts.push([other, (other.legs[state.leg] ?? Object.values(other.legs)[0]).timeline]);
  return parts;
}

// All charts over time reach as far as the longest leg that is shown, in one unit.
function timeAxis(data, state) {
  const most = Math.max(...shownLegs(data, state).map(([, timeline]) => timeline.seconds)), unit = timeUnit(most);
  return { unit, range: [0, most * unit.scale] };
}

const rowName = (data, of, row) => {
  if (of !== "rank") return `${of} ${row}`;
  if (!data.rows.byGroup) return `rank ${row}`;
  const first = row * data.rows.group, last = Math.min(data.rows.ranks, first + data.rows.group) - 1;
  return `${rowKind(data)} ${row}: ranks ${first} to ${last}`;
};

function rowKind({ rows, cluster }) {
  if (!rows.byGroup) return "rank";
  return rows.group === cluster?.ranksPerNode ? "node" : "group";
}

const rowOfRank = (data, rank) => (data.rows.byGroup ? Math.floor(rank / data.rows.group) : rank);

// Of the ranks whose spans are here: by number, and in the order in which they finish.
const keptRanks = (timeline) => Array.from(timeline.ranks);
const byFinish = (timeline) => {
  const order = keptRanks(timeline).map((rank, i) => [timeline.finish[i], rank]);
  return order.toSorted((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, rank]) => rank);
};

// What is not all here, in words.
function keptWords(data, timeline) {
  const all = data.rows.ranks, pictured = timeline.allRanks, kept = timeline.ranks.length;
  const picture = pictured < all ? `Lanes are known of ${pictured.toLocaleString("en")} of ${all.toLocaleString("en")} ranks. ` : "";
  const spans = kept < pictured ? `The page holds the spans of ${kept.toLocaleString("en")} ranks: the last, the median and the first to finish, the last of every node, and as many others as fit.` : "";
  return picture + spans;
}

// The kept rank nearest to `rank`, or beyond it where it was stepped to.
function nearestRank(timeline, rank, direction = 0) {
  const ranks = keptRanks(timeline);
  if (direction > 0) return ranks.find((each) => each >= rank) ?? ranks.at(-1);
  if (direction < 0) return ranks.findLast((each) => each <= rank) ?? ranks[0];
  return ranks.reduce((best, each) => (Math.abs(each - rank) < Math.abs(best - rank) ? each : best), ranks[0]);
}

// The charts over time lie under each other, with the same time at the same place.
const timeMargin = () => {
  const wide = document.getElementById("lanes").clientWidth > 700;
  return { l: wide ? 165 : 110, r: wide ? 125 : 75, t: 12, b: 10 };
};

const level = (value) => (value === UNKNOWN ? null : value);

// float [slots]: the mean of the rows of which something is known.
function meanLevels({ levels }) {
  const [rows, slots] = levels.shape, known = Array.from({ length: rows }, (_, row) => row).filter((row) => levels[row * slots] !== UNKNOWN);
  return Array.from({ length: slots }, (_, slot) => known.reduce((sum, row) => sum + levels[row * slots + slot], 0) / Math.max(1, known.length));
}

// The picture to begin with: the lane that is busy most of the time.
function busiestLane(timeline) {
  const sums = timeline.pictures.map((picture) => (picture.lane ? meanLevels(picture).reduce((a, b) => a + b, 0) : -1));
  return Math.max(0, sums.indexOf(Math.max(...sums)));
}

function drawLanes(data, state, choose) {
  const { timeline } = data.runs[state.run].legs[state.leg], { unit, range } = timeAxis(data, state), { pictures } = timeline;
  if (!pictures.length) return;
  const means = pictures.map(meanLevels), width = (timeline.seconds * unit.scale) / means[0].length;
  const traces = [{
    type: "heatmap", x0: width / 2, dx: width, y: pictures.map((_, i) => i), z: means, ygap: 2, coloraxis: "coloraxis",
    text: pictures.map((picture) => means[0].map(() => plain(picture.label))),
    hovertemplate: `<b>%{text}</b><br>at %{x:.3f} ${unit.name}: %{z:.0f} % busy<extra></extra>`,
  }];
  const layout = {
    xaxis: axis(unit.name, { showgrid: false, range }),
    yaxis: axis("", { autorange: "reversed", automargin: false, showgrid: false, tickvals: pictures.map((_, i) => i), ticktext: pictures.map((each) => plain(each.label)) }),
    coloraxis: busyScale(), margin: timeMargin(), uirevision: `${state.run} ${state.leg} ${state.beside}`,
    shapes: [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: state.picture - 0.5, y1: state.picture + 0.5, line: { color: ink.mark, width: 2 } }],
  };
  draw("lanes", "How busy every lane and kind of link is over time", traces, layout, 90 + 24 * pictures.length);
  onClick("lanes", (point) => choose({ picture: Math.round(point.y) }));
}

function drawBusy(data, state, choose) {
  const { timeline } = data.runs[state.run].legs[state.leg];
  const picture = timeline.pictures[state.picture] ?? timeline.pictures[0];
  if (!picture) return;
  const [rows, slots] = picture.levels.shape, { unit, range } = timeAxis(data, state);
  const width = (timeline.seconds * unit.scale) / slots, places = Array.from({ length: rows }, (_, row) => row);
  const traces = [{
    type: "heatmap", x0: width / 2, dx: width, y: places, coloraxis: "coloraxis", hoverongaps: false,
    z: rowsOf(picture.levels, (row) => Array.from(row, level)),
    text: places.map((row) => Array(slots).fill(plain(rowName(data, picture.of, row)))),
    hovertemplate: `<b>%{text}</b><br>at %{x:.3f} ${unit.name}: %{z} % busy<extra></extra>`,
  }];
  const row = rowOfRank(data, state.rank), kind = rowKind(data);
  const layout = {
    xaxis: axis(unit.name, { showgrid: false, range }),
    yaxis: numbered(picture.of === "rank" ? kind : picture.of, rows, { autorange: "reversed", automargin: false }),
    coloraxis: { ...busyScale(), showscale: false }, margin: timeMargin(), uirevision: `${state.run} ${state.leg} ${state.beside}`,
    shapes: picture.of === "rank" ? [{
      type: "rect", xref: "paper", x0: 0, x1: 1, y0: row - 0.5, y1: row + 0.5, line: { color: ink.mark, width: 2 },
    }] : [],
  };
  draw("busy", `${picture.label} of all ranks over time; arrow keys step between ranks`, traces, layout, Math.min(620, 130 + rows * 14));
  if (picture.of !== "rank") return;
  onClick("busy", (point) => {
    const row = Math.round(point.y), inRow = byFinish(timeline).filter((rank) => rowOfRank(data, rank) === row);
    choose({ rank: inRow.at(-1) ?? nearestRank(timeline, data.rows.byGroup ? row * data.rows.group : row) });
  });
}

// Every lane of every run, so that a lane has one colour.
const laneOrder = (data) => [...new Set(data.runs.flatMap((run) => Object.values(run.legs).flatMap((leg) => leg.timeline.lanes)))];

// Bars of one rank's spans, lane under lane from `top` on.
function spanTraces(timeline, rank, unit, top, prefix, order) {
  const at = keptRanks(timeline).indexOf(rank);
  if (at < 0) return { traces: [], labels: [] };
  const first = timeline.first[at], last = timeline.first[at + 1] ?? timeline.lane.length;
  const mine = Array.from({ length: last - first }, (_, i) => first + i), traces = [], labels = [];
  timeline.lanes.forEach((lane, number) => {
    const spans = mine.filter((i) => timeline.lane[i] === number);
    if (!spans.length) return;
    const begin = spans.map((i) => timeline.begin[i] * timeline.tick), length = spans.map((i) => timeline.length[i] * timeline.tick);
    traces.push({
      type: "bar", orientation: "h", width: 0.8, y: spans.map(() => top + labels.length),
      base: begin.map((each) => each * unit.scale), x: length.map((each) => each * unit.scale),
      marker: { color: ink.series[order.indexOf(lane) % ink.series.length], line: { color: ink.paper, width: spans.length > 200 ? 0 : 0.6 } },
      hovertext: spans.map((i, k) =>
        `<b>${plain(lane)}: ${plain(timeline.names[timeline.name[i]])}</b><br>${seconds(begin[k])} to ${seconds(begin[k] + length[k])}, takes ${seconds(length[k])}`),
      hovertemplate: "%{hovertext}<extra></extra>",
    });
    labels.push(plain(prefix + lane));
  });
  return { traces, labels };
}

function drawSpans(data, state) {
  const { timeline } = data.runs[state.run].legs[state.leg], parts = shownLegs(data, state);
  const { unit, range } = timeAxis(data, state), traces = [], labels = [];
  for (const [each, part] of parts) {
    const rank = part === timeline ? state.rank : nearestRank(part, state.rank);
    const prefix = parts.length > 1 ? `${each.name}${rank === state.rank ? "" : `, rank ${rank}`}: ` : "";
    const found = spanTraces(part, rank, unit, labels.length, prefix, laneOrder(data));
    traces.push(...found.traces);
    labels.push(...found.labels);
  }
  document.getElementById("rank-name").textContent = state.rank;
  const layout = {
    barmode: "overlay", margin: timeMargin(), uirevision: `${state.run} ${state.leg} ${state.beside}`, xaxis: axis(unit.name, { range }),
    yaxis: axis("", { tickvals: labels.map((_, i) => i), ticktext: labels, autorange: "reversed", automargin: false, showgrid: false, zeroline: false }),
  };
  draw("spans", `Spans of rank ${state.rank}`, traces, layout, 90 + 34 * Math.max(2, labels.length));
}

// Zooming in one of the charts over time zooms in the others.
function linkTimes() {
  const charts = ["lanes", "busy", "spans"].map((id) => document.getElementById(id));
  charts.forEach((element) => {
    if (element.dataset.linked || !element.on) return;
    element.dataset.linked = "true";
    element.on("plotly_relayout", (event) => {
      if (!Object.keys(event).some((key) => key.startsWith("xaxis."))) return;
      const to = element.layout.xaxis.range;
      for (const other of charts) {
        const shown = other.layout?.xaxis.range;
        if (shown && (shown[0] !== to[0] || shown[1] !== to[1])) Plotly.relayout(other, { "xaxis.range": [...to] });
      }
    });
  });
}
