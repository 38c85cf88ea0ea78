// Numbers as text, and elements from text. Knows no plan.
"use strict";
O.bytes = (count) => {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (Math.abs(count) >= size) return `${Number((count / size).toPrecision(3))} ${unit}`;
  return `${Math.round(count)} B`;
};
O.us = (us) => (us >= 1e3 ? `${Number((us / 1e3).toPrecision(3))} ms` : `${Number(us.toPrecision(3))} µs`);
O.range = (g) => {
  const [low, high] = [g.low, g.high].map((v) => (g.high >= 1e3 ? v / 1e3 : v));
  return `${Number(low.toPrecision(2))}–${Number(high.toPrecision(2))} ${g.high >= 1e3 ? "ms" : "µs"}`;
};
O.signed = (value, text) => (value === 0 ? "±0" : `${value < 0 ? "−" : "+"}${text(Math.abs(value))}`);
O.plain = (value) => (Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4))));
O.quantity = (value, unit) => ({ bytes: O.bytes, us: O.us }[unit] || ((v) => `${O.plain(v)} ${unit}`))(value);
O.kernels = (count) => `${count} ${count === 1 ? "kernel" : "kernels"}`;
O.percent = (share) => `${Math.round(100 * share)} %`;

// make("p", {class: "dim"}, "text", node...): an element; on... are listeners.
O.make = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  O.set(element, attributes || {});
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
};
O.svg = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  O.set(element, attributes || {});
  element.append(...children);
  return element;
};
O.set = (element, attributes) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
};
O.by = (id) => document.getElementById(id);
O.fill = (id, ...children) => O.by(id).replaceChildren(...children);
O.color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
O.hue = (name) => 50 + ((Number(name.slice(1)) * 67) % 270); // red means pressure
O.copy = (text) => navigator.clipboard?.writeText(text);
O.download = (name, text, type) => {
  const link = O.make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
};

// A row of tabs: names to functions that fill the panel.
O.tabs = (list, panel, names, show) => {
  const choose = (name, focus) => {
    for (const tab of O.by(list).children) {
      const mine = tab.dataset.name === name;
      tab.setAttribute("aria-selected", mine);
      tab.tabIndex = mine ? 0 : -1;
      if (mine) {
        O.by(panel).setAttribute("aria-labelledby", tab.id);
        if (focus) tab.focus();
      }
    }
    show(name);
  };
  const step = (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    const at = names.indexOf(event.target.dataset.name);
    choose(names[(at + way + names.length) % names.length], true);
  };
  O.fill(list, ...names.map((name) => O.make("button", {
    role: "tab", id: `${list}-${name.replace(/ .*/, "")}`, "data-name": name, "aria-controls": panel,
    onclick: () => choose(name), onkeydown: step,
  }, name)));
  return choose;
};
