// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
)

// open opens the node of these files.
func open(t testing.TB, files hcatest.Files, ask map[Question]Ask) *Node {
	t.Helper()
	node, err := Open(files.Root(t), ask)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	return node
}

// finds makes a check that finds these.
func finds(id string, needs []string, findings ...Finding) Check {
	return Check{ID: id, Title: id + " holds.", Needs: needs, Why: "because", Look: func(*View) []Finding { return findings }}
}

// summary is a line for each finding: the check, its status, and its object.
func summary(findings []Finding) []string {
	var lines []string
	for _, f := range findings {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Check, f.Status, f.Object)))
	}
	return lines
}

// What depends on something that is wrong is skipped, for the object that it is wrong with and what belongs to that.
func TestOneCauseIsOneAlarm(t *testing.T) {
	port := func(object string) Finding { return wrong(object, "It is bad.", "mend it") }
	checks := []Check{
		finds("third", []string{"second"}, port("HCA a port 1"), port("HCA b")),
		finds("first", nil, port("HCA a"), unknown("HCA c", "It does not answer.")),
		finds("second", []string{"first", "not there"}, port("HCA a port 1"), port("HCA ab"), port("HCA c"), Finding{Status: OK, Object: "HCA a"}),
		finds("all", nil, port("")),
		finds("after all", []string{"all"}, port("HCA a")),
		finds("after that", []string{"after all"}, port("HCA a")),
	}
	got := Run(t.Context(), open(t, hcatest.Files{}, nil), checks)
	want := []string{
		"third skipped HCA a port 1", "third wrong HCA b",
		"first wrong HCA a", "first unknown HCA c",
		"second skipped HCA a port 1", "second wrong HCA ab", "second skipped HCA c", "second ok HCA a",
		"all wrong", "after all skipped", "after that skipped",
	}
	if diff := cmp.Diff(want, summary(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got[1].Why != "because" || got[1].Docs != "docs/faults.md#third" || got[0].Why != "" {
		t.Errorf("%+v", got[:2])
	}
	if healthy := Run(t.Context(), open(t, hcatest.Files{}, nil), []Check{finds("x", nil)}); len(healthy) != 1 || healthy[0].Text != "x holds." {
		t.Errorf("%+v", healthy)
	}
}

// A check that hangs is unknown after its patience, and the others are not.
func TestPatience(t *testing.T) {
	node := open(t, hcatest.Files{}, nil)
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		start := time.Now()
		got := Run(t.Context(), node, []Check{
			{ID: "hangs", Look: func(*View) []Finding { <-hang; return nil }},
			finds("after", []string{"hangs"}),
		})
		if diff := cmp.Diff([]string{"hangs unknown", "after ok"}, summary(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if took := time.Since(start); took != Patience+Patience/grace {
			t.Errorf("it took %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got = Run(ctx, node, []Check{{ID: "hangs", Look: func(*View) []Finding { <-hang; return nil }}})
		if got[0].Status != Unknown || got[0].Text != "It was interrupted." {
			t.Errorf("%+v", got)
		}
	})
}

// A question is asked once, and its patience is its own: those who ask late wait no longer for it.
func TestQuestions(t *testing.T) {
	var asked atomic.Int32
	live := map[Question]Ask{
		"what": func(context.Context) (any, error) { asked.Add(1); return []string{"this"}, nil },
		"slow": func(ctx context.Context) (any, error) { <-ctx.Done(); return nil, ctx.Err() },
		"deaf": func(context.Context) (any, error) { time.Sleep(time.Hour); return nil, nil },
		"sick": func(context.Context) (any, error) { return nil, errors.New("no socket") },
	}
	copied := hcatest.Files{
		AnswersFolder + "/what": `{"answer": ["this"]}`, AnswersFolder + "/sick": `{"error": "no socket"}`, AnswersFolder + "/slow": "garbage",
	}
	nodes := map[string]*Node{"live": open(t, hcatest.Files{}, live), "copy": open(t, copied, live)}
	check := Check{ID: "asks", Asks: []Question{"what", "slow", "deaf", "sick"}}
	for name, node := range nodes {
		synctest.Test(t, func(t *testing.T) {
			for range 2 {
				var answer []string
				if err := (&View{node, &check}).Ask("what", &answer); err != nil || cmp.Diff([]string{"this"}, answer) != "" {
					t.Errorf("%s: %q, %v", name, answer, err)
				}
			}
			if err := (&View{node, &check}).Ask("sick", nil); err == nil || err.Error() != "no socket" {
				t.Errorf("%s: %v", name, err)
			}
			for _, q := range []Question{"slow", "deaf"} {
				start := time.Now()
				if err := (&View{node, &check}).Ask(q, nil); err == nil || time.Since(start) > Patience {
					t.Errorf("%s: %s: %v after %s", name, q, err, time.Since(start))
				}
			}
			if err := (&View{node, &check}).Ask("other", nil); !errors.Is(err, errUndeclared) {
				t.Errorf("%s: %v", name, err)
			}
			time.Sleep(time.Hour) // the deaf one ends
		})
	}
	if asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
}

func TestWith(t *testing.T) {
	all := []Check{finds("a", nil), finds("b", []string{"c"}), finds("c", []string{"a"}), finds("d", nil)}
	for wanted, want := range map[string]string{"b": "a b c", "d": "d", "c d": "a c d", "": ""} {
		checks, err := With(all, strings.Fields(wanted)...)
		var got []string
		for _, c := range checks {
			got = append(got, c.ID)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v", wanted, got, err)
		}
	}
	if _, err := With(all, "e"); err == nil || err.Error() != `there is no check "e"` {
		t.Error(err)
	}
}

// A container sees a part of its node: what is not mounted there is unknown, and neither in order nor wrong.
func TestFoldersThatAreNotMounted(t *testing.T) {
	for name, mounted := range map[string]bool{"on the node": true, "in a container": false} {
		files := healthyNode()
		maps.DeleteFunc(files, func(file string, _ string) bool {
			return !mounted && (strings.HasPrefix(file, "sys/bus/") || strings.HasPrefix(file, "sys/fs/cgroup/"))
		})
		found := map[string]Status{}
		for _, f := range Run(t.Context(), open(t, files, nil), hardware()) {
			if f.Status == Wrong {
				t.Errorf("%s: %+v", name, f)
			}
			found[f.Check] = f.Status
		}
		want := map[bool]Status{true: OK, false: Unknown}[mounted]
		for _, check := range []string{"hca-driver", "hca-present", "cgroup-rdma", "pcie-link", "gpu-direct", "acs", "gpu-hca-distance"} {
			if found[check] != want {
				t.Errorf("%s: %s is %s, want %s", name, check, found[check], want)
			}
		}
	}
}
