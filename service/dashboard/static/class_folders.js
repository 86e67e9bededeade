// The layout of class folders in a ZIP: the rules of obscura/wire/uploads.py, for the form that declares a dataset.
"use strict";
const classFolders = (() => {
  const JUNK = new Set(["__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "system volume information"]);
  for (const name of ["$recycle.bin", "#recycle", "@eadir", "lost+found", "__pycache__"]) JUNK.add(name);

  const isJunk = (name) => name.startsWith(".") || name.startsWith("~$") || JUNK.has(name.toLowerCase());
  const all = (names, classes) => names.size > 0 && [...names].every((name) => classes.has(name));

  function isWrapper(folder, inside, holdImages, classes, subjects) {
    const innerAreClasses = all(inside, classes);
    if (classes.has(folder)) {
      if (!innerAreClasses) return false;
    } else if (innerAreClasses) return true;
    return inside.size > 0 && !(subjects && holdImages);
  }

  function byCodePoint(one, other) {
    const [first, second] = [[...one], [...other]];
    const place = first.findIndex((character, index) => character !== second[index]);
    if (place === -1) return first.length - second.length;
    return place < second.length ? first[place].codePointAt(0) - second[place].codePointAt(0) : 1;
  }

  function inOrder(names) {
    const sorted = [...new Set(names)].sort(byCodePoint);
    if (!sorted.every((name) => /^[0-9]+$/.test(name))) return sorted;
    return sorted.sort((one, other) => (BigInt(one) < BigInt(other) ? -1 : BigInt(one) > BigInt(other) ? 1 : 0));
  }

  // Takes the names of all entries. Returns { classes, wrapped }, or { fault } with a fault of obscura/wire/uploads.py.
  const read = (names, declared, subjects) => {
    const classes = new Set(declared.map((name) => name.normalize("NFC")));
    let paths = names.map((name) => name.normalize("NFC").replaceAll("\\", "/").split("/"));
    const parts = paths.map((path) => (path.at(-1) === "" ? path.slice(0, -1) : path));
    if (parts.some((path) => path.some((part) => ["", ".", ".."].includes(part)) || path[0][1] === ":"))
      return { fault: "archive_path" };
    paths = paths.filter((path) => path.at(-1) !== "" && !path.some(isJunk));
    if (paths.length === 0) return { fault: "empty" };
    const files = paths[0].length;
    if (paths.some((path) => path.length !== files)) return { fault: "layout" };
    let level = 0;
    for (; level + 2 < files && paths.every((path) => path[level] === paths[0][level]); level += 1) {
      const inside = new Set(paths.map((path) => path[level + 1]));
      if (!isWrapper(paths[0][level], inside, level + 3 === files, classes, subjects)) break;
    }
    const found = new Set(paths.map((path) => path[level]));
    const depth = files - level;
    if (!subjects && depth === 3 && (classes.size === 0 || all(found, classes))) return { fault: "subjects_unexpected" };
    if (subjects && depth === 2) return { fault: "subjects_absent" };
    if (depth !== (subjects ? 3 : 2)) return { fault: "layout" };
    return { classes: inOrder(found), wrapped: level > 0 };
  };
  read.isJunk = (path) => path.split("/").some(isJunk);
  return read;
})();
