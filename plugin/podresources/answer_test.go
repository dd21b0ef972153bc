// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func encoded(t testing.TB, message proto.Message) []byte {
	t.Helper()
	text, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestReadAnswer(t *testing.T) {
	trainer := pod("ml", "trainer", map[string][]string{"main": {"rdma/a"}})
	good := encoded(t, &podresources.GetPodResourcesResponse{PodResources: trainer})
	// The same container twice, with an entry that allots nothing.
	double := pod("ml", "trainer", map[string][]string{"main": {"rdma/b", "rdma/a"}})
	double.Containers = append(double.Containers, pod("", "", map[string][]string{"main": {"rdma/a"}}).Containers...)
	double.Containers[0].Devices = append(double.Containers[0].Devices, &podresources.ContainerDevices{ResourceName: "rdma/none"})
	// A message with fields that a later kubelet might add, before and after: a number, and bytes.
	later := slices.Concat([]byte{0xf8, 0x07, 0x01}, good, []byte{0xfa, 0x07, 0x03, 1, 2, 3})

	for name, tt := range map[string]struct {
		text  []byte
		want  answer
		fails string
	}{
		"one pod":         {text: good, want: answer{"main": {names: []string{"rdma/a"}}}},
		"later fields":    {text: later, want: answer{"main": {names: []string{"rdma/a"}}}},
		"twice":           {text: encoded(t, &podresources.GetPodResourcesResponse{PodResources: double}), want: answer{"main": {names: []string{"rdma/a", "rdma/b"}}}},
		"nothing":         {text: nil, fails: "the kubelet does not know pod ml/trainer"},
		"another pod":     {text: encoded(t, &podresources.GetPodResourcesResponse{PodResources: pod("ml", "x", nil)}), fails: "the kubelet does not know pod ml/trainer"},
		"another place":   {text: encoded(t, &podresources.GetPodResourcesResponse{PodResources: pod("x", "trainer", nil)}), fails: "the kubelet does not know pod ml/trainer"},
		"two pods":        {text: slices.Concat(good, good), fails: "the kubelet lists two pods ml/trainer, because one takes the place of the other: try again"},
		"cut short":       {text: good[:len(good)-1], fails: errMalformed.Error()},
		"a name no UTF-8": {text: []byte{0x0a, 0x03, 0x0a, 0x01, 0xff}, fails: "the kubelet does not know pod ml/trainer"},
		"no message":      {text: []byte("HTTP/1.1 400 Bad Request"), fails: errMalformed.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readAnswer(tt.text, "ml", "trainer")
			if tt.fails != "" {
				if err == nil || err.Error() != tt.fails {
					t.Errorf("got %v, %v; want the error %q", got, err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(held{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// FuzzAnswer reads answers as protobuf's own decoder does, or refuses them; it never finds a pod that is not there.
func FuzzAnswer(f *testing.F) {
	trainer := pod("ml", "trainer", map[string][]string{"main": {"rdma/a", "rdma/b"}, "sidecar": nil})
	f.Add(encoded(f, &podresources.GetPodResourcesResponse{PodResources: trainer}))
	f.Add(encoded(f, &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{pod("ml", "x", nil), trainer, trainer}}))
	for _, text := range []string{
		"", "\x0a\x00", "\x0a", "\x0a\x01\x0a", "\xff", "\x0d", "\x0d1234", // cut short; a number of 32 bits
		"\xf8\x07\x01\xfa\x07\x01x", "\x0a\x02\x08\x01", // other fields, and a number for the pod's name
		"\x0a\x04\x12\x02ml\x0a\x09\x0a\x07trainer",  // halves of two pods
		"\x0a\x10\x0a\x07trainer\x12\x02ml\x1a\x01x", // a container that cannot be read
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := readAnswer(text, "ml", "trainer")
		if (got == nil) == (err == nil) {
			t.Fatalf("got %v, %v", got, err)
		}
		var all podresources.ListPodResourcesResponse
		if proto.Unmarshal(text, &all) != nil {
			return // what protobuf refuses as a whole may still have one sound pod
		}
		var matching []answer
		for _, p := range all.GetPodResources() {
			if p.GetNamespace() == "ml" && p.GetName() == "trainer" {
				matching = append(matching, answerOf(p))
			}
		}
		switch {
		case len(matching) == 1 && err == nil:
			if diff := cmp.Diff(matching[0], got, cmp.AllowUnexported(held{})); diff != "" {
				t.Errorf("-protobuf +ours:\n%s", diff)
			}
		case len(matching) == 0 && errors.As(err, new(*unknownPodError)):
		case len(matching) > 1 && err != nil && !errors.As(err, new(*unknownPodError)):
		default:
			t.Errorf("%d pods match, and got %v, %v", len(matching), got, err)
		}
	})
}
