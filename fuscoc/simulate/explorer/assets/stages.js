// Stages of the network hop: who sends in each, to whom, and how large each is.
const MAX_TEXTS = 400;

function drawStages(data, state) {
  const { sent, got, peer, receivers, senders } = data.runs[state.run].stages;
  const [count, nodes] = sent.shape, all = numbers(nodes), stages = numbers(count);
  const at = (stage, node) => stage * nodes + node;
  const most = stages.map((stage) => Math.max(...sent.subarray(at(stage, 0), at(stage + 1, 0))));
  const part = (stage, node) => (most[stage] ? (100 * sent[at(stage, node)]) / most[stage] : 0);
  const hover = (stage, node) => {
    const i = at(stage, node), more = receivers[i] > 1 ? ` and ${receivers[i] - 1} more` : "";
    const to = sent[i] ? `${bytes(sent[i])} to node ${peer[i]}${more}` : "sends nothing";
    const from = `gets ${bytes(got[i])} from ${senders[i]} nodes`;
    return `<b>stage ${stage}, node ${node}</b><br>${to}<br>${from}`;
  };
  const only = (stage, node) => {
    const i = at(stage, node);
    return receivers[i] === 1 ? String(peer[i]) : "";
  };
  const cells = (act) => all.map((node) => stages.map((stage) => act(stage, node)));
  const map = {
    type: "heatmap", x: stages, y: all, xgap: count > 100 ? 0 : 1, ygap: nodes > 64 ? 0 : 1,
    coloraxis: "coloraxis", z: cells(part), text: cells(only),
    texttemplate: count * nodes <= MAX_TEXTS ? "%{text}" : "",
    hovertext: cells(hover), hovertemplate: HOVER,
  };
  const bar = colorbar("of the stage's most", { ticksuffix: " %" });
  const layout = {
    xaxis: numbered("stage", count),
    yaxis: numbered("sending node", nodes, { autorange: "reversed" }),
    coloraxis: { colorscale: ink.bytes, cmin: 0, cmax: 100, colorbar: bar },
  };
  const height = Math.min(640, 150 + nodes * 24);
  draw("stage-map", "Stages: who sends how much in each", [map], layout, height);
  const size = {
    type: "bar", x: stages, y: most.map((each) => each / MIB), marker: { color: ink.mark },
    hovertext: stages.map((stage) => `stage ${stage}: ${bytes(most[stage])} from its busiest node`),
    hovertemplate: HOVER,
  };
  const axes = {
    xaxis: numbered("stage", count),
    yaxis: axis("MiB of the busiest node", { rangemode: "tozero" }),
  };
  draw("stage-size", "How large every stage is", [size], axes, 230);
}
