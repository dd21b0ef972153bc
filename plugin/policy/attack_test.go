// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-spec/rdma-spec/spec"
	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
)

// attack is one way in which a pod's author, or an administrator who is off guard, could let more out than the policy
// means to give. It names the guard that stands in the way: TestMutations takes each guard away and demands that its
// attacks succeed then.
type attack struct {
	guard, name string
	config      string                 // "": restrictive
	node        func(testing.TB) Facts // nil: A100, with mlx5_0 down, mlx5_1 up and the Ethernet HCA mlx5_bond_0
	container   subject
	missing     bool // the configuration cannot be read

	refused   Cause       // how it ends: refused for this cause,
	badConfig bool        // or as early as in the configuration,
	says      string      // with this in the message;
	gets      *spec.Grant // or with this and no more: nil is nothing at all
}

// attacks are all rows of the table.
func attacks() []attack {
	return slices.Concat(annotationAttacks(), numberAttacks(), signalAttacks(), ceilingAttacks(), unknownAttacks(),
		deviceAttacks(), configAttacks(), noPolicyAttacks(), authorAttacks())
}

// patience is how long a decision may take before it counts as stalled. It takes microseconds.
const patience = 3 * time.Second

func TestAttacks(t *testing.T) {
	names, root := map[string]bool{}, hcatest.A100(t)
	for _, a := range attacks() {
		if names[a.name] {
			t.Errorf("two attacks are called %s", a.name)
		}
		names[a.name] = true
		t.Run(a.name, func(t *testing.T) { a.fails(t, root) })
	}
	if len(names) <= 143 {
		t.Errorf("there are %d attacks, want more than 143", len(names))
	}
}

// fails demands that an attack fails as it should; root is A100's.
func (a attack) fails(t *testing.T, root string) {
	config := a.config
	if config == "" {
		config = restrictive
	}
	p, err := FromText([]byte(config))
	if a.badConfig != (err != nil) {
		t.Fatalf("invalid configuration: %v, want that: %v", err, a.badConfig)
	}
	if a.missing {
		p = Missing(errors.New("/etc/rdma-spec/config.yaml: memlok: unknown key"))
	}
	if err != nil {
		if !strings.Contains(err.Error(), a.says) {
			t.Errorf("invalid configuration with %q, want %q in it", err, a.says)
		}
		return
	}
	on := LiveFacts(root)
	if a.node != nil {
		on = a.node(t)
	}
	decided := make(chan Decision, 1)
	go func() { decided <- p.decide(a.container, on) }()
	var d Decision
	select {
	case d = <-decided:
	case <-time.After(patience):
		t.Fatal("the decision is stalled")
	}
	if len(d.Warnings) > 2 {
		t.Errorf("%d warnings about one container: %q", len(d.Warnings), d.Warnings)
	}
	for _, line := range append(d.Warnings, d.Reason) {
		checkOneLine(t, line)
	}
	if d.Refusal != nil {
		checkOneLine(t, d.Refusal.Message)
		if d.Refusal.Cause != a.refused || !strings.Contains(d.Refusal.Message, a.says) {
			t.Errorf("refused (%s) with %q, want %s with %q in it", d.Refusal.Cause, d.Refusal.Message, a.refused, a.says)
		}
	} else if a.refused != "" {
		t.Errorf("not refused: %+v", d)
	}
	if a.gets == nil && a.refused == "" && d.Signal != SignalNone {
		t.Errorf("it counts as an RDMA container, by %s", d.Signal)
	}
	expect.Equal(t, "the grant", a.gets, d.Grant)
}

// author is a container whose author may have devices injected, and wrote an annotation.
func author(annotation string, devices ...Device) subject {
	return subject{Container: Container{Namespace: "ml-a", Pod: "p", Name: "c", Annotations: podAnnotation(annotation), Devices: devices,
		MemoryLimit: 2 << 30}, Resources: kubeletHolds()}
}

// guest is a container whose author may have nothing injected, and wrote an annotation.
func guest(annotation string, devices ...Device) subject {
	c := author(annotation, devices...)
	c.Namespace = "web"
	return c
}

// with changes a container.
func (c subject) with(change func(*subject)) subject {
	change(&c)
	return c
}

// little is what the restrictive policy gives: 1Gi, and so no capability.
func little(devices ...hca.Device) *spec.Grant {
	return &spec.Grant{Memlock: 1 << 30, Devices: devices}
}

// nodeWith is A100 with some files changed.
func nodeWith(files hcatest.Files) func(testing.TB) Facts {
	return func(t testing.TB) Facts { return LiveFacts(hcatest.A100Node().Files().With(files).Root(t)) }
}

// nodeWithRow is A100 with one line of its table of device nodes replaced.
func nodeWithRow(old, with string) func(testing.TB) Facts {
	return func(t testing.TB) Facts {
		files := hcatest.A100Node().Files()
		if !strings.Contains(files["device-table.txt"], old) {
			t.Fatalf("the node has no %q", old)
		}
		files["device-table.txt"] = strings.Replace(files["device-table.txt"], old, with, 1)
		return LiveFacts(files.Root(t))
	}
}
