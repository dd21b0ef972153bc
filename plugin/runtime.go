// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// requirement is what a runtime must be for a plugin to do its part under it.
type requirement struct {
	from   map[string][]int // the first version of each runtime that will do
	defect string           // of earlier ones
	remedy string           // beside an upgrade; "" where there is none
}

// adjusting takes a runtime whose NRI hands rlimits on to the container. Earlier ones take an adjustment of rlimits and drop it
// without a word, so every grant would be a promise that nobody keeps.
var adjusting = requirement{
	from:   map[string][]int{"containerd": {1, 7, 7}, "cri-o": {1, 29, 0}},
	defect: "drops the rlimits that NRI plugins set, silently",
	remedy: ", or use rdma-spec generate instead of the plugin",
}

// validating takes a runtime whose NRI has what plugins have adjusted validated.
var validating = requirement{
	from:   map[string][]int{"containerd": {2, 2, 0}, "cri-o": {1, 34, 0}},
	defect: "does not ask NRI plugins to validate containers",
}

func (p *Plugin) needs() requirement {
	if p.Validate {
		return validating
	}
	return adjusting
}

var versionNumbers = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})`)

// check refuses runtimes that are too old. A version that cannot be read, as that of a development build, is taken for a new one.
func (q requirement) check(name, version string) error {
	first, known := q.from[name]
	numbers := versionNumbers.FindStringSubmatch(version)
	if !known || numbers == nil {
		return nil
	}
	var got []int
	for _, n := range numbers[1:] {
		i, err := strconv.Atoi(n)
		if err != nil {
			return nil
		}
		got = append(got, i)
	}
	if slices.Compare(got, first) >= 0 {
		return nil
	}
	return &unsupportedRuntimeError{fmt.Sprintf("%s %s %s: upgrade to %d.%d.%d or later%s",
		name, version, q.defect, first[0], first[1], first[2], q.remedy)}
}

// unsupportedRuntimeError is why a runtime is not worked with.
type unsupportedRuntimeError struct{ message string }

func (e *unsupportedRuntimeError) Error() string { return e.message }
