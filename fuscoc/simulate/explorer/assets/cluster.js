// Nodes and switches with their links, coloured by how busy they are; below them every rank's.
const SHADES = 10;
const MANY = 40;

const ranksOf = (node, m) => numbers(m).map((local) => node * m + local);

// Whether columns are nodes, since there are too many ranks to tell apart.
const byNodes = ({ nodes, ranksPerNode: m }) => nodes >= 16 && nodes * m > 300;

// Links of one owner, "rank" or a kind of switch, with their loads in a leg.
function linksOf(data, leg, owner) {
  const kinds = data.cluster.kinds.map((kind, i) => ({ ...kind, ...leg.links[i] }));
  return kinds.filter((kind) => kind.owner === owner);
}

function worstOf(kinds, ranks) {
  return Math.max(0, ...kinds.flatMap((kind) => ranks.map((rank) => kind.busy[rank] ?? 0)));
}

// The node to begin with.
function busiestNode(data, leg) {
  const { nodes, ranksPerNode: m } = data.cluster, kinds = linksOf(data, leg, "rank");
  const worst = numbers(nodes).map((node) => worstOf(kinds, ranksOf(node, m)));
  return worst.indexOf(Math.max(...worst));
}

// Switches above the nodes, and the lines between, each [x, y, x, y, busy]. `centre`: of a node.
function tiers(data, leg, centre, kinds) {
  const { nodes, ranksPerNode: m, nodesPerLeaf } = data.cluster, points = [], lines = [];
  const nics = kinds.filter((kind) => kind.name.startsWith("nic"));
  const width = centre(nodes - 1) + centre(0);
  const rails = linksOf(data, leg, "rail"), leaves = linksOf(data, leg, "leaf");
  const spine = linksOf(data, leg, "cluster");
  const point = (x, y, name, links, place) => {
    const busy = links.length ? Math.max(...links.map((kind) => kind.busy[place])) : null;
    const text = links.map((kind) =>
      `<br>${plain(kind.label)}: ${percent(kind.busy[place])} busy, ${bytes(kind.bytes[place])}`);
    points.push({ x, y, busy, name, hover: `<b>${name}</b>${text.join("")}` });
  };
  const toNode = (node, x, y, ranks) => lines.push([centre(node), 0, x, y, worstOf(nics, ranks)]);
  if (rails.length) {
    // Every local rank has a switch of its own for each group of nodes.
    const size = nodesPerLeaf || nodes;
    for (const rail of numbers(rails[0].busy.length)) {
      const first = Math.floor(rail / m) * size, count = Math.min(nodes - first, size);
      const low = centre(first), wide = centre(first + count - 1) - low;
      const local = rail % m, x = low + (wide * (local + 0.5)) / m;
      point(x, 1, `rail ${rail}`, rails, rail);
      for (const i of numbers(count)) toNode(first + i, x, 1, [(first + i) * m + local]);
    }
  } else if (leaves.length) {
    for (const leaf of numbers(leaves[0].busy.length)) {
      const first = leaf * nodesPerLeaf, count = Math.min(nodes - first, nodesPerLeaf);
      const x = (centre(first) + centre(first + count - 1)) / 2;
      point(x, 1, `leaf ${leaf}`, leaves, leaf);
      for (const i of numbers(count)) toNode(first + i, x, 1, ranksOf(first + i, m));
    }
  }
  const below = points.slice(), top = below.length ? 2 : 1;
  if (spine.length || (nodes > 1 && below.length !== 1)) {
    const name = spine.length ? "spine" : below.length ? "core" : "network";
    point(width / 2, top, name, spine, 0);
    for (const { x, y, busy } of below) lines.push([x, y, width / 2, top, busy]);
    if (!below.length)
      for (const node of numbers(nodes)) toNode(node, width / 2, top, ranksOf(node, m));
  }
  return { points, lines, height: Math.max(0, ...points.map((each) => each.y)) };
}

// One trace a shade, since a line has one colour.
function lineTraces(lines) {
  const shade = (busy) => Math.min(SHADES - 1, Math.floor(busy * SHADES));
  const traces = numbers(SHADES).map((number) => {
    const mine = lines.filter((line) => shade(line[4]) === number);
    return {
      type: "scatter", mode: "lines", yaxis: "y2", hoverinfo: "skip",
      x: mine.flatMap(([x0, , x1]) => [x0, x1, null]),
      y: mine.flatMap(([, y0, , y1]) => [y0, y1, null]),
      line: {
        width: lines.length > 200 ? 1 : 2.5,
        color: rampColour(ink.busy, (number + 0.5) / SHADES),
      },
    };
  });
  return traces.filter((trace) => trace.x.length);
}

// The colour at `part` of a ramp, between its two nearest.
function rampColour(scale, part) {
  const at = part * (scale.length - 1), low = Math.min(scale.length - 2, Math.floor(at));
  const channel = (colour, i) => parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = numbers(3).map((i) => {
    const a = channel(scale[low][1], i), b = channel(scale[low + 1][1], i);
    return Math.round(a + (b - a) * (at - low));
  });
  return `rgb(${mixed.join(",")})`;
}

// Switches; those whose load nobody knows have no colour of the scale.
function switchTrace(points, scale) {
  const many = points.length > MANY / 2;
  return {
    type: "scatter", mode: "markers+text", yaxis: "y2",
    x: points.map((each) => each.x), y: points.map((each) => each.y),
    marker: {
      symbol: "square", size: many ? 12 : 22, line: { width: 1.5, color: ink.soft },
      color: points.map((each) => (each.busy === null ? ink.panel : each.busy * 100)), ...scale,
    },
    text: points.map((each) => (many ? "" : each.name)), textposition: "top center",
    hovertext: points.map((each) => each.hover), hovertemplate: HOVER,
  };
}

function nodeTrace(nodes, worst, centre, chosen) {
  const many = nodes.length > MANY;
  return {
    type: "scatter", mode: many ? "markers" : "markers+text", yaxis: "y2",
    x: nodes.map(centre), y: nodes.map(() => 0),
    marker: {
      symbol: "square", size: many ? 9 : 28, coloraxis: "coloraxis",
      color: nodes.map((node) => worst(node) * 100),
      line: {
        width: nodes.map((node) => (node === chosen ? 4 : 1.5)),
        color: nodes.map((node) => (node === chosen ? ink.mark : ink.soft)),
      },
    },
    text: nodes.map((node) => `node ${node}`), textposition: "bottom center",
    hovertext: nodes.map((node) => `<b>node ${node}</b><br>busiest link: ${percent(worst(node))}`),
    hovertemplate: HOVER,
  };
}

// Rows of kinds over columns of ranks, with a gap between nodes, or of nodes by their busiest rank.
function linkTrace(kinds, { nodes, m, byNode, step }) {
  const columns = numbers(nodes * step - (byNode ? 0 : 1));
  const isGap = (x) => !byNode && x % step === m;
  const node = (x) => Math.floor(x / step);
  const ranks = (x) => (byNode ? ranksOf(x, m) : [node(x) * m + (x % step)]);
  const hover = (kind, x) => {
    const owner = byNode ? `node ${x}, its busiest rank` : `rank ${ranks(x)[0]}, node ${node(x)}`;
    const sum = ranks(x).reduce((total, rank) => total + kind.bytes[rank], 0);
    const load = `${percent(worstOf([kind], ranks(x)))} busy, ${bytes(sum)}`;
    return `<b>${owner}</b><br>${plain(kind.label)}: ${load}${byNode ? " in the node" : ""}`;
  };
  const cells = (act, gap) => kinds.map((kind) =>
    columns.map((x) => (isGap(x) ? gap : act(kind, x))));
  return {
    type: "heatmap", x: columns, y: kinds.map((kind) => plain(kind.label)), ygap: 2,
    xgap: columns.length > 300 ? 0 : 1, coloraxis: "coloraxis", hoverongaps: false,
    z: cells((kind, x) => worstOf([kind], ranks(x)) * 100, null),
    hovertext: cells(hover, ""), hovertemplate: HOVER,
  };
}

function drawCluster(data, state, choose) {
  const leg = data.runs[state.run].legs[state.leg], kinds = linksOf(data, leg, "rank");
  const { nodes, ranksPerNode: m } = data.cluster, byNode = byNodes(data.cluster);
  const step = byNode ? 1 : m + 1, all = numbers(nodes);
  const centre = (node) => node * step + (byNode ? 0 : (m - 1) / 2);
  const { points, lines, height } = tiers(data, leg, centre, kinds);
  const worst = (node) => worstOf(kinds, ranksOf(node, m));
  const traces = [
    linkTrace(kinds, { nodes, m, byNode, step }),
    ...lineTraces(lines),
    switchTrace(points.filter((each) => each.busy !== null), { coloraxis: "coloraxis" }),
    switchTrace(points.filter((each) => each.busy === null), {}),
    nodeTrace(all, worst, centre, state.node),
  ];
  const share = height ? 0.46 : 0.62, every = Math.ceil(nodes / 32);
  const shown = all.filter((node) => node % every === 0);
  const layout = {
    xaxis: axis("node", {
      showgrid: false, zeroline: false, range: [-0.7, centre(nodes - 1) + centre(0) + 0.7],
      tickvals: shown.map(centre), ticktext: shown.map(String),
    }),
    yaxis: axis("", {
      autorange: "reversed", domain: [0, share], showgrid: false, fixedrange: true,
    }),
    yaxis2: {
      domain: [share + 0.02, 1], range: [-0.45, height + 0.45], visible: false, fixedrange: true,
    },
    coloraxis: busyScale(),
  };
  const label = "Nodes, switches and the links of all ranks by how busy they are";
  draw("links", label, traces, layout, 330 + 26 * kinds.length + 60 * height);
  onClick("links", (point) => {
    const node = Math.floor(point.x / step + (byNode ? 0.5 : 0));
    if (node >= 0 && node < nodes) choose({ node });
  });
  drawNode(data, state, kinds);
}

function drawNode(data, state, kinds) {
  const m = data.cluster.ranksPerNode, ranks = ranksOf(state.node, m);
  const narrow = document.getElementById("node-links").clientWidth / m < 80;
  const cells = (act) => kinds.map((kind) => ranks.map((rank) => act(kind, rank)));
  const trace = {
    type: "heatmap", x: ranks.map((rank) => `rank ${rank}`),
    y: kinds.map((kind) => plain(kind.label)), xgap: 2, ygap: 2, coloraxis: "coloraxis",
    z: cells((kind, rank) => kind.busy[rank] * 100),
    text: cells((kind, rank) => `${percent(kind.busy[rank])}<br>${bytes(kind.bytes[rank])}`),
    texttemplate: narrow ? "" : "%{text}", textfont: { size: 11 },
    hovertext: cells((kind, rank) => {
      const load = `${percent(kind.busy[rank])} busy<br>${bytes(kind.bytes[rank])}`;
      const speed = `${bytes(kind.bandwidth[rank])}/s`;
      return `<b>rank ${rank}</b><br>${plain(kind.label)}: ${load} at ${speed}`;
    }),
    hovertemplate: HOVER,
  };
  const layout = {
    xaxis: axis("", { showgrid: false, side: "top" }),
    yaxis: axis("", { autorange: "reversed", showgrid: false }),
    coloraxis: busyScale({ showscale: false }),
  };
  const label = `The links of node ${state.node}'s ranks`;
  draw("node-links", label, [trace], layout, 60 + 46 * kinds.length);
}
