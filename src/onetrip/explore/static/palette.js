// Every command, operator and kernel by its name. Knows no command: they come from the tables of keys, tabs and choices.
"use strict";
(() => {
  const MOST = 60; // rows that are shown
  const CHOICES = { size: (value) => ({ size: value }), target: (value) => ({ target: value }), graph: (value) => ({ graph: Number(value) }) };
  const dialog = O.by("palette"), input = O.by("palette-input");
  let rows = [], at = 0;

  const commands = () => [
    ...O.commands.map(([key, meaning, run]) => ({ name: meaning, hint: key, run })),
    ...["export", "theme"].map((id) => ({ name: O.by(id).title || O.by(id).ariaLabel, hint: "", run: () => O.by(id).click() })),
    ...Object.entries(CHOICES).flatMap(([id, action]) => [...O.by(id).options].map((o) => ({ name: `${id} ${o.textContent}`, hint: "", run: () => O.act({ do: "go", ...action(o.value) }) }))),
    ...["detail-tabs", "table-tabs"].flatMap((id) => [...O.by(id).children].map((tab) => ({ name: `show ${tab.dataset.name}`, hint: "", run: () => { tab.click(); tab.focus(); } }))),
  ];
  const kernels = () => O.kernelsInOrder(O.data).map((g) => ({ name: `${g.name}: ${g.title}`, hint: "kernel", run: () => O.chooseKernel(g.name) }));
  const nodes = (text) => O.search(text).map((n) => ({ name: n.key, hint: n.line || "operator", run: () => O.goTo(n.id) }));

  function find() {
    const text = input.value, words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((w) => row.name.toLowerCase().includes(w));
    const found = [...commands().filter(fits), ...(words.length ? [...nodes(text), ...kernels().filter(fits)] : [])];
    rows = found.slice(0, MOST);
    at = 0;
    O.fill("palette-list", ...rows.map((row, k) => O.make("div", { role: "option", id: `palette-${k}`, "aria-selected": false, onclick: () => run(k) }, O.make("span", {}, row.name), O.make("kbd", {}, row.hint))));
    O.by("palette-said").textContent = found.length > MOST ? `${MOST} of ${found.length}: type more` : `${found.length} found`;
    choose(0);
  }

  function choose(k) {
    at = rows.length ? (k + rows.length) % rows.length : 0;
    rows.forEach((_, n) => O.by(`palette-${n}`).setAttribute("aria-selected", n === at));
    if (rows.length) { input.setAttribute("aria-activedescendant", `palette-${at}`); O.by(`palette-${at}`).scrollIntoView({ block: "nearest" }); } else input.removeAttribute("aria-activedescendant");
  }

  // The command runs with the focus where it was before.
  function run(k) {
    const row = rows[k];
    dialog.close();
    if (row) row.run();
  }

  const KEYS = { ArrowDown: () => choose(at + 1), ArrowUp: () => choose(at - 1), Enter: () => run(at) };
  input.addEventListener("input", find);
  input.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (act) { event.preventDefault(); event.stopPropagation(); act(); }
  });
  O.openPalette = () => {
    input.value = "";
    dialog.showModal();
    find();
  };
  O.by("commands").addEventListener("click", O.openPalette);
})();
