// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// firstGood gives, for each runtime, the first version whose NRI hands rlimits on to the container. Earlier ones take an
// adjustment of rlimits and drop it without a word.
var firstGood = map[string][]int{
	"containerd": {1, 7, 7},
	"cri-o":      {1, 29, 0},
}

var versionNumbers = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})`)

// checkRuntime refuses runtimes on which every grant would be a promise that nobody keeps. A version that cannot be read, as that of
// a development build, is taken for a new one.
func checkRuntime(name, version string) error {
	good, known := firstGood[name]
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
	if slices.Compare(got, good) >= 0 {
		return nil
	}
	return &unsupportedRuntimeError{fmt.Sprintf("%s %s drops the rlimits that NRI plugins set, silently: upgrade to %d.%d.%d or later, "+
		"or use rdma-spec generate instead of the plugin", name, version, good[0], good[1], good[2])}
}

// unsupportedRuntimeError is why a runtime is not worked with.
type unsupportedRuntimeError struct{ message string }

func (e *unsupportedRuntimeError) Error() string { return e.message }
