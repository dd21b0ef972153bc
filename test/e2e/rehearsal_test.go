// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build node

package e2e

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/child"
)

// registryPort is the registry's port. containerd pulls from localhost without TLS.
const registryPort = "5000"

// installPublished pushes the release's image and chart to a registry on the node, and installs from there with the
// commands in README.md, in which it replaces the registry's address and the version. It returns the notes that Helm
// prints. It adds values for an emulated CPU, and those that later tests need.
func installPublished(t *testing.T, d *daemonSet, chart string, values ...string) (notes string) {
	address := "localhost:" + registryPort
	serve := exec.Command(filepath.Join(*bin, "registry"), "--port", registryPort)
	if err := child.Start(serve); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Kill() // it stores nothing that is needed later
		_ = serve.Wait()
	})
	await.Success(t, patience, "the registry serves", func() error {
		answer, err := http.Get("http://" + address + "/v2/")
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
	tag := regexp.MustCompile(`image: ghcr\.io/rdma-spec/rdma-spec:(\S+)`).FindStringSubmatch(deployFile(t, "../bin/release/daemonset.yaml"))[1]
	push := exec.CommandContext(t.Context(), filepath.Join(*bin, "releaser"), "push", filepath.Join(*bin, "release/image"),
		address+"/rdma-spec/rdma-spec:"+tag)
	if out, err := push.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d.helm(t, "push", chart, "oci://"+address+"/rdma-spec/charts", "--plain-http")
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(chart), "nri-rdma-"), ".tgz")
	_, install, _ := strings.Cut(deployFile(t, "../README.md"), "\n## Install on a cluster\n")
	block := regexp.MustCompile("(?s)```sh [^\n]*\n(.*?)```").FindStringSubmatch(install)[1]
	for line := range strings.Lines(block) {
		line = regexp.MustCompile(`--version \S+`).ReplaceAllString(strings.Replace(line, "ghcr.io", address, 1), "--version "+version)
		switch words := strings.Fields(line); words[0] {
		case "helm":
			notes = d.helm(t, append(words[1:], append(values, "--plain-http", "--set", "global.imageRegistry="+address)...)...)
		case "kubectl":
			d.kubectl(t, words[1:]...)
		default:
			t.Fatalf("README.md installs with %q", line)
		}
	}
	if pod := d.pod(t); !strings.HasPrefix(pod.Spec.Containers[0].Image, address+"/") {
		t.Errorf("the plugin's image is %s, want that of the registry", pod.Spec.Containers[0].Image)
	}
	return notes
}
