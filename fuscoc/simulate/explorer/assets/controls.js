// Buttons, fields and tabs: made once, filled whenever something else is chosen.
const byId = (id) => document.getElementById(id);

// Radio buttons of [value, text]: arrow keys step between them without a script.
function chips(id, choices, chosen, act) {
  const set = byId(id), wanted = JSON.stringify(choices);
  set.hidden = choices.length < 2;
  if (set.dataset.choices !== wanted) {
    set.dataset.choices = wanted;
    set.replaceChildren(set.querySelector("legend"), ...choices.map(([value, text]) => {
      const label = document.createElement("label"), name = document.createElement("span");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name: id, value });
      input.addEventListener("change", () => act(input.value));
      name.textContent = text;
      label.className = "chip";
      label.append(input, name);
      return label;
    }));
  }
  for (const input of set.querySelectorAll("input")) input.checked = input.value === String(chosen);
}

function options(id, choices, chosen) {
  byId(id).replaceChildren(...choices.map(([value, text]) =>
    new Option(text, value, false, value === chosen)));
}

// A tab for every panel; `choose` gets the panel's id.
function makeTabs(choose) {
  const bar = byId("tabs");
  for (const panel of document.querySelectorAll("[role=tabpanel]")) {
    const tab = document.createElement("button"), id = `tab-${panel.id}`;
    Object.assign(tab, { type: "button", id, textContent: panel.dataset.title });
    tab.dataset.panel = panel.id;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    panel.setAttribute("aria-labelledby", id);
    tab.addEventListener("click", () => choose(panel.id));
    bar.append(tab);
  }
  bar.addEventListener("keydown", (event) => {
    const shown = [...bar.children].filter((tab) => !tab.hidden), last = shown.length - 1;
    const at = shown.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const tab = shown[(to + shown.length) % shown.length];
    choose(tab.dataset.panel);
    tab.focus();
  });
}

function showTabs(chosen, isThere) {
  for (const tab of byId("tabs").children) {
    const name = tab.dataset.panel;
    tab.hidden = !isThere(name);
    tab.setAttribute("aria-selected", String(name === chosen));
    tab.tabIndex = name === chosen ? 0 : -1;
    byId(name).hidden = name !== chosen;
  }
}
