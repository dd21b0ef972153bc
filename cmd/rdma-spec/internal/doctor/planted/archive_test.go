// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/collect"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// collected is the folder of an archive of a node.
func collected(t *testing.T, root string, flags ...string) string {
	t.Helper()
	file := filepath.Join(scratch.Folder(t), "node.tar.gz")
	cmd := collect.Command(checks())
	cmd.SetArgs(append([]string{"--root", root, "--to", file}, flags...))
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	folder, remove, err := archive.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remove() })
	return folder
}

// contains returns the files of a folder whose name, link or content has a text.
func contains(t *testing.T, folder, text string) (found []string) {
	t.Helper()
	if err := filepath.WalkDir(folder, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		link, _ := os.Readlink(name)
		content := []byte{}
		if e.Type().IsRegular() {
			content, err = os.ReadFile(name)
		}
		if strings.Contains(strings.ToLower(name[len(folder):]+"\n"+link+"\n"+string(content)), strings.ToLower(text)) {
			found = append(found, name[len(folder):]+": "+string(content))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// An archive has none of the secrets that a node has in its audit log, in arguments and environments, and in files that
// errors quote.
func TestArchiveHasNoSecrets(t *testing.T) {
	boot := scratch.Read(t, "/proc/sys/kernel/random/boot_id")
	var secrets []string
	secret := func() string {
		secrets = append(secrets, fmt.Sprintf("hunter%02dZx", len(secrets)))
		return secrets[len(secrets)-1]
	}
	execve := func(arguments ...string) (record string) {
		record = fmt.Sprintf("type=EXECVE msg=audit(1700000000.500:7): argc=%d", len(arguments))
		for i, a := range arguments {
			record += fmt.Sprintf(" a%d=%q", i, a)
		}
		return record + "\n"
	}
	root := hcatest.RoCENode().Files().With(hcatest.Files{
		"proc/sys/kernel/random/boot_id": boot,
		"var/log/audit/audit.log": execve("sshpass", "-p", secret(), "rdma") + execve("aws", "--secret-key", secret(), "mlx5_0") +
			execve("wandb", "login", secret(), "infiniband") + execve("curl", "--token", secret(), "rdma") +
			execve("mysql", "-p"+secret(), "rdma") +
			"type=USER_CMD msg=audit(1700000000.500:8): pid=9 msg='cwd=\"/rdma\" cmd=\"" + secret() + "\"'\n" +
			"type=PROCTITLE msg=audit(1700000000.500:9): proctitle=\"rdma " + secret() + "\"\n" +
			"type=SYSCALL msg=audit(1700000000.500:9): comm=\"rdma\" key=\"" + secret() + "\"\n" +
			`type=AVC msg=audit(1700000000.500:10): avc:  denied  { open } for  pid=7 comm="x" path="/dev/infiniband/uverbs0" ` +
			`scontext=a:b:container_t:s0 tclass=chr_file permissive=0 SUBJ="` + secret() + "\"\n",
		"proc/100/cmdline": "/usr/local/bin/nri-rdma\x00--config=/etc/rdma-spec/config.yaml\x00--token\x00" + secret() + "\x00",
		"proc/100/environ": "AWS_SECRET_ACCESS_KEY=" + secret() + "\x00NCCL_IB_HCA=" + secret() + "\x00",
		"proc/100/comm":    "nri-rdma\n", "proc/100/exe": hcatest.Link("/usr/local/bin/nri-rdma"),
		"proc/100/status": "Name:\tnri-rdma\nUid:\t0\t0\t0\t0\n", "proc/100/cgroup": "0::/system.slice/nri-rdma.service\n",
		"proc/100/root/":                                       "",
		"etc/rdma-spec/config.yaml":                            "psk: " + secret() + "\n",
		"etc/rdma-spec/doctor.yaml":                            "ignore: [{check: a, why: " + secret() + "\n",
		"etc/crictl.yaml":                                      "runtime-endpoint: [" + secret() + "\n",
		"etc/containerd/config.toml":                           "version = 3\n[plugins.x]\npassword = " + secret() + "\n",
		"etc/docker/daemon.json":                               "{\"features\": {\"cdi\": \"" + secret() + "\"}",
		"etc/cdi/broken.yaml":                                  "cdiVersion: [" + secret() + "\n",
		"etc/cni/net.d/10-x.conf":                              "{\"type\": \"rdma\", \"password\": \"" + secret() + "\"",
		"run/rdma-spec/policy.yaml":                            "memlock: " + secret() + "\n",
		"sys/devices/pci0000:18/0000:18:00.0/net/eth0/ifalias": secret() + "\n",
	}).Root(t)
	if len(secrets) < 20 {
		t.Errorf("%d secrets", len(secrets))
	}
	folder := collected(t, root)
	for i, s := range secrets {
		if found := contains(t, folder, s); found != nil {
			t.Errorf("secret %d: %q", i, found)
		}
	}
	if found := contains(t, folder, "scontext=a:b:container_t:s0 tclass=chr_file"); len(found) == 0 {
		if log := contains(t, folder, "denied"); len(log) == 0 {
			t.Log("the kernel's log cannot be read here")
		} else {
			t.Errorf("the denial lacks fields: %q", log)
		}
	}
}

// listed is laidOut with the containers as runtimes list them, and a policy with a rule for their namespace.
func (s *sick) listed(t *testing.T) hcatest.Files {
	t.Helper()
	var listing node.Listing
	for _, c := range s.containers.Containers {
		l := node.Listed{Container: cri.Container{ID: strings.Repeat(fmt.Sprint(len(listing.Containers)), 64), Spec: cri.Spec{
			Env: c.Env, Bounding: c.Bounding}, Container: policy.Container{Namespace: c.Namespace, Pod: c.Pod, Name: c.Container,
			HostNetwork: !c.OwnNetwork, Annotations: map[string]string{"rdma.noderesource.dev/container.worker": "true"}}}}
		for i := range c.HCAs {
			l.Devices = append(l.Devices, policy.Device{Path: fmt.Sprintf("/dev/infiniband/uverbs%d", i), Type: "c",
				Major: hcatest.Major, Minor: int64(hcatest.FirstVerbs + i)})
		}
		inside := c.Inside
		l.Inside = &inside
		listing.Containers = append(listing.Containers, l)
	}
	return s.laidOut(t, map[string]any{"listing.json": listing, "policy.json": json.RawMessage(`{"file": "/run/rdma-spec/policy.yaml",
		"config": {"optIn": {"namespaces": ["m*"]}, "rules": [{"name": "training", "match": {"namespaces": ["ml", "x"]},
			"memlock": "16Gi"}, {"name": "rest", "match": {"namespaces": ["m*"]}}]}}`)})
}

// verdicts are what the doctor finds below a root: how often each check has each status.
func verdicts(t *testing.T, root string) map[string]int {
	t.Helper()
	found, _, err := doctor.Diagnose(t.Context(), node.Options{Root: root}, checks(), nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, f := range found {
		all[f.Check+" "+string(f.Status)]++
	}
	return all
}

// The doctor comes to the same verdicts on an anonymous archive, which has no name, address, MAC or GUID of the node.
func TestAnonymousArchive(t *testing.T) {
	nodes := map[string]hcatest.Files{"planes": findKnown(t, gb300Planes).files()}
	for _, name := range []string{"an interface of the HCA without an IP address", "a GID index of another pod's interface",
		"two HCAs in one subnet, and a strict filter", "the plugin runs twice"} {
		s := healthy()
		planted[name].plant(s)
		nodes[name] = s.listed(t)
	}
	for _, s := range sickKinds {
		if s.name == "a plane that has lost its link" || s.name == "firmware of a Broadcom that failed" {
			nodes[s.name] = findKnown(t, s.of).files().Without(s.without...).With(s.with)
		}
	}
	for name, files := range nodes {
		t.Run(name, func(t *testing.T) {
			with := hcatest.Files{"proc/sys/kernel/hostname": "frankfurt-gpu-017\n",
				node.AnswersFolder + "/ignored.json": `{"answer": [{"check": "port-active", "object": "container ml/* x", "why": "spare"}]}`}
			for file, content := range files {
				if strings.HasSuffix(file, "/flags") && strings.Contains(file, "/net/") {
					with[filepath.Dir(file)+"/address"] = fmt.Sprintf("b8:59:9f:a9:%02x:%02x\n", len(file), len(content))
				}
			}
			files = maps.Clone(files).With(with)
			root := files.Root(t)
			if of := verdicts(t, root); len(of) < len(checks())/2 {
				t.Errorf("%v", of)
			}
			plain, anonymous := collected(t, root), collected(t, root, "--anonymize")
			if diff := cmp.Diff(verdicts(t, root), verdicts(t, plain)); diff != "" {
				t.Errorf("an archive (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(verdicts(t, root), verdicts(t, anonymous)); diff != "" {
				t.Errorf("an anonymous archive (-want +got):\n%s", diff)
			}
			for _, text := range []string{"frankfurt", "b8:59:9f", "b859:9f", "train-0", `"ml"`, "10.244.0.", "0af4:0008", "0202:02ff"} {
				if found := contains(t, anonymous, text); found != nil {
					t.Errorf("%q is in %.300q", text, found)
				}
			}
		})
	}
}

func findKnown(t *testing.T, name string) known {
	t.Helper()
	i := slices.IndexFunc(healthyNodes, func(k known) bool { return k.name == name })
	if i < 0 {
		t.Fatalf("no node %s", name)
	}
	return healthyNodes[i]
}
