// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rdma-spec/rdma-spec/cmd/rdma-spec/internal/node/process"
	"github.com/rdma-spec/rdma-spec/plugin/localrpc"
	"github.com/rdma-spec/rdma-spec/plugin/policy/resource"
	"github.com/rdma-spec/rdma-spec/spec/files"
)

// kubelets lists the names of processes that are or contain a kubelet.
var kubelets = []string{"kubelet", "kubelite", "k3s-server", "k3s-agent"}

// ReadKubelet reads the state of the kubelet on the node under a root.
func ReadKubelet(ctx context.Context, root string) (Kubelet, error) {
	var answer Kubelet
	for _, p := range process.ReadTable(root).Called(kubelets...) {
		if p.OnNode || inContainer(root, p) {
			answer.PID = p.PID
			answer.Unit = p.Unit(root)
			answer.Root = cmp.Or(p.Flag("--root-dir"), "/var/lib/kubelet")
			break
		}
	}
	if answer.PID == 0 {
		return answer, nil
	}
	dir := files.Below(root, answer.Root)
	socket := filepath.Join(dir, "pod-resources/kubelet.sock")
	answer.DevicePlugins = isSocket(filepath.Join(dir, "device-plugins/kubelet.sock"))
	_, err := os.Stat(filepath.Join(dir, "device-plugins"))
	answer.NotMounted = errors.Is(err, fs.ErrNotExist)
	if answer.NotMounted { // in a container, the socket is mounted at the usual path
		socket = files.Below(root, "var/lib/kubelet/pod-resources/kubelet.sock")
	}
	answer.PodResources = isSocket(socket)
	if answer.PodResources {
		if err := allocatable(ctx, socket, &answer); err != nil {
			answer.Error = localrpc.Reason(err)
			answer.Late = status.Code(err) == codes.DeadlineExceeded || ctx.Err() != nil
		}
	}
	remembered(filepath.Join(dir, "device-plugins/kubelet_internal_checkpoint"), &answer)
	return answer, nil
}

// inContainer reports whether a kubelet that runs in a container, as on Talos, is the node's kubelet. The node's
// kubelet uses the node's directory.
func inContainer(root string, p process.Process) bool {
	const dir = "var/lib/kubelet"
	its, err := os.Stat(p.File(root, "root/"+dir))
	nodes, failed := os.Stat(files.Below(root, dir))
	return err == nil && failed == nil && os.SameFile(its, nodes)
}

func isSocket(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().Type() == os.ModeSocket
}

// allocatable queries the kubelet for its allocatable devices, and for the RDMA resources of each container.
func allocatable(ctx context.Context, socket string, answer *Kubelet) error {
	conn, err := localrpc.NewClient(localrpc.Dialer(socket))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // an error loses no data
	api := podresources.NewPodResourcesListerClient(conn)
	all, err := api.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return err
	}
	answer.Allocatable = map[string]int{}
	for _, d := range all.GetDevices() {
		answer.Allocatable[d.GetResourceName()] += len(d.GetDeviceIds())
	}
	held, err := api.List(ctx, &podresources.ListPodResourcesRequest{})
	answer.Given = map[string][]string{}
	for _, p := range held.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				name := p.GetNamespace() + "/" + p.GetName() + "/" + c.GetName()
				for _, id := range d.GetDeviceIds() {
					if pciForm.MatchString(id) {
						if answer.Functions == nil {
							answer.Functions = map[string][]Function{}
						}
						answer.Functions[name] = append(answer.Functions[name], Function{d.GetResourceName(), id})
					}
				}
				if of := d.GetResourceName(); resource.IsRDMA(of) && !slices.Contains(answer.Given[name], of) {
					answer.Given[name] = append(answer.Given[name], of)
				}
			}
		}
	}
	return err
}

// pciForm matches device IDs of a device plugin that allocates PCI functions.
var pciForm = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// remembered adds the resources in the kubelet's checkpoint that have no devices now.
func remembered(file string, answer *Kubelet) {
	if answer.Allocatable == nil {
		return // the current resources are unknown
	}
	var checkpoint struct {
		Data struct {
			RegisteredDevices map[string][]string
			PodDeviceEntries  []struct{ ResourceName string }
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(text, &checkpoint) != nil {
		return // before the first device plugin, no checkpoint exists
	}
	for name := range checkpoint.Data.RegisteredDevices {
		answer.Allocatable[name] += 0
	}
	for _, entry := range checkpoint.Data.PodDeviceEntries {
		answer.Allocatable[entry.ResourceName] += 0
	}
}
