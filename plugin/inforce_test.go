// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdma-spec/rdma-spec/plugin/inventory"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/test/await"
)

// The registered plugin publishes the policy in force: whenever that changes, not before it is registered, and not where it has none.
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
	p := New(Options{Inventory: inventory.New("/", 0, quiet()), Log: quiet(), Publisher: &inforce.Writer{Root: root}})
	go p.publishAll(t.Context())
	p.Use(nil, "a file", errors.New("it cannot be read"))
	if _, err := p.Synchronize(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	await.That(t, await.Patience, "nothing is left to publish", func() bool { return len(p.publish) == 0 && !p.anew.Load() })
	if _, err := inforce.Read(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a configuration: %v", err)
	}

	_, r := registered(t, Options{Policy: mustPolicy(t, "memlock: 1Gi"), Publisher: &inforce.Writer{Root: root}})
	published("given at the start", "1Gi")
	r.Use(mustPolicy(t, "memlock: 2Gi"), "/etc/rdma-spec/config.yaml", nil)
	published("/etc/rdma-spec/config.yaml", "2Gi")
	r.Use((*policy.Policy)(nil), "/etc/rdma-spec/config.yaml", errors.New("it cannot be read any more"))
	published("/etc/rdma-spec/config.yaml", "2Gi")
}
