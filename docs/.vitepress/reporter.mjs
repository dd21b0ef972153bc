// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Prints tests as go test -v does, so that the suite counts them. go tool test2json reports the last test only when it
// reads the line of the program's result.

export default async function* (events) {
  let failed = false
  for await (const { type, data } of events) {
    if (data.nesting !== 0 || type !== 'test:pass' && type !== 'test:fail') continue
    const said = data.details.error?.cause?.message ?? data.details.error?.message ?? ''
    yield `=== RUN   ${data.name}\n`
    for (const line of said.split('\n').filter(Boolean)) yield `    site.test.mjs:1: ${line}\n`
    failed ||= type === 'test:fail'
    const result = data.skip !== undefined ? 'SKIP' : type === 'test:pass' ? 'PASS' : 'FAIL'
    yield `--- ${result}: ${data.name} (${(data.details.duration_ms / 1000).toFixed(2)}s)\n`
  }
  yield failed ? 'FAIL\n' : 'PASS\n'
}
