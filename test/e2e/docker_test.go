// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

const dockerSocket = "/run/docker-test.sock"

// docker is a Docker daemon, asked as the program docker does.
type docker struct{ client http.Client }

// startDocker runs a Docker daemon on the containerd that the tests share. It ends with the test.
func startDocker(t *testing.T, parts node.PartSet) docker {
	t.Helper()
	d := docker{http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", dockerSocket)
	}}}}
	dockerd, err := daemon.Start(nil, parts.Docker(), "--host", "unix://"+dockerSocket, "--containerd", containerd.Socket,
		"--data-root", "/var/lib/docker", "--exec-opt", "native.cgroupdriver=cgroupfs",
		"--bridge", "none", "--userland-proxy=false", "--iptables=false", "--ip6tables=false")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dockerd.Stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Docker said:\n%s", dockerd.Log())
		}
	})
	if err := dockerd.AwaitLog(within(t, 2*patience), "API listen on "+dockerSocket); err != nil {
		t.Fatal(err)
	}
	image, err := os.Open(parts.Image("busybox"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = image.Close() }() // it was only read
	d.ask(t, http.MethodPost, "/images/load", image)
	return d
}

// ask sends a request, and returns the answer.
func (d docker) ask(t *testing.T, method, path string, body io.Reader) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t, 2*patience), method, "http://docker"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := d.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= http.StatusBadRequest {
		t.Fatalf("%s %s: %s, %v: %s", method, path, response.Status, err, answer)
	}
	return answer
}

// run does what `docker run --device` does, with lockInside, and returns its output.
func (d docker) run(t *testing.T, user int) string {
	t.Helper()
	config, err := json.Marshal(map[string]any{
		"Image": node.ImageName("busybox"), "Cmd": []string{"/bin/busybox", "sh", "-c", lockInside},
		"User": strconv.Itoa(user), "Tty": true,
		"HostConfig": map[string]any{
			"NetworkMode": "host", "Binds": []string{*bin + "/locker:/opt/locker:ro"},
			"DeviceRequests": []any{map[string]any{"Driver": "cdi", "DeviceIDs": []string{cdiDevice}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var created struct{ ID string }
	if err := json.Unmarshal(d.ask(t, http.MethodPost, "/containers/create",
		bytes.NewReader(config)), &created); err != nil {
		t.Fatal(err)
	}
	container := "/containers/" + created.ID
	d.ask(t, http.MethodPost, container+"/start", nil)
	d.ask(t, http.MethodPost, container+"/wait", nil)
	output := d.ask(t, http.MethodGet, container+"/logs?stdout=1", nil)
	d.ask(t, http.MethodDelete, container, nil)
	return strings.ReplaceAll(string(output), "\r\n", "\n")
}

// Docker gives a container with a CDI device what it needs.
func TestDocker(t *testing.T) {
	parts, err := node.Parts()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(parts.Docker()); err != nil {
		t.Fatalf("%v: call rdma-node with --parts core", err)
	}
	writeCDI(t)
	d := startDocker(t, parts)
	for _, user := range []int{0, 1000} {
		if got := d.run(t, user); got != enough {
			t.Errorf("user %d: a container says %q, want %q", user, got, enough)
		}
	}
	writeCDI(t, "--memlock", "none")
	if got := d.run(t, 0); got != tooLittle {
		t.Errorf("without the hook a container says %q, want %q", got, tooLittle)
	}
}
