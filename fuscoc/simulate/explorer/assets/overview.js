// How long runs take, and what they cannot go below.
function drawContenders(data, state, choose) {
  const runs = data.runs.map((run, number) => ({ ...run, number })).filter((run) => run.seconds);
  document.getElementById("contenders-part").hidden = runs.length < 2;
  if (runs.length < 2) return;
  const order = runs.toSorted((a, b) => b.seconds - a.seconds), places = numbers(order.length);
  const most = order[0].seconds, fastest = order.at(-1).seconds, unit = timeUnit(most);
  const bounded = places.filter((i) => order[i].bound !== null);
  const times = {
    type: "bar", orientation: "h", y: places, x: order.map((run) => run.seconds * unit.scale),
    marker: { color: order.map((run) => (run.number === state.run ? ink.mark : ink.rest)) },
    text: order.map((run) => ` ${seconds(run.seconds)} · ${(run.seconds / fastest).toFixed(2)}×`),
    textposition: "outside", cliponaxis: false, textfont: { color: ink.ink },
    hovertext: order.map((run) => `<b>${plain(run.name)}</b><br>${plain(run.rewrite)}`),
    hovertemplate: HOVER,
  };
  const bounds = {
    type: "scatter", mode: "markers", y: bounded,
    x: bounded.map((i) => order[i].bound * unit.scale),
    marker: { symbol: "line-ns", size: 24, line: { width: 3, color: ink.alert } },
    hovertext: bounded.map((i) => `these links allow ${seconds(order[i].bound)}`),
    hovertemplate: HOVER,
  };
  const layout = {
    xaxis: axis(unit.name, { range: [0, most * unit.scale * 1.6] }),
    yaxis: named(order.map((run) => run.name)),
  };
  const height = 90 + 38 * order.length;
  draw("contenders", "Bars of the time of every run", [times, bounds], layout, height);
  onClick("contenders", (point) => choose({ run: order[Math.round(point.y)].number }));
}

function drawBounds(data, state) {
  const leg = data.runs[state.run].legs[state.leg], bounds = leg.bounds?.toReversed() ?? [];
  document.getElementById("bounds-part").hidden = !bounds.length;
  if (!bounds.length) return;
  const most = Math.max(leg.seconds, bounds.at(-1).seconds), unit = timeUnit(most);
  const took = leg.seconds * unit.scale, part = (each) => percent(each.seconds / leg.seconds);
  const trace = {
    type: "bar", orientation: "h", y: numbers(bounds.length),
    x: bounds.map((each) => each.seconds * unit.scale),
    marker: { color: bounds.map((each) => (each.resource === leg.limit ? ink.mark : ink.rest)) },
    text: bounds.map((each) => ` ${seconds(each.seconds)} · ${part(each)}`),
    textposition: "auto", cliponaxis: false, hovertemplate: "%{text}<extra></extra>",
  };
  const layout = {
    xaxis: axis(unit.name, { range: [0, most * unit.scale * 1.12] }),
    yaxis: named(bounds.map((each) => each.resource)),
    shapes: [{
      type: "line", x0: took, x1: took, y0: 0, y1: 1, yref: "paper",
      line: { color: ink.alert, width: 2 },
    }],
    annotations: [{
      text: `takes ${seconds(leg.seconds)}, bound by ${plain(leg.limit)}`,
      x: took, y: 1, yref: "paper", xanchor: "right", yanchor: "bottom", showarrow: false,
      font: { color: ink.alert },
    }],
    margin: { ...MARGIN, t: 34 },
  };
  const height = 110 + 36 * bounds.length;
  draw("bounds", "Bars of what each kind of link needs", [trace], layout, height);
}
