// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Pod is a pod template.
type Pod struct {
	Document  int    `json:"document"`       // of the manifest, from 1
	Object    string `json:"object"`         // what it belongs to, KIND/NAME: "Deployment/trainer"
	Path      string `json:"path,omitempty"` // where it stands in the object: "spec.template"; "" for a Pod
	Namespace string `json:"namespace"`      // the object's, or default
	OwnUsers  bool   `json:"-"`              // it has a user namespace of its own (hostUsers: false)
	// Containers are all that it has, those of init first and ephemeral ones last; none where Kubernetes refuses the
	// pod.
	Containers []Container `json:"-"`
	Notes      []string    `json:"notes,omitempty"`    // what is assumed
	Problems   []string    `json:"problems,omitempty"` // with paths below the object
}

// String names the pod template: "Deployment/trainer spec.template".
func (p Pod) String() string { return strings.TrimSuffix(p.Object+" "+p.Path, " ") }

// Kind is a container's kind.
type Kind string

// The kinds.
const (
	KindContainer Kind = "container"
	KindInit      Kind = "init"
	KindSidecar   Kind = "sidecar" // an init container that is restartable
	KindEphemeral Kind = "ephemeral"
)

// Container is a container of a pod template, and what is known of it without a node.
type Container struct {
	// Container is what the plugin would see, without what device plugins and DRA drivers add. Its Resources are those
	// that the kubelet reports if device plugins bring the extended resources.
	policy.Container
	Kind Kind
	// Held are the extended resources that it requests; device plugins or DRA drivers bring them. Claims are the DRA
	// claims of the container and of its pod, since a driver may give a pod's devices to all of its containers, as
	// dranet does. Both are sorted.
	Held, Claims []string
	// SaysMOFED is true if the manifest says what NVIDIA_MOFED is. If not, its image can, or what the manifest refers to.
	SaysMOFED bool
	// AddCapabilities and DropCapabilities are as in its securityContext; a privileged one adds ALL.
	AddCapabilities, DropCapabilities []string
}

const (
	defaultNamespace = "default"
	// implicitClaim begins the name of an extended resource that names a DeviceClass (k8s.io/api/resource/v1,
	// ResourceDeviceClassPrefix).
	implicitClaim = "deviceclass.resource.kubernetes.io/"
)

// template is what a decision depends on of a PodTemplateSpec (k8s.io/api/core/v1, whose types would make rdma-spec 10
// MB larger).
type template struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		RuntimeClassName    string      `json:"runtimeClassName"`
		HostUsers           *bool       `json:"hostUsers"`
		HostNetwork         bool        `json:"hostNetwork"`
		Resources           resources   `json:"resources"`
		ResourceClaims      []named     `json:"resourceClaims"`
		InitContainers      []container `json:"initContainers"`
		Containers          []container `json:"containers"`
		EphemeralContainers []container `json:"ephemeralContainers"`
	} `json:"spec"`
}

type container struct {
	named
	RestartPolicy string `json:"restartPolicy"`
	Env           []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	Resources       resources `json:"resources"`
	SecurityContext struct {
		Privileged   bool `json:"privileged"`
		Capabilities struct {
			Add  []string `json:"add"`
			Drop []string `json:"drop"`
		} `json:"capabilities"`
	} `json:"securityContext"`
	VolumeDevices []struct {
		DevicePath string `json:"devicePath"`
	} `json:"volumeDevices"`
}

type resources struct {
	Limits map[string]resource.Quantity `json:"limits"`
	Claims []named                      `json:"claims"`
}

type named struct {
	Name string `json:"name"`
}

// memory returns the memory limit in bytes, 0 where there is none.
func (r resources) memory() int64 {
	q := r.Limits["memory"]
	return max(q.Value(), 0)
}

// newPod reads a pod template that stands at a path of an object.
func newPod(value map[string]any, path string, in *object) Pod {
	p := Pod{Document: in.document, Object: in.name, Path: path, Namespace: cmp.Or(in.namespace, defaultNamespace)}
	var t template
	text, err := stdjson.Marshal(value)
	if err == nil {
		err = json.UnmarshalCaseSensitivePreserveInts(text, &t)
	}
	if err != nil {
		p.Problems = []string{refusal(err, path)}
		return p
	}
	if in.namespace == "" {
		p.Notes = append(p.Notes, "the manifest names no namespace: explained for "+defaultNamespace)
	}
	class := t.Spec.RuntimeClassName
	if class != "" {
		p.Notes = append(p.Notes, "runtimeClassName: "+class+": its handler is assumed to have the same name")
	}
	p.OwnUsers = t.Spec.HostUsers != nil && !*t.Spec.HostUsers
	var names []string
	add := func(kind Kind, containers []container) {
		for _, c := range containers {
			names = append(names, c.Name)
			p.Containers = append(p.Containers, t.container(c, kind, policy.Container{
				Namespace: p.Namespace, Pod: in.name[strings.IndexByte(in.name, '/')+1:], RuntimeHandler: class,
				Annotations: t.Metadata.Annotations,
			}))
		}
	}
	add(KindInit, t.Spec.InitContainers)
	add(KindContainer, t.Spec.Containers)
	add(KindEphemeral, t.Spec.EphemeralContainers)
	if slices.Contains(names, "") {
		p.Problems, p.Containers = []string{refusal(errors.New("a container has no name"), path)}, nil
	}
	for _, key := range slices.Sorted(maps.Keys(t.Metadata.Annotations)) {
		if problem := keyProblem(key, names); problem != "" {
			p.Problems = append(p.Problems, join(path, "metadata.annotations")+": "+key+" "+problem)
		}
	}
	return p
}

// refusal returns the problem of a pod template at a path that cannot be read, and so not by Kubernetes either.
func refusal(err error, path string) string {
	text := err.Error()
	if wrong := (*stdjson.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		text = fmt.Sprintf("unexpected %s at %s", wrong.Value, join(path, strings.TrimPrefix(wrong.Field, ".")))
	}
	return "Kubernetes refuses this pod: " + text
}

// container returns a container of the template; what its pod gives it is in decided.
func (t *template) container(c container, kind Kind, decided policy.Container) Container {
	if kind == KindInit && c.RestartPolicy == "Always" {
		kind = KindSidecar
	}
	decided.Name = c.Name
	decided.HostNetwork = t.Spec.HostNetwork
	decided.AllDevices = c.SecurityContext.Privileged
	// the pod's where it has none of its own, as kubelets have it
	decided.MemoryLimit = cmp.Or(c.Resources.memory(), t.Spec.Resources.memory())
	for _, v := range c.VolumeDevices {
		// only a node knows its number
		decided.Devices = append(decided.Devices, policy.Device{Path: v.DevicePath, Type: "b"})
	}
	says := false
	for _, v := range c.Env {
		if v.Name+"=" == policy.MOFEDVariable {
			decided.MOFED, says = policy.MOFED([]string{policy.MOFEDVariable + v.Value}), v.Value != ""
		}
	}
	out := Container{
		Container: decided, Kind: kind, SaysMOFED: says, Held: extended(c.Resources.Limits),
		AddCapabilities: c.SecurityContext.Capabilities.Add, DropCapabilities: c.SecurityContext.Capabilities.Drop,
	}
	if decided.AllDevices {
		out.AddCapabilities = []string{"ALL"}
	}
	for _, claim := range slices.Concat(c.Resources.Claims, t.Spec.ResourceClaims) {
		out.Claims = append(out.Claims, claim.Name)
	}
	slices.Sort(out.Claims)
	out.Claims = slices.Compact(out.Claims)
	listed := kind == KindContainer || kind == KindSidecar // the kubelet lists no others
	known := listed && len(c.Resources.Claims) == 0 && !slices.ContainsFunc(out.Held, isImplicitClaim)
	var reported []string
	if listed {
		reported = slices.DeleteFunc(slices.Clone(out.Held), isImplicitClaim)
	}
	out.Resources = func() ([]string, bool, error) { return reported, known, nil }
	return out
}

func isImplicitClaim(resource string) bool { return strings.HasPrefix(resource, implicitClaim) }

// extended returns the names of the extended resources in limits, sorted; requests of them cannot differ. Those are the
// ones with a domain that is not Kubernetes' own, and those that name a DeviceClass.
func extended(limits map[string]resource.Quantity) []string {
	var names []string
	for name, amount := range limits {
		domain, _, hasDomain := strings.Cut(name, "/")
		own := domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
		if hasDomain && (!own || isImplicitClaim(name)) && amount.Sign() > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
