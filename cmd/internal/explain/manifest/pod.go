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
	OwnUsers  bool   `json:"-"` // it has a user namespace of its own (hostUsers: false)
	// Containers are all that it has, those of init first and ephemeral ones last; none where Kubernetes refuses the
	// pod.
	Containers []Container `json:"-"`
	// Notes are assumptions about the pod.
	Notes []string `json:"notes,omitempty"`
	// Problems are what is wrong with the pod, with paths relative to the object.
	Problems []string `json:"problems,omitempty"`
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
	// Container is what the plugin would see, without what device plugins and DRA drivers add.
	policy.Container
	// Kubelet is what the kubelet reports if device plugins bring the extended resources.
	Kubelet Report
	Kind    Kind
	// Held are the extended resources that it requests; device plugins or DRA drivers bring them. Claims are the DRA
	// claims of the container and of its pod, since a driver may give a pod's devices to all of its containers, as
	// dranet does. Both are sorted.
	Held, Claims []string
	// SaysMOFED is true if the manifest says what NVIDIA_MOFED is. If not, its image can, or what the manifest refers to.
	SaysMOFED bool
	// AddCapabilities and DropCapabilities are as in its securityContext; a privileged one adds ALL.
	AddCapabilities, DropCapabilities []string
	// Excess are what it has for RDMA, perhaps, and does not need with the plugin.
	Excess []string
}

const (
	defaultNamespace = "default"
	// implicitClaim begins the name of an extended resource that names a DeviceClass (k8s.io/api/resource/v1,
	// ResourceDeviceClassPrefix).
	implicitClaim = "deviceclass.resource.kubernetes.io/"
)

var (
	// injecting are the annotations for which Spiderpool's webhook adds resources to a pod.
	injecting = regexp.MustCompile(`^cni\.spidernet\.io/(rdma|network)-resource-inject$`)
	verbsPath = regexp.MustCompile(`^/dev(/infiniband(/.*)?)?/?$`)
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
		Sidecars            []container `json:"sidecars"` // Argo Workflows'
		Volumes             []struct {
			named
			HostPath struct {
				Path string `json:"path"`
			} `json:"hostPath"`
		} `json:"volumes"`
	} `json:"spec"`
	Alone  []*container                 `json:"alone"`  // those of spec that stand in no list
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

// Report is what the kubelet reports of a container and its pod.
type Report struct {
	Resources []string
	Known     bool // it holds no others
	Pod       []policy.Allotted
	PodClaims bool // a container of the pod has a resource claim
}

// Facts returns the report as the facts of a decision.
func (r Report) Facts() policy.Facts {
	return policy.Facts{
		Resources: func() ([]string, bool, error) { return r.Resources, r.Known, nil },
		PodHolds:  func() ([]policy.Allotted, bool, error) { return r.Pod, r.PodClaims, nil },
	}
}

// reportPod sets what the kubelet reports of a pod: it lists no ordinary init containers, and what it does not name of
// the others is claimed. Only a node knows which devices it allots.
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

// add adds the pod that a mapping has the containers of. At the key spec it is that of a pod template.
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
		for _, element := range valueAt[[]any](spec, key) { // somebody's kind may have a list there
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
		pod.Notes = append(pod.Notes, "runtimeClassName: "+class+": its handler is assumed to have the same name")
	}
	for _, key := range slices.Sorted(maps.Keys(t.Metadata.Annotations)) {
		if injecting.MatchString(key) {
			pod.Notes = append(pod.Notes, "annotation "+key+": Spiderpool's webhook adds resources to the first container "+
				"when the pod is created: run explain on the manifest of the created pod (kubectl get pod -o yaml)")
		}
		if problem := keyProblem(key, names); problem != "" {
			pod.Problems = append(pod.Problems, join(p.path, "metadata.annotations")+": "+key+" "+problem)
		}
	}
	reportPod(pod.Containers)
	m.Pods = append(m.Pods, pod)
}

// container returns a container of the template; what its pod gives it is in decided.
func (t *template) container(c container, kind Kind, decided policy.Container) Container {
	if kind == KindInit && c.RestartPolicy == "Always" {
		kind = KindSidecar
	}
	decided.AllDevices = c.SecurityContext.Privileged
	memory := c.Resources.Limits["memory"]
	if memory.IsZero() { // the pod's, as kubelets have it
		memory = t.Spec.Resources.Limits["memory"]
	}
	decided.MemoryLimit = max(memory.Value(), 0)
	for _, v := range c.VolumeDevices {
		// only a node knows its number
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

// extended returns the names of the extended resources in limits, sorted; requests of them cannot differ. Those are the
// ones with a domain that is not Kubernetes' own, and those that name a DeviceClass.
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
