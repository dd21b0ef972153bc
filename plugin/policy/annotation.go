// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	nri "github.com/containerd/nri/pkg/plugin"
)

// AnnotationKey is the key of the annotation with which a pod's author opts in or out. By NRI's convention,
// AnnotationKey/container.NAME applies to one container. This key overrides AnnotationKey/pod, which overrides
// AnnotationKey without a suffix.
const AnnotationKey = "rdma." + nri.AnnotationDomain

// Annotations returns the annotations of a pod that a decision about a container can depend on, regardless of the
// configuration. Annotations truncates long values, because a pod's author can write 256 KiB.
func Annotations(pod map[string]string, container string) map[string]string {
	var read map[string]string
	keep := func(key, value string, most int) {
		if read == nil {
			read = map[string]string{}
		}
		read[key] = strings.Clone(value[:min(len(value), most+1)])
	}
	for key, value := range pod {
		if ours := key == AnnotationKey || strings.HasPrefix(key, AnnotationKey+"/"); !ours && inScope(key, container) {
			keep(key, value, maxDeviceAnnotation)
		}
	}
	value, own, found := annotation(pod, container)
	switch {
	case found && own:
		keep(ownKey(container), value, maxAnnotation)
	case found:
		keep(AnnotationKey, value, maxAnnotation)
	}
	return read
}

// annotation returns the value of the annotation that applies to a container, and whether the annotation applies to
// this container alone.
func annotation(pod map[string]string, container string) (value string, own, found bool) {
	value, found = nri.GetEffectiveAnnotation(&api.PodSandbox{Annotations: pod}, AnnotationKey, container) // guard: annotation-scope, else anyScope
	_, own = pod[ownKey(container)]
	return value, own, found
}

func ownKey(container string) string { return AnnotationKey + "/container." + container }

// maxAnnotation is the maximum length of an annotation's value in bytes. A value of this length can contain two dozen
// HCA names.
const maxAnnotation = 1024

// request is the request of a pod's author. The zero request asks for the whole grant of the policy.
type request struct {
	optOut  bool
	memlock *memlock
	ipcLock *bool
	devices deviceRequest
}

// deviceRequest contains the requested HCAs. The zero value leaves the choice of HCAs to the policy.
type deviceRequest struct {
	none, all bool
	names     []string
}

// isPresent reports whether the author requested devices.
func (d deviceRequest) isPresent() bool { return d.all || len(d.names) > 0 }

// onlyLowers reports whether a request only lowers the grant that the container would get without the request.
func (r request) onlyLowers() bool {
	lowers := r.memlock != nil || r.ipcLock != nil || r.devices.none
	return lowers && !r.devices.isPresent() && (r.ipcLock == nil || !*r.ipcLock) &&
		(r.memlock == nil || !r.memlock.unlimited())
}

// annotationValue is the YAML form of the annotation's value.
type annotationValue struct {
	Memlock Scalar          `json:"memlock"`
	IPCLock Scalar          `json:"ipcLock"`
	Devices json.RawMessage `json:"devices"`
}

// words are the one-word values of the annotation, in the order in which messages list the values.
var words = []struct {
	word  string
	means request
}{
	{"true", request{}},
	{"false", request{optOut: true}},
}

// deviceWords are the one-word values of the key devices in the annotation.
var deviceWords = []struct {
	word  string
	means deviceRequest
}{
	{"all", deviceRequest{all: true}},
	{"none", deviceRequest{none: true}},
}

// Vocabulary lists the words and keys that an annotation can contain. If you add a word that neither opts in nor opts
// out, add a list for this word.
type Vocabulary struct {
	OptIn, OptOut []string // one-word values
	Keys, Devices []string // keys of the YAML form, and one-word values of the key devices
}

// Words returns all one-word values.
func (v Vocabulary) Words() []string { return slices.Concat(v.OptIn, v.OptOut) }

// AnnotationVocabulary returns the annotation's vocabulary for tests. These tests check the copies of the vocabulary in
// deploy/admission, README.md, and docs/pods.md.
func AnnotationVocabulary() Vocabulary {
	var v Vocabulary
	for _, w := range words {
		switch {
		case reflect.DeepEqual(w.means, request{}):
			v.OptIn = append(v.OptIn, w.word)
		case reflect.DeepEqual(w.means, request{optOut: true}):
			v.OptOut = append(v.OptOut, w.word)
		}
	}
	for field := range reflect.TypeFor[annotationValue]().Fields() {
		v.Keys = append(v.Keys, field.Tag.Get("json"))
	}
	for _, w := range deviceWords {
		v.Devices = append(v.Devices, w.word)
	}
	return v
}

// annotationForm and devicesForm list the valid values in messages to the pod's author.
var annotationForm, devicesForm = forms()

func forms() (annotation, devices string) {
	for _, w := range words {
		annotation += strconv.Quote(w.word) + ", "
	}
	for _, w := range deviceWords {
		devices += w.word + " nor "
	}
	return annotation + "or YAML such as {memlock: 16Gi, ipcLock: false, devices: all}",
		"is neither " + devices + "a list of HCA names such as [mlx5_0]"
}

// parseAnnotation parses an annotation's value. An error is one line of ASCII text, and repeats at most a limited part
// of the value.
func parseAnnotation(value string) (request, error) {
	if len(value) > maxAnnotation { // guard: annotation-size
		return request{}, fmt.Errorf("the value is longer than %d bytes: write %s", maxAnnotation, annotationForm)
	}
	if strings.ContainsFunc(value, notPlain) { // guard: annotation-ascii
		return request{}, errors.New("the value contains a character that is not printable ASCII: write " + annotationForm)
	}
	word := strings.TrimSpace(value)
	if word == "" {
		return request{}, errors.New("the value is empty: write " + annotationForm)
	}
	for _, w := range words {
		if w.word == word {
			return w.means, nil
		}
	}
	if strings.ContainsAny(value, "&*!<") { // guard: yaml-alias
		return request{}, errors.New("YAML anchors, aliases, tags, and merges (& * ! <) are not allowed: " +
			"write " + annotationForm)
	}
	if !strings.Contains(value, ":") {
		return request{}, fmt.Errorf("cannot parse %s: write %s", quoted(value), annotationForm)
	}
	var written annotationValue
	err := DecodeStrict([]byte(value), &written)
	if err == nil && written.Memlock == "" && written.IPCLock == "" && written.Devices == nil {
		err = ErrNothing
	}
	if err != nil {
		return request{}, fmt.Errorf("%s: write %s", oneLine(firstLine(err)), annotationForm)
	}
	asked, err := written.request()
	if err != nil {
		return request{}, errors.New(oneLine(err.Error()))
	}
	return asked, nil
}

func (v annotationValue) request() (request, error) {
	var r request
	if v.Memlock != "" {
		m, err := parseMemlock(v.Memlock)
		if err != nil {
			return request{}, err
		}
		r.memlock = &m
	}
	switch v.IPCLock {
	case "":
	case "true", "false":
		want := v.IPCLock == "true"
		r.ipcLock = &want
	default:
		return request{}, fmt.Errorf("ipcLock %s is neither true nor false", quoted(string(v.IPCLock)))
	}
	var err error
	r.devices, err = parseDeviceRequest(v.Devices)
	return r, err
}

func parseDeviceRequest(value json.RawMessage) (deviceRequest, error) {
	if len(value) == 0 {
		return deviceRequest{}, nil
	}
	var word string
	if json.Unmarshal(value, &word) == nil {
		for _, w := range deviceWords {
			if w.word == word {
				return w.means, nil
			}
		}
		return deviceRequest{}, fmt.Errorf("devices %s %s", quoted(word), devicesForm)
	}
	var names []string
	if json.Unmarshal(value, &names) != nil || len(names) == 0 {
		return deviceRequest{}, errors.New("devices " + devicesForm)
	}
	for _, name := range names {
		if !validHCAName.MatchString(name) { // guard: hca-name
			return deviceRequest{}, fmt.Errorf("devices: %s is not a valid HCA name: write a name such as mlx5_0, not a path",
				quoted(name))
		}
	}
	return deviceRequest{names: names}, nil
}

// validHCAName matches the names that the kernel accepts for an RDMA device, except names that look like a path.
var validHCAName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}$`)
