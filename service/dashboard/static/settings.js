// Shows the API's answer to a form in its section: a secret that is shown once, or the result of a test.
"use strict";
document.addEventListener("answered", ({ target: form, detail: record }) => {
  const place = form.closest("section").querySelector("[data-answer]");
  const secret = place.querySelector("code");
  if (secret !== null) secret.textContent = record[form.getAttribute("data-show")];
  else {
    const reason = record.reason ?? `The address answered with status ${record.status}.`;
    place.querySelector("[data-text]").textContent = record.delivered ? `Delivered. ${reason}` : `Not delivered. ${reason}`;
  }
  place.hidden = false;
  place.focus();
  place.scrollIntoView({ block: "center" });
});
