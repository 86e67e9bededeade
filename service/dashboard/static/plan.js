// Refreshes expectation and cost when the form changes. Without this script, a button shows them.
"use strict";
(() => {
  const form = document.querySelector("[data-plan]");
  if (form === null) return;
  const place = document.querySelector("[data-price]");
  const slider = document.getElementById("slider");
  const share = form.querySelector("output");
  const announced = document.querySelector("[data-announced]");
  const epsilon = form.elements.namedItem("epsilon");
  const WAIT_MILLISECONDS = 250;
  let timer = 0;
  let asked = 0;
  form.querySelector("[data-slider]").hidden = false;
  for (const part of form.querySelectorAll("[data-no-script]")) part.hidden = true;

  // The epsilon of each hundredth of the remaining budget, and its share of the limit, as the server computed them.
  function steps() {
    const written = place.querySelector("[data-steps]")?.dataset.steps.trim();
    return (written?.split(" ") ?? []).map((step) => step.split(":"));
  }

  function show(cost) {
    share.textContent = cost;
    slider.setAttribute("aria-valuetext", cost);
  }

  function follow() {
    const below = steps().filter(([each]) => Number(each) <= Number(epsilon.value)).length;
    slider.value = Math.max(below, 1);
    show(place.querySelector("[data-cost]")?.dataset.cost ?? `ε ${epsilon.value}`);
  }

  async function price() {
    const number = (asked += 1);
    const answer = await fetch(`/train/price?${new URLSearchParams(new FormData(form))}`, { redirect: "error" });
    const text = await answer.text();
    if (number !== asked) return; // a newer request was sent meanwhile
    place.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
    follow();
    announced.textContent = `${share.textContent}. ${place.querySelector("[data-expected]")?.dataset.expected ?? ""}`;
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
    const [each, share] = steps()[slider.value - 1] ?? [epsilon.value, "?"];
    epsilon.value = each;
    show(`${share} of the lifetime budget, ε ${each}`);
    soon();
  });
  form.addEventListener("input", (event) => {
    if (event.target === epsilon) show(`ε ${epsilon.value}`);
    if (!event.target.hasAttribute("data-reload")) soon();
  });
  form.addEventListener("change", (event) => {
    if (event.target.hasAttribute("data-reload")) form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    if (event.submitter?.hasAttribute("data-no-script")) event.preventDefault();
  });
  follow();
  if (epsilon.value !== epsilon.defaultValue) soon(); // the field was changed before this script ran
})();
