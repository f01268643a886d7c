// What is chosen, and what is drawn of it.
const THEMES = [
  { name: "", text: "◐ system", words: "as the system has them" },
  { name: "light", text: "☀ light", words: "light" },
  { name: "dark", text: "☾ dark", words: "dark" },
];

function start(data) {
  const state = {
    tab: "overview", run: 0, leg: "", rank: -1, node: -1, picture: -1, beside: -1, grain: "rank",
    scale: "linear", theme: 0,
  };
  const run = () => data.runs[state.run], leg = () => run().legs[state.leg];
  const views = {
    overview: {
      isThere: () => data.runs.some((each) => each.seconds) || data.sweep.length > 0,
      draw() {
        drawContenders(data, state, choose);
        drawBounds(data, state);
        drawSweep(data);
        drawAblation(data);
      },
    },
    cluster: {
      isThere: () => data.cluster !== null && leg().links !== undefined,
      draw: () => drawCluster(data, state, choose),
    },
    timeline: {
      isThere: () => leg().timeline.ranks.length > 0,
      draw() {
        drawLanes(data, state, choose);
        drawBusy(data, state, choose);
        drawSpans(data, state);
        linkTimes();
      },
    },
    traffic: {
      isThere: () => run().traffic !== undefined,
      draw() {
        drawTraffic(data, state);
        drawNics(data, state);
      },
    },
    stages: {
      isThere: () => Boolean(run().stages),
      draw: () => drawStages(data, state),
    },
    numbers: {
      isThere: () => byId("numbers").querySelector("table") !== null,
      draw() {},
    },
  };

  function choose(change) {
    Object.assign(state, change);
    settle();
    show();
  }

  // Makes what is chosen fit together: not every run has every direction, view and rank.
  function settle() {
    const legs = Object.keys(run().legs);
    if (!legs.includes(state.leg)) state.leg = legs[0];
    const there = Object.keys(views).filter((name) => views[name].isThere());
    if (!there.includes(state.tab)) state.tab = there[0];
    const { timeline } = leg();
    if (timeline.ranks.length)
      state.rank = state.rank < 0 ? byFinish(timeline).at(-1) : nearestRank(timeline, state.rank);
    if (!timeline.pictures[state.picture]) state.picture = busiestLane(timeline);
    if (state.node < 0 && views.cluster.isThere()) state.node = busiestNode(data, leg());
    if (state.beside === state.run) state.beside = -1;
    if (!run().traffic?.[state.grain]) state.grain = "node";
  }

  function show() {
    const names = data.runs.map((each, i) => [i, each.name]), legs = Object.keys(run().legs);
    const { timeline } = leg(), grains = ["rank", "node"].filter((each) => run().traffic?.[each]);
    const scales = [["linear", "linear"], ["log", "logarithmic"]];
    chips("runs", names, state.run, (value) => choose({ run: Number(value) }));
    chips("legs", legs.map((name) => [name, name]), state.leg, (value) => choose({ leg: value }));
    chips("grain", grains.map((name) => [name, `${name}s`]), state.grain,
      (value) => choose({ grain: value }));
    chips("scale", scales, state.scale, (value) => choose({ scale: value }));
    options("picture", timeline.pictures.map((each, i) => [i, each.label]), state.picture);
    options("beside", [[-1, "nothing"], ...names.filter(([i]) => i !== state.run)], state.beside);
    byId("rank").value = state.rank;
    byId("node").value = state.node;
    byId("kept").textContent = keptWords(data, timeline);
    byId("picture-name").textContent = timeline.pictures[state.picture]?.label ?? "";
    byId("bounds-name").textContent = run().name + (legs.length > 1 ? `, ${state.leg}` : "");
    showTabs(state.tab, (name) => views[name].isThere());
    views[state.tab].draw();
  }

  function stepRank(to) {
    choose({ rank: nearestRank(leg().timeline, to, Math.sign(to - state.rank)) });
  }

  // Of the kept ranks in the order in which they finish, the one at `part` of the way.
  function chooseFinish(part) {
    const order = byFinish(leg().timeline);
    choose({ rank: order[Math.min(order.length - 1, Math.floor(part * order.length))] });
  }

  function repaint() {
    if (printing) return;
    document.documentElement.dataset.theme = THEMES[state.theme].name;
    ink = colours();
    show();
  }

  function connect() {
    const on = (id, what, act) => byId(id).addEventListener(what, (event) => act(event));
    makeTabs((tab) => choose({ tab }));
    on("picture", "change", (event) => choose({ picture: Number(event.target.value) }));
    on("beside", "change", (event) => choose({ beside: Number(event.target.value) }));
    on("rank", "change", (event) => stepRank(Number(event.target.value)));
    on("node", "change", (event) => {
      const last = data.cluster.nodes - 1, node = Math.trunc(Number(event.target.value));
      choose({ node: Math.min(Math.max(0, node), last) });
    });
    on("slowest", "click", () => chooseFinish(1));
    on("median", "click", () => chooseFinish(0.5));
    on("fastest", "click", () => chooseFinish(0));
    for (const id of ["busy", "spans"]) {
      byId(id).tabIndex = 0;
      on(id, "keydown", (event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        stepRank(state.rank + step);
      });
    }
    on("theme", "click", () => {
      state.theme = (state.theme + 1) % THEMES.length;
      const { text, words } = THEMES[state.theme];
      byId("theme").textContent = text;
      byId("theme").setAttribute("aria-label", `Colours: ${words}`);
      repaint();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    // Paper is light, and shows every view.
    window.addEventListener("beforeprint", () => {
      printing = true;
      document.documentElement.dataset.theme = "light";
      ink = colours();
      for (const [name, view] of Object.entries(views)) {
        byId(name).hidden = !view.isThere();
        if (view.isThere()) view.draw();
      }
    });
    window.addEventListener("afterprint", () => {
      printing = false;
      repaint();
    });
  }

  connect();
  settle();
  repaint();
  document.documentElement.dataset.ready = "true";
}

unpack().then(start);
