// Refreshes the parts [data-part] of a form from the server while its fields [data-affects] change, so that no figure is
// computed twice; and rejects a form until the name in [data-confirm] is typed.
"use strict";
(() => {
  const WAIT_MILLISECONDS = 200;

  for (const form of document.querySelectorAll("form[data-fresh]")) {
    const fields = [...form.querySelectorAll("[data-affects]")];
    let timer = 0;
    let sent = 0;

    async function refresh() {
      const number = (sent += 1);
      const used = fields.filter((field) => field.type !== "radio" || field.checked);
      const query = new URLSearchParams(used.map((field) => [field.name, field.value]));
      const answer = await fetch(`${location.pathname}?${query}`, { credentials: "same-origin", redirect: "error" });
      const text = await answer.text();
      if (!answer.ok || number !== sent) return; // invalid, or a newer request was sent meanwhile
      const fresh = new DOMParser().parseFromString(text, "text/html");
      for (const part of form.querySelectorAll("[data-part]")) {
        part.replaceChildren(...(fresh.getElementById(part.id)?.childNodes ?? []));
      }
    }

    function soon(event) {
      const choice = event?.target.dataset.chooses; // a field that belongs to a radio button
      if (choice !== undefined) document.getElementById(choice).checked = true;
      clearTimeout(timer);
      timer = setTimeout(refresh, WAIT_MILLISECONDS);
    }

    form.addEventListener("input", soon);
    if (fields.some((field) => field.value !== field.defaultValue || field.checked !== field.defaultChecked)) soon();
  }

  for (const field of document.querySelectorAll("input[data-confirm]")) {
    const name = field.dataset.confirm;
    const check = () => field.setCustomValidity(field.value.trim().normalize() === name ? "" : `Type “${name}” to confirm.`);
    field.addEventListener("input", check);
    check();
  }
})();
