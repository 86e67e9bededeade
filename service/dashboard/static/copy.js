// Adds a copy button to every command.
"use strict";
(() => {
  function add() {
    for (const block of document.querySelectorAll("pre[data-copy]:not([data-ready])")) {
      block.dataset.ready = "";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        const text = block.querySelector("code").textContent;
        try {
          await navigator.clipboard.writeText(text);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(block.querySelector("code"));
          button.textContent = "Selected";
        }
        setTimeout(() => (button.textContent = "Copy"), 2000);
      });
      block.append(button);
    }
  }
  document.addEventListener("filled", add);
  add();
})();
