// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"

	"github.com/rdma-spec/rdma-spec/plugin/policy"
)

// Pod is a pod template.
type Pod struct {
	// Document is the position of the YAML document in the manifest. The first document is 1.
	Document int `json:"document"`
	// Object is the object that contains the template, as KIND/NAME: "Deployment/trainer".
	Object string `json:"object"`
	// Path is the template's path in the object, such as "spec.template". It is omitted for a Pod.
	Path string `json:"path,omitempty"`
	// Namespace is the object's namespace, or "default".
	Namespace string `json:"namespace"`
	OwnUsers  bool   `json:"-"` // the pod has its own user namespace (hostUsers: false)
	// Containers are all containers of the pod, with init containers first and ephemeral containers last. If Kubernetes
	// refuses the pod, the list is empty.
	Containers []Container `json:"-"`
	// Notes are assumptions about the pod.
	Notes []string `json:"notes,omitempty"`
	// Problems are the errors in the pod, with paths relative to the object.
	Problems []string `json:"problems,omitempty"`
}

// String identifies the pod template: "Deployment/trainer spec.template".
func (p Pod) String() string { return strings.TrimSuffix(p.Object+" "+p.Path, " ") }

// Kind is a container's kind.
type Kind string

// The kinds.
const (
	KindContainer Kind = "container"
	KindInit      Kind = "init"
	KindSidecar   Kind = "sidecar" // a restartable init container
	KindEphemeral Kind = "ephemeral"
)

// Container is a container of a pod template, with the facts that are known without a node.
type Container struct {
	// Container is the container that the plugin would see, without additions of device plugins and DRA drivers.
	policy.Container
	// Kubelet is the kubelet's report if device plugins provide the extended resources.
	Kubelet Report
	Kind    Kind
	// Held are the extended resources that the container requests from device plugins or DRA drivers. Claims are the DRA
	// claims of the container and of its pod, because a driver such as dranet can inject a pod's devices into all of its
	// containers. Both lists are sorted.
	Held, Claims []string
	// SaysMOFED is true if the manifest sets NVIDIA_MOFED. Otherwise, the image, or an object to which the manifest
	// refers, can set NVIDIA_MOFED.
	SaysMOFED bool
	// AddCapabilities and DropCapabilities are the capabilities in the securityContext. A privileged container adds ALL.
	AddCapabilities, DropCapabilities []string
	// Excess lists settings that are possibly for RDMA, and that the plugin makes unnecessary.
	Excess []string
}

const (
	defaultNamespace = "default"
	// implicitClaim is the prefix of an extended resource for a DeviceClass (k8s.io/api/resource/v1,
	// ResourceDeviceClassPrefix).
	implicitClaim = "deviceclass.resource.kubernetes.io/"
)

var (
	// injecting matches the annotations for which Spiderpool's webhook adds resources to a pod.
	injecting = regexp.MustCompile(`^cni\.spidernet\.io/(rdma|network)-resource-inject$`)
	verbsPath = regexp.MustCompile(`^/dev(/infiniband(/.*)?)?/?$`)
)

// template is the part of a PodTemplateSpec on which a decision depends. The types of k8s.io/api/core/v1 would make
// rdma-spec 10 MB larger.
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
		Sidecars            []container `json:"sidecars"` // Argo Workflows'
		Volumes             []struct {
			named
			HostPath struct {
				Path string `json:"path"`
			} `json:"hostPath"`
		} `json:"volumes"`
	} `json:"spec"`
	Alone  []*container                 `json:"alone"`  // the containers of spec outside lists
	Limits map[string]resource.Quantity `json:"limits"` // see place
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
	VolumeMounts []named `json:"volumeMounts"`
}

type resources struct {
	Limits map[string]resource.Quantity `json:"limits"`
	Claims []named                      `json:"claims"`
}

type named struct {
	Name string `json:"name"`
}

// Report is the kubelet's report about a container and its pod.
type Report struct {
	Resources []string
	Known     bool // the container has no other resources
	Pod       []policy.Allotted
	PodClaims bool // a container of the pod has a resource claim
}

// Facts returns the report as facts for a decision.
func (r Report) Facts() policy.Facts {
	return policy.Facts{
		Resources: func() ([]string, bool, error) { return r.Resources, r.Known, nil },
		PodHolds:  func() ([]policy.Allotted, bool, error) { return r.Pod, r.PodClaims, nil },
	}
}

// reportPod sets the kubelet's report about a pod. The kubelet does not list ordinary init containers. Resources of
// other containers that the kubelet does not list count as claims. The allocated devices are known only on a node.
func reportPod(containers []Container) {
	var held []policy.Allotted
	claims := false
	for _, c := range containers {
		if !c.Kind.listed() {
			continue
		}
		claims = claims || !c.Kubelet.Known
		for _, name := range c.Kubelet.Resources {
			held = append(held, policy.Allotted{Resource: name})
		}
	}
	for i := range containers {
		containers[i].Kubelet.Pod = held
		containers[i].Kubelet.PodClaims = claims
	}
}

// listed reports whether the kubelet lists containers of this kind.
func (k Kind) listed() bool { return k == KindContainer || k == KindSidecar }

// add adds the pod whose containers are in a mapping. If the mapping is at the key spec, the pod is a pod template.
func (m *Manifest) add(spec map[string]any, p place) {
	metadata := spec["metadata"]
	if path, isTemplate := strings.CutSuffix("."+p.path, ".spec"); isTemplate {
		p.path = strings.TrimPrefix(path, ".")
		metadata = p.around["metadata"]
	}
	var t template
	var alone []map[string]any
	for _, key := range aloneKeys {
		alone = append(alone, valueAt[map[string]any](spec, key))
		for _, element := range valueAt[[]any](spec, key) { // in other kinds, the value can be a list
			alone = append(alone, valueAt[map[string]any](element))
		}
	}
	text, err := stdjson.Marshal(map[string]any{"metadata": metadata, "spec": spec, "alone": alone, "limits": p.limits})
	if err == nil {
		err = json.UnmarshalCaseSensitivePreserveInts(text, &t)
	}
	if wrong := (*stdjson.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		err = fmt.Errorf("unexpected %s at %s", wrong.Value, join(p.path, strings.TrimPrefix(wrong.Field, ".")))
	}
	pod := Pod{Document: p.document, Object: p.name, Path: p.path, Namespace: cmp.Or(p.namespace, defaultNamespace),
		OwnUsers: t.Spec.HostUsers != nil && !*t.Spec.HostUsers}
	decided := policy.Container{Namespace: pod.Namespace, Pod: p.name[strings.IndexByte(p.name, '/')+1:],
		RuntimeHandler: t.Spec.RuntimeClassName, Annotations: t.Metadata.Annotations, HostNetwork: t.Spec.HostNetwork}
	var names []string
	add := func(kind Kind, containers ...container) {
		for _, c := range containers {
			decided.Name = cmp.Or(c.Name, "main")
			if c.Name == "" && p.builtin {
				err = errors.New("a container has no name")
			}
			if c.Resources.Limits == nil && kind == KindContainer {
				c.Resources.Limits = t.Limits
			}
			names = append(names, decided.Name)
			pod.Containers = append(pod.Containers, t.container(c, kind, decided))
		}
	}
	add(KindInit, t.Spec.InitContainers...)
	add(KindContainer, t.Spec.Containers...)
	for _, c := range t.Alone {
		if c != nil {
			add(KindContainer, *c)
		}
	}
	add(KindContainer, t.Spec.Sidecars...)
	add(KindEphemeral, t.Spec.EphemeralContainers...)
	switch {
	case err != nil && !p.builtin:
		m.unexplained(p, err.Error())
		return
	case err != nil:
		pod.Containers = nil
		pod.Problems = []string{"Kubernetes refuses this pod: " + err.Error()}
	case p.namespace == "":
		pod.Notes = append(pod.Notes, "the manifest sets no namespace: the result is for namespace "+defaultNamespace)
	}
	if class := t.Spec.RuntimeClassName; class != "" {
		pod.Notes = append(pod.Notes, "the handler of RuntimeClass "+class+" is assumed to have the same name")
	}
	for _, key := range slices.Sorted(maps.Keys(t.Metadata.Annotations)) {
		if injecting.MatchString(key) {
			pod.Notes = append(pod.Notes, "annotation "+key+" makes Spiderpool's webhook add resources to the first "+
				"container when the pod is created: run explain on the created pod's manifest (kubectl get pod -o yaml)")
		}
		if problem := keyProblem(key, names); problem != "" {
			pod.Problems = append(pod.Problems, join(p.path, "metadata.annotations")+": "+key+" "+problem)
		}
	}
	reportPod(pod.Containers)
	m.Pods = append(m.Pods, pod)
}

// container returns a container of the template. decided contains the values that come from the pod.
func (t *template) container(c container, kind Kind, decided policy.Container) Container {
	if kind == KindInit && c.RestartPolicy == "Always" {
		kind = KindSidecar
	}
	decided.AllDevices = c.SecurityContext.Privileged
	memory := c.Resources.Limits["memory"]
	if memory.IsZero() { // as in the kubelet, use the pod's limit
		memory = t.Spec.Resources.Limits["memory"]
	}
	decided.MemoryLimit = max(memory.Value(), 0)
	for _, v := range c.VolumeDevices {
		// the device number is known only on a node
		decided.Devices = append(decided.Devices, policy.Device{Path: v.DevicePath, Type: "b"})
	}
	says := false
	for _, v := range c.Env {
		if v.Name+"=" == policy.MOFEDVariable {
			decided.MOFED = policy.MOFED([]string{policy.MOFEDVariable + v.Value})
			says = v.Value != ""
		}
	}
	out := Container{
		Container: decided, Kind: kind, SaysMOFED: says, Held: extended(c.Resources.Limits),
		AddCapabilities: c.SecurityContext.Capabilities.Add, DropCapabilities: c.SecurityContext.Capabilities.Drop,
	}
	if decided.AllDevices {
		out.AddCapabilities = append([]string{"ALL"}, out.AddCapabilities...)
		out.Excess = append(out.Excess, "privileged: true")
	}
	for _, v := range t.Spec.Volumes {
		if slices.Contains(c.VolumeMounts, v.named) && verbsPath.MatchString(v.HostPath.Path) {
			out.Excess = append(out.Excess, "hostPath volume "+v.HostPath.Path)
		}
	}
	if slices.ContainsFunc(out.AddCapabilities, func(name string) bool { return strings.EqualFold(name, "IPC_LOCK") }) {
		out.Excess = append(out.Excess, "capabilities.add: [IPC_LOCK]")
	}
	for _, claim := range slices.Concat(c.Resources.Claims, t.Spec.ResourceClaims) {
		out.Claims = append(out.Claims, claim.Name)
	}
	slices.Sort(out.Claims)
	out.Claims = slices.Compact(out.Claims)
	out.Kubelet.Resources = slices.DeleteFunc(slices.Clone(out.Held), func(name string) bool {
		return !kind.listed() || strings.HasPrefix(name, implicitClaim)
	})
	out.Kubelet.Known = kind.listed() && len(c.Resources.Claims) == 0 && len(out.Kubelet.Resources) == len(out.Held)
	return out
}

// extended returns the sorted names of the extended resources in limits. Requests for extended resources cannot differ
// from limits. Extended resources have a domain other than Kubernetes' own, or are for a DeviceClass.
func extended(limits map[string]resource.Quantity) (names []string) {
	for name, amount := range limits {
		domain, _, hasDomain := strings.Cut(name, "/")
		own := domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
		if hasDomain && (!own || strings.HasPrefix(name, implicitClaim)) && amount.Sign() > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
