// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/golden"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec"
)

func readableAnnotations() map[string]request {
	bytes := func(n spec.Limit) request { return request{memlock: &memlock{limit: n}} }
	ipcLock := func(want bool) request { return request{ipcLock: &want} }
	hcas := func(names ...string) request { return request{devices: deviceRequest{names: names}} }
	no := false
	return map[string]request{
		"true":                      {},
		" true\n":                   {},
		"false":                     {optOut: true},
		"\tfalse\r\n":               {optOut: true},
		"{memlock: 16Gi}":           bytes(16 << 30),
		"memlock: 16Gi":             bytes(16 << 30),
		"memlock: 16Gi\n":           bytes(16 << 30),
		"---\nmemlock: 16Gi":        bytes(16 << 30),
		"memlock: 16Gi\n...\n":      bytes(16 << 30),
		`{"memlock": "16Gi"}`:       bytes(16 << 30),
		"{memlock: 16Gi} # a note":  bytes(16 << 30),
		"memlock: |\n  16Gi":        bytes(16 << 30),
		"{memlock: unlimited}":      bytes(spec.Unlimited),
		"{memlock: memory-limit}":   {memlock: &memlock{memoryLimit: true}},
		"{memlock: 65536}":          bytes(65536),
		"{memlock: 1e3}":            bytes(1000),
		"{memlock: 1_000}":          bytes(1000),
		"{memlock: 0x10}":           bytes(16),
		"{memlock: 010}":            bytes(8), // YAML 1.1: octal
		"{memlock: +5}":             bytes(5),
		"{memlock: 0.5Gi}":          bytes(512 << 20),
		"{ipcLock: true}":           ipcLock(true),
		"{ipcLock: false}":          ipcLock(false),
		"{ipcLock: yes}":            ipcLock(true), // YAML 1.1
		"{ipcLock: off}":            ipcLock(false),
		`{ipcLock: "true"}`:         ipcLock(true),
		"{devices: all}":            {devices: deviceRequest{all: true}},
		"{devices: none}":           {devices: deviceRequest{none: true}},
		"{devices: [mlx5_0]}":       hcas("mlx5_0"),
		"devices:\n- a\n- b.1:c-d_": hcas("a", "b.1:c-d_"),
		"{memlock: 1Gi, ipcLock: false, devices: none}": {memlock: &memlock{limit: 1 << 30}, ipcLock: &no,
			devices: deviceRequest{none: true}},
		"{devices: [" + strings.Repeat("mlx5_bond_12, ", 60) +
			"x]}": hcas(append(strings.Fields(strings.Repeat("mlx5_bond_12 ", 60)), "x")...),
	}
}

func TestAnnotationIsUnderstood(t *testing.T) {
	for value, want := range readableAnnotations() {
		t.Run(value, func(t *testing.T) {
			got, err := parseAnnotation(value)
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			expect.Equal(t, "request", want, got, cmp.AllowUnexported(request{}, deviceRequest{}, memlock{}))
		})
	}
}

var unreadableAnnotations = []string{
	"", " \n", "True", "ture", "1", "null", "{}", "true false", "\ufefftrue", "tru\u0435", "true\u0085",
	"true\x00", "true\u2028",
	strings.Repeat("x", maxAnnotation+1), strings.Repeat("\u202e", 100),
	"# a: comment", "---\n# a: comment", "{ } # :", "[memlock: 1Gi]", "true # a: b", "5 # :", "a: b: c", "? a: b",
	"\tmemlock: 1Gi", "{memlock: @}",
	"{memlock: 1Gi} garbage", "{memlock: 1Gi}}", "memlock: 1Gi\n---\nmemlock: unlimited", "memlock: 1Gi\n...\nfoo: bar",
	"--- {memlock: 1Gi}\n--- {}",
	"{memlok: 1Gi}", "{Memlock: 1Gi}", "{MEMLOCK: 1Gi, memlock: 2Gi}", "{1: a}", "{true: true}", "{\"a\\nb\": 1}",
	"{\"\\u202e\": 1}", "{a: 1, b: 2}",
	"{" + strings.Repeat("a", 300) + ": 1}", "{memlock: 1Gi, memlock: 2Gi}",
	"{memlock: 1Gi, \"memlock\": 2Gi}", "{<<: {memlock: 1Gi}}",
	"{memlock: &a 1Gi}", "{devices: *a}", "{memlock: !!str 1}", "{memlock: !!binary aGk=}",
	"{memlock: }", "{memlock: null}", "{memlock: ~}", "{memlock: ''}", "{ipcLock: }", "{ipcLock: ''}", "{devices: }",
	"{devices: ''}", "{devices: []}", "{devices: [~]}",
	"{memlock: 0}", "{memlock: -1}", "{memlock: -16Gi}", "{memlock: 1.5}", "{memlock: .5}", "{memlock: .inf}",
	"{memlock: -.Inf}", "{memlock: .nan}",
	"{memlock: 1e30}", "{memlock: 1e400}", "{memlock: 1e2147483647}", "{memlock: '1e-2147483648'}",
	"{memlock: 18446744073709551616}", "{memlock: 8Ei}",
	"{memlock: 2001-01-01}", "{memlock: 1:30}", "{memlock: 1K}", "{memlock: 1 Gi}", "{memlock: Unlimited}",
	"{memlock: true}", "{memlock: [1Gi]}", "{memlock: {a: b}}",
	"{memlock: \"\\u202e1\"}", "{memlock: \"a\\nb\"}", "{memlock: " + strings.Repeat("9", 900) + "}",
	"{ipcLock: 1}", "{ipcLock: always}", "{memlock: unchanged}", "{ipcLock: [true]}", "{ipcLock: {}}",
	"{devices: true}", "{devices: 1}", "{devices: mlx5_0}", "{devices: All}", "{devices: {names: [a]}}", "{devices: [1]}",
	"{devices: [[a]]}", "{devices: ['']}", "{devices: ['*']}",
	"{devices: [../mlx5_0]}", "{devices: [/dev/infiniband/uverbs0]}", "{devices: ['mlx5 0']}", "{devices: [.]}",
	"{devices: [..]}", "{devices: [-a]}", "{devices: [\"mlx5_0\\u0000\"]}",
	"{devices: [\"mlx5_\\u0660\"]}", "{devices: [" + strings.Repeat("a", 64) + "]}", "{devices: [\"" +
		strings.Repeat("\\u202e", 100) + "\"]}",
	strings.Repeat("[", 500) + ":" + strings.Repeat("]", 500), strings.Repeat("{a: ", 250), strings.Repeat("- ", 500) +
		":", strings.Repeat("{[", 300) + ":" + strings.Repeat("]}", 200),
}

// What cannot be read, and what is said to that. Nearly all messages end with the same form, which the golden file has once.
func TestAnnotationIsRefused(t *testing.T) {
	var got strings.Builder
	fmt.Fprintf(&got, "FORM is: %s\n", annotationForm)
	for _, value := range unreadableAnnotations {
		name := quoted(value)
		_, err := parseAnnotation(value)
		if err == nil {
			t.Errorf("%s is taken", name)
			continue
		}
		checkOneLine(t, err.Error())
		fmt.Fprintf(&got, "%s\n    %s\n", name, strings.ReplaceAll(err.Error(), annotationForm, "FORM"))
	}
	golden.Compare(t, filepath.Join("testdata", "annotation.golden"), got.String())
}

// TestAnnotationVocabulary checks that each word of the annotation is understood, and that messages name it.
func TestAnnotationVocabulary(t *testing.T) {
	said := AnnotationVocabulary()
	for _, w := range words {
		if !slices.Contains(said.Words(), w.word) {
			t.Errorf("words: %q neither opts in nor opts out: give it a list of its own in Vocabulary and Words, and a meaning in both policies, "+
				"deploy/helm/nri-rdma/templates/admission-{forbid,require}.yaml; test both in deploy/admission", w.word)
		}
	}
	for _, word := range said.Words() {
		asked, err := parseAnnotation(" " + word + "\n")
		if err != nil || asked.optOut != slices.Contains(said.OptOut, word) || !strings.Contains(annotationForm, strconv.Quote(word)) {
			t.Errorf("%s: %+v, %v; messages name %s", word, asked, err, annotationForm)
		}
	}
	for _, word := range said.Devices {
		if _, err := parseAnnotation("devices: " + word); err != nil || !strings.Contains(devicesForm, word+" nor ") {
			t.Errorf("devices: %s: %v; messages name %s", word, err, devicesForm)
		}
	}
	for _, key := range said.Keys {
		if !strings.Contains(annotationForm, key+": ") {
			t.Errorf("messages do not name the key %s: %s", key, annotationForm)
		}
	}
}
