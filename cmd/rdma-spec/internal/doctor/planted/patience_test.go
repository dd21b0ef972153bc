// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// Checks look side by side, also those that need one another: together they take as long as the slowest.
func TestChecksLookSideBySide(t *testing.T) {
	s := open(t, hcatest.Files{})
	synctest.Test(t, func(t *testing.T) {
		slow := func(id string, needs []string, findings ...doctor.Finding) doctor.Check {
			return doctor.Check{ID: id, Family: id, Title: id + " holds.", Needs: needs, Look: func(*doctor.View) []doctor.Finding {
				time.Sleep(8 * time.Second)
				return findings
			}}
		}
		start := time.Now()
		got := doctor.Run(t.Context(), s, []doctor.Check{slow("a", nil, doctor.Fault("HCA a", "It is bad.", "")),
			slow("b", []string{"a"}, doctor.Fault("HCA a", "It is bad.", "")), slow("c", []string{"b"})})
		if diff := cmp.Diff([]string{"a wrong HCA a", "b skipped HCA a", "c ok"}, summary(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if took := time.Since(start); took != 8*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// A look that missed a whole family is not well: it says which. What no container sees is not missed there.
func TestMissedFamilies(t *testing.T) {
	const unseen = "The files cannot be seen from here: run the doctor on the node itself."
	family := func(name string, findings ...doctor.Finding) (all []doctor.Finding) {
		for _, f := range findings {
			f.Family, f.Check = name, name+"-check"
			all = append(all, f)
		}
		return all
	}
	ok, unsure, blind := doctor.Finding{Status: doctor.OK}, doctor.Unsure("", "No answer."), doctor.Unsure("", unseen)
	for name, test := range map[string]struct {
		findings [][]doctor.Finding
		want     string
	}{
		"all is well":             {[][]doctor.Finding{family("a", ok), family("b", ok, unsure)}, ""},
		"a family is missed":      {[][]doctor.Finding{family("a", ok), family("b", unsure, unsure), family("c", unsure)}, "b, c"},
		"a container":             {[][]doctor.Finding{family("a", ok), family("b", blind)}, ""},
		"a daemon of a container": {[][]doctor.Finding{family("a", ok), family("b", blind, unsure)}, "b"},
		"nothing is seen":         {[][]doctor.Finding{family("a", blind), family("b", blind)}, "a, b"},
		"skipped":                 {[][]doctor.Finding{family("a", ok), family("b", doctor.Finding{Status: doctor.Skipped})}, "b"},
		"wrong":                   {[][]doctor.Finding{family("a", unsure), family("b", doctor.Fault("", "", ""))}, "problem found"},
	} {
		var all []doctor.Finding
		for _, f := range test.findings {
			all = append(all, f...)
		}
		err := doctor.Concluded(all)
		got := ""
		if err != nil {
			got = strings.TrimSuffix(strings.TrimPrefix(err.Error(), "not looked at: "), ": the results list why")
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
