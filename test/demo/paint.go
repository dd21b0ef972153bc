// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

// painted reports whether the demo's output goes to a terminal. The node has no terminal, so `make demo` sets the
// variable.
var painted = os.Getenv("DEMO_COLOR") == "1" && os.Getenv("NO_COLOR") == ""

func paint(code, text string) {
	if painted {
		text = "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	fmt.Println(text)
}

func title(text string)   { fmt.Println(); paint("1", "== "+text) }
func command(text string) { paint("36", "$ "+text) }
func plain(text string)   { fmt.Println(strings.TrimRight(text, "\n")) }
func good(text string)    { paint("1;32", "✔ "+text) }
func bad(text string)     { paint("1;31", "✘ "+text) }
