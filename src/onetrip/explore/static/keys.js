// Keys, each in one place: what is pressed, what it means, what it does.
"use strict";
(() => {
  const KEYS = [
    ["/", "search operators", () => O.by("search").focus()],
    ["ArrowUp", "to the producer", () => O.walk("into", "a")],
    ["ArrowLeft", "to the operator at the left", () => O.sidestep(-1)],
    ["ArrowDown", "to the consumer", () => O.walk("from", "b")],
    ["ArrowRight", "to the operator at the right", () => O.sidestep(1)],
    ["n", "next boundary", () => O.stepBoundary(1)],
    ["p", "previous boundary", () => O.stepBoundary(-1)],
    ["x", "cut or fuse the chosen boundary", () => O.toggle()],
    ["i", "pin the chosen kernel, or free it", () => O.pin()],
    ["a", "edit all copies of a layer, or one", () => O.setScope(!O.view.everywhere)],
    ["w", "why the chosen boundary stands", () => { O.chooseDetail("Why"); O.by("detail").focus(); }],
    ["k", "the kernel of the chosen operator", () => { O.chooseDetail("Kernel"); O.by("detail").focus(); }],
    ["f", "Fuse all", () => O.preset("max")],
    ["e", "Eager", () => O.preset("eager")],
    ["b", "Best", () => O.preset("best")],
    ["c", "cancel what is being planned", () => O.cancel()],
    ["u", "undo", () => O.act({ do: "undo" })],
    ["r", "redo", () => O.act({ do: "redo" })],
    ["s", "save the plan", () => O.save()],
    ["v", "by module, or by kernel", () => O.setMode(O.view.mode === "module" ? "kernel" : "module")],
    ["Enter", "open or shut the chosen module", () => O.openChosen()],
    ["Ctrl+K", "all commands, operators and kernels by name", () => O.openPalette()],
    ["Escape", "back to the graph", () => O.by("nodes").focus()],
    ["?", "these keys", () => O.by("keys").showModal()],
  ];
  O.fill("key-list", ...KEYS.flatMap(([key, meaning]) => [O.make("dt", {}, key), O.make("dd", {}, meaning)]));
  O.commands = KEYS;
  const known = new Map(KEYS.map(([key, , run]) => [key, run]));
  const OWN = { INPUT: true, SELECT: true, TEXTAREA: true };

  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") || event.altKey) return;
    const { target } = event, held = event.ctrlKey || event.metaKey;
    if (!held && OWN[target.tagName] && target.type !== "checkbox" && event.key !== "Escape") return;
    const scrolls = event.key.startsWith("Arrow") && target.closest("#detail, #table, nav");
    if (scrolls || (event.key === "Enter" && target.tagName === "BUTTON")) return;
    const run = known.get(held ? `Ctrl+${event.key.toUpperCase()}` : event.key);
    if (!run) return;
    event.preventDefault();
    run();
  });
  O.by("help").addEventListener("click", () => O.by("keys").showModal());
  O.by("keys-close").addEventListener("click", () => O.by("keys").close());
})();
