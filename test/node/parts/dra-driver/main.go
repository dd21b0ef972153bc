// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Program dra-driver is a DRA driver for the node's HCAs. Like other drivers, it uses Kubernetes' helper library for
// the kubelet's side, and NRI's stub. It injects a claim's devices into containers with CDI or, like dranet, with an
// NRI plugin that has index 00. It does not know nri-rdma. It is a separate module, because no other program needs
// Kubernetes' helper library.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// cdiDir is the directory in which the driver writes a file for each claim.
const cdiDir = "/var/run/cdi"

var (
	name       = flag.String("name", "cdi.dra.rdma-node.test", "the driver's name; its device classes are the test's")
	node       = flag.String("node", "", "the node's name in the cluster")
	kubeconfig = flag.String("kubeconfig", "", "how the API server is reached")
	byNRI      = flag.Bool("nri", false, "give devices by NRI, at index 00, and not by CDI")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(kubeletplugin.KubeletPluginsDir, *name)
	if err := errors.Join(os.MkdirAll(data, 0o755), os.MkdirAll(cdiDir, 0o755)); err != nil {
		return err
	}
	d := &driver{ofPod: map[types.UID]map[types.UID][]string{}}
	if *byNRI {
		plugin, err := stub.New(d, stub.WithPluginName("dra"), stub.WithPluginIdx("00"))
		if err != nil {
			return err
		}
		if err := plugin.Start(ctx); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(*name), kubeletplugin.NodeName(*node),
		kubeletplugin.KubeClient(client))
	if err != nil {
		return err
	}
	var devices []resource.Device
	for _, hca := range hcas() {
		devices = append(devices, resource.Device{Name: hca,
			Attributes: map[resource.QualifiedName]resource.DeviceAttribute{"hca": {StringValue: &hca}}})
	}
	err = helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		*node: {Slices: []resourceslice.Slice{{Devices: devices}}}}})
	if err != nil {
		return err
	}
	log.Printf("msg=published %d HCAs", len(devices))
	<-ctx.Done()
	return nil
}

// hcas returns the names of the node's HCAs.
func hcas() (names []string) {
	dirs, _ := filepath.Glob("/sys/class/infiniband/*") // the pattern is valid
	for _, dir := range dirs {
		names = append(names, filepath.Base(dir))
	}
	return names
}

// devices returns the paths of an HCA's verbs device and of rdma_cm.
func devices(hca string) ([]string, error) {
	found, _ := filepath.Glob("/sys/class/infiniband_verbs/uverbs*/ibdev")
	for _, file := range found {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == hca {
			return []string{"/dev/infiniband/" + filepath.Base(filepath.Dir(file)), "/dev/infiniband/rdma_cm"}, nil
		}
	}
	return nil, fmt.Errorf("the HCA %s has no verbs device", hca)
}

// driver is the kubelet's plugin and, with --nri, also the runtime's.
type driver struct {
	mu    sync.Mutex
	ofPod map[types.UID]map[types.UID][]string // the device paths of each pod's claims, by pod and claim
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *driver) PrepareResourceClaims(_ context.Context,
	claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
	}
	return results, nil
}

func (d *driver) prepare(claim *resource.ResourceClaim) (result kubeletplugin.PrepareResult) {
	for _, allotted := range claim.Status.Allocation.Devices.Results {
		if allotted.Driver != *name {
			continue
		}
		paths, err := devices(allotted.Device)
		if err != nil {
			return kubeletplugin.PrepareResult{Err: err}
		}
		device := kubeletplugin.Device{Requests: []string{allotted.Request}, PoolName: allotted.Pool,
			DeviceName: allotted.Device}
		if *byNRI {
			d.remember(claim, paths)
		} else {
			id := fmt.Sprintf("%s-%s", claim.UID, allotted.Device)
			device.CDIDeviceIDs = []string{*name + "/hca=" + id}
			if err := writeCDI(id, paths); err != nil {
				return kubeletplugin.PrepareResult{Err: err}
			}
		}
		result.Devices = append(result.Devices, device)
	}
	return result
}

func (d *driver) remember(claim *resource.ResourceClaim, paths []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, consumer := range claim.Status.ReservedFor {
		if d.ofPod[consumer.UID] == nil {
			d.ofPod[consumer.UID] = map[types.UID][]string{}
		}
		d.ofPod[consumer.UID][claim.UID] = paths
	}
}

// writeCDI writes the CDI file of one device.
func writeCDI(id string, paths []string) error {
	var nodes []map[string]string
	for _, path := range paths {
		nodes = append(nodes, map[string]string{"path": path})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": *name + "/hca", "devices": []any{
		map[string]any{"name": id, "containerEdits": map[string]any{"deviceNodes": nodes}}}})
	if err != nil {
		return err
	}
	file := filepath.Join(cdiDir, *name+"-"+id+".json")
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *driver) UnprepareResourceClaims(_ context.Context,
	claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := map[types.UID]error{}
	for _, claim := range claims {
		files, _ := filepath.Glob(filepath.Join(cdiDir, fmt.Sprintf("%s-%s-*", *name, claim.UID)))
		results[claim.UID] = nil
		for _, file := range files {
			results[claim.UID] = errors.Join(results[claim.UID], os.Remove(file))
		}
		for _, claims := range d.ofPod {
			delete(claims, claim.UID)
		}
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *driver) HandleError(_ context.Context, err error, msg string) {
	log.Printf("%s: %v", msg, err)
}

// CreateContainer injects the devices of the pod's claims into a container.
func (d *driver) CreateContainer(_ context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	adjustment := &api.ContainerAdjustment{}
	for _, paths := range d.ofPod[types.UID(pod.GetUid())] {
		for _, path := range paths {
			var is unix.Stat_t
			if err := unix.Stat(path, &is); err != nil {
				return nil, nil, err
			}
			adjustment.AddDevice(&api.LinuxDevice{Path: path, Type: "c", Major: int64(unix.Major(is.Rdev)),
				Minor: int64(unix.Minor(is.Rdev)), FileMode: api.FileMode(0o666)})
		}
		log.Printf("msg=gave container=%s pod=%s", ctr.GetName(), pod.GetName())
	}
	return adjustment, nil, nil
}
