// The form that uploads images: reads the layout of a folder or an archive, fills in a declaration, and shows what of it
// becomes public. It is filled in from the header of an .npz, which is the same for all records, and from the names of
// class folders; never from the number or content of images. Faults that are visible in sizes, names or numbers of files
// are shown before anything is sent. class_folders.js finds the class folders, sending.js sends.
"use strict";
(() => {
  const declaring = document.querySelector("[data-declare]");
  const form = declaring ?? document.querySelector("[data-upload]");
  if (form === null) return;
  const input = form.querySelector("#file");
  const folder = form.querySelector("#folder");
  const drop = form.querySelector("[data-drop]");
  const found = form.querySelector("[data-found]");
  const bar = form.querySelector("[data-progress]");
  const note = form.querySelector("[data-progress-note]");
  const button = form.querySelector("button[type=submit]");
  const more = form.querySelector("[data-more]");
  const limits = JSON.parse(form.dataset.limits);
  button.disabled = false;

  const PUSH = "From a terminal, obscura datasets push can upload folders, archives and arrays of many kinds.";
  // Code page 437, in which older programs of Windows write names that are not UTF-8.
  const HIGH =
    "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u00a0";

  let unclear = false; // whether names of the archive are in an unknown encoding

  function nameOf(bytes) {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      const name = Array.from(bytes, (byte) => (byte < 128 ? String.fromCharCode(byte) : HIGH[byte - 128])).join("");
      unclear ||= /[\u2500-\u25a0]/.test(name); // lines and blocks occur in no name: the encoding is another
      return name;
    }
  }

  // --- the directory of a ZIP -----------------------------------------------------------------------------------------
  async function directory(file) {
    const tail = new DataView(await file.slice(Math.max(0, file.size - 65557)).arrayBuffer());
    let end = tail.byteLength - 22;
    while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end -= 1;
    if (end < 0) throw new Error("no directory");
    let [size, start] = [tail.getUint32(end + 12, true), tail.getUint32(end + 16, true)];
    if (end >= 20 && tail.getUint32(end - 20, true) === 0x07064b50) {
      const wide = Number(tail.getBigUint64(end - 12, true)) - Math.max(0, file.size - 65557);
      [size, start] = [wide + 40, wide + 48].map((at) => Number(tail.getBigUint64(at, true)));
    }
    const view = new DataView(await file.slice(start, start + size).arrayBuffer());
    const entries = [];
    for (let at = 0; at + 46 <= view.byteLength && view.getUint32(at, true) === 0x02014b50; ) {
      const length = view.getUint16(at + 28, true);
      entries.push({
        name: nameOf(new Uint8Array(view.buffer, at + 46, length)),
        encrypted: (view.getUint16(at + 8, true) & 1) === 1,
        method: view.getUint16(at + 10, true),
        packed: view.getUint32(at + 20, true),
        bytes: view.getUint32(at + 24, true),
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

  // --- folders, dropped or chosen -------------------------------------------------------------------------------------
  async function filesBelow(entry) {
    if (entry.isFile) {
      const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
      return [{ path: entry.fullPath.replace(/^\//, ""), file }];
    }
    const reader = entry.createReader();
    const inside = [];
    for (let some = [null]; some.length > 0; inside.push(...some)) {
      some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // at most 100 at a time
    }
    return (await Promise.all(inside.map(filesBelow))).flat();
  }

  // Skips junk silently, as the service does, and other files that are not images with a note.
  function ofFolder(files) {
    const all = files.filter(({ path }) => !classFolders.isJunk(path));
    const kept = all.filter(({ path }) => limits.suffixes.some((suffix) => path.toLowerCase().endsWith(suffix)));
    kept.sort((one, other) => (one.path < other.path ? -1 : 1));
    const [outer] = (kept[0]?.path ?? "").split("/");
    const name = kept.every(({ path }) => path.startsWith(`${outer}/`)) ? outer : "";
    const left = all.length - kept.length;
    const count = left === 1 ? "One file is" : `${left.toLocaleString("en")} files are`;
    leftOut = left === 0 ? "" : ` ${count} left out, because only ${limits.suffixes.join(", ")} are sent.`;
    entries = kept.map(({ path, file }) => ({ name: path, bytes: file.size }));
    return sending.ofFolder(name, kept);
  }

  // --- faults, checked against the declaration so far ------------------------------------------------------------------
  let source = null; // what is sent
  let entries = []; // of a ZIP or a folder
  let leftOut = ""; // a sentence
  let wrong = ""; // a sentence
  let subjects = false; // whether the arrays include subject ids
  let filled = null; // the classes that this script has filled in

  const FAULTS = {
    archive_path: "The archive contains a name that leaves its folder, with '..', a drive letter, or an empty part.",
    empty: "There are no images.",
    layout:
      "Every file must be in a class folder, as in class/image.png, or class/person/image.png if the account protects people. Remove all other files.",
    subjects_unexpected:
      "The class folders contain folders, as in class/person/image.png, but the account does not protect people. Choose another account, or move the images to class/image.png.",
    subjects_absent:
      "The account protects people, but there is no folder for each person, as in class/person/image.png.",
    class_undeclared: "A folder's name is not among the classes. The names must be equal, letter by letter.",
    too_many:
      "There are more images than the limit. It becomes public, so do not count: enter a round number well above what you will ever have.",
  };
  const valueOf = (name) => form.elements.namedItem(name).value;
  const typed = () => valueOf("classes").split(/[,\n]/).map((name) => name.trim()).filter(Boolean);
  const account = () => form.elements.namedItem("account_id").selectedOptions[0];
  const bySubject = () => account().dataset.people !== undefined;
  const namesSent = () => entries.map((entry) => entry.name);

  // Classes that the user has typed are kept, and decide which folders are class folders.
  function readClasses() {
    const field = form.elements.namedItem("classes");
    if (field.value && field.value !== filled) return "";
    let layout = classFolders(namesSent(), [], bySubject());
    if (layout.fault === "subjects_unexpected" && account().value === "") layout = classFolders(namesSent(), [], true);
    const [only, ...others] = layout.classes ?? [];
    const alone = bySubject() && only !== undefined && others.length === 0;
    field.value = filled = layout.classes === undefined || alone ? "" : layout.classes.join(", ");
    if (layout.fault !== undefined) return `${FAULTS[layout.fault]} ${PUSH}`;
    if (alone) more.open = true;
    if (alone) return `There is one outer folder, ${only}. Enter the class names. If the folders in ${only} are people, enter ${only}.`;
    const around = layout.wrapped ? " Folders around all class folders are ignored." : "";
    return `The classes are filled in from the folder names. They become public, so check each of them.${around}${leftOut}`;
  }

  function wrongOf() {
    const lower = entries.map((entry) => entry.name.normalize("NFKC").toLowerCase());
    if (unclear) return "The names in the archive are in an unknown encoding. Drop the folder instead of the archive.";
    if (entries.some((entry) => entry.encrypted)) return "The archive is encrypted.";
    if (new Set(lower).size < lower.length) return "Two files of the archive have the same name.";
    if (entries.some((entry) => entry.bytes > limits.entry)) return `A file is larger than ${size(limits.entry)}.`;
    const { fault } = classFolders(namesSent(), [], false);
    return ["archive_path", "empty"].includes(fault) ? FAULTS[fault] : "";
  }

  async function header(file, entry) {
    const text = await (await member(file, entry, 4096)).slice(0, 4096).text();
    const shape = /'shape': \(([\d, ]*)\)/.exec(text)[1].split(",").filter((part) => part.trim()).map(Number);
    return { shape, type: /'descr': '([^']+)'/.exec(text)?.[1] ?? "" };
  }

  async function wrongOfArrays(file) {
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
    Object.entries({ height: images.shape[1], width: images.shape[2], channels }).forEach(([name, value]) => {
      form.elements.namedItem(name).value = value;
    });
    return "";
  }

  async function look(file) {
    entries = await directory(file);
    if (source.format === "npz") {
      wrong = await wrongOfArrays(file);
      entries = [];
      more.open = true;
      return "The size is filled in from the arrays. Enter the classes, in the order of their labels.";
    }
    wrong = wrongOf();
    return wrong ? "" : readClasses();
  }

  // Takes a file, or the files of a folder.
  async function choose(chosen) {
    [wrong, leftOut, subjects, entries, unclear] = ["", "", false, [], false];
    source = chosen instanceof File ? sending.ofFile(chosen) : ofFolder(chosen);
    const kind = form.elements.namedItem("format");
    if (kind !== null) kind.value = source.format;
    if (!declaring) {
      tell("");
      return;
    }
    const name = form.elements.namedItem("name");
    if (!name.value) name.value = source.name;
    let text = "";
    try {
      if (chosen instanceof File) text = await look(chosen);
      else text = (wrong = wrongOf()) || readClasses();
    } catch {
      wrong = "This is not a .zip or .npz file, or it is damaged.";
    }
    tell(wrong ? `${wrong} ${PUSH}` : text);
    show();
  }

  const tell = (text) => (found.textContent = `${[source.name, size(source.bytes)].filter(Boolean).join(", ")}. ${text}`);

  function unwanted() {
    if (wrong) return `${wrong} ${PUSH}`;
    if (source.format === "npz") {
      if (subjects && !bySubject()) return "The file contains subject ids, but the account does not protect people.";
      return !subjects && bySubject() ? "The account protects people, but the file has no array subjects." : "";
    }
    const { fault, classes } = classFolders(namesSent(), typed(), bySubject());
    const declaredClasses = new Set(typed().map((name) => name.normalize("NFC")));
    if (fault === undefined && classes.some((name) => !declaredClasses.has(name))) return FAULTS.class_undeclared;
    const images = entries.filter(({ name }) => !name.endsWith("/") && !classFolders.isJunk(name.replaceAll("\\", "/")));
    const limit = Number(form.querySelector("[data-limit]").value);
    return FAULTS[fault] ?? (images.length > limit ? FAULTS.too_many : "");
  }

  for (const field of [input, folder]) {
    field.addEventListener("change", () => {
      const files = [...field.files];
      field.value = ""; // so that the same file can be chosen again after a correction
      if (files.length > 0) choose(field === input ? files[0] : files.map((file) => ({ path: file.webkitRelativePath, file })));
    });
  }
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, async (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind !== "drop") return;
      const dropped = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
      if (dropped.length === 0) return;
      if (dropped.length === 1 && dropped[0].isFile) choose(event.dataTransfer.files[0]);
      else choose((await Promise.all(dropped.map(filesBelow))).flat());
    });
  }

  // --- what becomes public --------------------------------------------------------------------------------------------
  function publicText(name) {
    const field = form.elements.namedItem(name);
    if (field.type === "checkbox") return "yes";
    if (field.dataset.limit !== undefined || field.dataset.people !== undefined) return field.value && Number(field.value).toLocaleString("en");
    if (name === "classes") return typed().join(", ");
    if (name === "width") return field.value && `${field.value} × ${valueOf("height") || field.value} pixels`;
    return field.selectedOptions && field.value ? (field.selectedOptions[0].dataset.name ?? field.selectedOptions[0].text) : field.value;
  }

  function show() {
    for (const part of form.querySelectorAll("fieldset[data-people]")) part.hidden = part.disabled = !bySubject();
    for (const place of document.querySelectorAll("[data-public]")) {
      const field = form.elements.namedItem(place.dataset.public);
      place.textContent = publicText(place.dataset.public) || "not stated yet";
      place.parentElement.hidden = field.closest("fieldset[disabled]") !== null || (field.type === "checkbox" && !field.checked);
    }
  }

  if (declaring) {
    form.addEventListener("input", show);
    form.addEventListener("invalid", () => (more.open = true), true); // fields in it cannot be shown otherwise
    form.elements.namedItem("account_id").addEventListener("change", () => {
      if (entries.length > 0 && !wrong) tell(readClasses());
      show();
    });
    addEventListener("pageshow", show); // also when the browser restores fields
    show();
  }

  // --- sending --------------------------------------------------------------------------------------------------------
  function refuse(problem) {
    form.dispatchEvent(new CustomEvent("refused", { bubbles: true, detail: problem }));
    if (more?.querySelector("[data-fault]:not([hidden])")) more.open = true;
  }

  function size(bytes) {
    const units = ["bytes", "kB", "MB", "GB", "TB"];
    while (bytes >= 1000 && units.length > 1) {
      bytes /= 1000;
      units.shift();
    }
    return `${bytes.toFixed(1).replace(/\.0$/, "")} ${units[0]}`;
  }

  function moved(bytes) {
    bar.value = bytes / source.bytes;
    note.textContent = `${Math.floor((100 * bytes) / source.bytes)}% of ${size(source.bytes)} sent`;
  }

  async function upload() {
    const { fit, format, ...fields } = Object.fromEntries(new FormData(form));
    const what = { format: format ?? source.format, fit, fields: declaring ? fields : {} };
    const token = document.querySelector("meta[name=form-token]").content;
    const say = (text) => {
      note.textContent = text;
      if (text.startsWith("Sent")) bar.removeAttribute("value");
    };
    const options = { token, partBytes: limits.part, moved, note: say };
    return sending.send(source, what, declaring ? "/datasets/new" : `/datasets/${form.dataset.upload}`, options);
  }

  const stay = (event) => event.preventDefault();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let detail = source === null ? "Choose a folder or a file." : "";
    if (!detail && source.bytes > limits.file) detail = `This file is ${size(source.bytes)}. The limit is ${size(limits.file)}.`;
    detail ||= declaring ? unwanted() : "";
    if (detail) {
      refuse({ detail });
      return;
    }
    button.disabled = true;
    bar.hidden = false;
    addEventListener("beforeunload", stay);
    try {
      const { id } = await upload();
      removeEventListener("beforeunload", stay);
      location.assign(`/datasets/${id}`);
    } catch (problem) {
      removeEventListener("beforeunload", stay);
      bar.hidden = true;
      note.textContent = "";
      refuse(problem instanceof Error ? { detail: "A file cannot be read. Choose the folder or the file again." } : problem);
      button.disabled = false;
    }
  });
})();
