// How the time follows a parameter, and what each part of the program saves.
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star"];
const LOGARITHMIC_FROM = 8;

function drawSweep(data) {
  const parameters = [...new Set(data.sweep.map((point) => point.name))];
  document.getElementById("sweep-part").hidden = !parameters.length;
  if (!parameters.length) return;
  const contenders = [...new Set(data.sweep.map((point) => point.contender))];
  const unit = timeUnit(Math.max(...data.sweep.map((point) => point.seconds)));
  const traces = [], axes = {};
  parameters.forEach((name, i) => {
    const suffix = i ? String(i + 1) : "", points = data.sweep.filter((each) => each.name === name);
    axes[`xaxis${suffix}`] = valueAxis(name, points.map((point) => point.value));
    axes[`yaxis${suffix}`] = axis(i ? "" : unit.name, { rangemode: "tozero" });
    contenders.forEach((contender, k) => {
      const mine = points.filter((point) => point.contender === contender)
        .toSorted((a, b) => a.value - b.value);
      traces.push({
        type: "scatter", mode: "lines+markers", name: plain(contender), legendgroup: String(k),
        showlegend: !i, xaxis: `x${suffix}`, yaxis: `y${suffix}`,
        x: mine.map((point) => point.value), y: mine.map((point) => point.seconds * unit.scale),
        line: { color: ink.series[k % 8], width: 2.5, dash: DASHES[k % 4] },
        marker: { symbol: SYMBOLS[k % 6], size: 9 },
        hovertext: mine.map((point) =>
          `<b>${plain(contender)}</b><br>${plain(name)} ${point.value}: ${seconds(point.seconds)}`),
        hovertemplate: HOVER,
      });
    });
  });
  const layout = {
    ...axes, grid: { rows: 1, columns: parameters.length, pattern: "independent" },
    showlegend: true, legend: LEGEND, margin: { ...MARGIN, t: 40 },
  };
  draw("sweep", "Time of every run over a parameter", traces, layout, 360);
}

function valueAxis(name, values) {
  const tickvals = [...new Set(values)], low = Math.min(...values), high = Math.max(...values);
  const type = low > 0 && high / low >= LOGARITHMIC_FROM ? "log" : "linear";
  const ticktext = tickvals.map((value) => value.toLocaleString("en"));
  return axis(plain(name), { type, tickvals, ticktext });
}

function drawAblation(data) {
  const rows = data.ablation.toReversed(), changes = rows.map((row) => row.change * 100);
  document.getElementById("ablation-part").hidden = !rows.length;
  if (!rows.length) return;
  const low = Math.min(0, ...changes), high = Math.max(0, ...changes), room = (high - low || 1) / 4;
  const trace = {
    type: "bar", orientation: "h", y: numbers(rows.length), x: changes,
    marker: { color: changes.map((change) => (change < 0 ? ink.mark : ink.alert)) },
    text: changes.map((change) => ` ${change > 0 ? "+" : ""}${change.toFixed(1)} % `),
    textposition: "outside", cliponaxis: false,
    hovertext: rows.map((row) => `without ${plain(row.without)}: ${seconds(row.seconds)}`),
    hovertemplate: HOVER,
  };
  const range = [low - (low < 0 ? room : 0), high + (high > 0 ? room : room / 8)];
  const layout = {
    xaxis: axis("change of the time by the part", { ticksuffix: " %", range }),
    yaxis: named(rows.map((row) => row.without)),
  };
  draw("ablation", "What each part changes", [trace], layout, 90 + 34 * rows.length);
}
