// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/plugin/policy/inforce"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// The plugin publishes its policy when it registers, in place of that of a plugin that registered before it, and when
// it changes.
func TestPolicyInForceIsPublished(t *testing.T) {
	root := scratch.Dir(t, "run")
	published := func(source, memlock string) {
		t.Helper()
		await.That(t, await.Timeout, "the policy of "+source+" is published", func() bool {
			got, err := inforce.Read(root)
			return err == nil && got.Source == source && string(got.Policy.Config().Memlock) == memlock
		})
	}
	former := &inforce.Writer{Root: root}
	t.Cleanup(former.Close) // it still runs until then
	must.Succeed(t, former.Write(mustPolicy(t, "memlock: 3Gi"), "another plugin"))
	_, r := registered(t, Options{Policy: mustPolicy(t, "memlock: 1Gi"), Root: root})
	published("passed at startup", "1Gi")
	r.Use(mustPolicy(t, "memlock: 2Gi"), "/etc/rdma-spec/config.yaml", nil)
	published("/etc/rdma-spec/config.yaml", "2Gi")
	r.Use((*policy.Policy)(nil), "/etc/rdma-spec/config.yaml", errors.New("it can no longer be read"))
	published("/etc/rdma-spec/config.yaml", "2Gi")
}

// A plugin publishes nothing before it is registered, since another one may be, and nothing while its configuration
// cannot be read: then it does as soon as it has one.
func TestPolicyThatComesLateIsPublished(t *testing.T) {
	root := scratch.Dir(t, "run")
	synctest.Test(t, func(t *testing.T) {
		start := func(config *policy.Policy, err error) *Plugin {
			p := unregistered(Options{Root: root})
			p.Use(config, "a file", err)
			go p.config.Run(t.Context())
			return p
		}
		expect := func(published bool) {
			t.Helper()
			synctest.Wait()
			if got, err := inforce.Read(root); (err == nil) != published || err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("in force is %+v, %v", got, err)
			}
		}
		start(mustPolicy(t, "memlock: 1Gi"), nil)
		expect(false)
		p := start(nil, errors.New("it cannot be read"))
		_, err := p.Synchronize(t.Context(), nil, nil)
		must.Succeed(t, err)
		expect(false)
		p.Use(mustPolicy(t, "memlock: 1Gi"), "a file", nil)
		expect(true)
	})
}

// Started with a configuration that cannot be read, a plugin goes on with the policy that was last in force on its
// node, whose writer may have ended, until the file can be read; so does a validator, which publishes nothing.
func TestUse_keepsLastPolicy(t *testing.T) {
	const source, bad = "/etc/rdma-spec/config.yaml", "memlok: unknown key"
	for name, test := range map[string]struct {
		validate bool
		spoil    func(file string) error // the policy that was last in force
		missing  string                  // what the log says of it; "": the policy goes on
	}{
		"plugin":    {},
		"validator": {validate: true},
		"none":      {spoil: os.Remove, missing: "refuses RDMA containers"},
		"others can write to it": {spoil: func(file string) error { return os.Chmod(file, 0o666) },
			missing: "is not trusted: users other than root can write to it"},
	} {
		t.Run(name, func(t *testing.T) {
			root, log := scratch.Dir(t, "run"), &bytes.Buffer{}
			former := &inforce.Writer{Root: root}
			must.Succeed(t, former.Write(mustPolicy(t, "memlock: 3Gi"), source))
			former.Close()
			if test.spoil != nil {
				must.Succeed(t, test.spoil(filepath.Join(root, inforce.File)))
			}
			for range 2 { // it is restarted, with the file as it was
				synctest.Test(t, func(t *testing.T) {
					logger := logrus.New()
					logger.SetOutput(log)
					p := unregistered(Options{Log: logger, Validate: test.validate, Root: root})
					defer p.config.Close()
					p.Use(nil, source, errors.New(bad))
					go p.config.Run(t.Context())
					_, err := p.Synchronize(t.Context(), nil, nil)
					must.Succeed(t, err)
					synctest.Wait()
					if valid := testutil.ToFloat64(p.metrics.configValid); valid != 0 || !strings.Contains(log.String(), bad) {
						t.Errorf("valid: %v; the log says:\n%s", valid, log)
					}
					if test.missing != "" {
						if p.policy().Missing() == nil || !strings.Contains(log.String(), test.missing) {
							t.Errorf("missing: %v; the log says:\n%s", p.policy().Missing(), log)
						}
					} else {
						p.Use(nil, source, errors.New("another error"))
						p.config.HandedOver("memlock: 2Gi", "containerd")
						if got := p.memlockInForce(); got != "3Gi" || !strings.Contains(log.String(),
							"policy=\""+source+inforce.AsLast) {
							t.Errorf("memlock in force is %s; the log says:\n%s", got, log)
						}
						got, err := inforce.Last(root)
						if want := source + map[bool]string{false: inforce.AsLast}[test.validate]; err != nil || got.Source != want ||
							got.Policy.Config().Memlock != "3Gi" {
							t.Errorf("published: %+v, %v, want it from %s", got, err, want)
						}
					}
				})
			}
			p := unregistered(Options{Validate: test.validate, Root: root})
			p.Use(nil, source, errors.New(bad))
			p.Use(mustPolicy(t, "memlock: 1Gi"), source, nil)
			if valid := testutil.ToFloat64(p.metrics.configValid); p.memlockInForce() != "1Gi" || valid != 1 {
				t.Errorf("memlock in force is %s, valid: %v, and the file is good", p.memlockInForce(), valid)
			}
		})
	}
}

// inPod are the options of a process in a pod of a deployment.
func inPod(t *testing.T, root, dir, config string) Options {
	t.Helper()
	o := Options{Handover: dir, Root: root, Deployment: "DaemonSet.rdma-spec.nri-rdma"}
	if config != "" {
		o.Policy = mustPolicy(t, config)
	}
	return o
}

func keptFor(o Options) inforce.Kept { return inforce.Kept{Root: o.Root, Deployment: o.Deployment} }

// refusedBehind starts a process behind another one, whose configuration is refused.
func refusedBehind(t *testing.T, first *running, o Options) *running {
	t.Helper()
	o.Socket, o.Inventory = first.runtime.Socket, first.Inventory
	second := run(t, o)
	second.Use(nil, "/etc/rdma-spec/config.yaml", errors.New("memlok: unknown key"))
	return second
}

// A process whose own configuration is refused is not ready while it waits, and takes the connection all the same: it
// goes on with the policy that the process before had in force at the end, and is ready.
func TestRefusedConfigurationWaits(t *testing.T) {
	root, dir := scratch.Dir(t, inforce.KeptDir[1:]), scratch.Dir(t)
	runtime, first := registered(t, inPod(t, root, dir, "memlock: 1Gi"))
	kept := func() string {
		last, err := keptFor(first.Options).Read()
		if err != nil {
			return err.Error()
		}
		return string(last.Policy.Text())
	}
	await.That(t, await.Timeout, "kept", func() bool { return kept() == "memlock: 1Gi" })
	second := refusedBehind(t, first, inPod(t, root, dir, ""))
	await.That(t, await.Timeout, "waiting, and not ready for its configuration", func() bool {
		_, err := second.Ready()
		return second.registration.Behind() && err != nil && strings.Contains(err.Error(), "the configuration is invalid: memlok")
	})
	if got := kept(); got != "memlock: 1Gi" {
		t.Errorf("one that waits has kept %q", got)
	}
	first.Use(mustPolicy(t, "memlock: 2Gi"), "a file", nil)
	await.That(t, await.Timeout, "the other one kept", func() bool { return kept() == "memlock: 2Gi" })
	first.stop()
	await.That(t, await.Timeout, "taken over", second.Registered)
	if state, err := second.Ready(); err != nil || second.memlockInForce() != "2Gi" {
		t.Errorf("it serves with %s and is not ready: %q, %v", second.memlockInForce(), state, err)
	}
	if got := kept(); got != "memlock: 2Gi" || runtime.Connections() != 1 {
		t.Errorf("kept is %q, and there are %d connections", got, runtime.Connections())
	}
}

// The policy comes with the connection where it could not be kept: a process whose own configuration is refused goes on
// with it. A connection is taken also where nothing was ever in force: RDMA containers are refused, and the process is
// not ready.
func TestPolicyComesWithTheConnection(t *testing.T) {
	for config, ready := range map[string]bool{"memlock: 1Gi": true, "": false} {
		root, dir := scratch.Dir(t), scratch.Dir(t) // nothing can be kept there
		runtime, first := registered(t, inPod(t, root, dir, config))
		await.That(t, await.Timeout, "a warning", func() bool {
			return !ready || strings.Contains(first.log.String(), "cannot store")
		})
		second := refusedBehind(t, first, inPod(t, root, dir, ""))
		await.That(t, await.Timeout, "waiting", second.registration.Behind)
		first.stop()
		await.That(t, await.Timeout, "taken over", second.Registered)
		_, err := second.Ready()
		if missing := second.policy().Missing() != nil; (err == nil) != ready || missing == ready || runtime.Connections() != 1 {
			t.Errorf("%q: ready: %v; missing: %t; %d connections", config, err, missing, runtime.Connections())
		}
		if got := second.memlockInForce(); ready && got != "1Gi" {
			t.Errorf("it goes on with %s", got)
		}
	}
}

// A process of another deployment does not go on with the policy, and leaves a free place to others.
func TestAnotherDeploymentsPolicy(t *testing.T) {
	root := scratch.Dir(t, inforce.KeptDir[1:])
	o := inPod(t, root, "", "")
	must.Succeed(t, keptFor(o).Write([]byte("memlock: 3Gi")))
	for deployment, want := range map[string]bool{o.Deployment: true, "DaemonSet.rdma-spec.other": false} {
		p := unregistered(Options{Deployment: deployment, Root: root})
		p.Use(nil, "a file", errors.New("memlok: unknown key"))
		if got := p.policy().Missing() == nil; got != want || p.registration.BacksOff() == want {
			t.Errorf("%s goes on: %t; it backs off: %t", deployment, got, p.registration.BacksOff())
		}
	}
}

// Where nothing was in force at the start, as for a validator whose plugin comes later, what is kept since is found.
func TestUse_lastPolicyComesLater(t *testing.T) {
	root := scratch.Dir(t, inforce.KeptDir[1:])
	o := inPod(t, root, "", "")
	synctest.Test(t, func(t *testing.T) {
		p := unregistered(Options{Validate: true, Deployment: o.Deployment, Root: root})
		p.Use(nil, "a file", errors.New("memlok: unknown key"))
		go p.config.Run(t.Context())
		must.Succeed(t, keptFor(o).Write([]byte("memlock: 3Gi")))
		time.Sleep(30 * time.Second) // synctest's clock
		synctest.Wait()
		if got := p.memlockInForce(); p.policy().Missing() != nil || got != "3Gi" {
			t.Errorf("memlock in force is %s, missing: %v", got, p.policy().Missing())
		}
	})
}
