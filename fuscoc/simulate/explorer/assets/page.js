// What is chosen, and the controls that choose it.
const THEMES = [["", "◐ system", "as the system has them"], ["light", "☀ light", "light"], ["dark", "☾ dark", "dark"]];

function start(data) {
  const state = { tab: "overview", run: 0, leg: "", rank: -1, node: 0, picture: -1, beside: -1, grain: "rank", scale: "linear" };
  const element = (id) => document.getElementById(id);
  const leg = () => data.runs[state.run].legs[state.leg];
  const draws = {
    overview: () => { drawContenders(data, state, choose); drawBounds(data, state); drawSweep(data); drawAblation(data); },
    cluster: () => drawCluster(data, state, choose),
    timeline: () => { drawLanes(data, state, choose); drawBusy(data, state, choose); drawSpans(data, state); linkTimes(); },
    traffic: () => { drawTraffic(data, state); drawNics(data, state); },
    stages: () => drawStages(data, state),
    numbers: () => {},
  };
  const there = {
    overview: () => data.runs.some((run) => run.seconds) || data.sweep.length > 0,
    cluster: () => data.cluster !== null && leg().links !== undefined,
    timeline: () => leg().timeline.ranks.length > 0,
    traffic: () => Boolean(data.runs[state.run].traffic),
    stages: () => Boolean(data.runs[state.run].stages),
    numbers: () => element("numbers").querySelector("table") !== null,
  };

  function choose(change) {
    Object.assign(state, change);
    settle();
    show();
  }

  // Makes what is chosen fit together: not every run has every direction, view and rank.
  function settle() {
    const legs = Object.keys(data.runs[state.run].legs);
    if (!legs.includes(state.leg)) state.leg = legs[0];
    if (!there[state.tab]()) state.tab = Object.keys(there).find((name) => there[name]());
    const { timeline } = leg();
    if (timeline.ranks.length) state.rank = state.rank < 0 ? byFinish(timeline).at(-1) : nearestRank(timeline, state.rank);
    if (!timeline.pictures[state.picture]) state.picture = busiestLane(timeline);
    if (state.beside === state.run) state.beside = -1;
  }

  function show() {
    chips("runs", data.runs.map((run, i) => [i, run.name]), state.run, (value) => choose({ run: Number(value) }));
    chips("legs", Object.keys(data.runs[state.run].legs).map((name) => [name, name]), state.leg, (value) => choose({ leg: value }));
    const grains = ["rank", "node"].filter((grain) => data.runs[state.run].traffic?.[grain]);
    if (!grains.includes(state.grain) && grains.length) state.grain = grains[0];
    chips("grain", grains.map((name) => [name, `${name}s`]), state.grain, (value) => choose({ grain: value }));
    chips("scale", [["linear", "linear"], ["log", "logarithmic"]], state.scale, (value) => choose({ scale: value }));
    options("picture", leg().timeline.pictures.map((each, i) => [i, each.label]), state.picture);
    options("beside", [[-1, "nothing"], ...data.runs.map((run, i) => [i, run.name]).filter(([i]) => i !== state.run)], state.beside);
    element("rank").value = state.rank;
    element("node").value = state.node;
    if (data.cluster) element("node").max = data.cluster.nodes - 1;
    const { timeline } = leg();
    element("kept").textContent = keptWords(data, timeline);
    element("picture-name").textContent = timeline.pictures[state.picture]?.label ?? "";
    const { name, legs } = data.runs[state.run], words = Object.keys(legs).length > 1 ? `${name}, ${state.leg}` : name;
    document.querySelectorAll(".run-name").forEach((each) => { each.textContent = words; });
    for (const tab of element("tabs").children) {
      const name = tab.dataset.panel, chosen = name === state.tab;
      tab.hidden = !there[name]();
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      element(name).hidden = !chosen;
    }
    draws[state.tab]();
  }

  // Radio buttons: arrow keys step between them without a script.
  function chips(id, choices, chosen, act) {
    const set = element(id), wanted = JSON.stringify(choices);
    set.hidden = choices.length < 2;
    if (set.dataset.choices !== wanted) {
      set.dataset.choices = wanted;
      set.replaceChildren(set.querySelector("legend"), ...choices.map(([value, text]) => {
        const label = document.createElement("label"), input = document.createElement("input"), name = document.createElement("span");
        label.className = "chip";
        Object.assign(input, { type: "radio", name: id, value });
        input.addEventListener("change", () => act(input.value));
        name.textContent = text;
        label.append(input, name);
        return label;
      }));
    }
    for (const input of set.querySelectorAll("input")) input.checked = input.value === String(chosen);
  }

  function options(id, choices, chosen) {
    element(id).replaceChildren(...choices.map(([value, text]) => new Option(text, value, false, value === chosen)));
  }

  function stepRank(to) {
    choose({ rank: nearestRank(leg().timeline, to, Math.sign(to - state.rank)) });
  }

  for (const panel of document.querySelectorAll("[role=tabpanel]")) {
    const tab = document.createElement("button");
    Object.assign(tab, { type: "button", id: `tab-${panel.id}`, textContent: panel.dataset.title });
    tab.dataset.panel = panel.id;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    panel.setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => choose({ tab: panel.id }));
    element("tabs").append(tab);
  }
  element("tabs").addEventListener("keydown", (event) => {
    const shown = [...element("tabs").children].filter((tab) => !tab.hidden), at = shown.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const tab = shown[(to + shown.length) % shown.length];
    choose({ tab: tab.dataset.panel });
    tab.focus();
  });
  element("picture").addEventListener("change", (event) => choose({ picture: Number(event.target.value) }));
  element("beside").addEventListener("change", (event) => choose({ beside: Number(event.target.value) }));
  element("rank").addEventListener("change", (event) => stepRank(Number(event.target.value)));
  element("node").addEventListener("change", (event) => choose({ node: Math.min(Math.max(0, Math.trunc(event.target.value)), data.cluster.nodes - 1) }));
  const finish = { slowest: -1, median: null, fastest: 0 };
  for (const [id, place] of Object.entries(finish))
    element(id).addEventListener("click", () => {
      const order = byFinish(leg().timeline);
      choose({ rank: order.at(place ?? Math.floor(order.length / 2)) });
    });
  for (const id of ["busy", "spans"]) {
    element(id).tabIndex = 0;
    element(id).addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      stepRank(state.rank + step);
    });
  }

  function repaint() {
    ink = colours();
    show();
  }
  let theme = 0;
  element("theme").addEventListener("click", () => {
    theme = (theme + 1) % THEMES.length;
    const [name, text, words] = THEMES[theme];
    document.documentElement.dataset.theme = name;
    element("theme").textContent = text;
    element("theme").setAttribute("aria-label", `Colours: ${words}`);
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  // Paper is light, and shows every view.
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    ink = colours();
    for (const [name, part] of Object.entries(draws)) {
      element(name).hidden = !there[name]();
      if (there[name]()) part();
    }
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.dataset.theme = THEMES[theme][0];
    repaint();
  });

  ink = colours();
  settle();
  show();
  document.documentElement.dataset.ready = "true";
}

unpack().then(start);
