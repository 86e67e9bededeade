// Makes the token of a future admin in this browser. The service receives only its introduction: key id and SHA-256.
"use strict";
(() => {
  const form = document.querySelector("form[data-introduce]");
  const done = document.querySelector("[data-introduced]");
  const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  let token = "";

  function say(place, text) {
    place.textContent = text;
    place.hidden = false;
  }

  async function send(address, fields) {
    const headers = { Accept: "application/problem+json", "Content-Type": "application/x-www-form-urlencoded" };
    const answer = await fetch(address, { method: "POST", headers, body: new URLSearchParams(fields), redirect: "manual" });
    if (answer.ok || answer.type === "opaqueredirect") return answer;
    throw new Error((await answer.json()).detail);
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const problem = form.querySelector("[data-problem]");
    if (crypto.subtle === undefined) return say(problem, "Your browser makes keys only over HTTPS. Ask the operator for an HTTPS address.");
    const id = [...crypto.getRandomValues(new Uint8Array(20))].map((byte) => "abcdefghijklmnopqrstuvwxyz234567"[byte & 31]).join("");
    token = `obs_${id}_${hex(crypto.getRandomValues(new Uint8Array(32)))}`;
    const digest = hex(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(token))));
    try {
      await send(form.action, { ...Object.fromEntries(new FormData(form)), introduction: `key_${id}:${digest}` });
    } catch (error) {
      return say(problem, error.message);
    }
    form.hidden = true;
    done.hidden = false;
    done.querySelector("[data-code]").textContent = `${digest.slice(0, 4)}-${digest.slice(4, 8)}`;
    done.querySelector("[data-token] code").textContent = token;
    document.dispatchEvent(new Event("filled"));
    done.querySelector("h2").focus();
  });

  done.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await send("/login", { key: token });
      location.assign("/");
    } catch {
      say(done.querySelector("[data-problem]"), "You are not admitted yet. Ask the admin to compare the code and to confirm it.");
    }
  });
})();
