// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/containerd"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
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
	dockerd := start(t, parts.Docker(), "--host", "unix://"+dockerSocket, "--containerd", containerd.Socket,
		"--data-root", "/var/lib/docker", "--exec-opt", "native.cgroupdriver=cgroupfs",
		"--bridge", "none", "--userland-proxy=false", "--iptables=false", "--ip6tables=false")
	awaitLog(t, dockerd, "API listen on "+dockerSocket)
	d.ask(t, http.MethodPost, "/images/load", strings.NewReader(scratch.Read(t, parts.Image("busybox"))))
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
	config := fmt.Sprintf(`{"Image": %q, "Cmd": ["/bin/busybox", "sh", "-c", %q], "User": "%d", "Tty": true, "HostConfig": {
		"NetworkMode": "host", "Binds": ["%s/locker:/opt/locker:ro"],
		"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [%q]}]}}`, node.ImageName("busybox"), lockInside, user, *bin, cdiDevice)
	var created struct{ ID string }
	if err := json.Unmarshal(d.ask(t, http.MethodPost, "/containers/create", strings.NewReader(config)), &created); err != nil {
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
	parts := nodeParts(t)
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
