// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"slices"
	"strings"
)

// Answer returns the causes of an operation and a status, without any other text of a line. It returns no causes unless
// the tables contain both names, so that text from a log never gets an answer.
func Answer(operation, status string) Root {
	answer := Root{Line: Line{Operation: operation, Status: status}, Causes: []Cause{}}
	if !namesOperation(operation) || !namesStatus(status) {
		return answer
	}
	r := reading{operation: operation, status: status}
	ofWords := slices.IndexFunc(messages(), func(m message) bool {
		return m.kind <= weak && m.operation == operation && strings.Trim(m.status, "-") == status && len(m.causes) > 0
	})
	answer.Causes = causesOf(r, "", nil)
	if len(answer.Causes) == 0 && ofWords >= 0 {
		r.causes = messages()[ofWords].causes
		answer.Causes = causesOf(r, "", nil)
	}
	return answer
}

func namesOperation(name string) bool {
	return slices.ContainsFunc(messages(), func(m message) bool { return m.kind <= weak && m.operation == name }) ||
		slices.ContainsFunc(pairs(), func(p pair) bool { return slices.Contains(p.operations, name) })
}

func namesStatus(name string) bool {
	if name == "" || byName[strings.ToLower(name)] == name {
		return true
	}
	for _, c := range completions {
		if c.name == name {
			return true
		}
	}
	return slices.ContainsFunc(messages(), func(m message) bool { return m.kind <= weak && m.status == name }) ||
		slices.ContainsFunc(pairs(), func(p pair) bool { return slices.Contains(p.statuses, name) })
}
