// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Reads logs in a worker, a slice at a time. It begins with Go's wasm_exec.js; the page sends the program, and then questions: a
// log, as a text or a file, or an operation and a status. The page makes it from a blob, so that the page's
// Content-Security-Policy is its own.

/* global Go, why */
const slice = 1 << 20
let latest = 0
let started

async function start(program) {
  const go = new Go()
  const { instance } = await WebAssembly.instantiate(program, go.importObject)
  go.run(instance) // it defines why, and goes on as long as the worker lives
}

// What a log says; nothing if another one was given meanwhile.
async function read(id, log) {
  const file = log instanceof Blob ? log : new Blob([log])
  why.begin()
  for (let at = 0; at < file.size; at += slice) {
    const part = new Uint8Array(await file.slice(at, at + slice).arrayBuffer())
    if (id !== latest) return
    why.write(part)
    postMessage({ id, part: Math.min(1, (at + slice) / file.size) })
  }
  postMessage({ id, report: JSON.parse(why.end()) })
}

onmessage = async ({ data: { id, program, log, operation, status } }) => {
  if (program) {
    started = start(program)
    return
  }
  latest = id
  try {
    await started
    if (id !== latest) return
    if (log !== undefined) await read(id, log)
    else postMessage({ id, answer: JSON.parse(why.answer(operation, status)) })
  } catch (error) {
    postMessage({ id, error: String(error) })
  }
}
