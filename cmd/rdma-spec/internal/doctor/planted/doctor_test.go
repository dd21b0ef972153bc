// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor/hardware"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// open opens the node of these files, and openBelow that below a root.
func open(t testing.TB, files hcatest.Files) *node.Snapshot {
	t.Helper()
	root := files.Root(t)
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil { // else it is not a copy of a node
		t.Fatal(err)
	}
	return openBelow(t, root)
}

func openBelow(t testing.TB, root string) *node.Snapshot {
	t.Helper()
	s, err := node.Open(node.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// finds makes a check that finds these.
func finds(id string, needs []string, findings ...doctor.Finding) doctor.Check {
	return doctor.Check{ID: id, Title: id + " holds.", Needs: needs, Impact: "because",
		Look: func(*doctor.View) []doctor.Finding { return findings }}
}

// summary is a line for each finding: the check, its status, and its object.
func summary(findings []doctor.Finding) []string {
	var lines []string
	for _, f := range findings {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Check, f.Status, f.Object)))
	}
	return lines
}

// What depends on something that is wrong is skipped, for its object. What is only unknown hides no fault.
func TestRun_skipsDependents(t *testing.T) {
	port := func(object string) doctor.Finding { return doctor.Fault(object, "It is bad.", "fix it") }
	checks := []doctor.Check{
		finds("third", []string{"second"}, port("HCA a port 1"), port("HCA b")),
		finds("first", nil, port("HCA a"), doctor.Unsure("HCA c", "It does not answer.")),
		finds("second", []string{"first", "not there"}, port("HCA a port 1"), port("HCA ab"), port("HCA c"),
			doctor.Finding{Status: doctor.OK, Object: "HCA a"}),
		finds("all", nil, port("")),
		finds("after all", []string{"all"}, port("HCA a")),
		finds("after that", []string{"after all"}, port("HCA a")),
	}
	got := doctor.Run(t.Context(), open(t, hcatest.Files{}), checks)
	want := []string{
		"third skipped HCA a port 1", "third wrong HCA b",
		"first wrong HCA a", "first unknown HCA c",
		"second ok HCA a", "second skipped HCA a port 1", "second wrong HCA ab", "second wrong HCA c",
		"all wrong", "after all skipped", "after that skipped",
	}
	if diff := cmp.Diff(want, summary(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got[1].Impact != "because" || got[1].Docs != docs.Site+"faults/third" || got[0].Impact != "" {
		t.Errorf("%+v", got[:2])
	}
	if healthy := doctor.Run(t.Context(), open(t, hcatest.Files{}), []doctor.Check{finds("x", nil)}); len(healthy) != 1 ||
		healthy[0].Text != "x holds." {
		t.Errorf("%+v", healthy)
	}
}

// A skip keeps what its root is: what is wrong is not hidden behind a skip whose root is unknown, and an unknown is.
func TestRun_unknownHidesNoFault(t *testing.T) {
	skipped := doctor.Finding{Status: doctor.Skipped, Text: "The check depends on log.", Root: doctor.Unknown}
	got := doctor.Run(t.Context(), open(t, hcatest.Files{}), []doctor.Check{
		finds("log", nil, doctor.Unsure("", "It cannot be read.")),
		finds("symbols", []string{"log"}, skipped),
		finds("peermem", []string{"symbols"}, doctor.Fault("module nvidia_peermem", "It is not loaded.", "modprobe")),
		finds("port", nil, doctor.Unsure("HCA b port 1", "It cannot be read.")),
		finds("rate", []string{"port"}, doctor.Unsure("HCA b port 1", "It cannot be read.")),
		finds("card", nil, doctor.Fault("HCA a", "It is bad.", "fix it")),
		finds("on it", []string{"card"}, doctor.Unsure("HCA a port 1", "Who knows.")),
		finds("below", []string{"on it"}, doctor.Fault("HCA a port 1", "It is bad.", "fix it")),
	})
	want := []string{"log unknown", "symbols skipped", "peermem wrong module nvidia_peermem", "port unknown HCA b port 1", "rate skipped HCA b port 1",
		"card wrong HCA a", "on it skipped HCA a port 1", "below skipped HCA a port 1"}
	if diff := cmp.Diff(want, summary(got)); diff != "" || got[4].Root != doctor.Unknown || got[7].Root != doctor.Wrong {
		t.Errorf("%+v (-want +got):\n%s", got, diff)
	}
}

// A check that hangs is unknown after its timeout, and the others are not.
func TestRun_timeout(t *testing.T) {
	s := open(t, hcatest.Files{})
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		start := time.Now()
		got := doctor.Run(t.Context(), s, []doctor.Check{
			{ID: "hangs", Look: func(*doctor.View) []doctor.Finding { <-hang; return nil }},
			finds("after", []string{"hangs"}),
		})
		if diff := cmp.Diff([]string{"hangs unknown", "after ok"}, summary(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if took := time.Since(start); took != node.Daemons+node.Daemons/doctor.Grace {
			t.Errorf("it took %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got = doctor.Run(ctx, s, []doctor.Check{{ID: "hangs",
			Look: func(*doctor.View) []doctor.Finding { <-hang; return nil }}})
		if got[0].Status != doctor.Unknown || got[0].Text != "The check was interrupted." {
			t.Errorf("%+v", got)
		}
	})
}

func TestNamed(t *testing.T) {
	all := []doctor.Check{finds("a", nil), finds("b", []string{"c"}), finds("c", []string{"a"}), finds("d", nil)}
	all[1].Family, all[3].Family = "family", "family"
	for wanted, want := range map[string]string{"b": "a b c", "d": "d", "c d": "a c d", "": "", "family": "a b c d"} {
		checks, named, err := doctor.Named(all, strings.Fields(wanted)...)
		var got []string
		for _, c := range checks {
			got = append(got, c.ID)
		}
		if err != nil || strings.Join(got, " ") != want ||
			strings.Join(named, " ") != strings.Replace(wanted, "family", "b d", 1) {
			t.Errorf("%s: %v, %v", wanted, got, err)
		}
	}
	if _, _, err := doctor.Named(all, "e"); err == nil || err.Error() != `no check or family "e"` {
		t.Error(err)
	}
}

// A container sees a part of its node: what is not mounted there is unknown, and neither in order nor wrong.
func TestRun_directoriesNotMounted(t *testing.T) {
	for name, mounted := range map[string]bool{"on the node": true, "in a container": false} {
		files := healthyNode()
		maps.DeleteFunc(files, func(file string, _ string) bool {
			return !mounted && (strings.HasPrefix(file, "sys/bus/") || strings.HasPrefix(file, "sys/fs/cgroup/"))
		})
		found := map[string]doctor.Status{}
		for _, f := range doctor.Run(t.Context(), open(t, files), hardware.Checks()) {
			if f.Status == doctor.Wrong {
				t.Errorf("%s: %+v", name, f)
			}
			found[f.Check] = f.Status
		}
		want := map[bool]doctor.Status{true: doctor.OK, false: doctor.Unknown}[mounted]
		for _, check := range []string{"hca-driver", "hca-present", "cgroup-rdma", "pcie-link", "gpu-direct",
			"acs", "iommu"} {
			if found[check] != want {
				t.Errorf("%s: %s is %s, want %s", name, check, found[check], want)
			}
		}
	}
}

// Checks look side by side, also those that need one another: together they take as long as the slowest.
func TestRun_looksInParallel(t *testing.T) {
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
func TestConcluded_missedFamilies(t *testing.T) {
	const unseen = "The files are not visible from here: run the doctor on the node itself."
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
			got = strings.TrimSuffix(strings.TrimPrefix(err.Error(), "not checked: "), " (for the reasons, see the results)")
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// An HCA that does not answer is wrong, what depends on it is skipped, and the others are looked at.
func TestHCAAnswers_silentHCA(t *testing.T) {
	files := healthyNode().With(hcatest.Files{at(3) + "/ports/1/state": "1: DOWN\n",
		at(3) + "/ports/1/counters/link_downed": "1\n"})
	root := files.Root(t)
	unblock := hcatest.Block(t, root, at(1)+"/ports/1/state")
	s := openBelow(t, root)
	s.ReadHCAs = node.ReadHere(root)
	start := time.Now()
	all := doctor.Run(t.Context(), s, checks())
	took := time.Since(start)
	unblock()
	if took < node.ItemTimeout || took > 2*node.ItemTimeout {
		t.Errorf("it took %s", took)
	}
	var of []string
	for _, f := range all {
		if strings.HasPrefix(f.Object, "HCA mlx5_1") || f.Status == doctor.Wrong {
			of = append(of, f.Check+" "+string(f.Status)+" "+f.Object)
		}
	}
	if of[0] != "hca-answers wrong HCA mlx5_1" || !slices.Contains(of, "port-active wrong HCA mlx5_3 port 1") ||
		!slices.Contains(of, "port-active skipped HCA mlx5_1") {
		t.Errorf("%q", of)
	}
	for _, line := range of[1:] {
		if strings.HasSuffix(line, "HCA mlx5_1") != strings.Contains(line, " skipped ") {
			t.Error(line)
		}
	}
}

// A copy of a node answers, however long that takes.
func TestHCAs_slowCopy(t *testing.T) {
	root := healthyNode().Root(t)
	time.AfterFunc(300*time.Millisecond, hcatest.Block(t, root, at(1)+"/ports/1/state"))
	s := openBelow(t, root)
	s.Timeout = 100 * time.Millisecond
	all, err := s.HCAs()
	if err != nil || slices.ContainsFunc(all.HCAs, func(h hca.HCA) bool { return h.Unread != "" }) {
		t.Errorf("%+v, %v", all, err)
	}
}

// Where the reader of HCAs is late because the node is slow, nothing is wrong with its HCAs.
func TestHCAs_slowReader(t *testing.T) {
	const timeout = 300 * time.Millisecond
	for name, takes := range map[string]struct{ start, answer time.Duration }{
		"to start":             {2 * timeout, 0},
		"to start and to read": {timeout / 2, 3 * timeout / 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, healthyNode())
			s.Timeout = timeout
			s.ReadHCAs = func(names []string) <-chan hca.HCA {
				time.Sleep(takes.start)
				answers := make(chan hca.HCA, len(names))
				time.AfterFunc(takes.answer, func() {
					for _, name := range names {
						answers <- hca.HCA{Name: name}
					}
				})
				return answers
			}
			all, err := s.HCAs()
			if err != nil || len(all.HCAs) != 6 {
				t.Fatal(all, err)
			}
			for _, h := range all.HCAs {
				if h.Unread != "" {
					t.Errorf("%+v", h)
				}
			}
		})
	}
}

// A directory that has nothing of a node is not a healthy one.
func TestDiagnose_notANode(t *testing.T) {
	_, _, err := doctor.Diagnose(t.Context(), node.Options{Root: scratch.Dir(t)}, checks(), nil, io.Discard)
	if err == nil || errors.Is(err, cli.ErrProblemFound) || !strings.Contains(err.Error(), "not a copy of a node") {
		t.Error(err)
	}
}
