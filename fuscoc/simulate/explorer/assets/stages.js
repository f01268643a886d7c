// Stages of the network hop: who sends in each, to whom, and how large each is.
const MAX_TEXTS = 400;

function drawStages(data, state) {
  const { stages } = data.runs[state.run];
  const [count, nodes] = stages.sent.shape, at = (stage, node) => stage * nodes + node;
  const numbers = Array.from({ length: count }, (_, stage) => stage), all = Array.from({ length: nodes }, (_, node) => node);
  const most = numbers.map((stage) => Math.max(...stages.sent.subarray(at(stage, 0), at(stage + 1, 0))));
  const hover = (stage, node) => {
    const i = at(stage, node), more = stages.receivers[i] - 1;
    const to = stages.sent[i] ? `${bytes(stages.sent[i])} to node ${stages.peer[i]}${more > 0 ? ` and ${more} more` : ""}` : "sends nothing";
    return `<b>stage ${stage}, node ${node}</b><br>${to}<br>gets ${bytes(stages.got[i])} from ${stages.senders[i]} nodes`;
  };
  const peer = (stage, node) => (stages.receivers[at(stage, node)] === 1 ? String(stages.peer[at(stage, node)]) : "");
  const traces = [{
    type: "heatmap", x: numbers, y: all, xgap: count > 100 ? 0 : 1, ygap: nodes > 64 ? 0 : 1, coloraxis: "coloraxis",
    z: all.map((node) => numbers.map((stage) => (most[stage] ? (100 * stages.sent[at(stage, node)]) / most[stage] : 0))),
    text: all.map((node) => numbers.map((stage) => peer(stage, node))),
    texttemplate: count * nodes <= MAX_TEXTS ? "%{text}" : "",
    hovertext: all.map((node) => numbers.map((stage) => hover(stage, node))), hovertemplate: "%{hovertext}<extra></extra>",
  }];
  const layout = {
    xaxis: numbered("stage", count),
    yaxis: numbered("sending node", nodes, { autorange: "reversed" }),
    coloraxis: { colorscale: ink.bytes, cmin: 0, cmax: 100, colorbar: colorbar("of the stage's most", { ticksuffix: " %" }) },
  };
  draw("stage-map", "Stages: who sends how much in each", traces, layout, Math.min(640, 150 + nodes * 24));
  const size = [{
    type: "bar", x: numbers, y: most.map((each) => each / 2 ** 20), marker: { color: ink.mark },
    hovertext: numbers.map((stage) => `stage ${stage}: ${bytes(most[stage])} from its busiest node`), hovertemplate: "%{hovertext}<extra></extra>",
  }];
  const axes = { xaxis: numbered("stage", count), yaxis: axis("MiB of the busiest node", { rangemode: "tozero" }) };
  draw("stage-size", "How large every stage is", size, axes, 230);
}
