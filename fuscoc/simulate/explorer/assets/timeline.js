// Who was busy when: all lanes, all ranks in one of them, and the spans of one rank.
const UNKNOWN = 255;

const level = (value) => (value === UNKNOWN ? null : value);

// The row of a picture that shows a rank; -1 if none does.
function rowOfRank({ of, first, size }, rank) {
  const row = of === "rank" ? first.findLastIndex((each) => each <= rank) : -1;
  return row >= 0 && rank < first[row] + size ? row : -1;
}

function rowKind({ cluster }, { of, size }) {
  return of === "rank" && size > 1 && size === cluster?.ranksPerNode ? "node" : of;
}

// What a row of a picture is, as numbered beside it and in words.
function rowNumber(data, picture, row) {
  return picture.first[row] / (rowKind(data, picture) === "node" ? picture.size : 1);
}

function rowName(data, picture, row) {
  const { first, size } = picture, last = Math.min(data.ranks, first[row] + size) - 1;
  if (size === 1) return `${picture.of} ${first[row]}`;
  const ranks = `ranks ${first[row]} to ${last}`;
  return rowKind(data, picture) === "node" ? `node ${first[row] / size}: ${ranks}` : ranks;
}

// The ranks whose spans are here, in the order in which they finish.
function byFinish({ ranks, finish }) {
  const order = numbers(ranks.length).toSorted((a, b) => finish[a] - finish[b] || a - b);
  return order.map((i) => ranks[i]);
}

// The kept rank nearest to `rank`, or beyond it where it was stepped to.
function nearestRank(timeline, rank, direction = 0) {
  const ranks = Array.from(timeline.ranks);
  if (direction > 0) return ranks.find((each) => each >= rank) ?? ranks.at(-1);
  if (direction < 0) return ranks.findLast((each) => each <= rank) ?? ranks[0];
  const far = (each) => Math.abs(each - rank);
  return ranks.reduce((best, each) => (far(each) < far(best) ? each : best), ranks[0]);
}

// What is not all here, in words.
function keptWords({ ranks: all }, { allRanks, ranks }) {
  const words = [], text = (count) => count.toLocaleString("en");
  if (allRanks < all) words.push(`Lanes are known of ${text(allRanks)} of ${text(all)} ranks.`);
  if (ranks.length < allRanks)
    words.push(`The page holds the spans of ${text(ranks.length)} ranks: the last, the median ` +
      "and the first to finish, the last of every row, and others as far as they fit.");
  return words.join(" ");
}

// The timelines that are shown with their runs: what is chosen, and what lies beside it.
function shownTimelines(data, state) {
  const run = data.runs[state.run], other = data.runs[state.beside];
  const shown = [[run, run.legs[state.leg].timeline]];
  if (other) shown.push([other, (other.legs[state.leg] ?? Object.values(other.legs)[0]).timeline]);
  return shown;
}

// What the charts over time have in common: they lie under each other, the same time at the same
// place, and reach as far as the longest timeline.
function timeFrame(data, state) {
  const times = shownTimelines(data, state).map(([, timeline]) => timeline.seconds);
  const most = Math.max(...times), unit = timeUnit(most), range = [0, most * unit.scale];
  const wide = document.getElementById("lanes").clientWidth > 700;
  return {
    unit,
    xaxis: axis(unit.name, { range, showgrid: false }),
    margin: { ...MARGIN, l: wide ? 165 : 110, r: wide ? 125 : 75 },
    uirevision: `${state.run} ${state.leg} ${state.beside}`,
  };
}

// A frame around one row of a picture.
function rowFrame(row) {
  const line = { color: ink.mark, width: 2 };
  return { type: "rect", xref: "paper", x0: 0, x1: 1, y0: row - 0.5, y1: row + 0.5, line };
}

// A heat map over time; `z` [rows][slots], in percent.
function overTime(z, seconds, unit, rowNames) {
  const slots = z[0].length, dx = (seconds * unit.scale) / slots;
  return {
    type: "heatmap", x0: dx / 2, dx, y: numbers(z.length), z, coloraxis: "coloraxis",
    hoverongaps: false, text: rowNames.map((name) => Array(slots).fill(plain(name))),
    hovertemplate: `<b>%{text}</b><br>at %{x:.3f} ${unit.name}: %{z:.0f} % busy<extra></extra>`,
  };
}

// The mean of the rows of which something is known, by slot.
function meanLevels({ levels }) {
  const [rows, slots] = levels.shape;
  const known = numbers(rows).filter((row) => levels[row * slots] !== UNKNOWN);
  const sum = (slot) => known.reduce((all, row) => all + levels[row * slots + slot], 0);
  return numbers(slots).map((slot) => sum(slot) / Math.max(1, known.length));
}

// The picture to begin with: the lane that is busy most of the time.
function busiestLane({ pictures }) {
  const sums = pictures.map((picture) => (picture.lane ? total(meanLevels(picture)) : -1));
  return Math.max(0, sums.indexOf(Math.max(...sums)));
}

function drawLanes(data, state, choose) {
  const { timeline } = data.runs[state.run].legs[state.leg], { pictures } = timeline;
  const { unit, ...frame } = timeFrame(data, state), names = pictures.map((each) => each.label);
  const trace = overTime(pictures.map(meanLevels), timeline.seconds, unit, names);
  const layout = {
    ...frame, yaxis: named(names, { autorange: "reversed", automargin: false }),
    coloraxis: busyScale(), shapes: [rowFrame(state.picture)],
  };
  const label = "How busy every lane and kind of link is over time";
  draw("lanes", label, [{ ...trace, ygap: 2 }], layout, 90 + 24 * pictures.length);
  onClick("lanes", (point) => choose({ picture: Math.round(point.y) }));
}

function drawBusy(data, state, choose) {
  const { timeline } = data.runs[state.run].legs[state.leg];
  const picture = timeline.pictures[state.picture], { label, levels, first, size } = picture;
  const { unit, ...frame } = timeFrame(data, state), rows = numbers(first.length);
  const z = rowsOf(levels, (row) => Array.from(row, level)), what = rowKind(data, picture);
  const chosen = rowOfRank(picture, state.rank), every = Math.ceil(rows.length / 32);
  const ticks = rows.filter((row) => row % every === 0);
  const layout = {
    ...frame, yaxis: axis(what, {
      tickvals: ticks, ticktext: ticks.map((row) => rowNumber(data, picture, row)),
      autorange: "reversed", automargin: false, showgrid: false, zeroline: false,
    }),
    coloraxis: busyScale({ showscale: false }), shapes: chosen < 0 ? [] : [rowFrame(chosen)],
  };
  const names = rows.map((row) => rowName(data, picture, row));
  const about = `${label} of every ${what} over time; arrow keys step between ranks`;
  const height = Math.min(620, 130 + rows.length * 14);
  draw("busy", about, [overTime(z, timeline.seconds, unit, names)], layout, height);
  onClick("busy", (point) => {
    if (picture.of !== "rank") return;
    const from = first[Math.round(point.y)], order = byFinish(timeline);
    const mine = order.filter((rank) => rank >= from && rank < from + size);
    choose({ rank: mine.at(-1) ?? nearestRank(timeline, from) });
  });
}

// Every lane of every run, so that a lane has one colour.
function laneOrder(data) {
  const legs = data.runs.flatMap((run) => Object.values(run.legs));
  return [...new Set(legs.flatMap((leg) => leg.timeline.lanes))];
}

// Bars of one rank's spans, lane under lane from `top` on.
function spanTraces(timeline, rank, unit, top, order) {
  const place = timeline.ranks.indexOf(rank), first = timeline.first[place];
  const last = timeline.first[place + 1] ?? timeline.lane.length;
  const mine = numbers(last - first).map((i) => {
    const at = first + i, begin = timeline.begin[at] * timeline.tick;
    const name = timeline.names[timeline.name[at]], lane = timeline.lanes[timeline.lane[at]];
    return { lane, name, begin, length: timeline.length[at] * timeline.tick };
  });
  const lanes = timeline.lanes.filter((lane) => mine.some((span) => span.lane === lane));
  const traces = lanes.map((lane, i) => {
    const spans = mine.filter((span) => span.lane === lane);
    // An edge parts spans that touch, but would hide those that are short.
    const colour = ink.series[order.indexOf(lane) % ink.series.length];
    const edges = spans.map((span) => (span.length < timeline.seconds / 300 ? colour : ink.paper));
    const times = ({ begin, length }) =>
      `${seconds(begin)} to ${seconds(begin + length)}, takes ${seconds(length)}`;
    return {
      type: "bar", orientation: "h", width: 0.8, y: spans.map(() => top + i),
      base: spans.map((span) => span.begin * unit.scale),
      x: spans.map((span) => span.length * unit.scale),
      marker: { color: colour, line: { color: edges, width: 0.6 } },
      hovertext: spans.map((span) =>
        `<b>${plain(lane)}: ${plain(span.name)}</b><br>${times(span)}`),
      hovertemplate: HOVER,
    };
  });
  return { traces, lanes };
}

function drawSpans(data, state) {
  const { unit, ...frame } = timeFrame(data, state), shown = shownTimelines(data, state);
  const order = laneOrder(data), traces = [], labels = [];
  for (const [run, timeline] of shown) {
    const rank = nearestRank(timeline, state.rank);
    const who = rank === state.rank ? run.name : `${run.name}, rank ${rank}`;
    const found = spanTraces(timeline, rank, unit, labels.length, order);
    traces.push(...found.traces);
    labels.push(...found.lanes.map((lane) => (shown.length > 1 ? `${who}: ${lane}` : lane)));
  }
  document.getElementById("rank-name").textContent = state.rank;
  const layout = {
    ...frame, barmode: "overlay", xaxis: { ...frame.xaxis, showgrid: true },
    yaxis: named(labels, { autorange: "reversed", automargin: false }),
  };
  const height = 90 + 34 * Math.max(2, labels.length);
  draw("spans", `Spans of rank ${state.rank}`, traces, layout, height);
}

// Zooming in one of the charts over time zooms in the others.
function linkTimes() {
  const charts = ["lanes", "busy", "spans"].map((id) => document.getElementById(id));
  for (const chart of charts) {
    if (chart.dataset.linked) continue;
    chart.dataset.linked = "true";
    chart.on("plotly_relayout", (event) => {
      if (!Object.keys(event).some((key) => key.startsWith("xaxis."))) return;
      const [low, high] = chart.layout.xaxis.range;
      for (const other of charts) {
        const shown = other.layout.xaxis.range;
        if (shown[0] !== low || shown[1] !== high)
          Plotly.relayout(other, { "xaxis.range": [low, high] });
      }
    });
  }
}
