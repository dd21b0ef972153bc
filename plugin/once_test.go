// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// inPod are the options of a process in a pod of a deployment.
func inPod(t *testing.T, root, folder, config string) Options {
	t.Helper()
	kept := inforce.Kept{Root: root, Deployment: "DaemonSet.rdma-spec.nri-rdma"}
	o := Options{Handover: folder, Deployment: kept.Deployment, LastInForce: kept.Read, Keep: kept.Write}
	if config != "" {
		o.Policy = mustPolicy(t, config)
	}
	return o
}

// A process whose own configuration is refused is not ready while it waits, and takes the connection all the same: it
// goes on with the policy that the process before had in force at the end, and is ready.
func TestRefusedConfigurationWaits(t *testing.T) {
	root, folder := scratch.Folder(t, inforce.KeptFolder[1:]), scratch.Folder(t)
	runtime, first := registered(t, inPod(t, root, folder, "memlock: 1Gi"))
	kept := func() string {
		last, err := first.LastInForce()
		if err != nil {
			return err.Error()
		}
		return string(last.Policy.Text())
	}
	await.That(t, await.Patience, "kept", func() bool { return kept() == "memlock: 1Gi" })
	o := inPod(t, root, folder, "")
	o.Socket, o.Inventory = runtime.Socket, first.Inventory
	second := run(t, o)
	second.Use(nil, "/etc/rdma-spec/config.yaml", errors.New("memlok: unknown key"))
	await.That(t, await.Patience, "waiting, and not ready for its configuration", func() bool {
		_, err := second.Ready()
		return second.registration.Behind() && err != nil && strings.Contains(err.Error(), "the configuration is refused: memlok")
	})
	if got := kept(); got != "memlock: 1Gi" {
		t.Errorf("one that waits has kept %q", got)
	}
	first.Use(mustPolicy(t, "memlock: 2Gi"), "a file", nil)
	await.That(t, await.Patience, "the other one kept", func() bool { return kept() == "memlock: 2Gi" })
	first.stop()
	await.That(t, await.Patience, "taken over", second.Registered)
	if state, err := second.Ready(); err != nil || second.memlockInForce() != "2Gi" {
		t.Errorf("it serves with %s and is not ready: %q, %v", second.memlockInForce(), state, err)
	}
	if got := kept(); got != "memlock: 2Gi" || runtime.Connections() != 1 {
		t.Errorf("kept is %q, and there are %d connections", got, runtime.Connections())
	}
}

// A connection that is given is taken also where nothing was ever in force: RDMA containers are refused, and the process
// is not ready.
func TestNothingWasEverInForce(t *testing.T) {
	root, folder := scratch.Folder(t), scratch.Folder(t) // nothing can be kept there
	runtime, first := registered(t, inPod(t, root, folder, "memlock: 1Gi"))
	await.That(t, await.Patience, "a warning", func() bool { return strings.Contains(first.log.String(), "cannot be kept") })
	o := inPod(t, root, folder, "")
	o.Socket, o.Inventory = runtime.Socket, first.Inventory
	second := run(t, o)
	second.Use(nil, "/etc/rdma-spec/config.yaml", errors.New("memlok: unknown key"))
	await.That(t, await.Patience, "waiting", second.registration.Behind)
	first.stop()
	await.That(t, await.Patience, "taken over", second.Registered)
	if _, err := second.Ready(); err == nil || second.policy().Missing() == nil || runtime.Connections() != 1 {
		t.Errorf("ready: %v; %d connections", err, runtime.Connections())
	}
}

// A process of another deployment does not go on with the policy, and leaves a free place to others.
func TestAnotherDeploymentsPolicy(t *testing.T) {
	root := scratch.Folder(t, inforce.KeptFolder[1:])
	o := inPod(t, root, "", "")
	must(t, o.Keep([]byte("memlock: 3Gi")))
	for deployment, want := range map[string]bool{o.Deployment: true, "DaemonSet.rdma-spec.other": false} {
		p := New(Options{
			Inventory: inventory.New("/", quiet()), Log: quiet(), Deployment: deployment,
			LastInForce: inforce.Kept{Root: root, Deployment: deployment}.Read,
		})
		p.Use(nil, "a file", errors.New("memlok: unknown key"))
		if got := p.policy().Missing() == nil; got != want || p.registration.Yields() == want {
			t.Errorf("%s goes on: %t; it yields: %t", deployment, got, p.registration.Yields())
		}
	}
}

// Where nothing was in force at the start, as for a validator whose plugin comes later, what is kept since is found.
func TestLastPolicyComesLater(t *testing.T) {
	root := scratch.Folder(t, inforce.KeptFolder[1:])
	o := inPod(t, root, "", "")
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{
			Inventory: inventory.New("/", quiet()), Log: quiet(), Validate: true, Deployment: o.Deployment, LastInForce: o.LastInForce,
		})
		p.Use(nil, "a file", errors.New("memlok: unknown key"))
		go p.publishAll(t.Context())
		must(t, o.Keep([]byte("memlock: 3Gi")))
		time.Sleep(publishAgain) // synctest's clock
		synctest.Wait()
		if got := p.memlockInForce(); p.policy().Missing() != nil || got != "3Gi" {
			t.Errorf("memlock in force is %s, missing: %v", got, p.policy().Missing())
		}
	})
}
