// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Turns the output of `make demo` on standard input into an asciicast of one frame, as high as the output is.
import {readFileSync} from "node:fs";

const width = 120;
const lines = readFileSync(0, "utf8").trim().split("\n");
const rows = (line) => Math.max(1, Math.ceil([...line.replace(/\x1b\[[0-9;]*m/g, "")].length / width));
const height = lines.reduce((sum, line) => sum + rows(line), 1);
console.log(JSON.stringify({version: 2, width, height}));
console.log(JSON.stringify([0.1, "o", lines.join("\r\n")]));
