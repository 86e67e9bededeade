// Uploads a file and shows the progress. Fills in a declaration from the header of a file, which is the same for all
// records, and from the names of class folders; never from the number or content of images. Faults that are visible in
// the size or the directory of a file are shown before anything is sent. class_folders.js finds the class folders.
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
  button.disabled = false;

  const PUSH = "From a terminal, obscura datasets push can upload folders, archives and arrays of many kinds.";
  const format = (file) => (file.name.toLowerCase().endsWith(".npz") ? "npz" : "zip");

  // --- the directory of a ZIP -----------------------------------------------------------------------------------------
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

  // --- faults of the file, checked against the declaration so far -----------------------------------------------------
  let wrong = ""; // a sentence
  let subjects = false; // whether the arrays include subject ids
  let names = null; // of the entries of a ZIP
  let filled = null; // the classes that this script has filled in

  const FAULTS = {
    archive_path: "The archive contains a name that leaves its folder, with '..', a drive letter, or an empty part.",
    empty: "The archive contains no images.",
    layout:
      "Every file must be in a class folder, as in class/image.png, or class/subject/image.png if the account protects people. Remove all other files.",
    subjects_unexpected:
      "The class folders contain folders, as in class/subject/image.png, but no number of people is stated. State that number, or move the images to class/image.png.",
    subjects_absent:
      "A number of people is stated, but the archive has no folder for each person, as in class/subject/image.png.",
    class_undeclared: "A folder's name is not among the classes. The names must be equal, letter by letter.",
  };
  const typed = () => form.elements.namedItem("classes").value.split(/[,\n]/).map((name) => name.trim()).filter(Boolean);
  const bySubject = () => form.elements.namedItem("subjects_declared").value !== "";

  // Classes that the user has typed are kept, and decide which folders are class folders.
  function readClasses() {
    const field = form.elements.namedItem("classes");
    if (field.value && field.value !== filled) return "";
    let found = classFolders(names, [], bySubject());
    if (found.fault === "subjects_unexpected") found = classFolders(names, [], true); // the number may still be stated
    const [only, ...more] = found.classes ?? [];
    const unclear = bySubject() && only !== undefined && more.length === 0;
    field.value = filled = found.classes === undefined || unclear ? "" : found.classes.join(", ");
    if (found.fault !== undefined) return `${FAULTS[found.fault]} ${PUSH}`;
    if (unclear) return `The archive has one outer folder, ${only}. Enter the class names. If the folders in ${only} are people, enter ${only}.`;
    const around = found.wrapped ? " Folders around all class folders are ignored." : "";
    return `The classes are filled in from the folder names. They become public, so check each of them.${around}`;
  }

  function wrongOf(entries) {
    const lower = entries.map((entry) => entry.name.normalize("NFKC").toLowerCase());
    if (entries.some((entry) => entry.encrypted)) return "The archive is encrypted.";
    if (new Set(lower).size < lower.length) return "Two files of the archive have the same name.";
    const { fault } = classFolders(entries.map((entry) => entry.name), [], false);
    return ["archive_path", "empty"].includes(fault) ? FAULTS[fault] : "";
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
      return "An .npz must contain the arrays images and labels, also subjects if the account protects people, and no others.";
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
    if (wrong) return "";
    names = entries.map((entry) => entry.name);
    return readClasses();
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
    [wrong, subjects, names] = ["", false, null];
    try {
      found.textContent = await look(file);
    } catch {
      wrong = "This is not a .zip or .npz file, it is damaged, or the names in it are not in UTF-8.";
    }
    if (wrong) found.textContent = `${wrong} ${PUSH}`;
  }

  function unwanted() {
    if (wrong) return wrong;
    if (names !== null) {
      const { fault, classes } = classFolders(names, typed(), bySubject());
      const declaredClasses = new Set(typed().map((name) => name.normalize("NFC")));
      const undeclared = classes?.some((name) => !declaredClasses.has(name)) ? "class_undeclared" : undefined;
      return FAULTS[fault ?? undeclared] ?? "";
    }
    if (!subjects || bySubject()) return "";
    return "The file contains subject ids, but no number of people is stated.";
  }

  form.elements.namedItem("subjects_declared")?.addEventListener("change", () => {
    if (names !== null && !wrong) form.querySelector("[data-found]").textContent = readClasses();
  });

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
  const refuse = (problem) => form.dispatchEvent(new CustomEvent("refused", { bubbles: true, detail: problem }));

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

  // Declares and uploads in one atomic request: a line of JSON, then the file. On a dataset's page, only uploads.
  // Resolves with the dataset.
  function send(file) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      let body = file;
      if (declaring) {
        request.open("POST", "/datasets/new");
        const fields = { ...Object.fromEntries(new FormData(form)), format: format(file) };
        body = new Blob([JSON.stringify(fields), "\n", file]);
      } else {
        request.open("PUT", `/v1/datasets/${form.dataset.upload}/content?format=${form.elements.namedItem("format").value}`);
      }
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.setRequestHeader("X-Form-Token", document.querySelector("meta[name=form-token]").content);
      request.setRequestHeader("Accept", PROBLEM);
      bar.hidden = false;
      request.upload.addEventListener("progress", (event) => {
        bar.value = event.loaded / event.total;
        note.textContent = `${Math.floor((100 * event.loaded) / event.total)}% of ${size(event.total)} sent`;
      });
      request.upload.addEventListener("load", () => {
        bar.removeAttribute("value");
        note.textContent = "Sent. Every image is being checked.";
      });
      request.addEventListener("load", () => {
        if (request.status === 200 || request.status === 201) resolve(JSON.parse(request.responseText));
        else if (request.getResponseHeader("Content-Type") === PROBLEM) reject(JSON.parse(request.responseText));
        else reject({}); // a proxy's page
      });
      request.addEventListener("error", () => reject({}));
      request.send(body);
    });
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const file = input.files[0];
    if (!file) {
      refuse({ detail: "Choose a file." });
      return;
    }
    const detail = tooLarge(file) || (declaring ? unwanted() : "");
    if (detail) {
      refuse({ detail: `${detail} ${PUSH}` });
      return;
    }
    button.disabled = true;
    try {
      location.assign(`/datasets/${(await send(file)).id}`);
    } catch (problem) {
      bar.hidden = true;
      note.textContent = "";
      refuse(problem);
      button.disabled = false;
    }
  });
})();
