// Requests to the server that has served the page; never to another.

let key = sessionStorage.getItem("chainrule-key") ?? "";

/** An error that the server has described in one line. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function hasKey() {
  return key !== "";
}

export function setKey(value) {
  key = value;
  sessionStorage.setItem("chainrule-key", value);
}

async function request(path, options = {}) {
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}) };
  if (key) headers.Authorization = `Bearer ${key}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw new ServerError(body?.error?.message ?? `${answer.status} ${answer.statusText}`, answer.status);
}

export async function get(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  return (await request(search ? `${path}?${search}` : path)).json();
}

/** A file of the server, to be saved. */
export async function download(path, name) {
  const address = URL.createObjectURL(await (await request(path)).blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export async function post(path, body, signal) {
  return (await request(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

async function* textLines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
  if (rest) yield rest;
}

/** The objects of an answer with one JSON object per line, as they arrive. */
export async function* postLines(path, body, signal) {
  const answer = await request(path, { method: "POST", body: JSON.stringify(body), signal });
  for await (const line of textLines(answer)) if (line) yield JSON.parse(line);
}

/** The objects of a stream of server-sent events, as OpenAI's endpoints send them. */
export async function* postEvents(path, body, signal) {
  const answer = await request(path, { method: "POST", body: JSON.stringify({ ...body, stream: true }), signal });
  for await (const line of textLines(answer)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ServerError(event.error.message, 500);
    yield event;
  }
}

export function isAbort(error) {
  return error?.name === "AbortError";
}
