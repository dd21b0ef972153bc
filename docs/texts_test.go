// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs_test checks the documentation.
package docs_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
	"github.com/rdma-spec/rdma-spec/test/testing/pages"
	"github.com/rdma-spec/rdma-spec/test/testing/repository"
)

// texts returns the documentation: the pages in the top directory, and those in docs.
func texts(t *testing.T) []string {
	t.Helper()
	return append([]string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "SUPPORT.md", "CODE_OF_CONDUCT.md"},
		pagesIn(t, "docs")...)
}

// pagesIn returns the pages of a directory: those of the doctor's checks, in docs/faults, are written by a test.
func pagesIn(t *testing.T, dir string) (files []string) {
	t.Helper()
	pages, err := filepath.Glob(repository.Path(t, dir+"/*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages in %s: %v", dir, err)
	}
	for _, page := range pages {
		files = append(files, filepath.Join(dir, filepath.Base(page)))
	}
	return files
}

func blocks(t *testing.T) (all []pages.Block) {
	t.Helper()
	for _, file := range texts(t) {
		all = append(all, pages.Blocks(file, repository.Read(t, file))...)
	}
	return all
}

// TestBlocksInTextsAreChecked checks each block as its language requires. Shell commands have tests of their own.
func TestBlocksInTextsAreChecked(t *testing.T) {
	for _, b := range blocks(t) {
		var err error
		switch b.Language {
		case "yaml":
			err = checkYAML(t, b.Content)
		case "toml":
			var into map[string]any
			err = toml.Unmarshal([]byte(b.Content), &into)
		case "sh", "console":
		default:
			t.Errorf("%s: no test checks a block in %q:\n%s", b, b.Language, b.Content)
		}
		if err != nil {
			t.Errorf("%s: %v:\n%s", b, err, b.Content)
		}
	}
}

// checkYAML checks a block that is a RuntimeClass, a Role, the spec or annotations of a pod, or a configuration.
func checkYAML(t *testing.T, text string) error {
	t.Helper()
	switch {
	case strings.Contains(text, "\nkind: RuntimeClass\n"):
		return yaml.UnmarshalStrict([]byte(text), &nodev1.RuntimeClass{})
	case strings.Contains(text, "\nkind: Role\n"):
		return yaml.UnmarshalStrict([]byte(text), &rbacv1.Role{})
	case strings.HasPrefix(text, "resources: "): // the chart's tests build them
		return yaml.UnmarshalStrict([]byte(text), &map[string]any{})
	case strings.Contains(text, "\nkind: NodeConfig\n"), strings.HasPrefix(text, "machine:\n"),
		strings.Contains(text, "\nkind: MachineConfig\n"):
		return checkTurnsNRIOn(text)
	case strings.HasPrefix(text, "registerWithTaints:\n"): // the kubelet's configuration
		return yaml.UnmarshalStrict([]byte(text), &struct{ RegisterWithTaints []corev1.Taint }{})
	case strings.HasPrefix(text, "ignore:\n"): // the doctor's file
		return yaml.UnmarshalStrict([]byte(text), &struct {
			Ignore []struct{ Check, Object, Reason string }
		}{})
	case strings.HasPrefix(text, "spec:\n"):
		return yaml.UnmarshalStrict([]byte(text), &corev1.Pod{})
	case strings.HasPrefix(text, "metadata:\n"):
		var pod struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		}
		if err := yaml.UnmarshalStrict([]byte(text), &pod); err != nil {
			return err
		}
		for key, value := range pod.Metadata.Annotations {
			if !strings.HasPrefix(key, policy.AnnotationKey) {
				return json.Unmarshal([]byte(value), &[]string{})
			}
			got := decide(t, "inject: {namespaces: [team-a]}", policy.Container{Annotations: annotations(value)})
			if got.Refusal != nil {
				return got.Refusal
			}
		}
		return nil
	}
	_, err := policy.FromText([]byte(text))
	return err
}

// checkTurnsNRIOn checks that the TOML in a platform's setting turns NRI on.
func checkTurnsNRIOn(text string) error {
	var setting struct {
		Spec struct { // nodeadm's NodeConfig, and OpenShift's MachineConfig
			Containerd struct{ Config string }
			Config     struct {
				Storage struct {
					Files []struct{ Contents struct{ Source string } }
				}
			}
		}
		Machine struct{ Files []struct{ Content string } } // Talos
	}
	if err := yaml.Unmarshal([]byte(text), &setting); err != nil {
		return err
	}
	config := setting.Spec.Containerd.Config
	for _, file := range setting.Machine.Files {
		config += file.Content
	}
	for _, file := range setting.Spec.Config.Storage.Files {
		plain, err := url.PathUnescape(strings.TrimPrefix(file.Contents.Source, "data:,"))
		if err != nil {
			return err
		}
		config += plain
	}
	var runtime struct {
		Plugins map[string]struct{ Disable *bool }
		Crio    struct {
			NRI struct {
				On bool `toml:"enable_nri"`
			}
		}
	}
	if err := toml.NewDecoder(strings.NewReader(config)).DisallowUnknownFields().Decode(&runtime); err != nil {
		return err
	}
	if off := runtime.Plugins["io.containerd.nri.v1.nri"].Disable; (off == nil || *off) && !runtime.Crio.NRI.On {
		return fmt.Errorf("it does not turn NRI on: %s", config)
	}
	return nil
}

// TestSchemaIsPublished checks that the address that docs/configuration.md gives for editors is the schema's own.
func TestSchemaIsPublished(t *testing.T) {
	var schema struct {
		ID string `json:"$id"`
	}
	if err := json.Unmarshal([]byte(repository.Read(t, "deploy/config.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	if line := "\n# yaml-language-server: $schema=" + schema.ID + "\n"; !strings.Contains(repository.Read(t,
		"docs/configuration.md"), line) {
		t.Errorf("docs/configuration.md does not have the line %q", line)
	}
}
