// Sends forms to the API as JSON. <form data-call="POST /v1/accounts/ID/freeze" data-then="/accounts/ID/controls">
//
// A field's name is its name in the request, and data-body holds fixed fields. Empty fields are left out; type=number and
// data-number are sent as numbers, data-list as a list of words, ticked boxes as true, data-shares as an object. After
// success the page data-then is opened ({id} is the field id of the response), or this page is reloaded, or, with
// data-show, the event "answered" has the response. An error is shown at its field, or above the form.
// Not deferred: otherwise the browser itself would submit a form that is sent before the page has loaded.
"use strict";
(() => {
  const onceOf = new WeakMap(); // form -> its idempotency key, kept until the form succeeds
  // Not form.dataset, because a field with this name or id hides it.
  const data = (form, name) => form.getAttribute(`data-${name}`);
  const token = document.querySelector("meta[name=form-token]")?.content ?? "";

  function valueOf(field) {
    if (field.type === "checkbox") return field.checked || undefined;
    const text = field.value.trim();
    if (text === "") return undefined;
    if (field.dataset.shares !== undefined && text.includes("=")) return sharesOf(text);
    if (field.dataset.list !== undefined) return text.split(" ");
    if (field.type === "number" || field.dataset.number !== undefined) return Number.isNaN(Number(text)) ? text : Number(text);
    return text;
  }

  // "cat=90, dog=10" as {"cat": 90, "dog": 10}; the API checks names and numbers.
  function sharesOf(text) {
    const pairs = text.split(",").map((part) => [part.slice(0, part.lastIndexOf("=")), part.slice(part.lastIndexOf("=") + 1)]);
    return Object.fromEntries(pairs.map(([name, share]) => [name.trim(), Number(share)]));
  }

  function bodyOf(form) {
    const body = JSON.parse(data(form, "body") ?? "{}");
    for (const field of form.elements) {
      const value = field.name === "" || field.disabled ? undefined : valueOf(field);
      if (value === undefined) continue;
      body[field.name] = value;
    }
    return body;
  }

  function show(form, problem) {
    const errors = problem.fields ?? Object.fromEntries(
      (problem.errors ?? []).map((error) => [error.pointer.replace(/^\/body\//, ""), error.message]),
    );
    const fields = [...form.querySelectorAll("[data-fault]")];
    for (const fault of fields) {
      fault.textContent = errors[fault.dataset.fault] ?? "";
      fault.hidden = fault.textContent === "";
      form.elements.namedItem(fault.dataset.fault)?.toggleAttribute("aria-invalid", !fault.hidden);
    }
    let place = form.querySelector("[data-problem]");
    if (place === null) {
      place = document.createElement("p");
      place.className = "note";
      place.setAttribute("role", "alert");
      place.dataset.problem = "";
      form.prepend(place);
    }
    place.textContent = fields.some((fault) => !fault.hidden)
      ? "Correct the marked fields."
      : (problem.detail ?? "The service did not answer. Reload the page to see whether this was done.");
    if (problem.status === 401) {
      const link = document.createElement("a");
      link.href = `/login?next=${encodeURIComponent(location.pathname)}`;
      link.textContent = "Sign in again";
      place.append(" ", link);
    }
    place.hidden = false;
    place.scrollIntoView({ block: "center" });
  }

  async function call(form, once) {
    const [method, path] = data(form, "call").split(" ");
    const body = bodyOf(form);
    const answer = await fetch(path, {
      method,
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-Form-Token": token, "Idempotency-Key": once },
      body: Object.keys(body).length === 0 ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    const read = text.startsWith("{") ? JSON.parse(text) : {};
    if (!answer.ok) throw read;
    return read;
  }

  document.addEventListener("refused", (event) => show(event.target, event.detail)); // of upload.js

  // On the document, because scripts replace parts of pages.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (data(form, "call") === null) return;
    event.preventDefault();
    if (!onceOf.has(form))
      onceOf.set(form, [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
    const buttons = form.querySelectorAll("button");
    for (const button of buttons) button.disabled = true;
    try {
      const record = await call(form, onceOf.get(form));
      if (data(form, "show") !== null) {
        onceOf.delete(form);
        for (const button of buttons) button.disabled = false;
        form.dispatchEvent(new CustomEvent("answered", { bubbles: true, detail: record }));
        return;
      }
      const next = (data(form, "then") ?? "").replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(record[name]));
      if (next) location.assign(next);
      else location.reload();
    } catch (problem) {
      for (const button of buttons) button.disabled = false;
      show(form, problem instanceof Error ? {} : problem);
    }
  });
})();
