// Nodes and switches with their links, coloured by how busy they are; below them every rank's links.
const DECILES = 10;

// Links of ranks, as rows of a picture over the nodes: `cells[kind][node]` is a list of ranks' values.
function rankKinds(data, leg) {
  return data.cluster.kinds.map((kind, i) => ({ ...kind, ...leg.links[i] })).filter((kind) => kind.owner === "rank");
}

function worstOf(kinds, ranks) {
  return Math.max(0, ...kinds.flatMap((kind) => ranks.map((rank) => kind.busy[rank] ?? 0)));
}

const ranksOf = (node, m) => Array.from({ length: m }, (_, i) => node * m + i);

// Switches above the nodes: places, what is written on them, and the lines between.
function tiers(data, leg, centre, kinds) {
  const { nodes, ranksPerNode: m, nodesPerLeaf } = data.cluster;
  const nics = kinds.filter((kind) => kind.name.startsWith("nic"));
  const loads = (owner) => data.cluster.kinds.map((kind, i) => ({ ...kind, ...leg.links[i] })).filter((kind) => kind.owner === owner);
  const points = [], lines = [], width = centre(nodes - 1) + centre(0);
  const point = (x, y, name, owners, place) => {
    const busy = owners.length ? Math.max(...owners.map((kind) => kind.busy[place])) : null;
    const text = owners.map((kind) => `<br>${plain(kind.label)}: ${percent(kind.busy[place])} busy, ${bytes(kind.bytes[place])}`);
    points.push({ x, y, busy, name, hover: `<b>${name}</b>${text.join("")}` });
  };
  let top = 1;
  const spread = (count, i) => (width * (i + 0.5)) / count;
  const rails = loads("local rank"), leaves = loads("leaf"), spine = loads("cluster");
  if (rails.length) {
    for (let rail = 0; rail < rails[0].busy.length; rail++) {
      point(spread(rails[0].busy.length, rail), top, `rail ${rail}`, rails, rail);
      for (let node = 0; node < nodes; node++)
        lines.push([centre(node), 0, spread(rails[0].busy.length, rail), top, worstOf(nics, [node * m + rail])]);
    }
    top += 1;
  } else if (leaves.length) {
    for (let leaf = 0; leaf < leaves[0].busy.length; leaf++) {
      const first = leaf * nodesPerLeaf, last = Math.min(nodes, first + nodesPerLeaf) - 1;
      const x = (centre(first) + centre(last)) / 2;
      point(x, top, `leaf ${leaf}`, leaves, leaf);
      for (let node = first; node <= last; node++)
        lines.push([centre(node), 0, x, top, worstOf(nics, ranksOf(node, m))]);
    }
    top += 1;
  }
  const below = points.slice();
  if (spine.length || (nodes > 1 && below.length !== 1)) {
    point(width / 2, top, spine.length ? "spine" : below.length ? "core" : "network", spine, 0);
    for (const { x, y, busy } of below) lines.push([x, y, width / 2, top, busy]);
    if (!below.length)
      for (let node = 0; node < nodes; node++)
        lines.push([centre(node), 0, width / 2, top, worstOf(nics, ranksOf(node, m))]);
  }
  return { points, lines, height: points.length ? top : 0 };
}

function lineTraces(lines) {
  const pick = (busy) => Math.min(DECILES - 1, Math.floor(busy * DECILES));
  return Array.from({ length: DECILES }, (_, decile) => {
    const mine = lines.filter((line) => pick(line[4]) === decile);
    return {
      type: "scatter", mode: "lines", yaxis: "y2", hoverinfo: "skip",
      x: mine.flatMap(([x0, , x1]) => [x0, x1, null]), y: mine.flatMap(([, y0, , y1]) => [y0, y1, null]),
      line: { width: lines.length > 200 ? 1 : 2.5, color: rampColour(ink.busy, (decile + 0.5) / DECILES) },
    };
  }).filter((trace) => trace.x.length);
}

// The colour at `part` of a ramp, between its two nearest.
function rampColour(scale, part) {
  const at = part * (scale.length - 1), low = Math.min(scale.length - 2, Math.floor(at));
  const channel = (colour, i) => parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = [0, 1, 2].map((i) => {
    const a = channel(scale[low][1], i), b = channel(scale[low + 1][1], i);
    return Math.round(a + (b - a) * (at - low));
  });
  return `rgb(${mixed.join(",")})`;
}

// Switches; those whose load nobody knows have no colour of the scale.
function switchTrace(points, scale) {
  const many = points.length > 40;
  return {
    type: "scatter", mode: "markers+text", yaxis: "y2", x: points.map((each) => each.x), y: points.map((each) => each.y),
    marker: {
      symbol: "square", size: many ? 12 : 22, line: { width: 1.5, color: ink.soft },
      color: points.map((each) => (each.busy === null ? ink.panel : each.busy * 100)), ...scale,
    },
    text: points.map((each) => (many ? "" : each.name)), textposition: "top center",
    hovertext: points.map((each) => each.hover), hovertemplate: "%{hovertext}<extra></extra>",
  };
}

function drawCluster(data, state, choose) {
  const leg = data.runs[state.run].legs[state.leg];
  const { nodes, ranksPerNode: m } = data.cluster, byNode = data.rows.byGroup;
  const kinds = rankKinds(data, leg), cells = byNode ? 1 : m, step = byNode ? 1 : m + 1;
  const centre = (node) => node * step + (cells - 1) / 2;
  const columns = Array.from({ length: nodes * step - (byNode ? 0 : 1) }, (_, x) => x);
  const rank = (x) => (byNode ? x * m : Math.floor(x / step) * m + (x % step));
  const gap = (x) => !byNode && x % step === m;
  const value = (kind, x) => (byNode ? worstOf([kind], ranksOf(x, m)) : kind.busy[rank(x)]);
  const hover = (kind, x) => {
    const owner = byNode ? `node ${x}, its busiest rank` : `rank ${rank(x)}, node ${Math.floor(x / step)}`;
    const sum = byNode ? ranksOf(x, m).reduce((total, each) => total + kind.bytes[each], 0) : kind.bytes[rank(x)];
    return `<b>${owner}</b><br>${plain(kind.label)}: ${percent(value(kind, x))} busy, ${bytes(sum)}${byNode ? " in the node" : ""}`;
  };
  const { points, lines, height } = tiers(data, leg, centre, kinds);
  const nodeNumbers = Array.from({ length: nodes }, (_, node) => node);
  const traces = [
    {
      type: "heatmap", x: columns, y: kinds.map((kind) => plain(kind.label)), xgap: columns.length > 300 ? 0 : 1, ygap: 2,
      z: kinds.map((kind) => columns.map((x) => (gap(x) ? null : value(kind, x) * 100))),
      hovertext: kinds.map((kind) => columns.map((x) => (gap(x) ? "" : hover(kind, x)))),
      hoverongaps: false, hovertemplate: "%{hovertext}<extra></extra>", coloraxis: "coloraxis",
    },
    ...lineTraces(lines),
    switchTrace(points.filter((each) => each.busy !== null), { coloraxis: "coloraxis" }),
    switchTrace(points.filter((each) => each.busy === null), {}),
    {
      type: "scatter", mode: nodes > 40 ? "markers" : "markers+text", yaxis: "y2", x: nodeNumbers.map(centre), y: nodeNumbers.map(() => 0),
      marker: {
        symbol: "square", size: nodes > 40 ? 9 : 28, coloraxis: "coloraxis",
        color: nodeNumbers.map((node) => worstOf(kinds, ranksOf(node, m)) * 100),
        line: { width: nodeNumbers.map((node) => (node === state.node ? 4 : 1.5)), color: nodeNumbers.map((node) => (node === state.node ? ink.mark : ink.soft)) },
      },
      text: nodeNumbers.map((node) => `node ${node}`), textposition: "bottom center",
      hovertext: nodeNumbers.map((node) => `<b>node ${node}</b><br>busiest link: ${percent(worstOf(kinds, ranksOf(node, m)))}`),
      hovertemplate: "%{hovertext}<extra></extra>",
    },
  ];
  const share = height ? 0.46 : 0.62, every = Math.ceil(nodes / 32);
  const shown = nodeNumbers.filter((node) => node % every === 0);
  const layout = {
    xaxis: axis("node", { showgrid: false, zeroline: false, range: [-0.7, columns.length - 0.3], tickvals: shown.map(centre), ticktext: shown.map(String) }),
    yaxis: axis("", { autorange: "reversed", domain: [0, share], showgrid: false, fixedrange: true }),
    yaxis2: { domain: [share + 0.02, 1], range: [-0.45, height + 0.45], visible: false, fixedrange: true },
    coloraxis: busyScale(),
  };
  draw("links", "Nodes, switches and the links of all ranks by how busy they are", traces, layout, 330 + 26 * kinds.length + 60 * height);
  onClick("links", (point) => {
    const node = Math.floor(point.x / step + (byNode ? 0.5 : 0));
    if (node >= 0 && node < nodes) choose({ node });
  });
  drawNode(data, state, kinds);
}

function drawNode(data, state, kinds) {
  const m = data.cluster.ranksPerNode, ranks = ranksOf(state.node, m);
  const traces = [{
    type: "heatmap", x: ranks.map((rank) => `rank ${rank}`), y: kinds.map((kind) => plain(kind.label)), xgap: 2, ygap: 2,
    z: kinds.map((kind) => ranks.map((rank) => kind.busy[rank] * 100)),
    text: kinds.map((kind) => ranks.map((rank) => `${percent(kind.busy[rank])}<br>${bytes(kind.bytes[rank])}`)),
    texttemplate: document.getElementById("node-links").clientWidth / m < 80 ? "" : "%{text}", textfont: { size: 11 }, coloraxis: "coloraxis",
    hovertext: kinds.map((kind) => ranks.map((rank) =>
      `<b>rank ${rank}</b><br>${plain(kind.label)}: ${percent(kind.busy[rank])} busy<br>${bytes(kind.bytes[rank])} at ${bytes(kind.bandwidth[rank])}/s`)),
    hovertemplate: "%{hovertext}<extra></extra>",
  }];
  const layout = {
    xaxis: axis("", { showgrid: false, side: "top" }), yaxis: axis("", { autorange: "reversed", showgrid: false }),
    coloraxis: { ...busyScale(), showscale: false },
  };
  draw("node-links", `The links of node ${state.node}'s ranks`, traces, layout, 60 + 46 * kinds.length);
}
