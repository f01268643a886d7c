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
  const square = { autorange: "reversed", showgrid: false, zeroline: false, tickformat: "d", constrain: "domain" };
  const across = { showgrid: false, zeroline: false, tickformat: "d", constrain: "domain" };
  const ticks = log ? logTicks(least, most) : { ticksuffix: " MiB" };
  const layout = {
    xaxis: axis(`to ${grain}`, { ...across, domain: [0, 0.47] }),
    yaxis: axis(`from ${grain}`, { ...square, scaleanchor: "x" }),
    xaxis2: axis(`to ${grain}`, { ...across, domain: [0.53, 1], matches: "x" }),
    yaxis2: axis("", { ...square, scaleanchor: "x2", anchor: "x2", matches: "y" }),
    coloraxis: { colorscale: ink.bytes, cmin: log ? Math.log10(least) : 0, cmax: log ? Math.log10(most) : most, colorbar: colorbar("", ticks) },
    annotations: [title("Before", 0, 0), title("After", 1, 0.53)], margin: { l: 10, r: 10, t: 34, b: 10 },
  };
  draw("heat", "Heat maps of bytes before and after", traces, layout, Math.min(620, 0.5 * document.getElementById("heat").clientWidth + 40));
}

// Ticks of a logarithmic scale between two sizes in MiB.
function logTicks(least, most) {
  const low = Math.ceil(Math.log10(least)), high = Math.floor(Math.log10(most));
  const tickvals = Array.from({ length: Math.max(0, high - low + 1) }, (_, i) => low + i);
  return { tickvals, ticktext: tickvals.map((each) => bytes(10 ** each * 2 ** 20)) };
}

function drawNics(data, state) {
  const leg = data.runs[state.run].legs[state.leg], mib = 2 ** 20;
  const nics = ["nic_out", "nic_in"].map((name) => leg.links?.[data.cluster.kinds.findIndex((kind) => kind.name === name)]);
  if (nics.includes(undefined)) return Plotly.purge("nics");
  const words = ["sends", "receives"], ranks = Array.from(nics[0].bytes, (_, rank) => rank);
  const traces = nics.map((nic, i) => ({
    type: "bar", name: words[i], x: ranks, y: Array.from(nic.bytes, (each) => each / mib), marker: { color: ink.series[i], line: { width: 0 } },
    hovertext: ranks.map((rank) => `rank ${rank} ${words[i]} ${bytes(nic.bytes[rank])}`), hovertemplate: "%{hovertext}<extra></extra>",
  }));
  const means = nics.map((nic, i) => {
    const mean = nic.bytes.reduce((a, b) => a + b, 0) / ranks.length / mib;
    return { type: "line", xref: "paper", x0: 0, x1: 1, y0: mean, y1: mean, line: { color: ink.series[i], width: 1.5, dash: "dot" } };
  });
  const layout = {
    xaxis: axis("rank", { tickformat: "d", showgrid: false }), yaxis: axis("MiB", { rangemode: "tozero" }), shapes: means,
    showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 10, r: 10, t: 30, b: 10 },
  };
  return draw("nics", "Bars of what every NIC sends and receives", traces, layout, 300);
}
