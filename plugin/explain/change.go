// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rdma-spec/rdma-spec/plugin/manifest"
	"github.com/rdma-spec/rdma-spec/spec"
)

// Change is a value of an OCI runtime spec that is added or, with a former value, replaced.
type Change struct {
	Path   string          `json:"path"` // process.rlimits[0]
	Former json.RawMessage `json:"former,omitempty"`
	Value  json.RawMessage `json:"value"`
}

// String gives the change as a line of a diff, or two where something is replaced.
func (c Change) String() string {
	added := fmt.Sprintf("+ %s: %s", c.Path, c.Value)
	if c.Former == nil {
		return added
	}
	return fmt.Sprintf("- %s: %s\n%s", c.Path, c.Former, added)
}

func (c Change) isIPCLock() bool { return string(c.Value) == `"`+spec.CapIPCLock+`"` }

// changes applies a grant to the spec that the runtime would start the container from, and gives what it changes.
func (e Explainer) changes(c manifest.Container, grant *spec.Grant) ([]Change, error) {
	if grant == nil || len(e.Base) == 0 {
		return nil, nil
	}
	before, err := withCapabilities(e.Base, c)
	if err != nil {
		return nil, err
	}
	after, err := grant.Apply(before, spec.AllSets)
	if err != nil {
		return nil, err
	}
	return difference(before, after)
}

// withCapabilities gives the base spec with the capabilities that a container's author adds and drops, as CRI does: in the sets of base specs.
func withCapabilities(base []byte, c manifest.Container) ([]byte, error) {
	var s specs.Spec
	if err := json.Unmarshal(base, &s); err != nil {
		return nil, fmt.Errorf("the base spec: %w", err)
	}
	if s.Process == nil || s.Process.Capabilities == nil {
		return base, nil
	}
	sets := s.Process.Capabilities
	for _, set := range []*[]string{&sets.Bounding, &sets.Effective, &sets.Permitted} {
		*set = slices.DeleteFunc(*set, func(name string) bool {
			return slices.Contains(c.DropCapabilities, "ALL") || slices.Contains(c.DropCapabilities, strings.TrimPrefix(name, "CAP_"))
		})
		for _, name := range c.AddCapabilities {
			if name == "ALL" {
				name = spec.CapIPCLock // as one of all
			}
			*set = append(*set, "CAP_"+strings.TrimPrefix(name, "CAP_"))
		}
		if c.AllDevices {
			*set = append(*set, spec.CapIPCLock) // a privileged container has all
		}
	}
	return json.Marshal(s)
}

// difference gives what differs between two specs. A grant only adds and replaces, so nothing is looked for that is gone.
func difference(before, after []byte) ([]Change, error) {
	old, err := decode(before)
	if err != nil {
		return nil, err
	}
	changed, err := decode(after)
	if err != nil {
		return nil, err
	}
	return differences("", old, changed), nil
}

func decode(text []byte) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return value, decoder.Decode(&value)
}

// differences compares values that stand at a path, key by key and element by element.
func differences(path string, before, after any) []Change {
	var all []Change
	switch after := after.(type) {
	case map[string]any:
		if before, ok := before.(map[string]any); ok {
			for _, key := range slices.Sorted(maps.Keys(after)) {
				all = append(all, differences(strings.TrimPrefix(path+"."+key, "."), before[key], after[key])...)
			}
			return all
		}
	case []any:
		before, _ := before.([]any) // a list that was not there is shown element by element as well
		for i, element := range after {
			var former any
			if i < len(before) {
				former = before[i]
			}
			all = append(all, differences(fmt.Sprintf("%s[%d]", path, i), former, element)...)
		}
		return all
	default:
		if before == after {
			return nil
		}
	}
	if before == nil {
		return []Change{{Path: path, Value: encode(after)}}
	}
	return []Change{{Path: path, Former: encode(before), Value: encode(after)}}
}

// encode gives the JSON of a value that was decoded from JSON.
func encode(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}
