// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containerd runs a containerd of one's choice inside the node, and pods in it through CRI, as a kubelet would.
// It knows nothing of what is tested.
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
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rdma-spec/rdma-spec/test/node"
	"github.com/rdma-spec/rdma-spec/test/node/daemon"
)

const (
	// Socket is where containerd listens.
	Socket = "/run/containerd/containerd.sock"
	// NRISocket is where its NRI listens.
	NRISocket = "/run/nri/nri.sock"

	startTimeout = time.Minute
)

// Options say which containerd to run, and how.
type Options struct {
	Version string // 1.6, 1.7.35, 2.3.7 or 2.4.2
	Runtime string // runc or crun
	// NoNRI turns NRI off. containerd 1.6 has none of today's.
	NoNRI bool
	// Validator turns NRI's default validator on.
	Validator bool
	// Handlers are runtime handlers beside the default one, each with the path of its base_runtime_spec, "" for none.
	Handlers map[string]string
}

// Containerd is a running containerd.
type Containerd struct {
	Options
	process *daemon.Process
	conn    *grpc.ClientConn
	runtime cri.RuntimeServiceClient
	stored  containersapi.ContainersClient
}

// quickly has the client connect again as soon as containerd is back.
var quickly = grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond}}

//go:embed config-v2.toml.tmpl
var configV2 string

//go:embed config-v3.toml.tmpl
var configV3 string

// Start runs a containerd with the images pause and busybox. Its state is what an earlier one on this node has left.
func Start(ctx context.Context, o Options) (*Containerd, error) {
	parts, err := node.Parts()
	if err != nil {
		return nil, err
	}
	if err := writeConfig(parts, o); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+Socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quickly))
	if err != nil {
		return nil, err
	}
	c := &Containerd{Options: o, conn: conn, runtime: cri.NewRuntimeServiceClient(conn), stored: containersapi.NewContainersClient(conn)}
	if err := c.start(ctx, parts); err != nil {
		return nil, err
	}
	for _, image := range []string{"pause", "busybox"} {
		ctr := filepath.Join(parts.Containerd(o.Version), "ctr")
		out, err := exec.CommandContext(ctx, ctr, "-n", "k8s.io", "images", "import", parts.Image(image)).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("cannot import image %s: %w: %s", image, err, out)
		}
	}
	return c, nil
}

func writeConfig(parts node.PartSet, o Options) error {
	text := configV3
	if strings.HasPrefix(o.Version, "1.") {
		text = configV2
	}
	var out bytes.Buffer
	err := template.Must(template.New("config").Parse(text)).Execute(&out, map[string]any{
		"Options": o, "Runtime": parts.Runtime(o.Runtime), "Pause": node.ImageName("pause"),
		"NRI": !o.NoNRI && o.Version != "1.6", "NRISocket": NRISocket, "Socket": Socket,
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll("/etc/containerd", 0o755); err != nil {
		return err
	}
	return os.WriteFile("/etc/containerd/config.toml", out.Bytes(), 0o644)
}

func (c *Containerd) start(ctx context.Context, parts node.PartSet) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	folder := parts.Containerd(c.Version)
	var err error
	c.process, err = daemon.Start([]string{"PATH=" + folder + ":" + os.Getenv("PATH")}, filepath.Join(folder, "containerd"))
	if err != nil {
		return err
	}
	return c.process.Await(ctx, "answers CRI", func() bool {
		_, err := c.runtime.Version(ctx, &cri.VersionRequest{})
		return err == nil
	})
}

// Stop ends containerd. Its containers go on.
func (c *Containerd) Stop() {
	_ = c.conn.Close() // nothing is lost with it
	c.process.Stop()
}

// Restart stops containerd and starts it again. Calls that are under way fail; others go to the new one.
func (c *Containerd) Restart(ctx context.Context) error {
	c.process.Stop()
	parts, err := node.Parts()
	if err != nil {
		return err
	}
	return c.start(ctx, parts)
}

// Log gives what containerd has said since it was started.
func (c *Containerd) Log() string { return c.process.Log() }

// CRI gives a client of containerd's CRI.
func (c *Containerd) CRI() cri.RuntimeServiceClient { return c.runtime }

// Stored gives a container as containerd stores it: its spec, labels and times.
func (c *Containerd) Stored(ctx context.Context, id string) (*containersapi.Container, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	answer, err := c.stored.Get(ctx, &containersapi.GetContainerRequest{ID: id})
	return answer.GetContainer(), err
}
