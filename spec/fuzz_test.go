// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rdma-spec/rdma-spec/spec/hca"
	"github.com/rdma-spec/rdma-spec/test/testing/expect"
	"github.com/rdma-spec/rdma-spec/test/testing/must"
)

// FuzzApply: for any spec, Apply does not panic. If it does not refuse the spec, the result is JSON, applying the grant
// again changes nothing, everything outside the grant is unchanged, and the spec contains the grant.
func FuzzApply(f *testing.F) {
	for _, text := range []string{
		``, `x`, `{`, `{x`, `{"a":x}`, `{"a":1`, `{}{}`, `{}`, ` { } `, `null`, `[]`, `{"process":{},"Process":{}}`,
		`{"proce\u017f\u017f":{"rlimits":[]}}`, `{"":{"":[]},"x":1e400}`,
		`{"process":null,"linux":null}`, `{"process":[],"linux":{"resources":[]}}`, "{\"\\ud800\":\"\xff\",\"linux\":{}}",
		`{"process":{"rlimits":[{"type":"RLIMIT_MEMLOCK","hard":18446744073709551615,"soft":65536,"x":[1e400]},{"type":"RLIMIT_MEMLOCK"}]}}`,
		`{"process":{"rlimits":[{"Type":"RLIMIT_MEMLOCK","hard":1,"soft":2}],"capabilities":{"bounding":["CAP_\u0049PC_LOCK",null]}}}`,
		`{"process":{"capabilities":{"bounding":["CAP_CHOWN","CAP_DAC_OVERRIDE","CAP_FSETID","CAP_FOWNER","CAP_MKNOD","CAP_NET_RAW","CAP_SETGID"],"BOUNDING2":0}}}`,
		`{"linux":{"devices":[{"path":"/dev/infiniband/uverbs0","type":"u","major":231,"minor":192}],"resources":{"devices":[` + uverbs0Rule + `,` + denial + `]}}}`,
		`{"linux":{"devices":[{"path":"/dev/infiniband/uverbs0","type":"b"}]}}`,
		strange, changing(map[string]string{"RLIMITS": "[]", "BOUNDING": "[]", "EFFECTIVE": "null",
			"PERMITTED": "[\"CAP_IPC_LOCK\"]", "RULES": "[]", "DEVICES": "[ ]"}),
	} {
		f.Add([]byte(text), uint64(Unlimited), uint8(7))
		f.Add([]byte(text), uint64(1<<20), uint8(2))
		f.Add([]byte(text), uint64(0), uint8(17))
	}
	f.Fuzz(func(t *testing.T, text []byte, memlock uint64, choice uint8) {
		grant := Grant{Memlock: Limit(memlock), IPCLock: []IPCLock{IPCLockNo, IPCLockUnlessDropped,
			IPCLockYes, IPCLockYes}[choice&3]}
		grant.Devices = []hca.Device{uverbs0, rdmaCM, uverbs1}[:choice>>2&3]
		sets := []CapabilitySets{BaseSets, AllSets}[choice>>4&1]

		out, err := grant.Apply(text, sets)
		if err != nil {
			if out != nil || strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("no clear refusal: %q and a text of %d bytes", err, len(out))
			}
			return
		}
		if !json.Valid(out) {
			t.Fatalf("no JSON: %s", out)
		}
		if again, err := grant.Apply(out, sets); err != nil || !bytes.Equal(again, out) {
			t.Errorf("applying twice differs from applying once: %v\n%s", err, cmp.Diff(string(out), string(again)))
		}
		expect.Equal(t, "what the grant does not speak of", untouched(t, text), untouched(t, out))
		confirms(t, grant, sets, text)
		promised(t, grant, sets, text, out)
		readBack(t, grant, text, out)
	})
}

// confirms checks that Confirm edits a spec like Apply without devices, and finds the same as Memlock.
func confirms(t *testing.T, grant Grant, sets CapabilitySets, text []byte) {
	grant.Devices = nil
	edited, err := grant.Apply(text, sets)
	confirmed, problem := grant.Confirm(text, sets)
	if memlock, known, unread := Memlock(text); err != nil || problem != nil || unread != nil {
		if (err != nil || unread != nil) && problem == nil {
			t.Errorf("Confirm takes what the others refuse: %v, %v", err, unread)
		}
	} else if !bytes.Equal(confirmed.Text, edited) || confirmed.Memlock != memlock || confirmed.MemlockKnown != known {
		t.Errorf("Confirm finds %v and edits to %s; Memlock finds %v, and Apply edits to %s", confirmed.Memlock,
			confirmed.Text, memlock, edited)
	} else if all, err := (Grant{IPCLock: IPCLockYes}).Apply(edited, sets); err != nil ||
		confirmed.IPCLock != bytes.Equal(all, edited) {
		t.Errorf("IPC_LOCK is in all of %v: %t, want the opposite: %v\n%s", sets, confirmed.IPCLock, err, edited)
	}
}

// readBack checks that the functions that read specs agree with those that change them, and refuse no spec that those
// accept.
func readBack(t *testing.T, grant Grant, before, after []byte) {
	if memlock, known, err := Memlock(after); grant.Memlock != 0 &&
		(err != nil || !known || memlock.Soft < grant.Memlock) {
		t.Errorf("Memlock gives %v, %v, %v; granted %d", memlock, known, err, uint64(grant.Memlock))
	}
	was, errBefore := MemoryLimit(before)
	if is, err := MemoryLimit(after); is != was || (err == nil) != (errBefore == nil) || is < 0 {
		t.Errorf("MemoryLimit gives %d, %v; before %d, %v", is, err, was, errBefore)
	}
}

// untouched returns the parts of a spec that a grant cannot change. It keeps the text of numbers.
func untouched(t *testing.T, text []byte) any {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var whole map[string]any
	must.Succeed(t, decoder.Decode(&whole))
	without(whole, "process", func(process map[string]any) {
		without(process, "rlimits", nil)
		without(process, "capabilities", func(capabilities map[string]any) {
			for _, set := range AllSets {
				without(capabilities, set, nil)
			}
		})
	})
	without(whole, "linux", func(linux map[string]any) {
		without(linux, "devices", nil)
		without(linux, "resources", func(resources map[string]any) { without(resources, "devices", nil) })
	})
	return whole
}

// without empties the value of a key, and removes the key if the value is then empty.
func without(of map[string]any, key string, empty func(map[string]any)) {
	for k, value := range of {
		if !strings.EqualFold(k, key) {
			continue
		}
		section, isObject := value.(map[string]any)
		if isObject && empty != nil {
			empty(section)
		}
		if empty == nil || value == nil || isObject && len(section) == 0 {
			delete(of, k)
		}
	}
}

// promised checks that a changed spec contains the grant.
func promised(t *testing.T, grant Grant, sets CapabilitySets, before, after []byte) {
	type rlimit struct {
		Type       string
		Soft, Hard uint64
	}
	type spec struct {
		Process struct {
			Rlimits      json.RawMessage
			Capabilities map[string]json.RawMessage
		}
		Linux struct {
			Devices   []struct{ Path string }
			Resources struct {
				Devices []struct {
					Allow        bool
					Type, Access string
					Major, Minor *int64
				}
			}
		}
	}
	memlocks := func(text []byte) (found []rlimit) {
		var s spec
		_ = json.Unmarshal(text, &s) // fails if another section has another type, but this section was decoded by then
		var all []rlimit
		if err := json.Unmarshal(s.Process.Rlimits, &all); len(s.Process.Rlimits) > 0 && err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(all, func(l rlimit) bool { return l.Type != "RLIMIT_MEMLOCK" })
	}
	var s spec
	_ = json.Unmarshal(after, &s)
	if grant.Memlock != 0 {
		got := memlocks(after)
		if len(got) != 1 || LimitOf(got[0].Soft) < grant.Memlock {
			t.Errorf("memlock is %v, granted %d", got, uint64(grant.Memlock))
		}
		for _, l := range memlocks(before) {
			if len(got) == 1 && (got[0].Soft < l.Soft || got[0].Hard < l.Hard) {
				t.Errorf("memlock lowered from %v to %v", l, got[0])
			}
		}
	}
	if grant.IPCLock == IPCLockYes {
		for _, set := range sets {
			var names []string
			for key, value := range s.Process.Capabilities {
				if strings.EqualFold(key, set) {
					_ = json.Unmarshal(value, &names)
				}
			}
			if !slices.Contains(names, CapIPCLock) {
				t.Errorf("%s is %v", set, names)
			}
		}
	}
	for _, d := range grant.Devices {
		paths, allowed := 0, false
		for _, present := range s.Linux.Devices {
			if present.Path == d.Path {
				paths++
			}
		}
		for _, r := range s.Linux.Resources.Devices {
			if !r.Allow {
				allowed = false
			} else if r.Type == "c" && r.Major != nil && *r.Major == int64(d.Major) && r.Minor != nil &&
				*r.Minor == int64(d.Minor) && strings.Contains(r.Access, "w") {
				allowed = true
			}
		}
		if paths == 0 || !allowed {
			t.Errorf("%s stands there %d times, allowed: %v", d, paths, allowed)
		}
	}
}
