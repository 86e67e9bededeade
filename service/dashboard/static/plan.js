// Refreshes the cost when the form changes. Without this script, a button shows the cost.
"use strict";
(() => {
  const form = document.querySelector("[data-plan]");
  if (form === null) return;
  const place = document.querySelector("[data-price]");
  const slider = form.querySelector("[data-slider]");
  const epsilon = form.elements.namedItem("epsilon");
  const WAIT_MILLISECONDS = 250;
  let timer = 0;
  let asked = 0;
  slider.hidden = false;
  for (const part of form.querySelectorAll("[data-no-script]")) part.hidden = true;

  async function price() {
    const number = (asked += 1);
    const answer = await fetch(`/train/price?${new URLSearchParams(new FormData(form))}`, { redirect: "error" });
    const text = await answer.text();
    if (number !== asked) return; // a newer request was sent meanwhile
    place.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
    const most = place.querySelector("[data-most]")?.dataset.most; // the largest affordable epsilon
    if (most !== undefined) slider.max = most;
    for (const fault of form.querySelectorAll("[data-fault]")) {
      const said = place.querySelector(`[data-wrong="${fault.dataset.fault}"]`)?.textContent;
      fault.textContent = said ?? "";
      fault.hidden = said === undefined;
      const field = form.querySelector(`:is(input, select, textarea)[aria-describedby~="${fault.id}"]`);
      field?.setAttribute("aria-invalid", String(!fault.hidden));
    }
    document.dispatchEvent(new Event("filled"));
  }

  function soon() {
    clearTimeout(timer);
    timer = setTimeout(price, WAIT_MILLISECONDS);
  }

  slider.addEventListener("input", () => {
    epsilon.value = slider.value;
    soon();
  });
  form.addEventListener("input", (event) => {
    if (event.target === epsilon) slider.value = epsilon.value;
    if (!event.target.hasAttribute("data-reload")) soon();
  });
  form.addEventListener("change", (event) => {
    if (event.target.hasAttribute("data-reload")) form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    if (event.submitter?.hasAttribute("data-no-script")) event.preventDefault();
  });
  if (epsilon.value !== epsilon.defaultValue) {
    slider.value = epsilon.value; // the field was changed before this script ran
    soon();
  }
})();
