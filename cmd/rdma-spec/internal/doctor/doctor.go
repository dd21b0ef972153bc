// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor finds faults of an RDMA node, and says how to fix them.
//
// A check is data: a name, what it reads, what it depends on, and a pure function from a node to findings. This package
// runs checks, and the packages below it define them. It changes nothing on the node. It makes no decisions about
// containers; package policy does.
//
// If a check cannot determine a result, its status is unknown, which is not a fault. One cause is reported once: if a
// check depends on another check that has found a fault, it is skipped, and its result says so.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/rdma-spec/rdma-spec/cmd/internal/cli"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/docs"
	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// Status is what a check finds.
type Status string

// The statuses.
const (
	OK         Status = "ok"
	Wrong      Status = "wrong"
	Unknown    Status = "unknown"
	NotApplied Status = "not applicable" // there is nothing on this node to look at
	Ignored    Status = "ignored"        // it is wrong or unknown, and an administrator knows
	Skipped    Status = "skipped"        // what the check depends on is wrong, or as unknown as this
)

// FixType says how a fix is followed, and whether it is safe.
type FixType string

// The types. A fix that says nothing else is manual.
const (
	FixSafe       FixType = "safe"       // a command that takes nothing from what runs on this node
	FixDisruptive FixType = "disruptive" // a command that does: Finding.Warning says who loses what, and how to check
	FixManual     FixType = "manual"     // what to do; only people can judge when
)

// words are what people read.
func (t FixType) words() string {
	if t == FixSafe {
		return "safe to run now"
	}
	return string(t)
}

// Grace is what a check may need beside what it waits for, as a part of the timeout.
const Grace = 4

// Check looks at one thing that can be wrong with a node.
type Check struct {
	ID     string // stable: "port-active"
	Family string // "hca": the file that it is in
	Title  string // what holds where it is ok: "Each port is ACTIVE."
	// NoMessages is what people see where no program says anything. docs/troubleshoot.md has the messages of the others.
	NoMessages string
	Impact     string // why a fault matters
	// Reads are the files and directories below the root that it reads beside those of Inventory, as patterns of
	// path.Match. It can read no others, and collect copies them.
	Reads []string
	Needs []string // the checks without which its findings mean nothing
	Look  Look
}

// Look is how a check looks at a node. Finding nothing means that all is well.
type Look func(*View) []Finding

// Finding is what a check says about an object.
type Finding struct {
	// Check is the check's name.
	Check string `json:"check"`
	// Status is the check's result for the object.
	Status Status `json:"status"`
	// Object is what the finding is about, such as "HCA mlx5_0 port 1" or "container ml/train-0 worker". It is omitted
	// for the node. A fault of an object also affects objects whose name begins with the object's name and a space.
	Object string `json:"object,omitempty"`
	// Text says in one sentence what was found.
	Text string `json:"text,omitempty"`
	// Impact is what the fault does.
	Impact string `json:"impact,omitempty"`
	// Fix is a command, or what to do.
	Fix string `json:"fix,omitempty"`
	// FixType says whether the fix is a command that is safe to run now.
	FixType FixType `json:"fixType,omitempty"`
	// Warning says what a disruptive fix disrupts, such as "the pod that has it loses it; check first: rdma-spec status".
	Warning string `json:"warning,omitempty"`
	// Docs is the URL of the check's page.
	Docs string `json:"docs,omitempty"`
	// Entry is the entry for doctor.yaml that ignores the finding.
	Entry  string `json:"ignore,omitempty"`
	Family string `json:"-"`
	// Root is the status of the finding because of which this one was skipped: wrong or unknown.
	Root Status `json:"root,omitempty"`
}

// Fault is what is wrong with an object. Its fix is manual.
func Fault(object, text, fix string) Finding {
	return Finding{Status: Wrong, Object: object, Text: text, Fix: fix}
}

// Command returns a fault whose fix is a command. What it takes from what runs on the node is computed: see
// sideEffects.
func (f Finding) Command() Finding {
	f.FixType = FixSafe
	return f
}

// Disruptive returns a fault whose fix is a command that takes something from what runs, wherever that is: who loses
// what, and how to check that first.
func (f Finding) Disruptive(loses, see string) Finding {
	f.FixType = FixDisruptive
	f.Warning = loses + "; check first: " + see
	return f
}

// Unsure is what cannot be known of an object.
func Unsure(object, text string) Finding {
	return Finding{Status: Unknown, Object: object, Text: text}
}

// Told is what people should know of an object, and is no fault.
func Told(object, format string, args ...any) Finding {
	return Finding{Status: OK, Object: object, Text: fmt.Sprintf(format, args...)}
}

// Inapplicable is why there is nothing on this node to look at.
func Inapplicable(text string) []Finding { return []Finding{{Status: NotApplied, Text: text}} }

// Named returns the checks that are named, by their identifier or all of a family by its name, and those that they
// need, in the order of all; and the identifiers of those that are named.
func Named(all []Check, names ...string) (checks []Check, named []string, err error) {
	for _, name := range names {
		before := len(named)
		for _, c := range all {
			if c.ID == name || c.Family == name {
				named = append(named, c.ID)
			}
		}
		if len(named) == before {
			var known []string
			for _, c := range all {
				known = append(known, c.ID, c.Family)
			}
			return nil, nil, fmt.Errorf("no check or family %q%s", name, cli.DidYouMean(name, known))
		}
	}
	wanted := slices.Clone(named)
	for i := 0; i < len(wanted); i++ { // which grows by what they need
		at := slices.IndexFunc(all, func(c Check) bool { return c.ID == wanted[i] })
		wanted = append(wanted, all[at].Needs...)
	}
	return slices.DeleteFunc(slices.Clone(all), func(c Check) bool { return !slices.Contains(wanted, c.ID) }), named, nil
}

// Each looks at several things, one by one.
func Each[T any](all []T, look func(T) []Finding) (found []Finding) {
	for _, one := range all {
		found = append(found, look(one)...)
	}
	return found
}

// Run runs checks on a node and returns their findings, in the order of the checks: at least one for each.
func Run(ctx context.Context, s *node.Snapshot, checks []Check) []Finding {
	results := make(map[string]*result, len(checks))
	for _, c := range checks {
		results[c.ID] = &result{done: make(chan struct{})}
	}
	var group sync.WaitGroup
	for _, c := range checks {
		group.Go(func() {
			mine := results[c.ID]
			defer close(mine.done)
			mine.findings = c.evaluate(ctx, s, results)
			for i := range mine.findings {
				mine.findings[i].Check = c.ID
				mine.findings[i].Family = c.Family
			}
		})
	}
	group.Wait()
	var all []Finding
	for _, c := range checks {
		all = append(all, results[c.ID].findings...)
	}
	return all
}

// result is what a check found, once it is done.
type result struct {
	done     chan struct{}
	findings []Finding
}

// evaluate looks at once, so that all daemons are asked side by side, and then waits for the checks that this one
// needs. A needed check that is not among the results counts as ok.
func (c *Check) evaluate(ctx context.Context, s *node.Snapshot, results map[string]*result) []Finding {
	findings := c.look(ctx, s)
	var causes []Finding
	for _, id := range c.Needs {
		needed, ok := results[id]
		if !ok {
			continue
		}
		<-needed.done
		for _, f := range needed.findings {
			switch root := cmp.Or(f.Root, f.Status); {
			case root != Wrong && (root != Unknown || f.Object == ""):
			case f.Object == "":
				return []Finding{{Status: Skipped, Text: fmt.Sprintf("It depends on %s.", id), Root: Wrong}}
			default:
				causes = append(causes, f)
			}
		}
	}
	return c.complete(findings, causes)
}

// look returns what the check finds in time.
func (c *Check) look(ctx context.Context, s *node.Snapshot) []Finding {
	found := make(chan []Finding, 1)
	go func() {
		v := &View{s, c}
		findings := c.Look(v)
		for i := range findings {
			findings[i] = findings[i].weighed(v)
		}
		found <- findings
	}()
	within := cmp.Or(s.Timeout, node.Daemons)
	select {
	case findings := <-found:
		return findings
	case <-time.After(within + within/Grace):
		return []Finding{{Status: Unknown, Text: fmt.Sprintf("The check timed out after %s.", within)}}
	case <-ctx.Done():
		return []Finding{{Status: Unknown, Text: "It was interrupted."}}
	}
}

// complete gives findings what they have from their check, and skips those whose cause another check has found. What is
// wrong stays wrong where a cause is only unknown.
func (c *Check) complete(findings, causes []Finding) []Finding {
	var kept []Finding
	for _, f := range findings {
		i := slices.IndexFunc(causes, func(cause Finding) bool {
			return cause.explains(f) && (f.Status == Unknown || f.Status == Wrong && cmp.Or(cause.Root, cause.Status) == Wrong)
		})
		if i >= 0 {
			f = Finding{Status: Skipped, Object: f.Object, Text: fmt.Sprintf("It depends on %s.", causes[i].Check),
				Root: cmp.Or(causes[i].Root, causes[i].Status)}
			if strings.Contains(causes[i].Text, node.NotFromHere) {
				f.Text = fmt.Sprintf("It depends on %s, which %s.", causes[i].Check, node.NotFromHere)
			}
		}
		if f.Status == Wrong {
			f.Impact = c.Impact
			f.Docs = docs.FaultAddress(c.ID)
			f.FixType = cmp.Or(f.FixType, FixManual)
		}
		kept = append(kept, f)
	}
	slices.SortStableFunc(kept, func(a, b Finding) int { return hca.CompareNatural(a.Object, b.Object) })
	if len(kept) == 0 {
		return []Finding{{Status: OK, Text: c.Title}}
	}
	return kept
}

// explains reports whether what is wrong with one object is wrong with another too: an HCA with its ports.
func (f Finding) explains(other Finding) bool {
	return other.Object == f.Object || strings.HasPrefix(other.Object, f.Object+" ")
}

// CompareVersions compares versions such as v1.7.35, 1.29.0+git and 28.39.2048. One that cannot be read is neither
// older nor newer.
func CompareVersions(a, b string) int {
	first, err := version.ParseGeneric(a)
	if err != nil {
		return 0
	}
	order, _ := first.Compare(b) // 0 with an error
	return order
}

// Sentence makes a sentence of problems.
func Sentence(problems []string) string {
	text := strings.TrimSuffix(strings.Join(problems, "; "), ".")
	if text == "" {
		return ""
	}
	if first, _, _ := strings.Cut(text, " "); strings.ContainsAny(first, "0123456789_/=") { // a name, which stays as it is
		return text + "."
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
