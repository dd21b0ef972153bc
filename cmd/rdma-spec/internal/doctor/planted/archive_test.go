// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/collect"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/doctor"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/archive"
	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/cri"
	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/chance"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// collected is the directory of an archive of a node.
func collected(t *testing.T, root string, flags ...string) string {
	t.Helper()
	file := filepath.Join(scratch.Dir(t), "node.tar.gz")
	cmd := collect.Command(checks())
	cmd.SetArgs(append([]string{"--root", root, "--to", file}, flags...))
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir, remove, err := archive.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remove() })
	return dir
}

// contains returns the files of a directory whose name, link or content has one of several texts.
func contains(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		link, _ := os.Readlink(name)
		content := []byte{}
		if e.Type().IsRegular() {
			content, err = os.ReadFile(name)
		}
		all := strings.ToLower(name[len(dir):] + "\n" + link + "\n" + string(content))
		for _, text := range texts {
			if strings.Contains(all, strings.ToLower(text)) {
				found = append(found, fmt.Sprintf("%q in %s: %.300q", text, name[len(dir):], content))
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// An archive has no secret of the audit log, of arguments and environments, and of files that errors quote.
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
		"etc/rdma-spec/doctor.yaml":                            "ignore: [{check: a, reason: " + secret() + "\n",
		"etc/crictl.yaml":                                      "runtime-endpoint: [" + secret() + "\n",
		"etc/containerd/config.toml":                           "version = 3\n[plugins.x]\npassword = " + secret() + "\n",
		"etc/docker/daemon.json":                               "{\"features\": {\"cdi\": \"" + secret() + "\"}",
		"etc/cdi/broken.yaml":                                  "cdiVersion: [" + secret() + "\n",
		"etc/cni/net.d/10-x.conf":                              "{\"type\": \"rdma\", \"password\": \"" + secret() + "\"",
		"run/rdma-spec/policy.yaml":                            "memlock: " + secret() + "\n",
		"etc/cni/net.d/calico-kubeconfig":                      "users: [{user: {token: " + secret() + "}}]\n",
		"sys/devices/pci0000:18/0000:18:00.0/net/eth0/ifalias": secret() + "\n",
	}).Root(t)
	if len(secrets) < 20 {
		t.Errorf("%d secrets", len(secrets))
	}
	dir := collected(t, root)
	for i, s := range secrets {
		if found := contains(t, dir, s); found != nil {
			t.Errorf("secret %d: %q", i, found)
		}
	}
	if found := contains(t, dir, "scontext=a:b:container_t:s0 tclass=chr_file"); len(found) == 0 {
		if log := contains(t, dir, "denied"); len(log) == 0 {
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
	for _, c := range slices.Concat(s.containers.Containers, s.containers.Others) {
		l := node.Listed{Container: cri.Container{ID: strings.Repeat(fmt.Sprint(len(listing.Containers)), 64), PID: 700,
			Spec: cri.Spec{Env: c.Env, Bounding: c.Bounding}, Runtime: c.Runtime,
			Container: policy.Container{Namespace: c.Namespace, Pod: c.Pod, Name: c.Container,
				HostNetwork: !c.OwnNetwork, AllDevices: c.AllDevices, RuntimeHandler: c.Handler,
				Annotations: map[string]string{"rdma.noderesource.dev/container." + c.Container: "true"}}}}
		if c.Memlock != nil {
			l.Spec.Memlock, l.Spec.MemlockKnown = *c.Memlock, true
		}
		for i := range c.HCAs {
			l.Devices = append(l.Devices, policy.Device{Path: fmt.Sprintf("/dev/infiniband/uverbs%d", i), Type: "c",
				Major: hcatest.Major, Minor: int64(hcatest.FirstVerbs + i)})
		}
		for i := range c.Stale {
			l.Devices = append(l.Devices, policy.Device{Path: fmt.Sprintf("/dev/infiniband/uverbs%d", i), Type: "c",
				Major: hcatest.Major, Minor: int64(hcatest.FirstVerbs + 40 + i)})
		}
		if len(c.HCAs) == 0 {
			l.Annotations = nil
		}
		inside := c.Inside
		l.Inside = &inside
		listing.Runtimes = append(listing.Runtimes, l.Runtime)
		listing.Containers = append(listing.Containers, l)
	}
	return s.laidOut(t, map[string]any{"listing.json": listing, "policy.json": json.RawMessage(`{
		"file": "/run/rdma-spec/policy.yaml", "config": {"optIn": {"namespaces": ["m*"]}, "rules": [{"name": "training", "match": {"namespaces": ["ml", "x"]},
			"memlock": "16Gi"}, {"name": "rest", "match": {"namespaces": ["m*"]}}]}}`)})
}

// verdicts are what the doctor finds below a root, with the names of containers and HCAs that an anonymous archive
// replaced.
func verdicts(t *testing.T, root string, replaced map[string]string) (all []string) {
	t.Helper()
	found, _, err := doctor.Diagnose(t.Context(), node.Options{Root: root}, checks(), nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		words := strings.Split(f.Object, " ")
		for i, word := range words {
			words[i] = cmp.Or(replaced[word], word)
		}
		all = append(all, fmt.Sprintf("%s %s %s", f.Check, f.Status, strings.Join(words, " ")))
	}
	slices.Sort(all)
	return all
}

// replaced are the names that an anonymous archive of a node has instead of its own: the containers are in the order of
// the runtime's list in both, and HCAs in that of their PCI addresses.
func replaced(t *testing.T, root, anonymous string) map[string]string {
	t.Helper()
	read := func(root string) (names []string) {
		s := openBelow(t, root)
		listing, _ := s.Listing() // a node without one has no containers
		for _, c := range listing.Containers {
			names = append(names, c.Namespace+"/"+c.Pod, c.Name)
		}
		var hcas []string
		if all, err := s.HCAs(); err == nil {
			for _, h := range all.HCAs {
				hcas = append(hcas, h.PCI+" "+h.Name)
			}
		}
		slices.Sort(hcas)
		for _, h := range hcas {
			names = append(names, h[strings.LastIndex(h, " ")+1:])
		}
		return names
	}
	of, with := map[string]string{}, read(anonymous)
	for i, name := range read(root) {
		of[with[i]] = name
	}
	return of
}

// laidOutNodes are all nodes that the tests of this package plant, as they are and as an archive has them.
func laidOutNodes(t *testing.T) map[string]hcatest.Files {
	nodes := map[string]hcatest.Files{"healthy": healthy().listed(t)}
	for _, p := range faults() {
		nodes["fault: "+p.name] = p.files(t)
	}
	for _, k := range healthyNodes {
		nodes["known: "+k.name] = k.files()
	}
	for _, s := range sickKinds {
		nodes["kind: "+s.name] = fallenSick(t, s.of, s.without, s.with)
	}
	return nodes
}

// identified has what tells a node from others: a name of its host, MACs, and an entry of the ignore file.
func identified(files hcatest.Files) hcatest.Files {
	with := hcatest.Files{"proc/sys/kernel/hostname": "frankfurt-gpu-017\n",
		node.AnswersDir + "/ignored.json": `{"answer": [{"check": "port-active", "object": "container ml/* x",
			"why": "spare"}]}`}
	for file, content := range files {
		if strings.HasSuffix(file, "/flags") && strings.Contains(file, "/net/") {
			with[filepath.Dir(file)+"/address"] = fmt.Sprintf("b8:59:9f:a9:%02x:%02x\n", len(file), len(content))
		}
	}
	return maps.Clone(files).With(with)
}

var archives = flag.Int("archives", 4, "how many more `NODES`, chosen by chance, TestArchive_keepsVerdicts collects")

// archived have what an archive could lose: what only the data of cards tells, planes, addresses, and names.
var archived = []string{"known: " + b200NVSwitches, "known: " + gb300Planes,
	"fault: two HCAs in one subnet, and a strict filter", "fault: a GID index of another pod's interface",
	"fault: an HCA that was made anew"}

// The doctor's verdicts are the same in an archive, and in one without names, addresses, MACs and GUIDs of the node.
func TestArchive_keepsVerdicts(t *testing.T) {
	nodes := laidOutNodes(t)
	names := slices.Sorted(maps.Keys(nodes))
	chance.New(t).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = append(slices.Clone(archived), names[:min(*archives, len(names))]...)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			root := identified(nodes[name]).Root(t)
			want := verdicts(t, root, nil)
			if len(want) < len(checks()) {
				t.Errorf("%v", want)
			}
			if i < len(archived) {
				if diff := gocmp.Diff(want, verdicts(t, collected(t, root), nil)); diff != "" {
					t.Errorf("an archive (-want +got):\n%s", diff)
				}
			}
			anonymous := collected(t, root, "--anonymize")
			if diff := gocmp.Diff(want, verdicts(t, anonymous, replaced(t, root, anonymous))); diff != "" {
				t.Errorf("an anonymous archive (-want +got):\n%s", diff)
			}
			for _, found := range contains(t, anonymous, "frankfurt", "b8:59:9f", "b859:9f", "train-0", `"ml"`, "10.244.0.",
				"0af4:0008", "0202:02ff", "VU\x0c") {
				t.Error(found)
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
