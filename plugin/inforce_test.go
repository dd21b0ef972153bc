// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/test/await"
)

// The plugin publishes its policy when it registers, in place of that of a plugin that registered before it, and when it changes.
func TestPolicyInForceIsPublished(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "run"), 0o755))
	published := func(source, memlock string) {
		t.Helper()
		await.That(t, await.Patience, "the policy of "+source+" is published", func() bool {
			got, err := inforce.Read(root)
			return err == nil && got.Source == source && string(got.Policy.Config().Memlock) == memlock
		})
	}
	former := &inforce.Writer{Root: root}
	t.Cleanup(former.Close) // it still runs until then
	must(t, former.Write(mustPolicy(t, "memlock: 3Gi"), "another plugin"))
	_, r := registered(t, Options{Policy: mustPolicy(t, "memlock: 1Gi"), Publisher: &inforce.Writer{Root: root}})
	published("given at the start", "1Gi")
	r.Use(mustPolicy(t, "memlock: 2Gi"), "/etc/rdma-spec/config.yaml", nil)
	published("/etc/rdma-spec/config.yaml", "2Gi")
	r.Use((*policy.Policy)(nil), "/etc/rdma-spec/config.yaml", errors.New("it can no longer be read"))
	published("/etc/rdma-spec/config.yaml", "2Gi")
}

// A plugin that registers without a configuration takes another one's place as soon as it has one.
func TestPolicyThatComesLateIsPublished(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "run"), 0o755))
	former := &inforce.Writer{Root: root}
	t.Cleanup(former.Close) // it still runs until then
	must(t, former.Write(mustPolicy(t, "memlock: 3Gi"), "another plugin"))
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{Inventory: inventory.New("/", 0, quiet()), Log: quiet(), Publisher: &inforce.Writer{Root: root}})
		p.Use(nil, "a file", errors.New("it cannot be read"))
		go p.publishAll(t.Context())
		_, err := p.Synchronize(t.Context(), nil, nil)
		must(t, err)
		synctest.Wait()
		p.Use(mustPolicy(t, "memlock: 1Gi"), "a file", nil)
		synctest.Wait()
	})
	if got, err := inforce.Read(root); err != nil || got.Source != "a file" {
		t.Errorf("in force is %+v, %v", got, err)
	}
}

// A plugin publishes nothing before it is registered, since another one may be, and nothing while its configuration cannot be read.
func TestPolicyIsNotPublished(t *testing.T) {
	for name, test := range map[string]struct {
		policy    *policy.Policy
		err       error
		registers bool
	}{
		"not registered":   {policy: mustPolicy(t, "memlock: 1Gi")},
		"no configuration": {err: errors.New("it cannot be read"), registers: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			must(t, os.Mkdir(filepath.Join(root, "run"), 0o755))
			synctest.Test(t, func(t *testing.T) {
				p := New(Options{Inventory: inventory.New("/", 0, quiet()), Log: quiet(), Publisher: &inforce.Writer{Root: root}})
				go p.publishAll(t.Context())
				p.Use(test.policy, "a file", test.err)
				if test.registers {
					_, err := p.Synchronize(t.Context(), nil, nil)
					must(t, err)
				}
				synctest.Wait()
				if _, err := inforce.Read(root); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("published: %v", err)
				}
			})
		})
	}
}
