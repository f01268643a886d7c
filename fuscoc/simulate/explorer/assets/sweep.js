// How the time follows a parameter, and what each part of the program saves.
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star"];

function drawSweep(data) {
  const names = [...new Set(data.sweep.map((point) => point.name))];
  document.getElementById("sweep-part").hidden = !names.length;
  if (!names.length) return;
  const contenders = [...new Set(data.sweep.map((point) => point.contender))];
  const unit = timeUnit(Math.max(...data.sweep.map((point) => point.seconds))), traces = [], axes = {};
  names.forEach((name, i) => {
    const suffix = i ? String(i + 1) : "", values = data.sweep.filter((point) => point.name === name).map((point) => point.value);
    const log = Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) >= 8;
    const tickvals = [...new Set(values)], ticktext = tickvals.map((value) => value.toLocaleString("en"));
    axes[`xaxis${suffix}`] = axis(plain(name), { type: log ? "log" : "linear", tickvals, ticktext });
    axes[`yaxis${suffix}`] = axis(i ? "" : unit.name, { rangemode: "tozero" });
    contenders.forEach((contender, k) => {
      const mine = data.sweep.filter((point) => point.name === name && point.contender === contender).toSorted((a, b) => a.value - b.value);
      traces.push({
        type: "scatter", mode: "lines+markers", name: plain(contender), legendgroup: String(k), showlegend: !i, xaxis: `x${suffix}`, yaxis: `y${suffix}`,
        x: mine.map((point) => point.value), y: mine.map((point) => point.seconds * unit.scale),
        line: { color: ink.series[k % 8], width: 2.5, dash: DASHES[k % 4] }, marker: { symbol: SYMBOLS[k % 6], size: 9 },
        hovertext: mine.map((point) => `<b>${plain(contender)}</b><br>${plain(name)} ${point.value}: ${seconds(point.seconds)}`),
        hovertemplate: "%{hovertext}<extra></extra>",
      });
    });
  });
  const layout = { ...axes, grid: { rows: 1, columns: names.length, pattern: "independent" }, showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 10, r: 10, t: 40, b: 10 } };
  draw("sweep", "Time of every run over a parameter", traces, layout, 360);
}

function drawAblation(data) {
  const rows = data.ablation.toReversed();
  document.getElementById("ablation-part").hidden = !rows.length;
  if (!rows.length) return;
  const places = rows.map((_, i) => i), low = Math.min(0, ...rows.map((row) => row.change)), high = Math.max(0, ...rows.map((row) => row.change));
  const traces = [{
    type: "bar", orientation: "h", y: places, x: rows.map((row) => row.change * 100),
    marker: { color: rows.map((row) => (row.change < 0 ? ink.mark : ink.alert)) },
    text: rows.map((row) => ` ${row.change > 0 ? "+" : ""}${(row.change * 100).toFixed(1)} % `), textposition: "outside", cliponaxis: false,
    hovertext: rows.map((row) => `without ${plain(row.without)}: ${seconds(row.seconds)}`), hovertemplate: "%{hovertext}<extra></extra>",
  }];
  const room = (high - low || 0.01) * 25;
  const layout = {
    xaxis: axis("change of the time by the part", { ticksuffix: " %", range: [low * 100 - (low < 0 ? room : 0), high * 100 + (high > 0 ? room : 0)] }),
    yaxis: axis("", { tickvals: places, ticktext: rows.map((row) => plain(row.without)), showgrid: false, side: "left" }),
  };
  draw("ablation", "What each part changes", traces, layout, 90 + 34 * rows.length);
}
