// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdma-spec/rdma-spec/plugin/nritest"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func (p *Plugin) memlockInForce() string { return string(p.policy().Config().Memlock) }

// following is a plugin that follows a configuration file.
func following(t *testing.T, file string) (*running, chan os.Signal) {
	t.Helper()
	runtime := nritest.New(t, "containerd", "v2.4.2")
	r := run(t, Options{Socket: runtime.Socket})
	r.runtime = runtime
	config := policy.File{Path: file}
	r.use(t, &config) // as the program does, before it registers
	runtime.Start(t)
	await.That(t, await.Patience, "registered", func() bool { return runtime.Synchronised() == 1 })
	ctx, stop := context.WithCancel(t.Context())
	ended, again := make(chan struct{}), make(chan os.Signal, 1)
	go func() {
		config.Follow(ctx, again, func(p *policy.Policy, err error) { r.Use(p, file, err) })
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return r, again
}

// use puts in force what is in a file now.
func (r *running) use(t *testing.T, config *policy.File) {
	t.Helper()
	p, err := config.Read()
	r.Use(p, config.Path, err)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestBadConfigurationNeverReplacesAGoodOne(t *testing.T) {
	file := filepath.Join(scratch.Folder(t), "config.yaml")
	write(t, file, "memlock: 1Gi")
	p, _ := following(t, file)
	for i, spoil := range []func(){
		func() { write(t, file, "\x00garbage: [") },
		func() { write(t, file, "") },
		func() { write(t, file, "memlok: 1Gi") },
		func() { must(t, os.Remove(file), os.Mkdir(file, 0o755)) },
		func() { must(t, os.Remove(file)) },
	} {
		spoil()
		await.That(t, await.Patience, "refused", func() bool { return testutil.ToFloat64(p.metrics.configValid) == 0 })
		if got := p.memlockInForce(); got != fmt.Sprintf("%dGi", i+1) {
			t.Errorf("memlock in force is %s, want the last good one, %dGi", got, i+1)
		}
		_ = os.RemoveAll(file)
		write(t, file, fmt.Sprintf("memlock: %dGi", i+2))
		await.That(t, await.Patience, "good again", func() bool { return p.memlockInForce() == fmt.Sprintf("%dGi", i+2) })
		if testutil.ToFloat64(p.metrics.configValid) != 1 {
			t.Error("the metric does not say that the configuration is valid again")
		}
	}
	if n := strings.Count(p.log.String(), "the configuration is refused"); n < 4 {
		t.Errorf("%d lines about refused configurations", n)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A ConfigMap's files are links to a folder's link, which the kubelet swaps.
func TestConfigMapSwaps(t *testing.T) {
	folder := scratch.Folder(t)
	file := filepath.Join(folder, "config.yaml")
	version := func(i int) string { return filepath.Join(folder, fmt.Sprintf("..version%d", i)) }
	swap := func(i int) {
		must(t, os.Mkdir(version(i), 0o755))
		write(t, filepath.Join(version(i), "config.yaml"), fmt.Sprintf("memlock: %dMi", i+1))
		must(t, os.Symlink(version(i), filepath.Join(folder, "..tmp")), os.Rename(filepath.Join(folder, "..tmp"),
			filepath.Join(folder, "..data")))
		if i > 0 {
			must(t, os.RemoveAll(version(i-1)))
		}
	}
	swap(0)
	must(t, os.Symlink("..data/config.yaml", file))
	p, _ := following(t, file)
	const swaps = 1000
	descriptors := openDescriptors(t)
	for i := 1; i <= swaps; i++ {
		swap(i)
	}
	await.That(t, await.Patience, "the last one in force",
		func() bool { return p.memlockInForce() == fmt.Sprintf("%dMi", swaps+1) })
	// What reads the HCAs meanwhile has some open for an instant.
	await.That(t, await.Patience, fmt.Sprintf("about as many descriptors open as before, %d", descriptors),
		func() bool { return openDescriptors(t) <= descriptors+2 })
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestHangupReadsAgain(t *testing.T) {
	elsewhere, file := filepath.Join(scratch.Folder(t), "config.yaml"), filepath.Join(scratch.Folder(t), "config.yaml")
	write(t, elsewhere, "memlock: 1Gi")
	must(t, os.Symlink(elsewhere, file)) // a change behind the link is not seen in the link's folder
	p, again := following(t, file)
	write(t, elsewhere, "memlock: 2Gi")
	again <- os.Interrupt
	await.That(t, await.Patience, "read again", func() bool { return p.memlockInForce() == "2Gi" })
}

func TestMetrics(t *testing.T) {
	root := hcatest.A100(t)
	runtime, p := registered(t, Options{Policy: mustPolicy(t, "{}"), Inventory: inventoryOf(t, root)})
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.Collectors()...)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
	if _, err := runtime.Create(t.Context(), pod, verbsContainer(t, root)); err != nil {
		t.Fatal(err)
	}
	want := `
		# HELP nri_rdma_connected 1 while the plugin is registered with the runtime.
		# TYPE nri_rdma_connected gauge
		nri_rdma_connected 1
		# HELP nri_rdma_hca_port_active 1 if the port of the HCA was ACTIVE when the HCA last answered.
		# TYPE nri_rdma_hca_port_active gauge
		nri_rdma_hca_port_active{hca="mlx5_0",link_layer="InfiniBand",port="1"} 0
		nri_rdma_hca_port_active{hca="mlx5_1",link_layer="InfiniBand",port="1"} 1
		nri_rdma_hca_port_active{hca="mlx5_bond_0",link_layer="Ethernet",port="1"} 1
		# HELP nri_rdma_requests_total Containers that the runtime asked about, by result (adjusted, untouched, refused) and signal.
		# TYPE nri_rdma_requests_total counter
		nri_rdma_requests_total{result="adjusted",signal="device"} 1
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "nri_rdma_connected",
		"nri_rdma_hca_port_active", "nri_rdma_requests_total"); err != nil {
		t.Error(err)
	}
}

// However often the configuration changes, and whatever it says, the registration stays.
func TestReloadsKeepTheRegistration(t *testing.T) {
	runtime, p := registered(t, Options{StoredSpecs: unusedSpecs{}})
	policies := []*policy.Policy{mustPolicy(t, "ipcLock: false"), mustPolicy(t, "{}"), mustPolicy(t, "memlock: 1Gi"),
		mustPolicy(t, "optIn: {resources: [rdma/*]}"), mustPolicy(t, "memlock: 2Gi")}
	const reloads = 10_000
	for i := range reloads {
		p.Use(policies[i%len(policies)], "test", nil)
	}
	if n := runtime.Synchronised(); n != 1 || runtime.Connections() != 1 {
		t.Errorf("%d registrations over %d connections, want one", n, runtime.Connections())
	}
	if got, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root)); err != nil ||
		got.GetRlimits()[0].GetSoft() != 2<<30 {
		t.Errorf("adjustment %v, error %v", got, err)
	}
}

// A file with an error that appears later does not replace the policy by which containers were created.
func TestABadFileAppears(t *testing.T) {
	file := filepath.Join(scratch.Folder(t), "config.yaml")
	_, p := registered(t, Options{})
	p.Use(nil, file, errors.New("memlok: unknown key"))
	if _, err := p.runtime.Create(t.Context(), pod, verbsContainer(t, p.root)); err != nil {
		t.Errorf("creation of an RDMA container: %v", err)
	}
	if notReady(p) != nil || testutil.ToFloat64(p.metrics.configValid) != 0 {
		t.Errorf("ready: %v; valid: %v", notReady(p), testutil.ToFloat64(p.metrics.configValid))
	}
}

// Started with a file that cannot be read, the plugin registers all the same and refuses RDMA containers alone, until
// the file is corrected.
func TestStartedWithABadFile(t *testing.T) {
	file := filepath.Join(scratch.Folder(t), "config.yaml")
	write(t, file, "memlok: 1Gi")
	p, _ := following(t, file)
	runtime := p.runtime
	_, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root))
	if err == nil || !strings.Contains(err.Error(), "the plugin has no configuration: "+file) ||
		!strings.Contains(err.Error(), "memlok") {
		t.Errorf("creation of an RDMA container: %v", err)
	}
	if _, err := runtime.Create(t.Context(), pod, &api.Container{Id: "plain", Name: "main"}); err != nil {
		t.Errorf("creation of another one: %v", err)
	}
	if notReady(p) == nil || testutil.ToFloat64(p.metrics.configValid) != 0 {
		t.Errorf("ready: %v; valid: %v", notReady(p), testutil.ToFloat64(p.metrics.configValid))
	}
	write(t, file, "memlock: 1Gi")
	await.That(t, await.Patience, "the file in force", func() bool { return p.memlockInForce() == "1Gi" })
	if got, err := runtime.Create(t.Context(), pod, verbsContainer(t, p.root)); err != nil ||
		got.GetRlimits()[0].GetSoft() != 1<<30 {
		t.Errorf("adjustment %v, error %v", got, err)
	}
}

func notReady(p *running) error {
	_, err := p.Ready()
	return err
}
