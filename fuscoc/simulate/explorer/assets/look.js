// Colours from the style sheet, numbers as people write them, and the frame of every chart.
const BUSY_LIGHT = ["#fff8ef", "#fdd49e", "#fc8d59", "#d7301f", "#7f0000"];
const BUSY_DARK = ["#1d242e", "#57106e", "#bc3754", "#f98e09", "#fcffa4"];
const BYTES_LIGHT = ["#f4f8fc", "#b5d2ea", "#5ba3d0", "#1c6bb0", "#08306b"];
const BYTES_DARK = ["#1d242e", "#1f4e8c", "#3f8fd2", "#9ecbf5", "#eef7ff"];

const HOVER = "%{hovertext}<extra></extra>";
const MARGIN = { l: 10, r: 10, t: 12, b: 10 };
const MIB = 2 ** 20;
const PAPER_WIDTH = 700;

let ink = {};
let printing = false;

const ramp = (colours) => colours.map((colour, i) => [i / (colours.length - 1), colour]);

// What the style sheet's variables are now; only a used colour is resolved to light or dark.
function colours() {
  const probe = document.body.appendChild(document.createElement("i"));
  const used = (colour) => {
    probe.style.color = colour;
    return getComputedStyle(probe).color;
  };
  const names = ["paper", "panel", "ink", "soft", "rule", "mark", "alert", "rest"];
  const found = Object.fromEntries(names.map((name) => [name, used(`var(--${name})`)]));
  found.series = numbers(8).map((i) => used(`var(--series-${i})`));
  const dark = used("light-dark(rgb(0, 0, 0), rgb(255, 255, 255))") === "rgb(255, 255, 255)";
  probe.remove();
  found.busy = ramp(dark ? BUSY_DARK : BUSY_LIGHT);
  found.bytes = ramp(dark ? BYTES_DARK : BYTES_LIGHT);
  return found;
}

const numbers = (count) => Array.from({ length: count }, (_, i) => i);

// Names come from outside; plotly takes some markup in any text.
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const digits = (value) => value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);

function seconds(value) {
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  return value < 1 ? `${digits(value * 1e3)} ms` : `${digits(value)} s`;
}

function bytes(value) {
  if (value < 1024) return `${Math.round(value)} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    value /= 1024;
    if (value < 1024) return `${digits(value)} ${unit}`;
  }
  return `${digits(value / 1024)} TiB`;
}

const percent = (part) => `${(part * 100).toFixed(0)} %`;

// The unit of a time axis that reaches `most` seconds.
function timeUnit(most) {
  if (most < 1e-3) return { scale: 1e6, name: "µs" };
  return most < 1 ? { scale: 1e3, name: "ms" } : { scale: 1, name: "s" };
}

function axis(title, more = {}) {
  return {
    title: { text: title, standoff: 8 }, gridcolor: ink.rule, linecolor: ink.rule,
    zerolinecolor: ink.rule, tickfont: { color: ink.soft }, automargin: true, ...more,
  };
}

// An axis that numbers `count` things, with at most `most` ticks.
function numbered(title, count, more = {}, most = 32) {
  const dtick = Math.max(1, 2 ** Math.ceil(Math.log2(count / most)));
  return axis(title, { tick0: 0, dtick, showgrid: false, zeroline: false, ...more });
}

// A vertical axis whose places 0, 1, ... have names.
function named(names, more = {}) {
  const ticks = { tickvals: numbers(names.length), ticktext: names.map(plain) };
  return axis("", { ...ticks, showgrid: false, zeroline: false, ...more });
}

function colorbar(title, more = {}) {
  return { title: { text: title, side: "right" }, outlinewidth: 0, thickness: 12, ...more };
}

// Where a busy link lies between idle and always.
function busyScale(more = {}) {
  const bar = colorbar("busy", { ticksuffix: " %" });
  return { colorscale: ink.busy, cmin: 0, cmax: 100, colorbar: bar, ...more };
}

// Draws into the element `id`; `label` is for those who cannot see it.
function draw(id, label, traces, layout, height) {
  const element = document.getElementById(id);
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", label);
  const family = getComputedStyle(document.body).fontFamily, none = "rgba(0,0,0,0)";
  const base = {
    height, width: printing ? PAPER_WIDTH : undefined, paper_bgcolor: none, plot_bgcolor: none,
    showlegend: false, margin: MARGIN, font: { family, size: 13, color: ink.ink },
    hovermode: "closest", dragmode: "zoom", bargap: 0.25,
    hoverlabel: {
      bgcolor: ink.panel, bordercolor: ink.mark, font: { color: ink.ink }, align: "left",
    },
  };
  const config = {
    responsive: true, displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  return Plotly.react(element, traces, { ...base, ...layout }, config);
}

// Calls `act` with the point that is clicked; the latest `act` counts.
function onClick(id, act) {
  const element = document.getElementById(id);
  element.removeAllListeners("plotly_click");
  element.on("plotly_click", (event) => act(event.points[0]));
}
