// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"cmp"
	"strings"
)

// compareNatural compares names in natural order: mlx5_2 comes before mlx5_10. The order is total: two names are equal
// only if they are identical.
func compareNatural(a, b string) int {
	x := a
	y := b
	for x != "" && y != "" {
		dx := digits(x)
		dy := digits(y)
		if dx == 0 || dy == 0 {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x = x[1:]
			y = y[1:]
			continue
		}
		// The numbers are compared as text, because they can have any length.
		nx := strings.TrimLeft(x[:dx], "0")
		ny := strings.TrimLeft(y[:dy], "0")
		if c := cmp.Or(cmp.Compare(len(nx), len(ny)), cmp.Compare(nx, ny)); c != 0 {
			return c
		}
		x = x[dx:]
		y = y[dy:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
}

// digits returns the number of decimal digits at the start of s.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// CompareNatural compares names, or texts that contain names, in natural order: mlx5_2 comes before mlx5_10. The result
// is negative if a comes before b, 0 if a and b are identical, and positive if a comes after b.
func CompareNatural(a, b string) int { return compareNatural(a, b) }
