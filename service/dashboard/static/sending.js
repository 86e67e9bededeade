// Sends an upload in parts, and resumes after a lost connection or a reload. A folder is packed as a ZIP while it is
// sent, so that only one part is in memory.
"use strict";
const sending = (() => {
  const PROBLEM = "application/problem+json";
  const STALLED_MS = 60_000; // without progress
  const PAUSE_MS_MAX = 15_000;
  const GIVE_UP_MS = 1_800_000;
  const READ_AHEAD = 8; // files of a folder, because each takes a while to open
  const RETRIED = new Set([0, 408, 502, 504]); // no answer, a slow connection, a proxy; others have Retry-After

  // --- a ZIP without compression (PKWARE APPNOTE.TXT 6.3.10) ----------------------------------------------------------
  const CRC = Uint32Array.from({ length: 256 }, (_, value) => {
    for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
    return value;
  });
  const [VERSION, UTF8_NAME, DATE, COUNT_MAX] = [20, 0x0800, 0x21, 0xffff]; // 1980-01-01: times of files are not sent

  function checksum(bytes) {
    let crc = -1;
    for (let at = 0; at < bytes.length; at += 1) crc = CRC[(crc ^ bytes[at]) & 255] ^ (crc >>> 8);
    return ~crc >>> 0;
  }

  // Returns the bytes of little-endian numbers; `sizes` has one digit for the size of each.
  function record(sizes, ...numbers) {
    const view = new DataView(new ArrayBuffer([...sizes].reduce((sum, size) => sum + Number(size), 0)));
    let at = 0;
    for (const [index, size] of [...sizes].entries()) {
      if (size === "2") view.setUint16(at, numbers[index], true);
      else if (size === "4") view.setUint32(at, numbers[index], true);
      else view.setBigUint64(at, BigInt(numbers[index]), true);
      at += Number(size);
    }
    return new Uint8Array(view.buffer);
  }

  function ending(count, bytes, at) {
    const [few, nowhere] = count < COUNT_MAX ? [count, at] : [COUNT_MAX, 0xffffffff];
    const end = record("42222442", 0x06054b50, 0, 0, few, few, bytes, nowhere, 0);
    if (few === count) return [end];
    const wide = record("4822448888", 0x06064b50, 44, 45, 45, 0, 0, count, count, bytes, at);
    return [wide, record("4484", 0x07064b50, 0, at + bytes, 1), end];
  }

  async function* zipped(files) {
    const [rows, reads] = [[], []];
    let at = 0;
    for (const [index, { path }] of files.entries()) {
      for (const { file } of files.slice(index + reads.length, index + READ_AHEAD)) {
        reads.push(file.arrayBuffer());
        reads.at(-1).catch(() => {}); // reported when it is used
      }
      const [name, bytes] = [new TextEncoder().encode(path), new Uint8Array(await reads.shift())];
      const facts = [VERSION, UTF8_NAME, 0, 0, DATE, checksum(bytes), bytes.length, bytes.length, name.length, 0];
      rows.push(record("42222224442222244", 0x02014b50, VERSION, ...facts, 0, 0, 0, 0, at), name);
      for (const part of [record("42222244422", 0x04034b50, ...facts), name, bytes]) {
        yield part;
        at += part.length;
      }
    }
    yield* rows;
    yield* ending(files.length, rows.reduce((sum, row) => sum + row.length, 0), at);
  }

  const zippedBytes = (files) =>
    files.reduce((sum, { path, file }) => sum + 76 + 2 * new TextEncoder().encode(path).length + file.size, 22) +
    (files.length < COUNT_MAX ? 0 : 76);

  // --- what is sent ---------------------------------------------------------------------------------------------------
  // A source has a name, a format, its size in bytes, an identity by which an upload goes on, and parts of one size.
  function ofFile(file) {
    async function* parts(bytes) {
      for (let at = 0; at < file.size; at += bytes) yield file.slice(at, at + bytes);
    }
    const format = file.name.toLowerCase().endsWith(".npz") ? "npz" : "zip";
    const identity = JSON.stringify([file.name, file.size, file.lastModified]);
    return { name: file.name.replace(/\.[^.]*$/, ""), format, bytes: file.size, identity, parts };
  }

  function ofFolder(name, files) {
    async function* parts(bytes) {
      const part = new Uint8Array(bytes);
      let filled = 0;
      for await (let rest of zipped(files)) {
        while (rest.length > 0) {
          const head = rest.subarray(0, bytes - filled);
          part.set(head, filled);
          filled = (filled + head.length) % bytes;
          rest = rest.subarray(head.length);
          if (filled === 0) yield new Blob([part]); // browsers send an array ten times as slowly
        }
      }
      if (filled > 0) yield new Blob([part.subarray(0, filled)]);
    }
    const changed = files.reduce((last, { file }) => Math.max(last, file.lastModified), 0);
    const bytes = zippedBytes(files);
    return { name, format: "zip", bytes, identity: JSON.stringify([name, files.length, bytes, changed]), parts };
  }

  // --- requests -------------------------------------------------------------------------------------------------------
  function request(method, address, headers, body, moved = () => {}) {
    return new Promise((resolve, reject) => {
      const sent = new XMLHttpRequest();
      let timer = 0;
      const watch = () => {
        clearTimeout(timer);
        if (method === "PUT") timer = setTimeout(() => sent.abort(), STALLED_MS);
      };
      sent.open(method, address);
      for (const [name, value] of Object.entries({ ...headers, Accept: PROBLEM })) sent.setRequestHeader(name, value);
      sent.upload.addEventListener("progress", (event) => {
        watch();
        moved(event.loaded);
      });
      sent.addEventListener("loadend", () => {
        clearTimeout(timer);
        const isJson = /json/.test(sent.getResponseHeader("Content-Type"));
        const answer = isJson ? JSON.parse(sent.responseText) : {}; // else a proxy's page
        if (sent.status >= 200 && sent.status < 300) resolve(answer);
        else reject({ ...answer, retry: RETRIED.has(sent.status) || sent.getResponseHeader("Retry-After") !== null });
      });
      watch();
      sent.send(body);
    });
  }

  // Repeats an act while the connection is lost, or while an earlier request of the same upload is still in progress.
  async function persist(act, note) {
    let waited = 0;
    for (let again = false; ; again = true) {
      try {
        return await act(again);
      } catch (problem) {
        if (!(problem.retry || (again && problem.code === "conflict")) || waited > GIVE_UP_MS) throw problem;
        note("The connection was lost. Resuming the upload.");
        const pause = Math.min(1000 + waited, PAUSE_MS_MAX);
        await new Promise((done) => {
          setTimeout(done, pause);
          addEventListener("online", done, { once: true });
        });
        waited += pause;
      }
    }
  }

  // Sends a source and then the form to `address`. `token` is the page's, `moved` takes the bytes sent, and `note` a
  // sentence. Resolves with the dataset, or rejects with a problem document.
  async function send(source, form, address, { token, partBytes, moved, note }) {
    const kept = `upload ${address} ${source.identity}`;
    const headers = { "X-Form-Token": token };
    const post = (where, body) => request("POST", where, { ...headers, "Content-Type": "application/json" }, JSON.stringify(body));
    let upload = sessionStorage.getItem(kept);
    const put = async (at, body, progress) => {
      const where = { ...headers, "X-Upload": upload, "Content-Type": "application/octet-stream" };
      return (await request("PUT", `/uploads?offset=${at}`, where, body, progress)).received;
    };
    let received = 0;
    try {
      if (upload !== null) {
        received = await persist(() => put(0, ""), note).catch((problem) => (problem.status === 410 ? null : Promise.reject(problem)));
        if (received === null) upload = null;
        else note("Resuming the upload.");
      }
      if (upload === null) {
        received = 0;
        ({ upload } = await persist(() => post("/uploads", { ...form, file_bytes: source.bytes }), note));
        sessionStorage.setItem(kept, upload);
      }
      let end = 0;
      for await (const part of source.parts(partBytes)) {
        const at = end;
        end += part.size;
        await persist(async (again) => {
          if (again) await part.slice(0, 1).arrayBuffer(); // fails if the file has changed meanwhile
          if (again) received = await put(at, "");
          if (received < end) received = await put(at, part, (bytes) => moved(at + bytes));
        }, note);
        moved(end);
      }
      note("Sent. The service is reading every image.");
      const dataset = await persist(() => post(address, { ...form, upload }), note);
      sessionStorage.removeItem(kept);
      return dataset;
    } catch (problem) {
      if (problem.status === 410 || problem.code === "upload_refused") sessionStorage.removeItem(kept); // nothing is left
      throw problem;
    }
  }

  return { ofFile, ofFolder, send };
})();
