// Adds a copy button to every command, and to every shortened text, whose attribute data-copy has the full text.
"use strict";
(() => {
  const ICON = '<svg width="14" height="14" viewBox="0 0 16 16" aria-hidden="true"><path d="M5.5 5V2.5h8v8H11M2.5 5.5h8v8h-8z"/></svg>';

  function add() {
    for (const block of document.querySelectorAll("[data-copy]:not([data-ready])")) {
      block.dataset.ready = "";
      const { copy, copyName } = block.dataset;
      const code = block.querySelector("code") ?? block;
      const button = document.createElement("button");
      button.type = "button";
      button.className = copy ? "icon" : "quiet copy";
      const label = (text) => {
        if (copy && text === "Copy") button.innerHTML = ICON;
        else button.textContent = text;
      };
      label("Copy");
      if (copy) button.setAttribute("aria-label", copyName);
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(copy || code.textContent);
          label("Copied");
        } catch {
          if (copy) code.textContent = copy;
          getSelection().selectAllChildren(code);
          label("Selected");
        }
        setTimeout(() => label("Copy"), 2000);
      });
      if (copy) block.after(" ", button);
      else block.append(button);
    }
  }
  document.addEventListener("filled", add);
  add();
})();
