// Who sends how much to whom, before and after, and what every NIC carries.
function drawTraffic(data, state) {
  const { traffic } = data.runs[state.run], grain = traffic[state.grain] ? state.grain : "node";
  const maps = traffic[grain], mib = 2 ** 20, log = state.scale === "log";
  const most = Math.max(1, ...maps.map((each) => each.reduce((a, b) => Math.max(a, b), 0))) / mib;
  const least = maps.reduce((low, each) => each.reduce((a, b) => (b > 0 && b < a ? b : a), low), most * mib) / mib;
  const shade = (value) => (log ? (value > 0 ? Math.log10(value / mib) : null) : value / mib);
  const traces = maps.map((each, i) => {
    const suffix = i ? String(i + 1) : "", z = rowsOf(each, (row) => Array.from(row, shade));
    const text = rowsOf(each, (row) => Array.from(row, bytes));
    return {
      type: "heatmap", z, hovertext: text, xaxis: `x${suffix}`, yaxis: `y${suffix}`, coloraxis: "coloraxis", hoverongaps: false,
      hovertemplate: `${grain} %{y} → ${grain} %{x}<br><b>%{hovertext}</b><extra>${i ? "after" : "before"}</extra>`,
    };
  });
  const sum = (each) => each.reduce((a, b) => a + b, 0);
  const title = (text, i, x) => ({ text: `${text}: ${bytes(sum(maps[i]))}`, x, y: 1, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 14 } });
  const size = maps[0].shape[0], down = { autorange: "reversed", constrain: "domain" }, across = { constrain: "domain" };
  const ticks = log ? logTicks(least, most) : { ticksuffix: " MiB" };
  const layout = {
    xaxis: numbered(`to ${grain}`, size, { ...across, domain: [0, 0.47] }, 16),
    yaxis: numbered(`from ${grain}`, size, { ...down, scaleanchor: "x" }, 16),
    xaxis2: numbered(`to ${grain}`, size, { ...across, domain: [0.53, 1], matches: "x" }, 16),
    yaxis2: numbered("", size, { ...down, anchor: "x2", matches: "y" }, 16),
    coloraxis: { colorscale: ink.bytes, cmin: log ? Math.log10(least) : 0, cmax: log ? Math.log10(most) : most, colorbar: colorbar("", ticks) },
    shapes: grain === "rank" ? nodeEdges(data.cluster, size) : [],
    annotations: [title("Before", 0, 0), title("After", 1, 0.53)], margin: { l: 10, r: 10, t: 34, b: 10 },
  };
  draw("heat", "Heat maps of bytes before and after", traces, layout, Math.min(620, 0.5 * document.getElementById("heat").clientWidth + 40));
}

// Lines between the nodes, in both maps, where they do not hide what is between them.
function nodeEdges({ ranksPerNode: m }, size) {
  const edges = Array.from({ length: Math.ceil(size / m) - 1 }, (_, i) => (i + 1) * m - 0.5), line = { color: ink.rule, width: 1 };
  if (edges.length > 32) return [];
  return ["", "2"].flatMap((map) => edges.flatMap((edge) => [
    { type: "line", xref: `x${map}`, yref: `y${map}`, x0: edge, x1: edge, y0: -0.5, y1: size - 0.5, line },
    { type: "line", xref: `x${map}`, yref: `y${map}`, x0: -0.5, x1: size - 0.5, y0: edge, y1: edge, line },
  ]));
}

// Ticks of a logarithmic scale between two sizes in MiB.
function logTicks(least, most) {
  const low = Math.ceil(Math.log10(least)), high = Math.floor(Math.log10(most));
  const tickvals = Array.from({ length: Math.max(0, high - low + 1) }, (_, i) => low + i);
  return { tickvals, ticktext: tickvals.map((each) => bytes(10 ** each * 2 ** 20)) };
}

// The bytes on NICs by rank; by node, of the busiest of each, where ranks would be too many bars.
function drawNics(data, state) {
  const leg = data.runs[state.run].legs[state.leg], mib = 2 ** 20, { byGroup } = data.rows;
  const nics = ["nic_out", "nic_in"].map((name) => leg.links?.[data.cluster.kinds.findIndex((kind) => kind.name === name)]);
  document.getElementById("nics-part").hidden = nics.includes(undefined);
  if (nics.includes(undefined)) return;
  const words = ["sends", "receives"], what = byGroup ? "node" : "rank", line = { width: 1.5, dash: "dot" };
  const shown = nics.map((nic) => (byGroup ? groupMost(nic.bytes, data.cluster.ranksPerNode) : Array.from(nic.bytes)));
  const traces = shown.map((sizes, i) => ({
    type: "bar", name: words[i], x: sizes.map((_, place) => place), y: sizes.map((each) => each / mib), marker: { color: ink.series[i], line: { width: 0 } },
    hovertext: sizes.map((each, place) => (byGroup ? `the busiest NIC of node ${place} ${words[i]} ${bytes(each)}` : `rank ${place} ${words[i]} ${bytes(each)}`)),
    hovertemplate: "%{hovertext}<extra></extra>",
  }));
  const means = nics.map((nic, i) => {
    const mean = nic.bytes.reduce((a, b) => a + b, 0) / nic.bytes.length / mib;
    return { type: "line", xref: "paper", x0: 0, x1: 1, y0: mean, y1: mean, line: { ...line, color: ink.series[i] } };
  });
  const layout = {
    xaxis: numbered(what, shown[0].length), yaxis: axis("MiB", { rangemode: "tozero" }), shapes: means,
    showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 10, r: 10, t: 30, b: 10 },
  };
  draw("nics", "Bars of what every NIC sends and receives", traces, layout, 300);
}

function groupMost(values, group) {
  return Array.from({ length: Math.ceil(values.length / group) }, (_, i) => Math.max(...values.subarray(i * group, (i + 1) * group)));
}
