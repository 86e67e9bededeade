// The gallery of a release: enlarges images in a dialog, and loads more images while you scroll.
"use strict";
(() => {
  const gallery = document.querySelector("[data-gallery]");
  if (gallery === null) return;
  const PAGES_BY_SCROLLING_MAX = 4; // then a click is needed, so that you can reach the end of the page
  const dialog = document.querySelector("dialog.zoom");
  const figure = dialog.querySelector("figure");
  const more = document.querySelector("[data-more]");
  let shown = null; // the link of the enlarged image

  function enlarge(link) {
    const image = link.querySelector("img").cloneNode();
    image.loading = "eager";
    const caption = document.createElement("figcaption");
    caption.textContent = image.alt;
    figure.replaceChildren(image, caption);
    shown = link;
    if (!dialog.open) dialog.showModal();
  }

  function step(by) {
    const links = [...gallery.querySelectorAll(".tiles a")];
    enlarge(links[(links.indexOf(shown) + by + links.length) % links.length]);
  }

  gallery.addEventListener("click", (event) => {
    const link = event.target.closest(".tiles a");
    if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    enlarge(link);
  });
  dialog.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (event.target !== dialog && link === null) return; // a click beside the dialog is a click on its backdrop
    event.preventDefault();
    if (link?.dataset.by) step(Number(link.dataset.by));
    else dialog.close();
  });
  dialog.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) step(by);
  });
  dialog.addEventListener("close", () => shown?.focus());
  if (dialog.open) {
    const image = figure.querySelector("img").getAttribute("src");
    dialog.close();
    const tile = gallery.querySelector(`.tiles img[src="${image}"]`);
    if (tile !== null) enlarge(tile.parentElement);
  }

  let loaded = 0;
  let loading = false;
  async function load() {
    const link = more.querySelector("a[data-next]");
    if (link === null || loading) return;
    loading = true;
    try {
      const answer = await fetch(link.href, { credentials: "same-origin", redirect: "error" });
      if (!answer.ok) throw new Error(String(answer.status));
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      gallery.append(...next.querySelector("[data-gallery]").childNodes);
      more.replaceChildren(...next.querySelector("[data-more]").childNodes);
      loaded += 1;
    } catch {
      more.textContent = "The service does not answer, or you are signed out. Reload the page.";
    }
    loading = false;
    watch.unobserve(more); // observed again, it reports whether the end is still in sight
    if (loaded < PAGES_BY_SCROLLING_MAX) watch.observe(more);
  }
  const watch = new IntersectionObserver(([end]) => {
    if (end.isIntersecting && scrollY > 0) load();
  }, { rootMargin: "600px" });
  watch.observe(more);
  more.addEventListener("click", (event) => {
    if (event.target.closest("a[data-next]") === null) return;
    event.preventDefault();
    load();
  });
})();
