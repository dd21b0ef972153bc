// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rdma-spec/rdma-spec/spec/hca"
)

// QuestionContainers asks for the RDMA containers that run. The answer is a Containers.
const QuestionContainers Question = "containers.json"

// Containers are the RDMA containers of a node, as `rdma-spec status` sees them, and what their processes see.
type Containers struct {
	// Policy is what they are judged by; "" where no policy is in force, and nothing is known of what they should have.
	Policy     string      `json:"policy,omitempty"`
	Containers []Container `json:"containers"`
	Unknown    []string    `json:"unknown,omitempty"` // why there may be more
}

// Container is an RDMA container, or one that /dev/infiniband is mounted into.
type Container struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Name      string `json:"name"`
	RDMA      bool   `json:"rdma"` // a signal names it

	State    string   `json:"state"` // as in rdma-spec status: ok, below, refused, unknown
	Problems []string `json:"problems,omitempty"`
	Repair   string   `json:"repair,omitempty"`  // the command that raises its memlock
	Memlock  *Bytes   `json:"memlock,omitempty"` // the lowest of its processes
	Wanted   *Bytes   `json:"wanted,omitempty"`  // what the policy gives
	Lacks    bool     `json:"lacks,omitempty"`   // it holds no HCA, and the policy gives some

	User       int      `json:"user"`              // of its first process; -1 where it is unknown
	IPCLock    *bool    `json:"ipcLock,omitempty"` // it is effective in the first process
	AddsLock   bool     `json:"addsLock"`          // the pod or the runtime adds it to the container
	HostUsers  bool     `json:"hostUsers"`         // it is in the node's user namespace
	AllDevices bool     `json:"allDevices"`
	HCAs       []string `json:"hcas,omitempty"`     // those that it holds
	GIDIndex   *int     `json:"gidIndex,omitempty"` // NCCL_IB_GID_INDEX, where its spec sets it

	// What its first process sees. Seen is false where it could not be looked at.
	Seen       bool     `json:"seen"`
	OwnNetwork bool     `json:"ownNetwork"`          // it is not in the node's network namespace
	Links      []string `json:"links,omitempty"`     // the interfaces of its network namespace but lo
	HostPaths  []string `json:"hostPaths,omitempty"` // mounts of the node's /dev/infiniband, or of files in it
	SharedMem  *Bytes   `json:"sharedMem,omitempty"` // the size of its /dev/shm
	Silent     bool     `json:"silent,omitempty"`    // the files of its image did not answer in time
	LibVerbs   bool     `json:"libVerbs"`            // its image has libibverbs where distributions put it
	Providers  []string `json:"providers,omitempty"` // of libibverbs: mlx5, rxe
}

func (c Container) object() string {
	return fmt.Sprintf("container %s/%s %s", c.Namespace, c.Pod, c.Name)
}

// eachContainer looks at the RDMA containers one by one.
func eachContainer(look func(v *View, c Container, all Containers) []Finding) func(*View) []Finding {
	return func(v *View) []Finding {
		var answer Containers
		if err := v.Ask(QuestionContainers, &answer); err != nil {
			var runtimes Runtimes
			if v.Ask(QuestionRuntimes, &runtimes) == nil && len(runtimes.forPods()) == 0 {
				return notApplied("No container runtime that serves pods was found.")
			}
			return []Finding{unknown("", "The containers are unknown: "+err.Error()+".")}
		}
		var found []Finding
		for _, c := range answer.Containers {
			found = append(found, look(v, c, answer)...)
		}
		if len(answer.Containers) == 0 && len(answer.Unknown) == 0 {
			return notApplied("No RDMA container runs here.")
		}
		return found
	}
}

// judged looks at the RDMA containers where a policy says what they should have.
func judged(look func(c Container, policy string) []Finding) func(*View) []Finding {
	return func(v *View) []Finding {
		var answer Containers
		if err := v.Ask(QuestionContainers, &answer); err == nil && answer.Policy == "" && len(answer.Containers) > 0 {
			return []Finding{unknown("", "No policy is in force, so what containers should have is unknown.")}
		}
		return eachContainer(func(_ *View, c Container, all Containers) []Finding {
			if !c.RDMA {
				return nil
			}
			return look(c, all.Policy)
		})(v)
	}
}

// containerChecks are the checks of what containers have.
func containerChecks() []Check {
	asks := []Question{QuestionContainers, QuestionRuntimes}
	return []Check{
		{
			ID: "container-ipc-lock", Family: "containers", Title: "No container relies on an IPC_LOCK that its user does not have.",
			Messages: []string{"Couldn't allocate MR although the pod adds IPC_LOCK"},
			Why:      "The runtime gives the capability to root alone, and the memlock is too low.",
			Asks:     asks, Look: judged(containerIPCLock),
		},
		{
			ID: "container-memlock", Family: "containers", Title: "Each RDMA container has the memlock that the policy gives it.",
			Messages: []string{"Couldn't allocate MR", "Couldn't register MR", "Libfabric error: (-12) Cannot allocate memory"},
			Why:      "The container cannot register its memory.",
			Asks:     asks, Needs: []string{"container-ipc-lock"}, Look: judged(containerMemlock),
		},
		{
			ID: "container-refused", Family: "containers", Title: "The policy would create each RDMA container that runs.",
			Messages: []string{"may not opt in by annotation"},
			Why:      "The container is not created again when its pod restarts.",
			Asks:     asks, Look: judged(containerRefused),
		},
		{
			ID: "container-hca", Family: "containers", Title: "Each RDMA container holds the HCAs that the policy gives it.",
			Messages: []string{"No IB devices found"},
			Why:      "The container has no RDMA.",
			Asks:     asks, Look: judged(containerHCA),
		},
		{
			ID: "container-port", Family: "containers", Title: "No container holds an HCA whose ports are all down.",
			Messages: []string{"Port number 1 state is Down"},
			Why:      "Programs of the container have no connection.",
			Asks:     asks, Needs: []string{"port-active"}, Look: containerPort,
		},
	}
}

// containerIPCLock looks at containers that have the capability, and whose first process does not.
func containerIPCLock(c Container, _ string) []Finding {
	enough := c.Wanted == nil && !c.Memlock.low() || c.Wanted != nil && c.Memlock != nil && *c.Memlock >= *c.Wanted
	if !c.AddsLock || c.IPCLock == nil || *c.IPCLock || c.User <= 0 || !c.HostUsers || c.Memlock == nil || enough {
		return nil
	}
	text := fmt.Sprintf("It has CAP_IPC_LOCK, and its process, which runs as user %d, does not; its memlock is %s.", c.User, c.Memlock)
	return []Finding{wrong(c.object(), text, c.Repair)}
}

func containerMemlock(c Container, _ string) []Finding {
	switch {
	case c.State == "unknown":
		return []Finding{unknown(c.object(), sentence(c.Problems))}
	case c.State != "below" || c.Lacks && (c.Wanted == nil || c.Memlock != nil && *c.Memlock >= *c.Wanted):
		return nil
	}
	return []Finding{wrong(c.object(), sentence(c.Problems), c.Repair)}
}

// sentence makes a sentence of problems.
func sentence(problems []string) string {
	text := strings.TrimSuffix(strings.Join(problems, "; "), ".")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

func containerRefused(c Container, policy string) []Finding {
	if c.State != "refused" {
		return nil
	}
	cure := fmt.Sprintf("Change the pod or the policy (%s) as the message says", policy)
	return []Finding{wrong(c.object(), sentence(c.Problems), cure)}
}

func containerHCA(c Container, _ string) []Finding {
	if !c.Lacks {
		return nil
	}
	return []Finding{wrong(c.object(), sentence(c.Problems), fmt.Sprintf("kubectl -n %s delete pod %s", c.Namespace, c.Pod))}
}

// containerPort names the HCA and not its containers, so that what is wrong with its port explains it.
func containerPort(v *View) []Finding {
	holders, why := map[string][]string{}, map[string]string{}
	found := eachContainer(func(v *View, c Container, _ Containers) []Finding {
		if c.AllDevices {
			return nil // it holds what the node has
		}
		for _, h := range held(v, c) {
			if len(h.Ports) > 0 && !h.Active() {
				object := fmt.Sprintf("HCA %s port %d", h.Name, h.Ports[0].Number)
				holders[object], why[object] = append(holders[object], c.Namespace+"/"+c.Pod+" "+c.Name), h.Ports[0].State
			}
		}
		return nil
	})(v)
	for _, object := range slices.Sorted(maps.Keys(holders)) {
		text := fmt.Sprintf("The port is %s, and containers hold the HCA: %s.", why[object], strings.Join(holders[object], ", "))
		found = append(found, wrong(object, text, "Bring the port up, or give the pods another HCA: delete them when the device plugin no longer offers this one"))
	}
	return found
}

// held returns the HCAs of the node that a container holds. One that cannot be read is left out.
func held(v *View, c Container) (hcas []hca.HCA) {
	node, err := v.HCAs()
	if err != nil {
		return nil
	}
	for _, h := range node.HCAs {
		if h.Unread == "" && slices.Contains(c.HCAs, h.Name) {
			hcas = append(hcas, h)
		}
	}
	return hcas
}
