// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containerd runs one of several versions of containerd on the node, and runs pods in it. It does not know what
// is tested.
package containerd

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/grpc/metadata"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/pods"
)

const (
	// Socket is the path of containerd's socket.
	Socket = "/run/containerd/containerd.sock"
	// NRISocket is the path of its NRI socket.
	NRISocket = "/run/nri/nri.sock"
)

// Options select the containerd to run, and how.
type Options struct {
	Version string // 1.6, 1.7.35, 2.2.9, 2.3.7, or 2.4.2
	Runtime string // runc or crun
	// NoNRI turns NRI off. containerd 1.6 supports no current version of NRI.
	NoNRI bool
	// Validator turns NRI's default validator on.
	Validator bool
	// RegistrationTimeout is how long NRI waits for a plugin that it launches, such as 1m; "" is containerd's default, 5s.
	RegistrationTimeout string
	// RequestTimeout is how long NRI waits for a plugin's answer, such as 1m; "" is containerd's default, 2s.
	RequestTimeout string
	// Network gives each pod that is not in the node's network its own network, behind a bridge.
	Network bool
	// Bounded removes CAP_SYS_RESOURCE from containerd's bounding set, as a hardened unit does.
	Bounded bool
	// Metrics is the address at which containerd 2 serves its metrics; "" means that it does not serve them.
	Metrics string
	// Handlers are additional runtime handlers, with the path of each one's base_runtime_spec; "" means no base spec.
	Handlers map[string]string
}

// Containerd is a running containerd.
type Containerd struct {
	Options
	*pods.Server
	ctr    string // the command line of ctr
	stored containersapi.ContainersClient
}

// Short names for the types of package pods.
type (
	// Pod is a pods.Pod.
	Pod = pods.Pod
	// Container is a pods.Container.
	Container = pods.Container
	// Mount is a pods.Mount.
	Mount = pods.Mount
	// Device is a pods.Device.
	Device = pods.Device
	// Sandbox is a pods.Sandbox.
	Sandbox = pods.Sandbox
	// Result is a pods.Result.
	Result = pods.Result
)

// Verbs returns the devices that an RDMA device plugin gives a container for an HCA, without umad and issm.
func Verbs(number int) []Device { return pods.Verbs(number) }

//go:embed config-v2.toml.tmpl
var configV2 string

//go:embed config-v3.toml.tmpl
var configV3 string

// Start runs containerd with the images pause and busybox. It keeps the state that an earlier containerd left on this
// node.
func Start(ctx context.Context, o Options) (*Containerd, error) {
	parts, err := node.Parts()
	if err != nil {
		return nil, err
	}
	if err := writeConfig(parts, o); err != nil {
		return nil, err
	}
	dir := parts.Containerd(o.Version)
	command := []string{filepath.Join(dir, "containerd")}
	if o.Bounded {
		command = append([]string{"setpriv", "--bounding-set=-sys_resource"}, command...)
	}
	server, err := pods.Serve(ctx, Socket, []string{"PATH=" + dir + ":" + os.Getenv("PATH")}, command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	c := &Containerd{Options: o, Server: server, ctr: filepath.Join(dir, "ctr"),
		stored: containersapi.NewContainersClient(server.Conn())}
	for _, image := range []string{"pause", "busybox"} {
		if err := c.Import(ctx, parts.Image(image)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Import imports an image for pods from a docker-archive.
func (c *Containerd) Import(ctx context.Context, image string) error {
	out, err := exec.CommandContext(ctx, c.ctr, "-n", "k8s.io", "images", "import", image).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot import image %s: %w: %s", image, err, out)
	}
	return nil
}

func writeConfig(parts node.PartSet, o Options) error {
	text := configV3
	if strings.HasPrefix(o.Version, "1.") {
		text = configV2
	}
	var out bytes.Buffer
	err := template.Must(template.New("config").Parse(text)).Execute(&out, map[string]any{
		"Options": o, "Runtime": parts.Runtime(o.Runtime), "Pause": node.ImageName("pause"),
		"NRI": !o.NoNRI && o.Version != "1.6", "NRISocket": NRISocket, "Socket": Socket, "CNI": parts.CNI(),
	})
	if err != nil {
		return err
	}
	if err := writeNetwork(o.Network); err != nil {
		return err
	}
	if err := os.MkdirAll("/etc/containerd", 0o755); err != nil {
		return err
	}
	return os.WriteFile("/etc/containerd/config.toml", out.Bytes(), 0o644)
}

// Network is the path of the CNI configuration for Options.Network.
const Network = "/etc/cni/net.d/10-node.conflist"

//go:embed network.conflist
var bridge []byte

func writeNetwork(wanted bool) error {
	if !wanted {
		return os.RemoveAll(Network)
	}
	if err := os.MkdirAll(filepath.Dir(Network), 0o755); err != nil {
		return err
	}
	return os.WriteFile(Network, bridge, 0o644)
}

// Stored returns a container as containerd stores it, with its spec, labels, and times.
func (c *Containerd) Stored(ctx context.Context, id string) (*containersapi.Container, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	answer, err := c.stored.Get(ctx, &containersapi.GetContainerRequest{ID: id})
	return answer.GetContainer(), err
}
