// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAnswer checks that an operation and a status have the causes of a line that says nothing else, and that words of a
// log have none.
func TestAnswer(t *testing.T) {
	for _, c := range []struct{ operation, status, page string }{
		{"ibv_reg_mr", "ENOMEM", "container-memlock"},
		{"ibv_reg_mr", "", "container-memlock"},
		{"ibv_modify_qp to RTR", "ETIMEDOUT", "container-routes"},
		{"completion", "IBV_WC_RETRY_EXC_ERR", "container-gid-index"},
		{"rdma_connect", "device removal", "hca-errors"},
		{"shared memory", "", "container-shm"}, // by the words of messages alone
		{"ibv_query_device", "my-node", ""},
		{"ibv_my_node", "ENOMEM", ""},
		{"asynchronous event", "port error on my-node", ""},
		{"<img src=x onerror=alert(1)>", "", ""},
		{"", "", ""},
	} {
		page := ""
		answer := Answer(c.operation, c.status)
		if len(answer.Causes) > 0 {
			page = answer.Causes[0].Page
		}
		if page != c.page {
			t.Errorf("%q, %q: the page %q, want %q", c.operation, c.status, page, c.page)
		}
	}
	r, err := Read(strings.NewReader("ibv_reg_mr failed: Cannot allocate memory"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Roots[0].Causes, Answer("ibv_reg_mr", "ENOMEM").Causes); diff != "" {
		t.Errorf("-of the line +of its operation and status:\n%s", diff)
	}
}
