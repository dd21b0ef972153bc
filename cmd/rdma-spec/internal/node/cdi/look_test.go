// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/spec/hca/hcatest"
	"github.com/rdma-spec/rdma-spec/test/testing/await"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"
	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

// generated returns the file of a node.
func generated(t *testing.T, node hcatest.Node, o Options) string {
	t.Helper()
	built, _, _ := Build(scan(t, node.Files().Root(t)), o)
	text, err := Text(built, o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// other returns a file of somebody else, with a device node.
func other(name, node string) string {
	return "cdiVersion: 0.5.0\nkind: example.com/net\ndevices:\n- name: " + name +
		"\n  containerEdits: {deviceNodes: [" + node + "]}\n"
}

// problems looks at a node, and returns what is wrong with its files and devices; a sound file has an empty line.
func problems(t *testing.T, root string) map[string]string {
	t.Helper()
	files, err := Look(root, func() (*hca.Inventory, error) { return hca.Scan(root) })
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range files {
		all[f.Path] = f.Problem
		for _, d := range f.Devices {
			if d.Problem != "" {
				all[f.Path+" "+strings.TrimPrefix(d.Name, Kind+"=")] = d.Problem
			}
		}
		if sound := f.Sound(); sound != (f.Problem == "" && !strings.Contains(strings.Join(keys(all), "\n"), f.Path+" ")) {
			t.Errorf("%s is sound: %t", f.Path, sound)
		}
	}
	return all
}

func keys(m map[string]string) (all []string) {
	for key := range m {
		all = append(all, key)
	}
	return all
}

func TestLook(t *testing.T) {
	const file = "etc/cdi/rdma.yaml"
	one := hcatest.V100Node()
	one.HCAs = one.HCAs[:1]
	three := hcatest.V100Node()
	three.HCAs = append(three.HCAs, hcatest.HCA{Name: "mlx5_2", PCI: "0000:af:00.0", Ports: []hcatest.Port{{}}})
	swapped := hcatest.V100Node()
	swapped.HCAs[0], swapped.HCAs[1] = swapped.HCAs[1], swapped.HCAs[0]
	named := defaults
	named.Devices = []string{"mlx5_0"}
	noHook := Options{Devices: []string{all}}
	var says golden.Cases
	for name, test := range map[string]struct {
		node  hcatest.Node
		files map[string]string
	}{
		"no files": {hcatest.V100Node(), nil},
		"sound":    {hcatest.V100Node(), map[string]string{file: generated(t, hcatest.V100Node(), noHook)}},
		"sound, one HCA": {hcatest.V100Node(), map[string]string{file: generated(t, hcatest.V100Node(), named),
			DefaultHook: "#!"}},
		"no hook program": {hcatest.V100Node(), map[string]string{file: generated(t, hcatest.V100Node(), named)}},
		"an HCA is gone":  {one, map[string]string{file: generated(t, hcatest.V100Node(), noHook)}},
		"an HCA has come": {three, map[string]string{file: generated(t, hcatest.V100Node(), noHook)}},
		"an HCA has come, and another is named": {three, map[string]string{file: generated(t, hcatest.V100Node(), named),
			DefaultHook: "#!"}},
		"HCAs have the device nodes of each other": {swapped, map[string]string{file: generated(t, hcatest.V100Node(),
			noHook)}},
		"a name is gone": {hcatest.V100Node(), map[string]string{file: strings.ReplaceAll(generated(t, hcatest.V100Node(),
			noHook), "name: ib1", "name: ib7")}},
		"others' numbers": {hcatest.V100Node(), map[string]string{
			"run/cdi/a.yaml": other("right", "{path: /dev/infiniband/uverbs0, type: c, major: 231, minor: 192}"),
			"run/cdi/b.yaml": other("wrong", "{path: /dev/infiniband/uverbs0, type: c, major: 231, minor: 193}"),
			"run/cdi/c.json": `{"cdiVersion":"0.5.0","kind":"example.com/net","devices":[{"name":"gone","containerEdits":{"deviceNodes":[{"path":"/dev/x","hostPath":"/dev/infiniband/uverbs9"}]}}]}`,
			"run/cdi/d.conf": "not a CDI file",
		}},
		"twice": {hcatest.V100Node(), map[string]string{
			"etc/cdi/a.yaml": other("one", "{path: /dev/infiniband/uverbs0}"), "etc/cdi/b.yaml": other("one",
				"{path: /dev/infiniband/uverbs1}"),
			"etc/cdi/c.yaml": other("two", "{path: /dev/infiniband/uverbs0}"), "run/cdi/c.yaml": other("two",
				"{path: /dev/infiniband/uverbs1}"),
		}},
	} {
		root := test.node.Files().Root(t)
		scratch.Files(t, root, test.files, 0o755)
		found, text := problems(t, root), ""
		for _, file := range slices.Sorted(maps.Keys(found)) {
			text += file + ": " + found[file] + "\n"
		}
		says.Add(t, name, text)
	}
	says.Compare(t, "testdata/look.txt")
}

// Look waits for an HCA only if it has a file to compare with what the HCA is called.
func TestLookReadsNoHCA(t *testing.T) {
	root := hcatest.V100(t)
	hcatest.Block(t, root, hcatest.Dir("mlx5_0", "0000:5e:00.0")+"/ports/1/state")
	for _, test := range []struct{ file, text string }{
		{"etc/cdi/readme.txt", "not a CDI file"},
		{"etc/cdi/net.yaml", other("one", "{path: /dev/infiniband/uverbs0, type: c, major: 231, minor: 192}")},
	} {
		scratch.File(t, filepath.Join(root, test.file), test.text, 0o755)
		looked := make(chan error, 1)
		go func() {
			_, err := Look(root, func() (*hca.Inventory, error) { return hca.Scan(root) })
			looked <- err
		}()
		if err := await.Receive(t, 5*time.Second, "looked at "+test.file, looked); err != nil {
			t.Error(err)
		}
	}
}

// What an HCA is called is unknown while it does not answer: a file of HCAs is not called wrong.
func TestLookWithoutAnAnswer(t *testing.T) {
	root := hcatest.V100(t)
	scratch.File(t, filepath.Join(root, "etc/cdi/rdma.yaml"),
		generated(t, hcatest.V100Node(), Options{Devices: []string{all}}), 0o755)
	files, err := Look(root, func() (*hca.Inventory, error) {
		node := scan(t, root)
		node.HCAs[1].Unread = "no response within 2s"
		return node, nil
	})
	if err == nil || err.Error() != "HCA mlx5_1 cannot be read: no response within 2s" || files != nil {
		t.Errorf("%+v, %v", files, err)
	}
}

// A file that runtimes ignore, or that cannot be read, is a problem of its own and hides no other.
func TestLookAtBrokenFiles(t *testing.T) {
	root := hcatest.V100(t)
	scratch.Files(t, filepath.Join(root, "etc/cdi"), map[string]string{
		"broken.yaml":  "cdiVersion: 0.5.0\nkind: example.com/net\n",
		"garbage.json": "\x00\x01",
		"huge.yaml":    strings.Repeat("#", fileMost+1),
		"sound.yaml":   other("one", "{path: /dev/infiniband/uverbs0}"),
	}, 0o755)
	if err := unix.Mkfifo(filepath.Join(root, "etc/cdi/pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, problem := range problems(t, root) {
		if sound := file == "/etc/cdi/sound.yaml"; sound != (problem == "") || strings.Contains(problem, root) {
			t.Errorf("%s: %q", file, problem)
		}
	}
	if got := len(problems(t, root)); got != 5 {
		t.Errorf("%d files, want 5", got)
	}
}

func TestWriteAndRemove(t *testing.T) {
	dir := scratch.Dir(t)
	file := filepath.Join(dir, "cdi/rdma.yaml")
	first, second := generated(t, hcatest.V100Node(), defaults), generated(t, hcatest.A100Node(), defaults)
	for i, text := range []string{first, second, second} {
		before, _ := os.Stat(file)
		if written, err := Write(file, []byte(text)); err != nil || written != (i < 2) {
			t.Fatalf("write %d: %t, %v", i, written, err)
		}
		after, err := os.Stat(file)
		if err != nil || after.Mode().Perm() != 0o644 {
			t.Errorf("%v, %v", after, err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("%v\n%s", err, got)
		}
		if i > 0 && os.SameFile(before, after) != (i == 2) { // what is there already is not written
			t.Errorf("write %d replaces the file: %t", i, i == 2)
		}
	}
	if removed, err := Write(file, nil); !removed || err != nil {
		t.Errorf("Remove: %t, %v", removed, err)
	}
	if removed, err := Write(file, nil); removed || err != nil {
		t.Errorf("Remove again: %t, %v", removed, err)
	}
	theirs := other("one", "{path: /dev/null}")
	scratch.File(t, filepath.Join(dir, "cdi/rdma.yaml"), theirs, 0o755)
	_, removeErr := Write(file, nil)
	if _, err := Write(file, []byte(first)); err == nil || removeErr == nil || !strings.Contains(err.Error(),
		"is not a CDI file of kind") {
		t.Errorf("a file of somebody else: %v, %v", err, removeErr)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != theirs {
		t.Errorf("%v\n%s", err, got)
	}
}
