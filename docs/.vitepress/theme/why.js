// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Asks package why, which is a WebAssembly program in a worker. It is loaded when somebody asks first.

import exec from '../../../bin/why/wasm_exec.js?raw'
import program from '../../../bin/why/why.wasm.gz?url'
import reader from './worker.js?raw'

let worker
let last = 0
const waiting = new Map() // those who asked, by the number of their question

// The program is a gzip, since not every server compresses one. Some unpack what is called .gz.
async function fetchProgram() {
  const response = await fetch(program)
  if (!response.ok) throw new Error(`${program}: ${response.status}`)
  const bytes = await response.arrayBuffer()
  if (new Uint8Array(bytes)[0] !== 0x1f) return bytes
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer()
}

async function start() {
  const bytes = await fetchProgram()
  const address = URL.createObjectURL(new Blob([exec, reader], { type: 'text/javascript' }))
  const begun = new Worker(address)
  begun.onmessage = ({ data }) => waiting.get(data.id)?.(data)
  begun.onerror = ({ message }) => waiting.forEach((told, id) => told({ id, error: message }))
  begun.postMessage({ program: bytes }, [bytes])
  return begun
}

// Asks a question, and returns its answer: undefined if another question came meanwhile. part is told how much of a log was read.
export async function ask(question, part) {
  const id = ++last
  worker ??= start()
  const running = await worker.catch((error) => {
    worker = undefined // it is tried again
    throw error
  })
  if (id !== last) return undefined
  return new Promise((resolve, reject) => {
    waiting.forEach((told, other) => told({ id: other })) // which are not answered any more
    waiting.set(id, (data) => {
      if (data.part !== undefined) return part?.(data.part)
      waiting.delete(id)
      data.error ? reject(new Error(data.error)) : resolve(data.report ?? data.answer)
    })
    running.postMessage({ ...question, id })
  })
}
