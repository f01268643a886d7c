// Who sends how much to whom, before and after, and what every NIC carries.
const LEGEND = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };

const largest = (array) => array.reduce((a, b) => Math.max(a, b), 0);
const total = (array) => array.reduce((a, b) => a + b, 0);
const leastOf = (array, most) => array.reduce((a, b) => (b > 0 && b < a ? b : a), most);

function drawTraffic(data, state) {
  const { traffic } = data.runs[state.run], grain = traffic[state.grain] ? state.grain : "node";
  const maps = traffic[grain], log = state.scale === "log", size = maps[0].shape[0];
  const most = Math.max(1, ...maps.map(largest)) / MIB;
  const least = Math.min(...maps.map((each) => leastOf(each, most * MIB))) / MIB;
  const linear = (value) => value / MIB;
  const power = (value) => (value ? Math.log10(value / MIB) : null);
  const traces = maps.map((each, i) => ({
    type: "heatmap", xaxis: i ? "x2" : "x", yaxis: i ? "y2" : "y", coloraxis: "coloraxis",
    z: rowsOf(each, (row) => Array.from(row, log ? power : linear)), hoverongaps: false,
    hovertext: rowsOf(each, (row) => Array.from(row, bytes)),
    hovertemplate: `${grain} %{y} → ${grain} %{x}<br><b>%{hovertext}</b><extra></extra>`,
  }));
  const title = (text, i, x) => ({
    text: `${text}: ${bytes(total(maps[i]))}`, x, y: 1, xref: "paper", yref: "paper",
    xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 14 },
  });
  const side = (name, more) => numbered(name, size, { constrain: "domain", ...more }, 16);
  const ticks = log ? logTicks(least, most) : { ticksuffix: " MiB" };
  const layout = {
    xaxis: side(`to ${grain}`, { domain: [0, 0.47] }),
    yaxis: side(`from ${grain}`, { autorange: "reversed", scaleanchor: "x" }),
    xaxis2: side(`to ${grain}`, { domain: [0.53, 1], matches: "x" }),
    yaxis2: side("", { autorange: "reversed", anchor: "x2", matches: "y" }),
    coloraxis: {
      colorscale: ink.bytes, colorbar: colorbar("", ticks),
      cmin: log ? Math.log10(least) : 0, cmax: log ? Math.log10(most) : most,
    },
    shapes: grain === "rank" ? nodeEdges(data.cluster, size) : [],
    annotations: [title("Before", 0, 0), title("After", 1, 0.53)],
    margin: { ...MARGIN, t: 34 },
  };
  const width = printing ? PAPER_WIDTH : document.getElementById("heat").clientWidth;
  const height = Math.min(620, 0.5 * width + 40);
  draw("heat", "Heat maps of bytes before and after", traces, layout, height);
}

// Lines between the nodes, in both maps, where they do not hide what is between them.
function nodeEdges({ ranksPerNode: m }, size) {
  const edges = numbers(Math.ceil(size / m) - 1).map((i) => (i + 1) * m - 0.5);
  if (edges.length > 32) return [];
  const base = { type: "line", line: { color: ink.rule, width: 1 } }, ends = [-0.5, size - 0.5];
  return ["", "2"].flatMap((map) => edges.flatMap((edge) => {
    const axes = { ...base, xref: `x${map}`, yref: `y${map}` };
    return [
      { ...axes, x0: edge, x1: edge, y0: ends[0], y1: ends[1] },
      { ...axes, x0: ends[0], x1: ends[1], y0: edge, y1: edge },
    ];
  }));
}

// Ticks of a logarithmic scale between two sizes in MiB.
function logTicks(least, most) {
  const low = Math.ceil(Math.log10(least)), high = Math.floor(Math.log10(most));
  const tickvals = numbers(Math.max(0, high - low + 1)).map((i) => low + i);
  return { tickvals, ticktext: tickvals.map((each) => bytes(10 ** each * MIB)) };
}

// The bytes on NICs by rank; by node, of the busiest of each, where ranks would be too many bars.
function drawNics(data, state) {
  const leg = data.runs[state.run].legs[state.leg], byNode = byNodes(data.cluster);
  const place = (name) => data.cluster.kinds.findIndex((kind) => kind.name === name);
  const nics = ["nic_out", "nic_in"].map((name) => leg.links?.[place(name)]?.bytes);
  document.getElementById("nics-part").hidden = nics.includes(undefined);
  if (nics.includes(undefined)) return;
  const words = ["sends", "receives"], m = data.cluster.ranksPerNode;
  const who = (i) => (byNode ? `the busiest NIC of node ${i}` : `rank ${i}`);
  const shown = nics.map((sizes) => (byNode ? mostOfEach(sizes, m) : Array.from(sizes)));
  const traces = shown.map((sizes, k) => ({
    type: "bar", name: words[k], x: numbers(sizes.length), y: sizes.map((each) => each / MIB),
    marker: { color: ink.series[k], line: { width: 0 } },
    hovertext: sizes.map((each, i) => `${who(i)} ${words[k]} ${bytes(each)}`),
    hovertemplate: HOVER,
  }));
  const means = nics.map((sizes, k) => {
    const mean = total(sizes) / sizes.length / MIB;
    const line = { color: ink.series[k], width: 1.5, dash: "dot" };
    return { type: "line", xref: "paper", x0: 0, x1: 1, y0: mean, y1: mean, line };
  });
  const layout = {
    xaxis: numbered(byNode ? "node" : "rank", shown[0].length),
    yaxis: axis("MiB", { rangemode: "tozero" }), shapes: means,
    showlegend: true, legend: LEGEND, margin: { ...MARGIN, t: 30 },
  };
  draw("nics", "Bars of what every NIC sends and receives", traces, layout, 300);
}

function mostOfEach(values, group) {
  const count = Math.ceil(values.length / group);
  return numbers(count).map((i) => Math.max(...values.subarray(i * group, (i + 1) * group)));
}
