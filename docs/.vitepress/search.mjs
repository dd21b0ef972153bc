// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// How the search reads words and weighs pages: for what writes the index, and for the pages that search in it.

// -12 is not 12: "error 12" and "error: (-12)" are different errors. A name such as ibv_reg_mr, or a label's, is a word, and so are its parts.
const words = (text) => [...text.match(/-\d+|[\p{L}\p{N}]+(?:'\p{L}+)*/gu) ?? [],
  ...text.match(/[\p{L}\p{N}]+(?:_[\p{L}\p{N}]+)+|[\p{L}\p{N}]+(?:\.[\p{L}\p{N}]+)+\/[\p{L}\p{N}.-]+[\p{L}\p{N}]/gu) ?? []]

// A message leads to its row in Troubleshoot, which has all causes, rather than to the page of one of them, or to what a guide says of it.
const weigh = (address) => (address.endsWith('#messages') ? 0.5 : address.includes('/troubleshoot/#') ? 1.08 : 1)

export const miniSearch = { options: { tokenize: words }, searchOptions: { boostDocument: weigh } }
