// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/test/testing/scratch"
)

func TestImage(t *testing.T) {
	path := filepath.Join(scratch.Dir(t), "image.tar")
	var content layer
	content.dir("bin", 0o755)
	content.file("bin/true", 0o755, []byte("program"))
	content.link("bin/yes", "true")
	if err := writeImage(path, ImageName("thing"), content, imageConfig{Entrypoint: []string{"/bin/true"}}); err != nil {
		t.Fatal(err)
	}
	files := untar(t, []byte(scratch.Read(t, path)))
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"rdma-node.test/thing:1"}, manifest[0].RepoTags); diff != "" {
		t.Error(diff)
	}
	config := files[manifest[0].Config]
	if want := digest([]byte(config)) + ".json"; manifest[0].Config != want {
		t.Errorf("the configuration %s is not called by its digest %s", manifest[0].Config, want)
	}
	inner := files[manifest[0].Layers[0]]
	if want := "sha256:" + digest([]byte(inner)); !bytes.Contains([]byte(config), []byte(want)) {
		t.Errorf("the configuration does not name its layer %s: %s", want, config)
	}
	if diff := cmp.Diff(map[string]string{"bin/": "", "bin/true": "program", "bin/yes": ""},
		untar(t, []byte(inner))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func untar(t *testing.T, packed []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	r := tar.NewReader(bytes.NewReader(packed))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
}

func TestCpio(t *testing.T) {
	var archive cpio
	archive.dir("bin")
	archive.file("bin/tool", 0o755, []byte("12345"))
	// The header's fields are inode, mode, uid, gid, links, mtime, size, four device
	// numbers, the name's length with its zero, and a checksum that newc leaves 0.
	head := func(inode, mode, size, name int) string {
		return fmt.Sprintf("070701%08x%08x%032x%08x%040x%08x", inode, mode, 1<<32, size, name, 0)
	}
	want := head(1, 0o040755, 0, 4) + "bin\x00" + "\x00\x00" +
		head(2, 0o100755, 5, 9) + "bin/tool\x00" + "\x00" + "12345" + "\x00\x00\x00" +
		head(3, 0, 0, 11) + "TRAILER!!!\x00" + "\x00\x00\x00"
	if diff := cmp.Diff(want, string(archive.end())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestPayload(t *testing.T) {
	const xz = "\xfd7zXZ\x00packed"
	sound := func() []byte {
		image := make([]byte, 3*512)
		image[0x1f1] = 1 // the real-mode part is two sectors long
		copy(image[0x202:], "HdrS")
		binary.LittleEndian.PutUint32(image[0x248:], 16)
		binary.LittleEndian.PutUint32(image[0x24c:], uint32(len(xz)+4))
		copy(image[2*512+16:], xz)
		return image
	}
	if got, err := payload(sound()); err != nil || string(got) != xz {
		t.Errorf("payload is %q, %v", got, err)
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"short":             func(image []byte) []byte { return image[:0x210] },
		"no header":         func(image []byte) []byte { image[0x202] = 0; return image },
		"another packing":   func(image []byte) []byte { image[2*512+16] = 'g'; return image },
		"beyond its end":    func(image []byte) []byte { image[0x24d] = 0xff; return image },
		"less than nothing": func(image []byte) []byte { copy(image[0x24c:], []byte{0, 0, 0, 0}); return image },
	} {
		if _, err := payload(spoil(sound())); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestConsoleKeepsTheLastLines(t *testing.T) {
	var live bytes.Buffer
	c := &console{also: &live}
	for line := range consoleLines + 5 {
		fmt.Fprintf(c, "line %d\r\n", line)
	}
	fmt.Fprint(c, "half a ")
	fmt.Fprint(c, "line")
	got := c.last()
	if len(got) != consoleLines+1 || got[0] != "line 5" || got[consoleLines] != "half a line" {
		t.Errorf("%d lines, from %q to %q", len(got), got[0], got[len(got)-1])
	}
	if !bytes.HasPrefix(live.Bytes(), []byte("line 0\r\n")) {
		t.Errorf("the live console says %.20q", live.String())
	}
}
