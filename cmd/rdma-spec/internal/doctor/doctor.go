// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor finds faults on an RDMA node, and suggests fixes.
//
// A check is data: a name, the files to read, the checks to run first, and a pure function from a node to findings.
// Package doctor runs the checks, and its subpackages define them. A check changes nothing on the node. Decisions about
// containers belong in package policy.
//
// If a check cannot determine a result, the status of the check is unknown, which is not a fault. Each cause is
// reported only once. If a check depends on another check that has found a fault, the dependent check is skipped, and
// its result names the other check.
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

// Status is the result of a check.
type Status string

// The statuses.
const (
	OK         Status = "ok"
	Wrong      Status = "wrong"
	Unknown    Status = "unknown"
	NotApplied Status = "not applicable" // the check does not apply to this node
	Ignored    Status = "ignored"        // wrong or unknown, and an administrator ignores the result
	Skipped    Status = "skipped"        // a check that this one depends on is wrong, or both are unknown
)

// FixType is the type of a fix: a safe command, a disruptive command, or a manual step.
type FixType string

// The types. A fix without a type is manual.
const (
	FixSafe       FixType = "safe"       // a command that does not affect running programs on this node
	FixDisruptive FixType = "disruptive" // a command that affects running programs; Finding.Warning describes the effect
	FixManual     FixType = "manual"     // a step for a person, who decides when to do it
)

// words returns the text that people read.
func (t FixType) words() string {
	if t == FixSafe {
		return "safe to run now"
	}
	return string(t)
}

// Grace is the divisor of the timeout for the time that a check can spend in addition to its waiting.
const Grace = 4

// Check examines one possible fault of a node.
type Check struct {
	ID     string // stable: "port-active"
	Family string // such as "hca"
	Title  string // the condition that the check expects: "Each port is ACTIVE."
	// NoMessages is the symptom of a fault without messages. docs/troubleshoot.md lists the messages of other faults.
	NoMessages string
	Impact     string // the effect of a fault
	// Reads are the files and directories below the root that the check reads in addition to those of Inventory, as
	// patterns of path.Match. The check cannot read other files. collect copies these files.
	Reads []string
	Needs []string // the checks that the findings depend on
	Look  Look
}

// Look examines a node. A result without findings means that the check is ok.
type Look func(*View) []Finding

// Finding is the result of a check for an object.
type Finding struct {
	// Check is the check's name.
	Check string `json:"check"`
	// Status is the check's result for the object.
	Status Status `json:"status"`
	// Object is the subject of the finding, such as "HCA mlx5_0 port 1" or "container ml/train-0 worker". It is omitted
	// for the node. A fault of an object also affects objects whose name begins with the object's name and a space.
	Object string `json:"object,omitempty"`
	// Text describes the result in a sentence.
	Text string `json:"text,omitempty"`
	// Impact is the effect of the fault.
	Impact string `json:"impact,omitempty"`
	// Fix is a command or a manual step.
	Fix string `json:"fix,omitempty"`
	// FixType is the type of the fix: safe, disruptive, or manual.
	FixType FixType `json:"fixType,omitempty"`
	// Warning is the effect of a disruptive fix on running programs.
	Warning string `json:"warning,omitempty"`
	// Affected is a command that shows what a disruptive fix affects.
	Affected string `json:"affected,omitempty"`
	// Docs is the URL of the check's page.
	Docs string `json:"docs,omitempty"`
	// Entry is the entry for doctor.yaml that ignores the finding.
	Entry  string `json:"ignore,omitempty"`
	Family string `json:"-"`
	// Root is the status of the finding that caused this one to be skipped: wrong or unknown.
	Root Status `json:"root,omitempty"`
}

// Fault returns a finding about a fault of an object, with a manual fix.
func Fault(object, text, fix string) Finding {
	return Finding{Status: Wrong, Object: object, Text: text, Fix: fix}
}

// Command returns a fault whose fix is a command. sideEffects determines the effect of the command on running programs.
func (f Finding) Command() Finding {
	f.FixType = FixSafe
	return f
}

// Disruptive returns a fault whose fix is a command that affects running programs, with a warning and a command that
// shows the affected programs.
func (f Finding) Disruptive(warning, affected string) Finding {
	f.FixType = FixDisruptive
	f.Warning = warning
	f.Affected = affected
	return f
}

// Unsure returns a finding with the status unknown.
func Unsure(object, text string) Finding {
	return Finding{Status: Unknown, Object: object, Text: text}
}

// Told returns information about an object. Its status is ok.
func Told(object, format string, args ...any) Finding {
	return Finding{Status: OK, Object: object, Text: fmt.Sprintf(format, args...)}
}

// Inapplicable returns the finding of a check that does not apply to this node, with the reason.
func Inapplicable(text string) []Finding { return []Finding{{Status: NotApplied, Text: text}} }

// Named returns the checks with the given identifiers or families, and the checks that they need, in the order of all.
// It also returns the identifiers of the named checks.
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
	for i := 0; i < len(wanted); i++ { // wanted grows by the needed checks
		at := slices.IndexFunc(all, func(c Check) bool { return c.ID == wanted[i] })
		wanted = append(wanted, all[at].Needs...)
	}
	return slices.DeleteFunc(slices.Clone(all), func(c Check) bool { return !slices.Contains(wanted, c.ID) }), named, nil
}

// Each calls look for each element, and returns all findings.
func Each[T any](all []T, look func(T) []Finding) (found []Finding) {
	for _, one := range all {
		found = append(found, look(one)...)
	}
	return found
}

// Run runs checks on a node and returns their findings, in the order of the checks. Each check has at least one
// finding.
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

// result contains the findings of a check when done is closed.
type result struct {
	done     chan struct{}
	findings []Finding
}

// evaluate examines the node immediately, so that all daemons are queried in parallel, and then waits for the checks
// that this check needs. A needed check that is not among the results counts as ok.
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
				return []Finding{{Status: Skipped, Text: fmt.Sprintf("The check depends on %s.", id), Root: Wrong}}
			default:
				causes = append(causes, f)
			}
		}
	}
	return c.complete(findings, causes)
}

// look returns the findings, or a finding that the check timed out or was interrupted.
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
		return []Finding{{Status: Unknown, Text: "The check was interrupted."}}
	}
}

// complete adds the check's fields to findings, and skips findings whose cause another check has found. A wrong finding
// stays wrong if the cause is only unknown.
func (c *Check) complete(findings, causes []Finding) []Finding {
	var kept []Finding
	for _, f := range findings {
		i := slices.IndexFunc(causes, func(cause Finding) bool {
			return cause.explains(f) && (f.Status == Unknown || f.Status == Wrong && cmp.Or(cause.Root, cause.Status) == Wrong)
		})
		if i >= 0 {
			f = Finding{Status: Skipped, Object: f.Object, Text: fmt.Sprintf("The check depends on %s.", causes[i].Check),
				Root: cmp.Or(causes[i].Root, causes[i].Status)}
			if strings.Contains(causes[i].Text, node.NotFromHere) {
				f.Text = fmt.Sprintf("The check depends on %s, which is %s.", causes[i].Check, node.NotFromHere)
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

// explains reports whether a finding about one object explains another finding, such as an HCA and its ports.
func (f Finding) explains(other Finding) bool {
	return other.Object == f.Object || strings.HasPrefix(other.Object, f.Object+" ")
}

// CompareVersions compares versions such as v1.7.35, 1.29.0+git, and 28.39.2048. It returns 0 if a version cannot be
// parsed.
func CompareVersions(a, b string) int {
	first, err := version.ParseGeneric(a)
	if err != nil {
		return 0
	}
	order, _ := first.Compare(b) // 0 with an error
	return order
}

// Sentence joins problems into a sentence.
func Sentence(problems []string) string {
	text := strings.TrimSuffix(strings.Join(problems, "; "), ".")
	if text == "" {
		return ""
	}
	if first, _, _ := strings.Cut(text, " "); strings.ContainsAny(first, "0123456789_/=") { // a name stays unchanged
		return text + "."
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
