// Disables the button of a form unless an allowed number of boxes is ticked.
"use strict";
for (const form of document.querySelectorAll("form[data-picks]")) {
  const [least, most] = form.dataset.picks.split(" ").map(Number);
  const count = () => {
    const ticked = form.querySelectorAll("input[type=checkbox]:checked").length;
    form.querySelector("button[type=submit]").disabled = ticked < least || ticked > most;
  };
  form.addEventListener("change", count);
  addEventListener("pageshow", count); // also when the browser restores ticked boxes
  count();
}

// Refreshes the marked regions of a page. Without this script, reload the page to see the same.
(() => {
  const regions = [...document.querySelectorAll("[data-live]")];
  const bar = document.querySelector("[data-live-bar]");
  if (regions.length === 0 || bar === null) return;
  const note = bar.querySelector("[data-live-note]");
  const button = bar.querySelector("[data-live-pause]");
  const status = document.querySelector("[data-live-status]");
  const BUSY_MILLISECONDS = 2000;
  const IDLE_MILLISECONDS = 15000;
  const FAILED_MILLISECONDS = 30000;
  const events = document.querySelector("[data-events]");
  let leaving = false; // a click has requested another page
  let told = false; // the event stream is open, so polling is not needed
  const shown = new Map(); // region -> the text of its last refresh
  let announced = announcement();
  let paused = false;
  let timer = 0;

  function announcement() {
    return [...document.querySelectorAll("[data-announce]")].map((part) => part.dataset.announce).join(". ");
  }

  function busy() {
    return [...document.querySelectorAll("[data-active]")].some((part) => part.dataset.active !== "0");
  }

  function fill(region, text) {
    if (shown.get(region) === text) return;
    const first = !shown.has(region);
    shown.set(region, text);
    // The page was loaded a moment before the first refresh: keep the region if the text is the same.
    const fresh = new DOMParser().parseFromString(text, "text/html").body;
    if (first && fresh.textContent.trim() === region.textContent.trim()) return;
    const focused = region.contains(document.activeElement) ? document.activeElement.id : "";
    region.replaceChildren(...fresh.childNodes);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  async function refresh() {
    let wait = IDLE_MILLISECONDS;
    try {
      for (const region of regions) {
        const answer = await fetch(region.dataset.live, { credentials: "same-origin", redirect: "error" });
        if (!answer.ok) throw new Error(String(answer.status));
        const text = await answer.text();
        if (!paused) fill(region, text);
      }
      note.textContent = busy() ? (told ? "Live" : "Updating every 2 seconds") : "Up to date";
      wait = busy() && !told ? BUSY_MILLISECONDS : IDLE_MILLISECONDS;
      const now = announcement();
      if (now !== announced) status.textContent = announced = now;
    } catch {
      note.textContent = "Not updating: the service does not answer, or you are signed out";
      wait = FAILED_MILLISECONDS;
    }
    schedule(wait);
  }

  function schedule(milliseconds) {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(refresh, milliseconds);
  }

  if (events !== null) {
    const stream = new EventSource(events.dataset.events);
    const heard = () => {
      told = stream.readyState === EventSource.OPEN;
      schedule(0);
    };
    stream.addEventListener("progress", heard);
    stream.addEventListener("finished", () => {
      stream.close();
      heard();
      if (!paused && !leaving) location.reload(); // the actions for ended jobs are outside the region
    });
    stream.addEventListener("error", () => (told = false)); // poll until the stream is back
    addEventListener("beforeunload", () => (leaving = true));
    addEventListener("pagehide", () => stream.close());
  }

  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    note.textContent = paused ? "Updates are paused" : "Updating";
    schedule(0);
  });
  document.addEventListener("visibilitychange", () => schedule(0));
  bar.hidden = false;
  note.textContent = busy() ? "Updating every 2 seconds" : "Up to date";
  schedule(busy() ? BUSY_MILLISECONDS : IDLE_MILLISECONDS);
})();
