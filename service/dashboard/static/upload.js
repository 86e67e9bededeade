// Uploads a file and shows the progress. Without a script, two plain forms do that. It fills in a declaration with what
// the format of a file says of all its records alike, and the names of the class folders: never their number, nor what
// pictures are. What the service would refuse by a file's size or directory alone is said before anything is sent.
"use strict";
(() => {
  const declaring = document.querySelector("[data-declare]");
  const form = declaring ?? document.querySelector("[data-upload]");
  if (form === null) return;
  const input = form.querySelector("input[type=file]");
  const drop = form.querySelector("[data-drop]");
  const bar = form.querySelector("[data-progress]");
  const note = form.querySelector("[data-progress-note]");
  const button = form.querySelector("button[type=submit]");
  for (const part of form.querySelectorAll("[data-only-script]")) part.hidden = false;

  const PUSH = "From a terminal, obscura datasets push reads folders, archives and arrays of many kinds.";
  const format = (file) => (file.name.toLowerCase().endsWith(".npz") ? "npz" : "zip");

  // --- what a zip says about itself, from its directory alone --------------------------------------------------------
  async function directory(file) {
    const tail = new DataView(await file.slice(Math.max(0, file.size - 65557)).arrayBuffer());
    let end = tail.byteLength - 22;
    while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end -= 1;
    if (end < 0) throw new Error("no directory");
    const size = tail.getUint32(end + 12, true);
    const start = tail.getUint32(end + 16, true);
    const view = new DataView(await file.slice(start, start + size).arrayBuffer());
    const entries = [];
    for (let at = 0; at + 46 <= view.byteLength && view.getUint32(at, true) === 0x02014b50; ) {
      const length = view.getUint16(at + 28, true);
      const name = new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(view.buffer, at + 46, length));
      entries.push({
        name,
        encrypted: (view.getUint16(at + 8, true) & 1) === 1,
        method: view.getUint16(at + 10, true),
        packed: view.getUint32(at + 20, true),
        offset: view.getUint32(at + 42, true),
      });
      at += 46 + length + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
    }
    return entries;
  }

  async function member(file, entry, most) {
    const head = new DataView(await file.slice(entry.offset, entry.offset + 30).arrayBuffer());
    const begin = entry.offset + 30 + head.getUint16(26, true) + head.getUint16(28, true);
    const body = file.slice(begin, begin + entry.packed);
    if (entry.method === 0) return body.slice(0, most);
    const reader = body.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    const parts = [];
    for (let size = 0; size < most; ) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      size += value.length;
    }
    await reader.cancel();
    return new Blob(parts);
  }

  function fill(values) {
    for (const [name, value] of Object.entries(values)) {
      const field = form.elements.namedItem(name);
      if (field !== null && value !== null) field.value = value;
    }
  }

  // --- what is wrong with it, whatever is declared --------------------------------------------------------------------
  let wrong = ""; // a sentence
  let subjects = false; // whether it says whose its records are

  function wrongOf(entries) {
    const names = entries.map((entry) => entry.name.toLowerCase());
    const parts = entries.filter((entry) => !entry.name.endsWith("/")).map((entry) => entry.name.split("/"));
    subjects = parts.length > 0 && parts.every((each) => each.length === 3);
    if (entries.some((entry) => entry.encrypted)) return "The archive is encrypted.";
    if (new Set(names).size < names.length) return "Two files of the archive have the same name.";
    if (parts.flat().some((part) => part === "__MACOSX" || part.startsWith(".") || part.includes("\\") || part === ""))
      return "The archive holds hidden files, or names with . or backslashes that do not lead to class folders.";
    if (!subjects && !parts.every((each) => each.length === 2))
      return "Not every picture lies in a class folder, as in class/picture.png; a folder around everything is one too many.";
    return "";
  }

  async function header(file, entry) {
    const text = await (await member(file, entry, 4096)).slice(0, 4096).text();
    const shape = /'shape': \(([\d, ]*)\)/.exec(text)[1].split(",").filter((part) => part.trim()).map(Number);
    return { shape, type: /'descr': '([^']+)'/.exec(text)?.[1] ?? "" };
  }

  async function wrongOfArrays(file, entries) {
    const known = Object.fromEntries(entries.map((entry) => [entry.name, entry]));
    subjects = "subjects.npy" in known;
    if (!("images.npy" in known && "labels.npy" in known) || entries.length !== 2 + subjects)
      return "An .npz holds the arrays images and labels here, and subjects where those are protected, and no other.";
    const [images, labels] = [await header(file, known["images.npy"]), await header(file, known["labels.npy"])];
    const channels = images.shape[3] ?? 1;
    if (images.type !== "|u1" || ![3, 4].includes(images.shape.length) || ![1, 3].includes(channels))
      return "The images are not uint8 of shape (n, h, w) or (n, h, w, 3).";
    if (!/^[<>|][iu]\d$/.test(labels.type) || labels.shape.length !== 1 || labels.shape[0] !== images.shape[0])
      return "The labels are not integers, one for each image.";
    fill({ height: images.shape[1], width: images.shape[2], channels });
    return "";
  }

  async function look(file) {
    const entries = await directory(file);
    if (format(file) === "npz") {
      wrong = await wrongOfArrays(file, entries);
      if (wrong) return "";
      return "The size is filled in from the arrays. Name the classes, in the order of their labels.";
    }
    wrong = wrongOf(entries);
    const names = form.elements.namedItem("classes");
    if (wrong || names.value) return "";
    const files = entries.filter((entry) => !entry.name.endsWith("/") && !/(^|\/)(\.|__MACOSX)/.test(entry.name));
    fill({ classes: [...new Set(files.map((entry) => entry.name.split("/")[0]))].sort().join(", ") });
    return "The classes are filled in from the folders' names: they become public, so see that each may.";
  }

  async function chosen() {
    const file = input.files[0];
    if (!file) return;
    const kind = form.elements.namedItem("format");
    if (kind !== null) kind.value = format(file);
    if (!declaring) return;
    const found = form.querySelector("[data-found]");
    const name = form.elements.namedItem("name");
    if (!name.value) name.value = file.name.replace(/\.[^.]*$/, "");
    [wrong, subjects] = ["", false];
    try {
      found.textContent = await look(file);
    } catch {
      wrong = "This is no .zip or .npz, it is damaged, or its names are not in UTF-8.";
    }
    if (wrong) found.textContent = `${wrong} ${PUSH}`;
  }

  function unwanted() {
    if (wrong || !subjects || form.elements.namedItem("subjects_declared").value) return wrong;
    return "The file says whose each record is, by folders inside the class folders or an array, and no subjects are declared.";
  }

  input.addEventListener("change", chosen);
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length > 0) {
        input.files = event.dataTransfer.files;
        chosen();
      }
    });
  }

  // --- sending --------------------------------------------------------------------------------------------------------
  function say(problem) {
    const place = form.querySelector("[data-problem]");
    place.textContent = problem.detail ?? "The service did not answer. Nothing was changed; try again.";
    place.hidden = false;
    for (const fault of form.querySelectorAll("[data-fault]")) {
      const said = problem.fields?.[fault.dataset.fault];
      fault.textContent = said ?? "";
      fault.hidden = said === undefined;
    }
    place.scrollIntoView({ block: "center" });
  }

  const PROBLEM = "application/problem+json";

  function size(bytes) {
    const units = ["bytes", "kB", "MB", "GB", "TB"];
    while (bytes >= 1000 && units.length > 1) {
      bytes /= 1000;
      units.shift();
    }
    return `${bytes.toFixed(1).replace(/\.0$/, "")} ${units[0]}`;
  }

  function tooLarge(file) {
    const limit = Number(form.dataset.uploadMax);
    return file.size > limit ? `This file is ${size(file.size)}. The limit is ${size(limit)}.` : "";
  }

  // Declares and uploads in one request, which leaves neither where it fails; on a dataset's page it only uploads.
  function send(file) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      let body = file;
      if (declaring) {
        request.open("POST", form.dataset.declare);
        body = new FormData(form);
        body.append("format", format(file));
        body.append("file", file); // the service reads the fields first
      } else {
        request.open("PUT", `${form.dataset.upload}/content?format=${form.elements.namedItem("format").value}`);
        request.setRequestHeader("Content-Type", "application/octet-stream");
        request.setRequestHeader("X-Form-Token", form.elements.namedItem("token").value);
      }
      request.setRequestHeader("Accept", PROBLEM);
      bar.hidden = false;
      request.upload.addEventListener("progress", (event) => {
        bar.value = event.loaded / event.total;
        note.textContent = `${Math.floor((100 * event.loaded) / event.total)}% of ${size(event.total)} sent`;
      });
      request.upload.addEventListener("load", () => {
        bar.removeAttribute("value");
        note.textContent = "Sent. Every picture is being checked.";
      });
      request.addEventListener("load", () => {
        if (request.status === 200) resolve(declaring ? request.responseURL : form.dataset.upload);
        else if (request.getResponseHeader("Content-Type") === PROBLEM) reject(JSON.parse(request.responseText));
        else reject({}); // a proxy's page
      });
      request.addEventListener("error", () => reject({}));
      request.send(body);
    });
  }

  form.addEventListener("submit", async (event) => {
    const file = input.files[0];
    if (!file) return; // the plain form declares, and the next page takes the file
    event.preventDefault();
    const detail = tooLarge(file) || (declaring ? unwanted() : "");
    if (detail) {
      say({ detail: `${detail} ${PUSH}` });
      return;
    }
    button.disabled = true;
    try {
      location.assign(await send(file));
    } catch (problem) {
      bar.hidden = true;
      note.textContent = "";
      say(problem);
      button.disabled = false;
    }
  });
})();
