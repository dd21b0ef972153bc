// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

func TestConfigurationPage(t *testing.T) {
	checked := map[string]bool{}
	for _, b := range blocks(t) {
		first, _, _ := strings.Cut(b.Content, ":")
		if b.File != "docs/configuration.md" || b.Language != "yaml" || first != "memlock" && first != "rules" {
			continue
		}
		checked[first] = true
		got, err := policy.Parse([]byte(b.Content))
		if err == nil {
			_, err = policy.New(got)
		}
		if err != nil {
			t.Errorf("%v:\n%s", err, b.Content)
		}
		if strings.Contains(b.Content, "\nrules:") {
			if diff := cmp.Diff(policy.Default(), got); diff != "" {
				t.Errorf("the page's defaults, -real +page:\n%s", diff)
			}
		}
	}
	if !checked["memlock"] || !checked["rules"] {
		t.Errorf("found the blocks that begin with %v, want memlock and rules", checked)
	}
}

// refusals are the cases of the table in docs/pods.md, in its order.
var refusals = []struct {
	name       string
	config     string
	annotation string
	holds      bool
	namespace  string
}{
	{name: "namespace not listed", annotation: "true"},
	{name: "another HCA", annotation: "{devices: [mlx5_1]}", holds: true},
	{name: "more memlock", config: "memlock: 16Gi", annotation: "{memlock: 32Gi}", holds: true},
	{name: "no memory limit", config: "memlock: memory-limit", holds: true},
	{name: "no such HCA", config: "inject: {namespaces: [team-a]}", annotation: "{devices: [mlx5_7]}"},
	{name: "unreadable", annotation: "ture", holds: true},
}

// TestRefusalsPage checks the messages of the table. -update writes them.
func TestRefusalsPage(t *testing.T) {
	file := repository.Path(t, "docs/pods.md")
	page := repository.Read(t, "docs/pods.md")
	rows := regexp.MustCompile("(?m)^\\| [^|]* \\| `([^`]*)` \\|$").FindAllStringSubmatchIndex(page, -1)
	if len(rows) != len(refusals) {
		t.Fatalf("%d messages in docs/pods.md, want %d", len(rows), len(refusals))
	}
	var said strings.Builder
	written := 0
	for i, test := range refusals {
		got := decide(t, test.config, policy.Container{
			Namespace: test.namespace, Pod: "p", Name: "c", Annotations: annotations(test.annotation),
			Devices: devices(test.holds),
		})
		if got.Refusal == nil {
			t.Fatalf("%s: not refused: %+v", test.name, got)
		}
		said.WriteString(page[written:rows[i][2]] + got.Refusal.Message)
		written = rows[i][3]
	}
	golden.Compare(t, file, said.String()+page[written:])
}

// TestAnnotationsInTexts checks that the policy understands each value of the table in docs/pods.md, and those in README.md,
// which has each word.
func TestAnnotationsInTexts(t *testing.T) {
	said := policy.AnnotationVocabulary()
	for _, word := range said.Words() {
		if !strings.Contains(repository.Read(t, "README.md"), "`\""+word+"\"`") {
			t.Errorf("README.md: say below The annotation what `%q` does", word)
		}
	}
	for file, value := range map[string]string{"README.md": "`(\"[a-z]+\"|\\{(?:" + strings.Join(said.Keys, "|") + "): [^`]*)`",
		"docs/pods.md": "(?m)^\\| `([^`]*)` \\| "} {
		rows := regexp.MustCompile(value).FindAllStringSubmatch(repository.Read(t, file), -1)
		if len(rows) < 3 {
			t.Errorf("%d values in %s, want 3 at least", len(rows), file)
		}
		for _, row := range rows {
			got := decide(t, "inject: {namespaces: [team-a]}",
				policy.Container{Annotations: annotations(strings.Trim(row[1], `"`))})
			if got.Refusal != nil {
				t.Errorf("%s: %s: %s", file, row[1], got.Refusal.Message)
			}
		}
	}
}

// aValue is a value of the annotation in the table of docs/pods.md, and what else its row has.
var aValue = regexp.MustCompile("(?m)^\\| `(?:\"([a-z]+)\"|\\{(\\w+): [^`]*)` \\| (.*)\\|$")

// TestAnnotationTable checks that the table in docs/pods.md has all that an annotation may say.
func TestAnnotationTable(t *testing.T) {
	said := policy.AnnotationVocabulary()
	rows := map[string]string{}
	for _, row := range aValue.FindAllStringSubmatch(repository.Read(t, "docs/pods.md"), -1) {
		rows[row[1]+row[2]] = row[3]
	}
	want := slices.Concat(said.Words(), said.Keys)
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(rows))); diff != "" {
		t.Errorf("docs/pods.md: the annotation's table has one row for each word, and one for each key, want these (-want +got):\n%s", diff)
	}
	for _, word := range said.Devices {
		if !strings.Contains(rows["devices"], "`"+word+"`") {
			t.Errorf("docs/pods.md: the row of devices does not have `%s`", word)
		}
	}
}

// decide decides about a container, in namespace team-a if it has none, on a node with the HCA mlx5_0.
func decide(t *testing.T, config string, c policy.Container) policy.Decision {
	t.Helper()
	if config == "" {
		config = "{}" // the defaults
	}
	p, err := policy.FromText([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	if c.Namespace == "" {
		c.Namespace = "team-a"
	}
	verbs := hca.Device{Kind: hca.KindVerbs, Path: "/dev/infiniband/uverbs0", Number: hca.Number{Major: 231,
		Minor: 192}, HCA: "mlx5_0"}
	return p.Decide(c, policy.Facts{
		Verbs: func(n hca.Number) (hca.Device, bool, error) { return verbs, n == verbs.Number, nil },
		HCAs: policy.ReadNow(func() (*hca.Inventory, error) {
			return &hca.Inventory{HCAs: []hca.HCA{{
				Name: "mlx5_0", NUMANode: -1, Devices: []hca.Device{verbs},
				Ports: []hca.Port{{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand"}},
			}}}, nil
		}),
	})
}

func annotations(value string) map[string]string {
	if value == "" {
		return nil
	}
	return map[string]string{policy.AnnotationKey: value}
}

func devices(holds bool) []policy.Device {
	if !holds {
		return nil
	}
	return []policy.Device{{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231, Minor: 192}}
}
