// Questions to Python, or to what an exported file holds. Must not know what the answers mean.
"use strict";
const O = {};
window.onetrip = O;

O.exported = (() => {
  const found = document.getElementById("exported");
  return found ? JSON.parse(found.textContent) : null;
})();
O.token = new URLSearchParams(location.search).get("token") || "";
// A name of this tab, which a reload keeps; another run of the server has another token.
O.session = (() => {
  const made = Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16)).join("");
  if (O.exported) return made;
  const [token, known] = (sessionStorage.getItem("onetrip") || "").split(" ");
  if (known && token === O.token) return known;
  sessionStorage.setItem("onetrip", `${O.token} ${made}`);
  return made;
})();

O.ask = async (path, body) => {
  const [route, query] = path.split("?");
  const parameters = new URLSearchParams(query);
  parameters.set("session", O.session);
  const options = { headers: { "x-onetrip-token": O.token } };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const answer = await fetch(`${route}?${parameters}`, options);
  O.python = Number((answer.headers.get("server-timing") || "").split("dur=")[1] || 0);
  const data = await answer.json().catch(() => ({ error: `the server says ${answer.status}` }));
  if (!answer.ok) throw new Error(data.error || `the server says ${answer.status}`);
  return data;
};

// Signs of life while Best is planned: calls heard(event, data) until it is, or until stop().
O.best = (heard) => {
  const control = new AbortController();
  const headers = { "x-onetrip-token": O.token };
  (async () => {
    const answer = await fetch("/best", { headers, signal: control.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const [name, data] = event.split("\n").map((line) => line.slice(line.indexOf(":") + 2));
        heard(name, JSON.parse(data));
      }
    }
  })().catch((error) => { if (error.name !== "AbortError") heard("failed", { error: String(error) }); });
  return () => control.abort();
};
