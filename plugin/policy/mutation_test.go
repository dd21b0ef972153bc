// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build mutation

package policy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// A mutant is this package without one of its guards. All mutants are compiled into one test binary, in which the
// environment variable MUTANT names the guard that is out of force; nothing in the source tree changes.
//
//	go test -tags mutation -run TestMutations ./plugin/policy

// guarded are the files with guards that attacks rely on. Those of other packages count where an attack names them.
var guarded = []string{"*.go", "../../spec/hca/devnode.go", "../../spec/limit.go"}

// TestMutations takes the guards away one by one and demands that each attack of the guard succeeds then: that its row
// fails.
func TestMutations(t *testing.T) {
	binary, guards := compileMutants(t)
	if out, err := runAttacks(binary, "", ".*"); err != nil {
		t.Fatalf("with all guards in force an attack succeeds: %v\n%s", err, out)
	}
	tested := map[string]bool{}
	for _, a := range attacks() {
		tested[a.guard] = true
		if _, found := guards[a.guard]; !found {
			t.Errorf("attack %s tests the guard %q, and there is none", a.name, a.guard)
			continue
		}
		t.Run(a.guard+"/"+a.name, func(t *testing.T) {
			t.Parallel()
			out, err := runAttacks(binary, a.guard, a.name)
			if err == nil {
				t.Errorf("%s: with the guard %q taken away the attack fails all the same: the row does not test it\n%s",
					guards[a.guard], a.guard, out)
			} else if !strings.Contains(out, "--- FAIL: TestAttacks/"+a.name) && !strings.Contains(out, "panic: ") {
				t.Errorf("the attack did not run: %v\n%s", err, out)
			}
		})
	}
	for guard, place := range guards {
		if !tested[guard] && !strings.HasPrefix(place, "..") {
			t.Errorf("%s: no attack tests the guard %q", place, guard)
		}
	}
	t.Logf("%d guards, %d attacks", len(tested), len(attacks()))
}

// runAttacks runs the rows that a pattern names with one guard out of force.
func runAttacks(binary, guard, rows string) (string, error) {
	cmd := exec.Command(binary, "-test.run", "^TestAttacks$/^"+rows+"$", "-test.timeout", "60s")
	cmd.Env = append(os.Environ(), "MUTANT="+guard)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// compileMutants returns the test binary that holds all mutants, and the place of each guard.
func compileMutants(t *testing.T) (binary string, guards map[string]string) {
	dir := scratch.Dir(t)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	replace := func(file, text string) {
		path, err := filepath.Abs(file)
		must.Succeed(t, err)
		overlay.Replace[path] = filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		scratch.File(t, overlay.Replace[path], text, 0o600)
	}
	guards = map[string]string{}
	for _, pattern := range guarded {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
		packageName := ""
		for _, file := range files {
			m := mutate(t, file)
			for guard, place := range m.guards {
				if at, twice := guards[guard]; twice {
					t.Errorf("%s and %s: two guards are called %q", at, place, guard)
				}
				guards[guard] = place
			}
			packageName = m.packageName
			replace(file, m.text)
		}
		replace(filepath.Join(filepath.Dir(files[0]), "mutants.go"), "package "+packageName+switches)
	}
	replace("mutants_scope.go", anyScope)
	text, err := json.Marshal(overlay)
	must.Succeed(t, err)
	overlayFile := filepath.Join(dir, "overlay.json")
	must.Succeed(t, os.WriteFile(overlayFile, text, 0o600))
	binary = filepath.Join(dir, "mutants.test")
	if out, err := exec.Command("go", "test", "-c", "-overlay", overlayFile, "-o", binary,
		".").CombinedOutput(); err != nil {
		t.Fatalf("the mutants do not compile: %v\n%s", err, out)
	}
	return binary, guards
}

// switches are what the mutants' source calls.
const switches = `

import "os"

var mutant = os.Getenv("MUTANT")

func mutated(guard string) bool { return mutant == guard }

func pick[T any](guard string, instead, usually T) T {
	if mutated(guard) {
		return instead
	}
	return usually
}
`

// anyScope is how a careless plugin would look for its annotation.
const anyScope = `package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
)

func anyScope(pod *api.PodSandbox, key, _ string) (string, bool) {
	for _, k := range slices.Sorted(maps.Keys(pod.GetAnnotations())) {
		if strings.Contains(strings.ToLower(k), "rdma.") {
			return pod.GetAnnotations()[k], true
		}
	}
	return "", false
}
`
