// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package prometheus runs the programs of Prometheus, which `make deps` installs, for tests of metrics, rules, and
// dashboards.
package prometheus

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
	"github.com/rdma-spec/rdma-spec/test/testing/loopback"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// Program returns the path of the program prometheus or promtool. It skips the test if the program is not installed.
func Program(t testing.TB, name string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	must.Succeed(t, err)
	for _, candidate := range []string{filepath.Join(cache, "rdma-spec/bin", name), name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	t.Skip(name + " is not installed: run make deps")
	return ""
}

// Start runs a server with a configuration until the test ends, and returns the server's address. If the test fails,
// the test's log contains the server's log.
func Start(t testing.TB, config string) (address string) {
	t.Helper()
	dir := scratch.Dir(t)
	address = loopback.Address()
	file := filepath.Join(dir, "prometheus.yml")
	scratch.File(t, file, config, 0o600)
	log, err := os.Create(filepath.Join(dir, "log"))
	must.Succeed(t, err)
	server := exec.Command(Program(t, "prometheus"), "--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	server.Stdout = log
	server.Stderr = log
	must.Succeed(t, child.Start(server))
	t.Cleanup(func() {
		_ = server.Process.Kill() // it may have ended already
		_ = server.Wait()
		if t.Failed() {
			t.Log(scratch.Read(t, log.Name()))
		}
		_ = log.Close()
	})
	await.That(t, await.Timeout, "Prometheus is ready", func() bool {
		answer, err := http.Get("http://" + address + "/-/ready")
		if err == nil {
			_ = answer.Body.Close() // the body is empty
		}
		return err == nil && answer.StatusCode == http.StatusOK
	})
	return address
}
