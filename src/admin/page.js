// Shows /streams, once a second.
"use strict";

const byId = (id) => document.getElementById(id);

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? count : count.toFixed(1)} ${units[unit]}`;
}

function time(secs) {
  if (secs < 60) return `${Math.floor(secs)} s`;
  if (secs < 3600) return `${Math.floor(secs / 60)} min ${Math.floor(secs % 60)} s`;
  return `${Math.floor(secs / 3600)} h ${Math.floor((secs % 3600) / 60)} min`;
}

function cell(row, label, text, classes) {
  const made = row.insertCell();
  made.dataset.label = label;
  made.className = classes;
  made.textContent = text;
  return made;
}

function show(row, stream) {
  row.replaceChildren();
  row.dataset.stream = stream.id;
  const call = stream.tool ?? stream.method ?? (stream.kind === "request" ? "call" : "the session's own");
  const name = cell(row, "call", call, "call");
  const small = document.createElement("small");
  small.textContent = stream.id;
  name.append(small);
  const state = stream.task?.status.replaceAll("_", " ") ?? stream.state;
  const outcome = cell(row, "state", state, `state ${state.split(" ")[0]}`);
  for (const line of [stream.error?.replaceAll("_", " "), stream.task?.text]) {
    if (!line) continue;
    const small = document.createElement("small");
    small.textContent = line;
    outcome.append(small);
  }
  // A call that has ended is not detached: it waits for no client.
  const client = stream.attached ? "attached" : stream.ended ? "gone" : "detached";
  const since = time(stream.attachedOrDetachedSecs);
  // The client of a task gets the handle, and asks now and then.
  if (stream.task && !stream.attached) cell(row, "client", `seen ${since} ago`, "client");
  else cell(row, "client", `${client} ${since}`, `client ${client}`);
  cell(row, "resumes", stream.resumes, "resumes number");
  cell(row, "age", time(stream.ageSecs), "age number");
  cell(row, "events", stream.events, "events number");
  cell(row, "buffered", bytes(stream.bufferedBytes), "buffered number");
}

async function refresh() {
  const health = byId("health");
  try {
    const answer = await fetch("streams", { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const list = await answer.json();
    byId("open").textContent = list.open;
    byId("detached").textContent = list.detached;
    byId("total").textContent = list.total;
    byId("buffered").textContent = bytes(list.bufferedBytes);
    const body = byId("streams");
    const rows = new Map([...body.rows].map((row) => [row.dataset.stream, row]));
    const now = list.streams.map((stream) => {
      const row = rows.get(stream.id) ?? document.createElement("tr");
      show(row, stream);
      return row;
    });
    body.replaceChildren(...now);
    byId("none").hidden = now.length > 0;
    const hidden = list.total - now.length;
    health.textContent = hidden > 0 ? `the youngest ${now.length} of ${list.total}` : "live";
    health.className = "";
  } catch (error) {
    health.textContent = "the proxy does not answer";
    health.className = "lost";
  }
  setTimeout(refresh, 1000);
}

refresh();
