// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Command peers replaces one of two plugins from github.com/containerd/nri/plugins that administrators combine for
// RDMA: ulimit-adjuster sets the rlimits, and device-injector injects the devices, that a pod's annotation lists as
// YAML. The original modules are not available from the Go module proxy. The logs are the same as the originals' by
// default: device-injector logs a line for each device, and ulimit-adjuster logs nothing.
package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

type (
	ulimitAdjuster struct{ log *logrus.Entry }
	deviceInjector struct{ key string }
)

func main() {
	socket := pflag.String("socket", api.DefaultSocketPath, "the runtime's NRI socket")
	name := pflag.String("name", "", "ulimit-adjuster or device-injector")
	key := pflag.String("devices-annotation", "devices.noderesource.dev",
		"the `KEY` that device-injector reads, as KEY/container.NAME; GKE's reads devices.gke.io")
	pflag.Parse()
	logrus.SetFormatter(&logrus.TextFormatter{PadLevelText: true})
	plugins := map[string]any{
		"ulimit-adjuster": &ulimitAdjuster{log: logrus.WithField("name", *name)},
		"device-injector": deviceInjector{key: *key},
	}
	index := map[string]string{"ulimit-adjuster": "10", "device-injector": "20"}
	s, err := stub.New(plugins[*name], stub.WithPluginName(*name), stub.WithPluginIdx(index[*name]),
		stub.WithSocketPath(*socket))
	if err != nil {
		logrus.Fatal(err)
	}
	if err := s.Run(context.Background()); err != nil {
		logrus.Fatal(err)
	}
}

// CreateContainer sets the rlimits that the annotation for the container lists.
func (p *ulimitAdjuster) CreateContainer(_ context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) { //nolint:unparam // as the stub wants it
	p.log = p.log.WithField("pod", pod.GetName()).WithField("container", ctr.GetName())
	p.log.Debug("create container")
	var ulimits []struct {
		Type       string
		Hard, Soft uint64
	}
	text := pod.GetAnnotations()["ulimits.noderesource.dev/container."+ctr.GetName()]
	if err := yaml.Unmarshal([]byte(text), &ulimits); err != nil {
		return nil, nil, err
	}
	adjustment := &api.ContainerAdjustment{}
	for _, u := range ulimits {
		if u.Hard < u.Soft {
			return nil, nil, fmt.Errorf("%s: the hard limit is below the soft one", u.Type)
		}
		p.log.WithField("type", u.Type).WithField("hard", u.Hard).WithField("soft", u.Soft).Debug("adjust rlimit")
		adjustment.AddRlimit("RLIMIT_"+strings.TrimPrefix(strings.ToUpper(u.Type), "RLIMIT_"), u.Hard, u.Soft)
	}
	return adjustment, nil, nil
}

// CreateContainer returns the devices that the annotation lists. If the annotation contains only a device's path,
// CreateContainer reads the device's type and numbers on the node, like GKE's injector.
func (p deviceInjector) CreateContainer(_ context.Context, pod *api.PodSandbox,
	ctr *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) { //nolint:unparam // as the stub wants it
	var devices []struct {
		Path, Type   string
		Major, Minor int64
		FileMode     uint32 `json:"file_mode"`
	}
	of := pod.GetName() + "/" + ctr.GetName()
	annotation := pod.GetAnnotations()[p.key+"/container."+ctr.GetName()]
	if err := yaml.Unmarshal([]byte(annotation), &devices); err != nil {
		return nil, nil, err
	}
	adjustment := &api.ContainerAdjustment{}
	for _, d := range devices {
		if d.Type == "" {
			found, err := deviceAt(d.Path)
			if err != nil {
				return nil, nil, err
			}
			adjustment.AddDevice(found)
			continue
		}
		adjustment.AddDevice(&api.LinuxDevice{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor,
			FileMode: api.FileMode(d.FileMode)})
		logrus.Infof("%s: injected device %q...", of, d.Path)
	}
	logrus.Infof("%s: no mounts annotated...", of)
	return adjustment, nil, nil
}

// deviceAt returns the character device at a path of the node.
func deviceAt(path string) (*api.LinuxDevice, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil, fmt.Errorf("%s is not a character device", path)
	}
	return &api.LinuxDevice{Path: path, Type: "c",
		Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev))}, nil
}
